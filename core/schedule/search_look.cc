#include "core/schedule/search_look.h"

#include <algorithm>
#include <set>

#include "core/base/status.h"
#include "core/job/graph.h"
#include "core/job/job_reader.h"
#include "core/plan/cost.h"
#include "core/schedule/admission.h"
#include "core/schedule/search_setting.h"

namespace phalanx::schedule {
namespace {

using job::Recompute;
using job::ScheduleName;

// Of one replica.
constexpr int64_t kMicroMax = 64;

// Those that the layout can have.
std::vector<job::Schedule> SchedulesOf(const job::JobSpec& spec, const SearchLayout& layout,
                                       const SearchOptions& options) {
  if (options.keep_written && spec.schedule.name != ScheduleName::kAuto) return {spec.schedule};
  const auto language = static_cast<size_t>(spec.language);
  std::vector<job::Schedule> schedules = {{.name = ScheduleName::k1F1B}};
  const bool one_stage = layout.sizes.size() == 1 &&
                         std::all_of(layout.degrees.begin(), layout.degrees.end(),
                                     [](const Degrees& degrees) { return degrees.pp == 1; });
  if (one_stage) return schedules;  // no rank ever waits for another's pass
  schedules.push_back({.name = ScheduleName::kZeroBubbleH1});
  const int32_t pp = layout.degrees[language].pp;
  if (pp == 1) return schedules;
  if (spec.modules[language].architecture.layers >= 2 * pp) {
    schedules.push_back({.name = ScheduleName::kInterleaved, .chunks = 2});
    schedules.push_back({.name = ScheduleName::kZeroBubbleV, .chunks = 2});
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (i == language || layout.span_of[i] != layout.span_of[language]) continue;
    if (job::ReachedFrom(spec, static_cast<int32_t>(i)).count(spec.language) == 0) continue;
    for (const int32_t chunks : {1, 4})
      schedules.push_back({.name = ScheduleName::kThreePhase, .encoder_chunks = chunks});
    break;
  }
  return schedules;
}

std::vector<int64_t> MicrosOf(const job::JobSpec& spec, const SearchLayout& layout,
                              const SearchOptions& options) {
  const int64_t lanes = layout.degrees[static_cast<size_t>(spec.language)].dp;
  const int64_t samples = (spec.batch.global + lanes - 1) / lanes;
  int64_t most = std::min(samples, kMicroMax);
  if (options.keep_written) most = std::min(most, spec.batch.micro);
  std::set<int64_t> micros = {most};
  for (int64_t micro = 1; micro < most; micro *= 2) micros.insert(micro);
  return {micros.begin(), micros.end()};
}

Survived SurvivedOf(const Losses& losses) {
  if (losses.costly.empty()) return Survived::kAny;
  return losses.costly.size() < losses.looked_at.size() ? Survived::kSome : Survived::kNone;
}

void PutLeastFirst(std::vector<std::pair<double, Setting>>* ways) {
  std::stable_sort(ways->begin(), ways->end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace

LayoutLook::LayoutLook(const job::JobSpec& spec, const SearchSpace& space,
                       const SearchOptions& options, const plan::Cluster& cluster)
    : spec_(spec),
      space_(space),
      options_(options),
      cluster_(cluster),
      bounds_(spec, space, options.profile, options.items),
      plans_(cluster, options.device_memory, BesideOf(options.profile)) {
  CountParameters();
}

// Elements of each module's matrices, of which a rank has its part.
void LayoutLook::CountParameters() {
  for (const job::Module& module : spec_.modules) {
    const job::Architecture& a = module.architecture;
    // A product has 2 FLOPs a row and parameter, and attention has none where nothing attends.
    double count = plan::LayerCost(module, 0.5, 0).forward * a.layers;
    if (job::TraitsOf(a).vocabulary()) {
      const double table = static_cast<double>(a.hidden_size * a.vocabulary);
      count += a.tied_head ? table : 2 * table;
    }
    parameters_.push_back(count);
  }
}

double LayoutLook::MemoryBoundOf(const SearchLayout& layout) const {
  std::vector<double> spans(layout.sizes.size(), 0);
  const auto bytes = static_cast<double>(plan::BytesOf(spec_.compute));
  const double wide = std::max(4.0, bytes);
  const auto state = static_cast<double>(plan::PrimaryStateBytes(spec_.compute));
  for (size_t i = 0; i < spec_.modules.size(); ++i) {
    const Degrees& degrees = layout.degrees[i];
    const int32_t cp = space_.open[i] ? 1 : spec_.modules[i].parallel.cp;
    const double trained = spec_.modules[i].frozen ? 0 : wide + state / (degrees.dp * cp);
    spans[static_cast<size_t>(layout.span_of[i])] +=
        parameters_[i] / (degrees.tp * degrees.pp) * (bytes + trained);
  }
  return *std::max_element(spans.begin(), spans.end()) +
         static_cast<double>(options_.profile.unestimated_bytes);
}

double LayoutLook::BoundOf(const SearchLayout& layout) {
  double bound = kAnyStep;
  for (const int64_t micro : MicrosOf(spec_, layout, options_))
    bound = std::min(bound, bounds_.OfLayout(layout, micro));
  return bound;
}

std::vector<std::pair<Recompute, Recompute>> LayoutLook::Recomputations() const {
  constexpr Recompute kAll[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::vector<std::pair<Recompute, Recompute>> all;
  for (const Recompute language : kAll) {
    for (const Recompute others : kAll) {
      if (spec_.modules.size() == 1 && others != language) continue;
      all.emplace_back(language, others);
    }
  }
  return all;
}

std::vector<LayoutLook::Way> LayoutLook::WaysOf(const SearchLayout& layout, Setting setting) {
  std::vector<Way> ways;
  for (const auto& [language, others] : Recomputations()) {
    setting.language = language;
    setting.others = others;
    ways.emplace_back(bounds_.OfSetting(layout, setting), setting);
  }
  PutLeastFirst(&ways);
  return ways;
}

std::vector<LayoutLook::Way> LayoutLook::SettingsOf(const SearchLayout& layout) {
  std::vector<Way> settings;
  for (const job::Schedule& schedule : SchedulesOf(spec_, layout, options_)) {
    for (const int64_t micro : MicrosOf(spec_, layout, options_)) {
      const Setting setting{.micro = micro, .schedule = schedule};
      if (!HasMicrobatches(layout, schedule, micro)) continue;
      settings.emplace_back(bounds_.OfSetting(layout, setting), setting);
    }
  }
  PutLeastFirst(&settings);
  return settings;
}

absl::StatusOr<std::optional<Found>> LayoutLook::FoundOf(plan::Plan plan, size_t index, Care care,
                                                         double most) {
  const int64_t memory = care == Care::kWhole ? plans_.WholeMemoryOf(plan) : plans_.MemoryOf(plan);
  job::JobSpec spec = plan.spec;  // as a proposal has it
  if (options_.keep_written) spec.resources.devices = spec_.resources.devices;
  ASSIGN_OR_RETURN(Measured measured, MeasureWithin(most, care, std::move(plan), options_.profile,
                                                    options_.items, updates_));
  std::optional<Proposal>& proposal = measured.proposal;
  if (!proposal.has_value()) {
    slow_ = std::min(slow_, measured.least);
    return std::nullopt;
  }
  proposal->memory = memory;
  proposal->spec = std::move(spec);
  return Found{*std::move(proposal), index};
}

absl::StatusOr<std::optional<Found>> LayoutLook::Admit(const Found& written,
                                                       const plan::MemoryLimits& limits,
                                                       double most) {
  job::JobSpec spec = written.proposal.spec;
  spec.resources.devices = std::max(spec.resources.devices, spec.World());
  ASSIGN_OR_RETURN(Admitted admitted,
                   AdmitWithoutRisks(spec, cluster_, limits, Epoch{1}, plans_.beside(), sizes_));
  plans_.Forget();
  ASSIGN_OR_RETURN(std::optional<Found> found,
                   FoundOf(std::move(admitted.plan), written.index, Care::kWhole,
                           options_.use_bounds ? most / kRounding : kAnyStep));
  if (found.has_value()) found->proposal.survives = SurvivedOf(admitted.losses);
  return found;
}

absl::StatusOr<std::optional<Found>> LayoutLook::BestWay(const SearchLayout& layout,
                                                         const Setting& setting, size_t index,
                                                         absl::FunctionRef<absl::Status()> go_on) {
  // Where something of the layout did not fit, most of the others do not either.
  bool some_fits = plans_.some_misfit();
  if (some_fits && !plans_.LeastFits(setting)) return std::nullopt;
  for (const auto& [bound, way] : WaysOf(layout, setting)) {
    if (TooSlow(bound)) return std::nullopt;
    if (plans_.KeepsMirrors(way)) return std::nullopt;
    RETURN_IF_ERROR(go_on());
    if (!plans_.Fits(way)) {
      if (!some_fits && !plans_.LeastFits(setting)) return std::nullopt;
      some_fits = true;
      continue;
    }
    if (!is_sound_.has_value()) is_sound_ = IsSound(layout, plans_.laid());
    if (!*is_sound_) return std::nullopt;
    ASSIGN_OR_RETURN(std::optional<Found> one,
                     FoundOf(*plans_.Under(way), index, Care::kGlance, MostOfUse() / kRounding));
    looked_.simulated += one.has_value() ? 1 : 0;
    const bool better =
        one.has_value() && (!looked_.found.has_value() || one->Key() < looked_.found->Key());
    if (!better) return std::nullopt;
    if (!plans_.FitsWithAll(way)) continue;
    return one;
  }
  return std::nullopt;
}

bool LayoutLook::HasMicrobatches(const SearchLayout& layout, const job::Schedule& schedule,
                                 int64_t micro) const {
  return schedule.encoder_chunks <= MicrobatchesOf(spec_, layout, micro);
}

bool LayoutLook::IsSound(const SearchLayout& layout, const job::JobSpec& laid) {
  Setting setting{.schedule = SchedulesOf(spec_, layout, options_).front()};
  for (const int64_t micro : MicrosOf(spec_, layout, options_)) {
    if (HasMicrobatches(layout, setting.schedule, micro)) setting.micro = micro;
  }
  const job::JobSpec job = WithSetting(laid, setting);
  const absl::Status status =
      job::ReadJobSpec(job::WriteJobSpec(job), job::Purpose::kPlan).status();
  looked_.unsound.Update(status);
  return status.ok();
}

absl::Status LayoutLook::LookUnder(const std::vector<Way>& settings, const SearchLayout& layout,
                                   size_t index, absl::FunctionRef<absl::Status()> go_on) {
  for (const auto& [bound, setting] : settings) {
    if (TooSlow(bound)) break;
    ASSIGN_OR_RETURN(std::optional<Found> one, BestWay(layout, setting, index, go_on));
    if (one.has_value()) looked_.found = std::move(one);
    if (is_sound_ == false) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Looked> LayoutLook::Look(const SearchLayout& layout, size_t index, double threshold,
                                        absl::FunctionRef<absl::Status()> go_on) {
  if (const double bound = options_.device_memory > 0 ? MemoryBoundOf(layout) : 0;
      bound > static_cast<double>(options_.device_memory))
    return Looked{.too_large = bound};
  threshold_ = threshold;
  slow_ = kAnyStep;
  looked_ = {};
  const std::vector<Way> settings = SettingsOf(layout);
  if (settings.empty()) return Looked{};
  if (TooSlow(settings.front().first)) return Looked{.slow = slow_};
  const job::JobSpec laid = WithLayout(spec_, space_, layout);
  is_sound_ = std::nullopt;
  plans_.Begin(laid);
  RETURN_IF_ERROR(LookUnder(settings, layout, index, go_on));
  // A setting under which mirrors do not fit may be faster than those under which they do.
  // Admission moves homes where microbatches cannot be smaller; where a loss leaves no room it may
  // lower more, so both are admitted.
  const double mirrored_slow = looked_.found.has_value() ? kAnyStep : slow_;
  if (is_sound_ != false && plans_.MoveHomes()) {
    const std::optional<Found> mirrored = looked_.found;
    std::vector<Way> smallest;
    for (const Way& way : settings) {
      if (way.second.micro == 1) smallest.push_back(way);
    }
    RETURN_IF_ERROR(LookUnder(smallest, layout, index, go_on));
    if (mirrored.has_value() && looked_.found->Key() < mirrored->Key()) looked_.mirrored = mirrored;
  }
  if (is_sound_ == false) {
    looked_.found.reset();
  } else if (looked_.found.has_value()) {
    looked_.slow = mirrored_slow;  // that may be admitted faster
  } else {
    looked_.slow = slow_;
    // What could not be submitted anyway is not too large.
    if (slow_ == kAnyStep && IsSound(layout, laid) && plans_.some_misfit())
      looked_.too_large = plans_.least_memory();
  }
  looked_.unplanned = plans_.unsound();
  return std::exchange(looked_, {});
}

double LayoutLook::MostOfUse() const {
  if (!options_.use_bounds) return kAnyStep;
  const double of_layout = looked_.found.has_value() ? looked_.found->proposal.step : kAnyStep;
  return std::min(threshold_, of_layout);
}

bool LayoutLook::TooSlow(double bound) {
  if (!options_.use_bounds || bound * kRounding <= MostOfUse()) return false;
  slow_ = std::min(slow_, bound);
  return true;
}

}  // namespace phalanx::schedule

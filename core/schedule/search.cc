#include "core/schedule/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/graph.h"
#include "core/job/job_reader.h"
#include "core/plan/cost.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/admission.h"
#include "core/schedule/search_bound.h"
#include "core/schedule/search_plans.h"
#include "core/schedule/search_setting.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {
namespace {

using job::Recompute;
using job::ScheduleName;

// Of one replica.
constexpr int64_t kMicroMax = 64;
// A bound is a sum in another order than the step's.
constexpr double kRounding = 1 - 1e-9;
constexpr double kAnyStep = std::numeric_limits<double>::infinity();

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

// What the job may not be searched for.
absl::Status CheckOptions(const job::JobSpec& spec, const SearchOptions& options) {
  std::vector<Violation> violations;
  if (spec.modules.size() > static_cast<size_t>(kSearchModulesMax)) {
    violations.push_back({.field = "spec.modules",
                          .value = absl::StrCat(spec.modules.size()),
                          .rule = absl::StrCat("a search takes at most ", kSearchModulesMax)});
  }
  if (options.devices < 1 || options.devices > kSearchDevicesMax) {
    violations.push_back({.field = "spec.resources.devices",
                          .value = absl::StrCat(options.devices),
                          .rule = absl::StrCat("a search takes 1 to ", kSearchDevicesMax)});
  }
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    if (job::TraitsOf(spec.modules[i].architecture).known()) continue;
    violations.push_back({.field = absl::StrCat("spec.modules[", i, "].architecture"),
                          .rule = "is required for a search: what it costs follows from it"});
  }
  return ViolationsStatus(violations);
}

// Equal nodes, the last one perhaps smaller.
plan::Cluster ClusterOf(const SearchOptions& options) {
  plan::Cluster cluster;
  for (int32_t device = 0; device < options.devices; ++device) {
    cluster.devices.push_back(
        {absl::StrCat("node-", device / options.node_devices), device % options.node_devices});
  }
  return cluster;
}

plan::MemoryLimits LimitsOf(const SearchOptions& options) {
  plan::MemoryLimits limits;
  limits.devices.assign(static_cast<size_t>(options.devices), options.device_memory);
  return limits;
}

class Search {
 public:
  Search(const job::JobSpec& spec, const SearchOptions& options)
      : spec_(spec),
        options_(options),
        space_{.open = options.open.empty() ? std::vector<bool>(spec.modules.size(), true)
                                            : options.open,
               .devices = options.devices,
               .node_devices = std::min(options.node_devices, options.devices)},
        bounds_(spec_, space_, options.profile, options.items),
        cluster_(ClusterOf(options)),
        limits_(LimitsOf(options)),
        plans_(cluster_, options.device_memory, options.profile.unestimated_bytes) {
    if (spec_.data.has_value()) {  // names of files are many, and no layout depends on them
      spec_.data->shards.resize(std::min<size_t>(1, spec_.data->shards.size()));
      spec_.data->validation.clear();
    }
    for (job::Module& module : spec_.modules) {
      if (!options.keep_written) module.recompute = Recompute::kNone;
    }
    CountParameters();
  }

  absl::StatusOr<SearchResult> Run() {
    const std::vector<SearchLayout> layouts = LayoutsOf(spec_, space_);
    for (size_t i = 0; i < layouts.size(); ++i) {
      RETURN_IF_ERROR(GoOn());
      pending_.push_back({.least = BoundOf(layouts[i]), .index = i});
    }
    result_.layouts = static_cast<int64_t>(layouts.size());
    RETURN_IF_ERROR(LookAtPending(layouts));
    if (written_.empty()) return NothingFits(layouts.empty());
    if (options_.device_memory == 0) {  // nothing is lowered
      written_.resize(std::min(written_.size(), options_.best));
      best_ = std::move(written_);
    } else {
      RETURN_IF_ERROR(Admit(layouts));
    }
    PutSimplestFirst();
    for (Found& found : best_) Keep(std::move(found.proposal));
    return std::move(result_);
  }

 private:
  struct Found {
    Proposal proposal;
    size_t index = 0;  // of the layout
    auto Key() const { return std::make_tuple(proposal.step, proposal.memory, index); }
  };
  // A layout of which it is not known yet what it takes as written.
  struct Pending {
    double least = 0;  // it takes no less
    size_t index = 0;
    bool operator<(const Pending& other) const {
      return std::tie(least, index) < std::tie(other.least, other.index);
    }
  };

  absl::Status GoOn() const { return options_.go_on ? options_.go_on() : absl::OkStatus(); }

  // Elements of each module's matrices, of which a rank has its part.
  void CountParameters() {
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

  // Bytes that a rank needs on average whatever the setting.
  double MemoryBoundOf(const SearchLayout& layout) const {
    std::vector<double> spans(layout.sizes.size(), 0);
    const auto bytes = static_cast<double>(plan::BytesOf(spec_.compute));
    const double wide = std::max(4.0, bytes);
    for (size_t i = 0; i < spec_.modules.size(); ++i) {
      const Degrees& degrees = layout.degrees[i];
      const int32_t cp = space_.open[i] ? 1 : spec_.modules[i].parallel.cp;
      const double trained = spec_.modules[i].frozen ? 0 : wide + 3 * wide / (degrees.dp * cp);
      spans[static_cast<size_t>(layout.span_of[i])] +=
          parameters_[i] / (degrees.tp * degrees.pp) * (bytes + trained);
    }
    return *std::max_element(spans.begin(), spans.end()) +
           static_cast<double>(options_.profile.unestimated_bytes);
  }

  double BoundOf(const SearchLayout& layout) {
    double bound = std::numeric_limits<double>::infinity();
    for (const int64_t micro : MicrosOf(spec_, layout, options_))
      bound = std::min(bound, bounds_.OfLayout(layout, micro));
    return bound;
  }

  // Layouts whose step as written is above it are of no interest yet, or at all.
  double Threshold() const {
    const double of_written =
        written_.size() < wanted_ ? kAnyStep : written_[wanted_ - 1].proposal.step;
    return std::min(of_written, LastOfBest());
  }
  double LastOfBest() const {
    return best_.size() < options_.best ? kAnyStep : best_.back().proposal.step;
  }

  // Ways to compute again, those that the job allows.
  std::vector<std::pair<Recompute, Recompute>> Recomputations() const {
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

  // Ways to compute again under a schedule and micro batch, the one that adds least first.
  std::vector<std::pair<double, Setting>> WaysOf(const SearchLayout& layout, Setting setting) {
    std::vector<std::pair<double, Setting>> ways;
    for (const auto& [language, others] : Recomputations()) {
      setting.language = language;
      setting.others = others;
      ways.emplace_back(bounds_.OfSetting(layout, setting), setting);
    }
    std::stable_sort(ways.begin(), ways.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return ways;
  }

  // What the plan takes; `spec` as a proposal has it. Nothing where it takes more than `most` for
  // sure.
  absl::StatusOr<std::optional<Found>> FoundOf(plan::Plan plan, size_t index, double most) {
    const int64_t memory = plans_.MemoryOf(plan);
    job::JobSpec spec = plan.spec;
    if (options_.keep_written) spec.resources.devices = spec_.resources.devices;
    ASSIGN_OR_RETURN(
        std::optional<Proposal> proposal,
        MeasureWithin(most, std::move(plan), options_.profile, options_.items, updates_));
    if (!proposal.has_value()) return std::nullopt;
    proposal->memory = memory;
    proposal->spec = std::move(spec);
    return Found{*std::move(proposal), index};
  }

  // Of one schedule and micro batch the recomputation that adds least of those that fit. Nothing
  // where that is no better than `found`.
  absl::StatusOr<std::optional<Found>> BestWay(const SearchLayout& layout, const Setting& setting,
                                               size_t index, const std::optional<Found>& found) {
    // Where something of the layout did not fit, most of the others do not either.
    bool some_fits = plans_.some_misfit();
    if (some_fits && !plans_.LeastFits(setting)) return std::nullopt;
    for (const auto& [bound, way] : WaysOf(layout, setting)) {
      if (TooSlow(bound, found)) return std::nullopt;
      RETURN_IF_ERROR(GoOn());
      if (!plans_.Fits(way)) {
        if (!some_fits && !plans_.LeastFits(setting)) return std::nullopt;
        some_fits = fits_ = true;
        continue;
      }
      fits_ = true;
      if (!is_sound_.has_value()) is_sound_ = IsSound(layout, plans_.laid());
      if (!*is_sound_) return std::nullopt;
      ASSIGN_OR_RETURN(std::optional<Found> one,
                       FoundOf(*plans_.Under(way), index, MostOfUse(found)));
      result_.simulated += one.has_value() ? 1 : 0;
      if (!one.has_value() || !IsBetter(*one, found)) return std::nullopt;
      return one;
    }
    return std::nullopt;
  }

  // What of the pending layouts is among the first `wanted_` as written.
  absl::Status LookAtPending(const std::vector<SearchLayout>& layouts) {
    std::sort(pending_.begin(), pending_.end());
    for (const Pending& pending : std::exchange(pending_, {})) {
      if (options_.use_bounds && pending.least * kRounding > Threshold()) {
        pending_.push_back(pending);
        continue;
      }
      RETURN_IF_ERROR(GoOn());
      ASSIGN_OR_RETURN(std::optional<Found> found, Look(layouts[pending.index], pending.index));
      if (found.has_value()) Insert(*std::move(found), &written_);
    }
    return absl::OkStatus();
  }

  // The best as they would be admitted to devices of that memory, in the order of their steps then.
  // What is lowered is no faster than as written: so layouts are admitted in the order of what they
  // take as written, until that is more than the last of the best takes as admitted.
  absl::Status Admit(const std::vector<SearchLayout>& layouts) {
    for (size_t next = 0;; ++next) {
      if (next == wanted_) {  // what comes next is not known yet
        wanted_ *= 2;
        RETURN_IF_ERROR(LookAtPending(layouts));
      }
      if (next >= written_.size()) return absl::OkStatus();
      const Found& written = written_[next];
      if (written.proposal.step * kRounding > LastOfBest()) return absl::OkStatus();
      RETURN_IF_ERROR(GoOn());
      ASSIGN_OR_RETURN(plan::Plan plan, AdmitWithoutRisks(written.proposal.spec, cluster_, limits_,
                                                          Epoch{1}, sizes_));
      plans_.Forget();
      ASSIGN_OR_RETURN(std::optional<Found> admitted,
                       FoundOf(std::move(plan), written.index, kAnyStep));
      Insert(*std::move(admitted), &best_);
      if (best_.size() > options_.best) best_.pop_back();
    }
  }

  static bool IsBetter(const Found& one, const std::optional<Found>& found) {
    return !found.has_value() || one.Key() < found->Key();
  }

  // A schedule that is named may cut a step into so many groups.
  bool HasMicrobatches(const SearchLayout& layout, const job::Schedule& schedule,
                       int64_t micro) const {
    return schedule.encoder_chunks <= MicrobatchesOf(spec_, layout, micro).count;
  }

  // Whether the job could be submitted under the layout, with the fewest microbatches.
  bool IsSound(const SearchLayout& layout, const job::JobSpec& laid) {
    Setting setting{.schedule = SchedulesOf(spec_, layout, options_).front()};
    for (const int64_t micro : MicrosOf(spec_, layout, options_)) {
      if (HasMicrobatches(layout, setting.schedule, micro)) setting.micro = micro;
    }
    const job::JobSpec job = WithSetting(laid, setting);
    const absl::Status status =
        job::ReadJobSpec(job::WriteJobSpec(job), job::Purpose::kPlan).status();
    unsound_.Update(status);
    return status.ok();
  }

  // What a layout is as written. Nothing where nothing of it fits, or it is slower than the best
  // for sure, which is noted.
  absl::StatusOr<std::optional<Found>> Look(const SearchLayout& layout, size_t index) {
    if (const double bound = options_.device_memory > 0 ? MemoryBoundOf(layout) : 0;
        bound > static_cast<double>(options_.device_memory)) {
      ++result_.too_large;
      least_memory_ = std::min(least_memory_, bound);
      return std::nullopt;
    }
    std::vector<std::pair<double, Setting>> settings;
    for (const job::Schedule& schedule : SchedulesOf(spec_, layout, options_)) {
      for (const int64_t micro : MicrosOf(spec_, layout, options_)) {
        const Setting setting{.micro = micro, .schedule = schedule};
        if (!HasMicrobatches(layout, schedule, micro)) continue;
        settings.emplace_back(bounds_.OfSetting(layout, setting), setting);
      }
    }
    std::stable_sort(settings.begin(), settings.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (settings.empty()) return std::nullopt;
    const auto is_slow = [&]() -> std::optional<Found> {
      pending_.push_back({.least = Threshold() / kRounding, .index = index});
      return std::nullopt;
    };
    if (TooSlow(settings.front().first, std::nullopt)) return is_slow();
    const job::JobSpec laid = WithLayout(spec_, space_, layout);
    std::optional<Found> found;
    bool some_slow = false;
    fits_ = false;
    is_sound_ = std::nullopt;
    plans_.Begin(laid);
    for (const auto& [bound, setting] : settings) {
      some_slow = TooSlow(bound, found);
      if (some_slow) break;
      ASSIGN_OR_RETURN(std::optional<Found> one, BestWay(layout, setting, index, found));
      if (one.has_value()) found = std::move(one);
      if (is_sound_ == false) return std::nullopt;
    }
    if (found.has_value()) return found;
    if (fits_ || some_slow) return is_slow();
    // What could not be submitted anyway is not too large.
    if (!IsSound(layout, laid) || !plans_.some_misfit()) return std::nullopt;
    ++result_.too_large;
    least_memory_ = std::min(least_memory_, plans_.least_memory());
    return std::nullopt;
  }

  // A step that is longer is not among the best, nor the layout's.
  double MostOfUse(const std::optional<Found>& found) const {
    if (!options_.use_bounds) return kAnyStep;
    const double most = std::min(Threshold(), found.has_value() ? found->proposal.step : kAnyStep);
    return most / kRounding;
  }

  // Whether nothing of that bound can be better than what there is.
  bool TooSlow(double bound, const std::optional<Found>& found) const {
    if (!options_.use_bounds) return false;
    const double least = bound * kRounding;
    return least > Threshold() || (found.has_value() && least > found->proposal.step);
  }

  static void Insert(Found found, std::vector<Found>* ordered) {
    const auto place =
        std::upper_bound(ordered->begin(), ordered->end(), found,
                         [](const Found& a, const Found& b) { return a.Key() < b.Key(); });
    ordered->insert(place, std::move(found));
  }

  // Of those that a simulation does not tell from the fastest.
  void PutSimplestFirst() {
    const auto parts = [](const Found& found) {
      int64_t sum = 0;
      for (const job::Module& module : found.proposal.spec.modules)
        sum += int64_t{module.parallel.tp} * module.parallel.pp;
      return sum;
    };
    const double nearly = best_.front().proposal.step * kNearlyEqual;
    const auto end = std::find_if(best_.begin(), best_.end(),
                                  [&](const Found& found) { return found.proposal.step > nearly; });
    const auto simplest = std::min_element(
        best_.begin(), end, [&](const Found& a, const Found& b) { return parts(a) < parts(b); });
    std::rotate(best_.begin(), simplest, simplest + 1);
  }

  void Keep(Proposal proposal) {
    if (!result_.best.empty()) proposal.slower = WhySlower(result_.best.back(), proposal);
    result_.best.push_back(std::move(proposal));
  }

  absl::Status NothingFits(bool no_layouts) const {
    if (no_layouts) {
      return ViolationsStatus(
          {{.field = "spec.modules",
            .rule = absl::StrCat("no layout on ", options_.devices,
                                 " devices: none gives each its part of the layers, heads and the ",
                                 spec_.batch.global,
                                 " samples of a step; try fewer devices or a larger ",
                                 "batch.global")}});
    }
    absl::Status unsound = unsound_;
    unsound.Update(plans_.unsound());
    if (result_.too_large == 0 && !unsound.ok()) return unsound;
    const std::string least =
        std::isfinite(least_memory_)
            ? absl::StrCat(": the smallest needs at least ",
                           plan::FormatBytes(static_cast<int64_t>(least_memory_)))
            : "";
    return ViolationsStatus(
        {{.field = "spec.modules",
          .rule = absl::StrCat("none of ", result_.layouts, " layouts on ", options_.devices,
                               " devices fits the memory of each, ",
                               plan::FormatBytes(options_.device_memory), least)}});
  }

  job::JobSpec spec_;
  const SearchOptions& options_;
  const SearchSpace space_;
  PoweredBounds bounds_;
  const plan::Cluster cluster_;
  const plan::MemoryLimits limits_;
  std::vector<double> parameters_;  // of each module
  SearchPlans plans_;
  plan::PartSizes sizes_;  // of layouts that are admitted
  KnownUpdates updates_;
  size_t wanted_ = options_.best;  // so many of `written_` are to be known
  std::vector<Found> written_;     // layouts as written, in order; those behind `wanted_` not all
  std::vector<Pending> pending_;
  std::vector<Found> best_;  // as admitted, in order
  // Of layouts that are too large, the least that a device needs, in bytes.
  double least_memory_ = std::numeric_limits<double>::infinity();
  // Of the layout that is looked at: whether some setting fits, and whether it could be submitted,
  // which nobody asks before one does.
  bool fits_ = false;
  std::optional<bool> is_sound_;
  absl::Status unsound_;  // why the first layout that could not be submitted, if any, could not
  SearchResult result_;
};

}  // namespace

absl::StatusOr<SearchResult> SearchLayouts(const job::JobSpec& spec, const SearchOptions& options) {
  RETURN_IF_ERROR(CheckOptions(spec, options));
  ASSIGN_OR_RETURN(SearchResult result, Search(spec, options).Run());
  for (Proposal& proposal : result.best) proposal.spec.data = spec.data;
  return result;
}

}  // namespace phalanx::schedule

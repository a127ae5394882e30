#include "core/schedule/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/plan/memory_fit.h"
#include "core/schedule/search_look.h"
#include "core/schedule/search_setting.h"
#include "core/schedule/work_model.h"

namespace phalanx::schedule {
namespace {

using job::Recompute;

// So many layouts are looked at before what they came to counts for others: few at first, when each
// may show that many others are of no interest. For any number of threads the same.
constexpr size_t kLooksAtOnceMin = 32, kLooksAtOnceMax = 128;
constexpr size_t kThreadsMax = 32;
constexpr size_t kAdmittedAtOnce = 12;

using GoOnRef = absl::FunctionRef<absl::Status()>;

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
        cluster_(ClusterOf(options)),
        limits_(LimitsOf(options)) {
    if (spec_.data.has_value()) {  // names of files are many, and no layout depends on them
      spec_.data->shards.resize(std::min<size_t>(1, spec_.data->shards.size()));
      spec_.data->validation.clear();
    }
    for (job::Module& module : spec_.modules) {
      if (!options.keep_written) module.recompute = Recompute::kNone;
    }
    const size_t threads = options.threads.run == nullptr
                               ? 1
                               : std::clamp<size_t>(options.threads.count, 1, kThreadsMax);
    for (size_t i = 0; i < threads; ++i) looks_.emplace_back(spec_, space_, options_, cluster_);
  }

  absl::StatusOr<SearchResult> Run() {
    const std::vector<SearchLayout> layouts = LayoutsOf(spec_, space_);
    for (size_t i = 0; i < layouts.size(); ++i) {
      RETURN_IF_ERROR(GoOn());
      pending_.push_back({.least = looks_.front().BoundOf(layouts[i]), .index = i});
    }
    result_.layouts = static_cast<int64_t>(layouts.size());
    RETURN_IF_ERROR(LookAtPending(layouts));
    if (written_.empty()) return NothingFits(layouts.empty());
    RETURN_IF_ERROR(Admit(layouts));
    PutChoiceFirst();
    for (Found& found : best_) Keep(std::move(found.proposal));
    return std::move(result_);
  }

 private:
  // A layout of which it is not known yet what it takes as written.
  struct Pending {
    double least = 0;  // it takes no less
    size_t index = 0;
    bool operator<(const Pending& other) const {
      return std::tie(least, index) < std::tie(other.least, other.index);
    }
  };

  absl::Status GoOn() const { return options_.go_on ? options_.go_on() : absl::OkStatus(); }

  // Layouts whose step as written is above it are of no interest yet, or at all.
  double Threshold() const {
    const double of_written =
        written_.size() < wanted_ ? kAnyStep : written_[wanted_ - 1].proposal.step;
    return std::min(of_written, LastOfBest() / kGlanceShort);
  }
  // What takes longer is none of the best, nor worth it for the losses that it survives.
  double LastOfBest() const {
    if (best_.size() < options_.best) return kAnyStep;
    const double last = best_.back().proposal.step;
    return MostSurvived() == Survived::kAny ? last : std::max(last, LongestWorthALoss());
  }
  double LongestWorthALoss() const { return best_.front().proposal.step * kWorthALoss; }
  Survived MostSurvived() const {
    Survived most = Survived::kNone;
    for (const Found& found : best_) {
      if (found.proposal.step <= LongestWorthALoss())
        most = std::max(most, found.proposal.survives);
    }
    return most;
  }

  // What of the pending layouts is among the first `wanted_` as written.
  absl::Status LookAtPending(const std::vector<SearchLayout>& layouts) {
    std::sort(pending_.begin(), pending_.end());
    const std::vector<Pending> pending = std::exchange(pending_, {});
    for (size_t next = 0; next < pending.size();) {
      std::vector<size_t> at_once;
      const double threshold = Threshold();
      const size_t most = std::clamp(looked_at_ / 2, kLooksAtOnceMin, kLooksAtOnceMax);
      for (; next < pending.size() && at_once.size() < most; ++next) {
        if (options_.use_bounds && pending[next].least * kRounding > threshold) {
          pending_.push_back(pending[next]);
        } else {
          at_once.push_back(pending[next].index);
        }
      }
      looked_at_ += at_once.size();
      ASSIGN_OR_RETURN(std::vector<Looked> looked, LookAt(layouts, at_once, threshold));
      for (size_t i = 0; i < at_once.size(); ++i) Note(std::move(looked[i]), at_once[i]);
    }
    return absl::OkStatus();
  }

  // At these layouts.
  absl::StatusOr<std::vector<Looked>> LookAt(const std::vector<SearchLayout>& layouts,
                                             const std::vector<size_t>& indices, double threshold) {
    std::vector<Looked> looked(indices.size());
    const auto look = [&](LayoutLook& by, size_t i, GoOnRef go_on) -> absl::Status {
      ASSIGN_OR_RETURN(looked[i], by.Look(layouts[indices[i]], indices[i], threshold, go_on));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForEach(indices.size(), look));
    return looked;
  }

  // Does it for each of `count`, by all threads, each with a look of its own. Before each and
  // within it the caller's thread asks whether to go on; the others are stopped by what has failed.
  absl::Status ForEach(size_t count,
                       absl::FunctionRef<absl::Status(LayoutLook&, size_t, GoOnRef)> work) {
    std::atomic<size_t> next = 1;  // the caller's thread begins with the first
    std::atomic<bool> stopped = false;
    absl::Status failed;  // written by whoever stops the others
    const auto ask = [this] { return GoOn(); };
    const auto look_round = [&stopped] {
      return stopped ? absl::CancelledError("another thread has failed") : absl::OkStatus();
    };
    const auto run = [&](size_t thread) {
      const GoOnRef go_on = thread == 0 ? GoOnRef(ask) : GoOnRef(look_round);
      for (size_t i = thread == 0 ? 0 : next++; i < count && !stopped; i = next++) {
        absl::Status status = go_on();
        if (status.ok()) status = work(looks_[thread], i, go_on);
        if (!status.ok() && !stopped.exchange(true)) failed = std::move(status);
      }
    };
    const size_t threads = std::min(looks_.size(), count);
    if (threads > 1) {
      options_.threads.run(threads, run);
    } else {
      run(0);
    }
    return failed;
  }

  void Note(Looked looked, size_t index) {
    result_.simulated += looked.simulated;
    unsound_.Update(looked.unsound);
    unplanned_.Update(looked.unplanned);
    for (std::optional<Found>* found : {&looked.found, &looked.mirrored}) {
      if (found->has_value()) InsertOnce(*std::move(*found));
    }
    if (looked.slow < kAnyStep) pending_.push_back({.least = looked.slow, .index = index});
    if (!looked.too_large.has_value()) return;
    ++result_.too_large;
    least_memory_ = std::min(least_memory_, *looked.too_large);
  }

  // The best as they would be admitted to devices of that memory, in the order of their steps then.
  // What is lowered is no faster than as written: so layouts are admitted in the order of what they
  // take as written, until that is more than the last of the best takes as admitted.
  absl::Status Admit(const std::vector<SearchLayout>& layouts) {
    for (size_t next = 0;;) {
      if (next == wanted_) {  // what comes next is not known yet
        wanted_ *= 2;
        RETURN_IF_ERROR(LookAtPending(layouts));
      }
      size_t end = std::min({written_.size(), wanted_, next + AdmittedAtOnce()});
      while (end > next && IsBehindBest(written_[end - 1])) --end;
      std::vector<std::optional<Found>> admitted(end - next);
      const double most = LastOfBest();
      const auto admit = [&](LayoutLook& by, size_t i, GoOnRef /*go_on*/) -> absl::Status {
        ASSIGN_OR_RETURN(admitted[i], by.Admit(written_[next + i], limits_, most));
        return absl::OkStatus();
      };
      RETURN_IF_ERROR(ForEach(admitted.size(), admit));
      if (admitted.empty()) return absl::OkStatus();
      for (std::optional<Found>& one : admitted) {
        if (IsBehindBest(written_[next++])) return absl::OkStatus();
        if (one.has_value()) InsertIntoBest(*std::move(one));
      }
    }
  }
  bool IsBehindBest(const Found& written) const {
    const double least = written.proposal.step * (written.proposal.by_glance ? kGlanceShort : 1);
    return least * kRounding > LastOfBest();
  }
  // The first ones are admitted anyway. Of others the first may show the next not to be of
  // interest.
  size_t AdmittedAtOnce() const {
    return best_.size() < options_.best ? options_.best - best_.size() : kAdmittedAtOnce;
  }

  // A layout that was looked at again may be there.
  void InsertOnce(Found found) {
    const bool is_there = std::any_of(written_.begin(), written_.end(), [&](const Found& other) {
      return other.Key() == found.Key();
    });
    if (!is_there) Insert(std::move(found), &written_);
  }

  // Each layout once.
  void InsertIntoBest(Found found) {
    const auto same = std::find_if(best_.begin(), best_.end(), [&found](const Found& other) {
      return other.index == found.index;
    });
    if (same != best_.end()) {
      if (same->Key() <= found.Key()) return;
      best_.erase(same);
    }
    Insert(std::move(found), &best_);
    if (best_.size() <= options_.best) return;
    // Who alone survives as much stays in another's place.
    const Survived most = MostSurvived();
    const auto alike = [most](const Found& one) { return one.proposal.survives == most; };
    const bool stays = best_.back().proposal.step <= LongestWorthALoss() && alike(best_.back()) &&
                       std::count_if(best_.begin(), best_.end(), alike) == 1;
    best_.erase(best_.end() - (stays ? 2 : 1));
  }

  static void Insert(Found found, std::vector<Found>* ordered) {
    const auto place =
        std::upper_bound(ordered->begin(), ordered->end(), found,
                         [](const Found& a, const Found& b) { return a.Key() < b.Key(); });
    ordered->insert(place, std::move(found));
  }

  // Of those that are not much slower than the fastest those that survive most, and of these, as
  // far as a simulation does not tell them from their fastest, the one with the fewest parts.
  void PutChoiceFirst() {
    const Survived most = MostSurvived();
    const auto survives = [most](const Found& found) { return found.proposal.survives >= most; };
    const auto parts = [](const Found& found) {
      int64_t sum = 0;
      for (const job::Module& module : found.proposal.spec.modules)
        sum += int64_t{module.parallel.tp} * module.parallel.pp;
      return sum;
    };
    auto choice = std::find_if(best_.begin(), best_.end(), survives);
    const double nearly = std::min(choice->proposal.step * kNearlyEqual, LongestWorthALoss());
    for (auto other = choice; other != best_.end() && other->proposal.step <= nearly; ++other) {
      if (survives(*other) && parts(*other) < parts(*choice)) choice = other;
    }
    std::rotate(best_.begin(), choice, choice + 1);
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
    unsound.Update(unplanned_);
    if (result_.too_large == 0 && !unsound.ok()) return OfTheFirst(unsound);
    const std::string least =
        std::isfinite(least_memory_)
            ? absl::StrCat(": the smallest needs at least ",
                           plan::FormatBytes(static_cast<int64_t>(least_memory_)))
            : "";
    return ViolationsStatus(
        {{.field = "spec.modules",
          .rule = absl::StrCat("none of ", Layouts(), " fits the memory of each, ",
                               plan::FormatBytes(options_.device_memory), least,
                               "; try more devices, or devices of more memory")}});
  }

  std::string Layouts() const {
    return absl::StrCat(result_.layouts, result_.layouts == 1 ? " layout" : " layouts", " on ",
                        options_.devices, options_.devices == 1 ? " device" : " devices");
  }

  bool IsOpen(const std::string& module) const {
    for (size_t i = 0; i < space_.open.size(); ++i) {
      if (module == absl::StrCat("spec.modules[", i, "]")) return space_.open[i];
    }
    return false;
  }

  // Degrees of modules that were searched are those of the first layout: nobody wrote them.
  absl::Status OfTheFirst(const absl::Status& unsound) const {
    std::vector<Violation> violations = ViolationsOf(unsound);
    if (violations.empty()) return unsound;
    for (Violation& violation : violations) {
      const std::vector<std::string> parts = absl::StrSplit(violation.field, ".parallel.");
      if (parts.size() != 2 || !IsOpen(parts[0])) continue;
      violation = {.field = absl::StrCat(parts[0], ".parallel"),
                   .rule = absl::StrCat("none of ", Layouts(), " can be submitted; the first has ",
                                        parts[1], " ", violation.value, ": ", violation.rule)};
    }
    return ViolationsStatus(violations);
  }

  job::JobSpec spec_;
  const SearchOptions& options_;
  const SearchSpace space_;
  const plan::Cluster cluster_;
  const plan::MemoryLimits limits_;
  std::deque<LayoutLook> looks_;   // one a thread
  size_t wanted_ = options_.best;  // so many of `written_` are to be known
  std::vector<Found> written_;     // layouts as written, in order; those behind `wanted_` not all
  std::vector<Pending> pending_;
  size_t looked_at_ = 0;     // layouts, each as often as it was
  std::vector<Found> best_;  // as admitted, in order
  // Of layouts that are too large, the least that a device needs, in bytes.
  double least_memory_ = std::numeric_limits<double>::infinity();
  // Why the first layouts that could not be submitted, and be planned, if any, could not.
  absl::Status unsound_, unplanned_;
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

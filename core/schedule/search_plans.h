// core/schedule/search_plans.h: plans of one layout under many settings, and what they need.
//
// Pure. Not thread-safe: it keeps what it has worked out.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job_spec.h"
#include "core/plan/part_sizes.h"
#include "core/plan/plan.h"
#include "core/schedule/process_memory.h"
#include "core/schedule/search_bound.h"

namespace phalanx::schedule {

class SearchPlans {
 public:
  // `device_memory`: bytes of each device, 0: not known, which holds anything. `cluster` outlives
  // it.
  SearchPlans(const plan::Cluster& cluster, int64_t device_memory, BytesBeside beside)
      : cluster_(cluster), device_memory_(device_memory), beside_(std::move(beside)) {}

  // What is asked next is of this layout of the job, which outlives that.
  void Begin(const job::JobSpec& laid);
  // What is asked next is of that layout with second homes in host memory instead of mirrors, as
  // admission has them where mirrors do not fit. False: all that was asked for fits, the job does
  // not leave them open, or no module has mirrors.
  bool MoveHomes();
  // What is asked next is of a plan that comes from elsewhere.
  void Forget();

  const job::JobSpec& laid() const { return *laid_; }
  const BytesBeside& beside() const { return beside_; }

  // The plan under the setting, without a digest, until the next call; nullptr: there is none. Of a
  // schedule it is made once: micro batch and recomputation decide nothing else in it.
  const plan::Plan* Under(const Setting& setting);
  // Bytes of the rank that needs most, with the least that its process takes.
  int64_t MemoryOf(const plan::Plan& plan) { return NeedOf(plan, {}).total; }
  // The same with all that it takes.
  int64_t WholeMemoryOf(const plan::Plan& plan) {
    return NeedOf(plan, BesideOfRanks(plan, beside_, sizes_)).total;
  }
  // Whether there is a plan under the setting that fits: where little is left of a device, with all
  // that processes take, else with the least that they do.
  bool Fits(const Setting& setting);
  // Whether one of which Fits says so fits with all.
  bool FitsWithAll(const Setting& setting);
  // Whether homes are moved, and mirrors are known to fit under this setting.
  bool KeepsMirrors(const Setting& setting) const;
  // Whether what keeps least under the schedule and micro batch of the setting fits.
  bool LeastFits(Setting setting);
  // Whether it did not, of any setting of this layout.
  bool some_misfit() const;

  // Of what did not fit of this layout, the least that a device needs, in bytes.
  double least_memory() const { return least_memory_; }
  // Why the first plan of this layout that could not be made, if any, could not.
  const absl::Status& unsound() const { return unsound_; }

 private:
  // What decides what ranks need beside activations, of one layout.
  struct Division {
    bool vee = false;                          // the path of the language module's chunks
    std::vector<std::vector<int32_t>> layers;  // of each module
    // Of each module where its state is, and how often.
    std::vector<std::pair<job::StateHome, int32_t>> homes;
    friend auto operator<=>(const Division&, const Division&) = default;
  };
  struct Need {
    int64_t total = 0, activations = 0, beside = 0;
  };
  // What does not fit.
  struct Misfit {
    Setting setting;
    Need need;
  };

  // The plan under a schedule, of the micro batch and recomputation that were asked for last.
  struct Drafted {
    job::Schedule schedule;
    plan::Plan plan;
    int64_t dealt = 0;                            // the micro batch; 0: none yet
    const std::vector<int64_t>* state = nullptr;  // of states_; nullptr: not asked for yet
    // Of each rank what its process takes, of this micro batch; empty: not asked for yet.
    std::vector<int64_t> beside;
  };

  Drafted* DraftOf(const Setting& setting);
  const std::vector<int64_t>& StateOf(const plan::Plan& plan);
  using Activations = std::vector<const std::vector<int64_t>*>;  // of each module
  // `beside`: what its process takes of each rank's device; empty: the least.
  Need NeedOf(const std::vector<int64_t>& state, const Activations& activations,
              const std::vector<int64_t>& beside) const;
  Need NeedOf(const plan::Plan& plan, const std::vector<int64_t>& beside);
  Need NeedOf(Drafted& drafted);  // with what is known of its processes
  void NoteMisfit(const Setting& setting, const Need& need);
  // Whether a misfit of other microbatches says that these do not fit either.
  bool IsTooLarge(const Setting& setting);
  // Whether ranks keep as many microbatches as of any smaller ones, and of each no fewer rows.
  bool KeepsAsManyAsOfSmaller(const Setting& setting);

  const plan::Cluster& cluster_;
  const int64_t device_memory_;
  const BytesBeside beside_;
  plan::PartSizes sizes_;
  const job::JobSpec* laid_ = nullptr;
  bool has_mirrors_ = false;                         // any plan of this layout
  bool moved_ = false;                               // second homes are in host memory
  std::deque<Drafted> drafts_;                       // by schedule
  std::map<Division, std::vector<int64_t>> states_;  // bytes of each rank beside activations
  // Bytes of each rank that a module keeps under a schedule, micro batch and recomputation.
  std::map<std::tuple<job::ScheduleName, int32_t, int32_t, int64_t, int32_t, job::Recompute>,
           std::vector<int64_t>>
      activations_;
  std::vector<Misfit> misfits_;
  std::vector<Setting> with_mirrors_;  // under which these fit
  double least_memory_ = std::numeric_limits<double>::infinity();
  absl::Status unsound_;
};

}  // namespace phalanx::schedule

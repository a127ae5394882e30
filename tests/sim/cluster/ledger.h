// tests/sim/cluster/ledger.h: what is true of all jobs' training, seen from outside, and what was
// violated.
//
// A job's *history* is the list of steps that are decided and were not given up by a later epoch:
// what a run without failures would have. Every rank that takes part says what it does and is
// compared with it; so is every record of the coordinator, and every line of metrics.
//
// The *bits* of a state are a hash of all decisions that were applied to it, so two copies are
// equal exactly if they have applied the same steps in the same order, each once.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/machine/records.h"
#include "tests/sim/cluster/timeline.h"

namespace phalanx::sim {

uint64_t HashOf(const coordinator::StepDecision& decision);
// Of a state that had `bits` and applies the step.
uint64_t BitsAfter(uint64_t bits, const coordinator::StepDecision& decision);

class Ledger {
 public:
  explicit Ledger(Timeline& timeline) : timeline_(timeline) {}

  void Violate(std::string what);
  const std::vector<std::string>& violations() const { return violations_; }

  // Records of the coordinator, once they are stored. `reaches_last_copies`: of one that begins an
  // epoch with copies of state, that the last ones of which all ranks had whole ones can be had.
  void OnStored(const coordinator::JournalRecord& record, bool reaches_last_copies = true);
  // Users have been told of the step.
  void OnTold(JobId job, const coordinator::StepReport& step);
  void OnSucceeded(JobId job, int64_t steps);
  // What it had told and not stored it may tell otherwise.
  void OnCoordinatorGone();

  // A rank has read the decision of a step; `known` counts it in.
  void OnDecided(JobId job, Epoch epoch, int32_t rank, const coordinator::EpochStart& known);
  // A process has state of the job, until it is gone; `fails`: killed, or with another code than 0.
  void OnHolds(JobId job, uint64_t process) { jobs_[job].holders.insert(process); }
  void OnProcessGone(JobId job, uint64_t process, bool fails) {
    jobs_[job].holders.erase(process);
    if (fails) jobs_[job].loses_ranks = true;
  }
  // Whether some process of the job has failed since its last step.
  bool LosesRanks(JobId job) const {
    const auto found = jobs_.find(job);
    return found != jobs_.end() && found->second.loses_ranks;
  }
  // The job's ranks on the node have memory for copies of their state of the epoch; it is gone from
  // some node.
  void OnCopyMemory(JobId job, Epoch epoch, size_t node) {
    jobs_[job].copy_nodes[epoch].insert(node);
  }
  void OnCopyMemoryGone(JobId job, Epoch epoch);
  // All ranks of the epoch have whole copies of the step; they make one each `every` steps.
  void OnCopied(JobId job, Epoch epoch, int64_t step, int64_t every);
  // All ranks of the epoch have a step behind them, and keep no copies: mirrors have their state.
  void OnMirrored(JobId job, Epoch epoch);
  // The nodes that have all of the copies that the job could go on from; none: they are gone.
  std::set<size_t> NodesWithCopies(JobId job) const;
  // A rank begins to work on a step with state of these steps and bits.
  void OnStepBegins(JobId job, Epoch epoch, int32_t rank, int64_t step, int64_t applied,
                    uint64_t bits);

  // A process has made the set of communicators as this rank.
  void OnStandbyMade(JobId job, const std::string& set, int32_t rank, uint64_t process);
  // A rank of the epoch connects, with the set or, where that is empty, without.
  void OnConnects(JobId job, Epoch epoch, const std::string& set);
  // A rank is to use a set, of which `ranks` are to be all members; `process` 0: it has none.
  void OnStandbyUsed(JobId job, const std::string& set, const std::set<int32_t>& ranks,
                     int32_t rank, uint64_t process);

  // The metrics file of a job, which one process may hold at a time.
  bool LockMetrics(JobId job, uint64_t process);
  void UnlockMetrics(JobId job, uint64_t process);
  // Whoever holds it is of an epoch with that fence. False: one with a larger fence has been here.
  bool MarkMetrics(JobId job, int64_t fence);
  // Lines from `first_step` on are dropped. Returns the last step that has one.
  int64_t OpenMetrics(JobId job, Epoch epoch, int64_t first_step);
  void WriteMetrics(JobId job, Epoch epoch, const coordinator::StepDecision& step);

  // When something last went forward with it.
  Instant progress_at(JobId job) const;
  void NoteProgress(JobId job) { jobs_[job].progress_at = timeline_.now(); }
  // The last step of the job that is decided; 0: none is.
  int64_t last_decided(JobId job) const;
  int64_t steps_decided() const { return steps_decided_; }
  int64_t steps_given_up() const { return steps_given_up_; }
  int64_t epochs_begun() const { return epochs_begun_; }
  int64_t epochs_gone_on() const { return epochs_gone_on_; }
  // That went on from copies in host memory, and steps that they do again.
  int64_t epochs_from_copies() const { return epochs_from_copies_; }
  int64_t steps_of_copies() const { return steps_of_copies_; }
  int64_t standby_used() const { return standby_used_; }
  int64_t metrics_refused() const { return metrics_refused_; }
  // Nothing of the job is asked any more.
  void Forget(JobId job);

 private:
  // Of lines of metrics, and of sets of communicators: those before are of no more interest.
  static constexpr size_t kLastKept = 64;
  struct Step {
    Epoch epoch;  // that decided it
    uint64_t decision = 0, bits = 0;
    int64_t updates = 0, skipped_in_a_row = 0;
  };
  struct Line {
    int64_t step = 0;
    uint64_t decision = 0;
  };
  // Copies of a step that all ranks of an epoch have, whole.
  struct Copies {
    Epoch epoch;
    int64_t step = 0, every = 1;
  };
  struct Job {
    std::map<int64_t, Step> steps;
    // That an epoch from copies gave up, while none was done since.
    std::map<int64_t, Step> gone_back;
    Epoch epoch;        // the last one whose ranks may train
    int64_t begin = 0;  // behind which it does
    int64_t told = 0, told_stored = 0;
    std::set<uint64_t> holders;
    std::map<std::string, std::map<int32_t, uint64_t>> standby;  // by set: who made it
    std::vector<std::string> standby_order;                      // the oldest set first
    std::pair<Epoch, std::string> connects;  // the last epoch whose ranks do, and how
    std::optional<Copies> copies;            // the last ones
    bool loses_ranks = false;                // since the last step
    Epoch back_epoch;  // the last one that went back to copies; users have seen this step before
    int64_t seen = 0;
    std::map<Epoch, std::set<size_t>> copy_nodes;  // that have memory for them
    std::set<Epoch> copies_gone;                   // of which some memory is gone
    uint64_t metrics_holder = 0;
    int64_t metrics_fence = 0;
    Epoch metrics_epoch;
    std::vector<Line> lines;  // the last ones
    int64_t older_line = 0;   // the step of that before them
    int64_t last_line() const { return lines.empty() ? older_line : lines.back().step; }
    Instant progress_at = absl::InfinitePast();
    // What was decided before `begin` is not, where the coordinator began anew.
    int64_t last() const { return steps.empty() ? begin : steps.rbegin()->first; }
  };
  // `copies`: of which epoch; 0: none are needed.
  void Begin(JobId id, Epoch epoch, const coordinator::EpochStart& start, Epoch copies = {},
             bool reaches_last_copies = true);
  void CheckCopies(JobId id, Job& job, Epoch epoch, int64_t step, Epoch copies,
                   bool reaches_last_copies);
  static uint64_t BitsAt(const Job& job, int64_t step);

  Timeline& timeline_;
  std::map<JobId, Job> jobs_;
  std::set<JobId> forgotten_;
  std::vector<std::string> violations_;
  int64_t steps_decided_ = 0, steps_given_up_ = 0, epochs_begun_ = 0, epochs_gone_on_ = 0;
  int64_t epochs_from_copies_ = 0, steps_of_copies_ = 0;
  int64_t standby_used_ = 0, metrics_refused_ = 0;
};

}  // namespace phalanx::sim

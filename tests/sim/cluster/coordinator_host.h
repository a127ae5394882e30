// tests/sim/cluster/coordinator_host.h: the coordinator's process: the real machine, a store that
// takes its time, planners, and the ends of its streams.
//
// The machine is the real one; messages pass through the real codec. What it asks for is checked as
// it comes: nothing is told before it is stored, epochs only grow, no device has two jobs, terminal
// phases stay, what was answered stays.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/machine/coordinator.h"
#include "phalanx/v1/worker_service.pb.h"
#include "tests/sim/cluster/answers.h"
#include "tests/sim/cluster/ledger.h"
#include "tests/sim/cluster/network.h"
#include "tests/sim/cluster/planner.h"
#include "tests/sim/cluster/timeline.h"

namespace phalanx::sim {

inline constexpr uint64_t kStore = 7;

class CoordinatorHost {
 public:
  CoordinatorHost(Timeline& timeline, Network& network, Ledger& ledger, Planner& planner,
                  coordinator::CoordinatorOptions options);

  void Start();
  // Records that are not on the disk are lost; streams break.
  void Crash();
  // Nothing but crashes of it happens: they end no job and no epoch that has trained, which is
  // checked. One whose ranks had not all been told to start may start anew.
  void set_breaks_alone() { breaks_alone_ = true; }
  // It does not run for so long.
  void Pause(absl::Duration duration);
  // Commits take about so long from now on.
  void set_commit_time(absl::Duration time) { commit_time_ = time; }
  // Commits fail, or succeed again: what failed may be on the disk, all of it, and is written again
  // until that succeeds (coordinator/store/journal.h).
  void set_disk_fails(bool fails) { disk_fails_ = fails; }

  bool up() const { return machine_.has_value(); }
  // It runs, and its disk takes what it writes.
  bool Serves() const;
  // The stored decision on from where the job's epoch, the newest one, goes on has been made.
  bool HasBegun(JobId job, Epoch epoch) const;
  uint64_t life() const { return life_; }
  const coordinator::Coordinator& machine() const { return *machine_; }
  const std::map<JobId, coordinator::JobView>& views() const { return views_; }
  bool Archived(JobId job) const { return archived_.contains(job); }
  // Jobs that have ended, which the store alone knows.
  const std::set<JobId>& archived() const { return archived_; }

  // The far ends of streams. False: nobody listens.
  bool Accept(StreamPtr stream, coordinator::WorkerHello hello);
  // False: it knows no such stream any more.
  bool Receive(const StreamPtr& stream, const v1::OpenSessionRequest& message);
  void OnStreamClosed(const StreamPtr& stream);
  // What goes the other way.
  std::function<void(const StreamPtr&, const v1::OpenSessionResponse&)> deliver;
  std::function<void(const StreamPtr&, absl::Status)> deliver_close;

  // A job that has none is to have these devices.
  std::function<void(const coordinator::Placement&)> on_placement;
  // A decision is on its way to the disk.
  std::function<void(const coordinator::JournalRecord&)> on_write;

  // Users. `answer` is not called where the coordinator crashes before it answers.
  using Answer = std::function<void(const absl::StatusOr<JobId>&)>;
  void Submit(coordinator::JobRequestPtr request, const std::string& request_id, Answer answer);
  void Cancel(JobId job);
  void Suspend(JobId job, bool suspended);
  void Delete(JobId job);
  // Operators take a node out of service, or back (nullopt), and into the reserve, or out of it.
  // `mark`: but for who and when.
  void Mark(const NodeName& node, std::optional<coordinator::NodeMark> mark);
  void Reserve(const NodeName& node, bool reserves);
  int64_t live_jobs() const;

  // Jobs by how they have ended, and by kind of failure.
  const std::map<job::JobPhase, int64_t>& ended() const { return ended_; }
  const std::map<std::string, int64_t>& failures() const { return failures_; }
  // Why the job has failed; nullptr: it has not.
  const coordinator::FailureCause* CauseOf(JobId job) const {
    const auto found = causes_.find(job);
    return found == causes_.end() ? nullptr : &found->second;
  }
  struct Crashes {
    int64_t all = 0;
    int64_t writing = 0;  // of them, while records were on their way to the disk
  };
  const Crashes& crashes() const { return crashes_; }
  // What users and operators asked for and was done: all of it is looked for after every event.
  const Answers::Counts& acknowledged() const { return answers_.counts(); }
  // Devices in reserve on which a lost rank went on.
  int64_t lent() const { return lent_; }
  // Whether some job has a device, or one is held for it.
  bool HoldsDevices() const;

 private:
  struct StoredLine {
    uint64_t number = 0;
    coordinator::JournalRecord record;
  };

  void Feed(coordinator::Event event);
  void StepMachine(const coordinator::Event& event);
  // A submit whose job the machine has let go.
  bool AnswersFromStore(const coordinator::Event& event);
  void Arm();
  void OnTimer();
  void Carry(const coordinator::Action& action);
  void Carry(const coordinator::StoreRecord& order);
  void Carry(const coordinator::ComputePlan& order);
  void Carry(const coordinator::SendCommand& order);
  void Carry(const coordinator::PublishJob& order);
  void StartCommit();
  void OnCommitted(uint64_t number);
  void OnCommitFailed(uint64_t up_to);
  // Errors: Unavailable while the store does not work: nobody is served
  // (coordinator/runtime/driver.h).
  absl::Status Accepting() const;
  void EndStream(const coordinator::CloseSession& order);
  // The rest of what was being written, cut or changed, must not read as a record.
  void CheckTorn(const StoredLine& line);
  void Archive(JobId job);

  // coordinator_people.cc
  struct Waiting;
  bool TakeWaiting(coordinator::Token token, Waiting* waiting);
  void Carry(const coordinator::AnswerJob& order);
  void Carry(const coordinator::AnswerNode& order);
  void Carry(const coordinator::DeleteEndedJob& order);

  // checks.cc
  bool IsStored(JobId job,
                const std::function<bool(const coordinator::JournalRecord&)>& matches) const;
  void CheckCommand(const coordinator::Command& command);
  void Check();
  void CheckDevices();
  void CheckLoans();
  void CheckReplay();
  void CheckEnded();
  void CheckStateLost(const coordinator::JobView& job);
  void CheckByChoice(const coordinator::JobState& job);
  std::set<NodeName> NodesAtWork(const coordinator::JobState& job);
  bool ReachesLastCopies(const coordinator::JobState& job, const coordinator::EpochBegan& began);

  Timeline& timeline_;
  Network& network_;
  Ledger& ledger_;
  Planner& planner_;
  const coordinator::CoordinatorOptions options_;

  std::optional<coordinator::Coordinator> machine_;
  uint64_t life_ = 0;  // of the process; grows with each
  bool stepping_ = false;
  std::deque<coordinator::Event> inbox_;  // while it is paused, or another event is fed
  std::optional<Instant> paused_since_;
  int32_t pauses_ = 0;  // under way
  Instant armed_ = absl::InfiniteFuture();
  Instant deadline_fed_ = absl::InfinitePast();
  int idle_deadlines_ = 0;

  // The store, which outlives the process.
  std::deque<StoredLine> log_;                       // of jobs that are not archived
  std::map<JobId, coordinator::JobState> replayed_;  // of stored records
  std::set<JobId> changed_;                          // of them since the last comparison
  uint64_t last_number_ = 0, stored_number_ = 0;
  JobId last_job_;
  bool committing_ = false;
  Instant committing_since_ = absl::InfiniteFuture();
  absl::Duration commit_time_ = absl::Milliseconds(1);
  bool disk_fails_ = false;
  absl::Status store_failure_;  // of the last attempt
  absl::Duration retry_delay_ = absl::ZeroDuration();
  uint64_t written_number_ = 0;  // on the disk, whatever the attempt ended with
  std::set<JobId> archived_;

  std::map<coordinator::SessionId, StreamPtr> streams_;
  std::map<JobId, coordinator::JobView> views_;
  std::map<job::JobPhase, int64_t> ended_;
  std::map<std::string, int64_t> failures_;
  std::map<JobId, coordinator::FailureCause> causes_;
  Crashes crashes_;
  bool breaks_alone_ = false;
  int64_t lent_ = 0;
  std::map<std::pair<JobId, int32_t>, plan::Device> loans_;  // at the last check, by place
  uint64_t token_ = 0;
  Answers answers_;
  // Callers who wait for their answers.
  struct Waiting {
    std::string request_id;  // of a submit
    Answer answer;           // likewise
  };
  std::map<coordinator::Token, Waiting> waiting_;
  std::map<std::string, JobId> requests_;           // request ids that were answered, or stored
  std::map<std::string, JobId> archived_requests_;  // of them, those that the store answers for
};

}  // namespace phalanx::sim

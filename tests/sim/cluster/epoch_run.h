// tests/sim/cluster/epoch_run.h: one epoch of a job on a rank process: the commit protocol, with
// messages and step numbers (worker/rank/epoch_run.h, worker/train/trainer.h).
//
// It goes through its stages by continuations: each asks for a delay, or for messages of all ranks,
// and says what follows. Whatever ends it early, it drains what is under way, says where the rank's
// state stands, and gives everything back.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/copy_takers.h"
#include "core/plan/layout.h"
#include "phalanx/v1/worker_service.pb.h"
#include "tests/sim/cluster/fabric.h"
#include "tests/sim/cluster/host_copies.h"
#include "tests/sim/cluster/planner.h"
#include "tests/sim/cluster/rank_process.h"

namespace phalanx::sim {

// As in worker/comm/communicator.h.
inline constexpr absl::Duration kOperationTimeout = absl::Minutes(10);

class EpochRun : public Endpoint, public std::enable_shared_from_this<EpochRun> {
 public:
  struct Order {
    Epoch epoch;
    int32_t rank = 0;
    bool goes_on = false;
    bool from_copies = false;
    bool keeps = false;   // it is no rank, and gives copies of state to those of other nodes
    std::string standby;  // the set that it is to connect with; empty: none
    int64_t fence = 0;
    std::string text;  // of the document
    plan::Layout layout;
  };

  EpochRun(RankProcess& process, Order order);

  Epoch epoch() const { return order_.epoch; }
  int32_t rank() const { return order_.rank; }
  bool training() const { return step_ > 0; }
  // The messages of a step that it waits for, as a number of their own; 0: for none.
  uint64_t wait() const;
  const std::string& text() const { return order_.text; }
  const std::string& standby() const { return order_.standby; }

  // Its turn has come.
  void Start();
  // It has not, and what needs nothing of the process is made.
  void ConnectBeside();
  bool connects() const { return connects_; }
  // It is connected, and has not heard from where the epoch goes on.
  bool awaits_begin() const { return awaits_begin_ && !failed_ && !ended_; }
  // Its turn will not come.
  void GiveUp();
  // The rank is to leave it.
  void Stop();
  void Deliver(const v1::Rendezvous& message);
  void Deliver(const v1::BeginEpoch& message);
  // What is kept behind a good end.
  void Release();
  void OnProcessGone(bool silent);

  void Deliver(const Message& message) override;
  void OnGone(int32_t rank) override;

 private:
  using Next = void (EpochRun::*)();
  enum class Kind : uint8_t { kPeerLost, kRankError, kStateLost, kOutput, kCancelled };

  // Stages, in the order of EpochRun::RunToEnd (worker/rank/epoch_run.cc).
  void MakePlan();
  void FindCopies();
  void SayCopies();
  void OpenData();
  void OpenMetrics();
  void TryMetrics();
  void Connect();
  void CheckEntries();
  void SayHello();
  void OnConnected();
  void AwaitBegin();
  void BorrowState();
  void TakeCopies();
  void CheckKeepers();
  void TakeFound();
  void ExchangeHoldings();
  void PlanTransfers();
  void TransferNext();
  void OnRoundReceived();
  void OnRoundDone();
  void KeepHostCopy();
  void Prepare();
  void GetReady();

  // Of a step.
  void BeginStep();
  void SendGradients();
  void OnReduced();
  void SendRecord();
  void DecideStep();
  void ApplyHome(size_t home);
  void SettleStep();
  void EndStep();
  void Succeed();
  void EndWell();
  void Account(const coordinator::StepDecision& decision);
  void Tell();

  // Copies in memory of the node's daemon.
  // What the daemon does with its memory, and what follows as long as the run goes on.
  void AskDaemon(std::function<void(CopyMemory&)> question, std::function<void()> answered);
  bool KeepsCopies();
  void AskCopyMemory(Next next);
  void DropEarlierCopies();
  int64_t CopiedOfRecord();
  // Whether all ranks have whole copies of some step of this epoch, as the last decision says.
  bool CopiesAreWhole() const { return copied_ > 0 && copied_ != train::kKeepsNoCopies; }
  void TendCopies();

  // It keeps: those who inherit copies ask for them, are given them, and that is all.
  void GiveCopies();
  void SendCopies();
  void EndKeeping() { EndKeeping(0); }
  void EndKeeping(int32_t exit_code);
  std::vector<plan::InheritedCopies> Inherited();

  // Ends.
  void Fail(Kind kind, int32_t accused, const std::string& message);
  void SayQuiet();
  void Report(const coordinator::RankQuiet& quiet);
  void LeaveFabric(bool silent = false);

  RankState& state() { return *process_.state(); }
  Shared& shared() { return process_.shared(); }
  // As long as the run goes on.
  void After(absl::Duration delay, std::function<void()> what);
  void Then(absl::Duration low, absl::Duration high, Next next);
  void Broadcast(Message message);
  // Once all of these have sent it; too late is a failure of the first who has not.
  void Await(Message::Kind kind, int64_t key, std::set<int32_t> from, absl::Duration timeout,
             Next next);
  void CheckAwaited();
  void CheckGone();
  void Watch();
  std::set<int32_t> All() const { return {plan_->ranks.begin(), plan_->ranks.end()}; }
  train::Record RecordOf(int64_t step);

  RankProcess& process_;
  const Order order_;
  JobPlanPtr plan_;
  bool started_ = false, ended_ = false, failed_ = false, stopped_ = false, joined_ = false;
  bool connects_ = false;          // it was begun beside another one
  std::optional<bool> connected_;  // and has come to an end with that: well, or not
  bool succeeded_ = false;
  Kind failure_ = Kind::kCancelled;
  uint64_t generation_ = 0;  // closures of before a failure do not run

  std::map<std::pair<Message::Kind, int64_t>, std::map<int32_t, Message>> inbox_;
  struct Awaited {
    Message::Kind kind;
    int64_t key = 0;
    std::set<int32_t> from;
    Next next;
    Instant deadline;
  };
  std::optional<Awaited> awaited_;
  bool watched_ = false;    // a timer looks at the deadline
  std::set<int32_t> gone_;  // of whom nothing more comes

  std::set<int32_t> entries_;  // ranks whose addresses are known
  bool awaits_entries_ = false, awaits_begin_ = false;
  std::optional<coordinator::EpochStart> start_;  // where it goes on
  Instant lock_until_ = absl::InfiniteFuture();
  bool has_metrics_ = false;
  int64_t last_line_ = 0;
  std::map<int32_t, Holdings> holdings_;  // that all have said
  std::vector<TransferRound> rounds_;
  size_t round_ = 0;
  int64_t step_ = 0;                               // that is worked on
  std::optional<coordinator::StepDecision> slot_;  // as the device has it
  bool settled_ = true;

  std::vector<CopyPairPtr> found_;  // what the daemon has of epochs before
  bool copies_given_ = false;
  v1::CopiesSource source_;          // of the copies that it goes on from
  JobPlanPtr source_plan_;           // in whose layout they lie
  std::set<int32_t> keepers_;        // that have some for this rank
  std::set<int32_t> keepers_there_;  // that have said so
  bool awaits_keepers_ = false;
  std::optional<HostCopy> copy_;
  bool memory_asked_ = false, whole_told_ = false;
  int64_t copied_ = 0;  // of the last decision
};

}  // namespace phalanx::sim

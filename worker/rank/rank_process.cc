#include "worker/rank/rank_process.h"

#include <unistd.h>

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/wire/fault_codec.h"
#include "spdlog/spdlog.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {
namespace {

constexpr absl::Duration kDaemonTimeout = absl::Seconds(10);
// Until the step under way is done, of an epoch that a newer one replaces. Who comes back waits so
// long for the others, and is taken to stand still after half a minute.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(20);
// For epochs that were given up, as the process ends. Each may wait two seconds for its peers.
constexpr absl::Duration kEndingsTimeout = absl::Seconds(5);

size_t DescriptorsWith(const v1::ToRank& order) {
  const bool memory = order.has_host_memory() && order.host_memory().error().empty();
  const bool copies = order.has_host_copies() && !order.host_copies().done();
  return memory || copies ? 2 : 0;
}

}  // namespace

void RankProcess::Handle(const v1::ToRank& order, std::vector<UniqueFd> descriptors) {
  if (order.has_fault()) return faults_.Inject(wire::FromProto(order.fault()));
  if (order.has_write_incident()) return incidents_.Write(order.write_incident());
  HandleStandby(order);
  // Held throughout: Run() looks whether an epoch was told to stop when it lets go of it.
  MutexLock lock(&mu_);
  for (const std::shared_ptr<EpochRun>& run : {current_, last_}) {
    if (order.has_publish() && run != nullptr) run->Publish(order.publish());
  }
  const std::shared_ptr<EpochRun> runs[2] = {current_, next_};
  for (const std::shared_ptr<EpochRun>& run : runs) {
    if (run == nullptr) continue;
    if (order.has_rendezvous()) run->Deliver(order.rendezvous());
    if (order.has_host_memory() && order.host_memory().epoch() == run->epoch())
      run->Deliver(order.host_memory(), std::move(descriptors));
    if (order.has_host_copies() && order.host_copies().epoch() == run->epoch())
      run->Deliver(order.host_copies(), std::move(descriptors));
    if (order.has_begin() && order.begin().epoch() == run->epoch()) run->Deliver(order.begin());
    if (order.has_wish() && order.wish().epoch() == run->epoch()) run->WishEnd();
    if (order.has_quit()) run->Stop(absl::CancelledError(order.quit().reason()));
    if (order.has_stop() && order.stop().epoch() >= run->epoch()) {
      run->Stop(absl::CancelledError("the epoch is stopped"));
    }
    const bool leaves = !order.run().beside() || run == next_;
    if (order.has_run() && order.run().assign().epoch() > run->epoch() && leaves)
      run->Stop(Replaced());
  }
  if (order.has_stop() && current_ == nullptr && next_ == nullptr)
    TellStopped(order.stop().epoch());
  if (order.has_warm_up())
    to_warm_ = std::make_shared<EpochRun>(channel_, order.warm_up(), kept_, faults_, standby_);
  if (order.has_run()) SetNext(order.run());
  if (order.has_quit()) quit_ = true;
  changed_.SignalAll();
}

void RankProcess::HandleStandby(const v1::ToRank& order) {
  if (order.has_rendezvous()) standby_.Deliver(order.rendezvous());
  if (order.has_stop()) standby_.Close(order.stop().epoch());
  if (order.has_quit()) standby_.Close(std::numeric_limits<int64_t>::max());
  if (order.has_run()) {
    standby_.Close(order.run().assign().epoch() - 1);
    // Nothing goes beside training.
    if (!order.run().beside()) standby_.KeepOnly(order.run().assign().standby());
  }
  if (!order.has_prepare_standby()) return;
  const v1::PrepareStandby& wanted = order.prepare_standby();
  const MutexLock lock(&mu_);
  if (current_ == nullptr || current_->epoch() != wanted.epoch() || next_ != nullptr) return;
  standby_.Make(current_->order(), wanted);
}

void RankProcess::SetNext(const v1::RunEpoch& order) {
  // Its thread may take a while to end, and this one reads orders.
  if (next_ != nullptr) given_up_.push_back(next_);
  next_ = std::make_shared<EpochRun>(channel_, order, kept_, faults_, standby_);
  if (!order.beside()) return;
  // It has left the epoch that its daemon takes it to be in.
  if (current_ == nullptr) TellStopped(last_epoch_);
  next_->ConnectBeside([this, run = next_.get()](bool connected) { LeaveFor(run, connected); });
}

void RankProcess::LeaveFor(const EpochRun* next, bool connected) {
  const comm::Deadline deadline = comm::DeadlineIn(kLeaveTimeout);
  MutexLock lock(&mu_);
  if (connected && current_ != nullptr && next_.get() == next) current_->Leave();
  bool expired = !connected;  // others would leave, too, for an epoch that does not come about
  while (current_ != nullptr && next_.get() == next && !expired)
    expired = changed_.WaitUntil(&mu_, deadline);
  if (current_ != nullptr && next_.get() == next) current_->Stop(Replaced());
}

void RankProcess::ReadOrders() {
  while (true) {
    v1::ToRank order;
    const absl::Status received = channel_.Receive(&order, absl::InfiniteDuration());
    if (!received.ok()) {
      std::shared_ptr<EpochRun> current;
      {
        MutexLock lock(&mu_);
        daemon_gone_ = true;
        current = current_;
      }
      changed_.SignalAll();
      standby_.Close(std::numeric_limits<int64_t>::max());
      if (current != nullptr) current->Stop(absl::CancelledError("the node's daemon is gone"));
      return;
    }
    Handle(order, channel_.TakeDescriptors(DescriptorsWith(order)));
  }
}

void RankProcess::TellStopped(int64_t epoch) {
  v1::ToDaemon stopped;
  stopped.mutable_stopped()->set_epoch(epoch);
  channel_.Send(stopped, kDaemonTimeout).IgnoreError();
}

void RankProcess::TellNotWritten(const v1::WriteIncident& order, const absl::Status& status) {
  spdlog::warn("job={} rank={} incident {} is not written: {}", order.job(), order.rank(),
               order.number(), status.ToString());
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  report.set_job(order.job());
  report.set_epoch(order.epoch());
  report.set_rank(order.rank());
  report.mutable_event()->set_type("IncidentNotWritten");
  report.mutable_event()->set_message(
      absl::StrCat("incident ", order.number(), ": ", status.message()));
  channel_.Send(message, kDaemonTimeout).IgnoreError();
}

void RankProcess::TellReached(const job::InjectedFault& fault, job::FaultPhase phase,
                              int64_t step) {
  v1::ToDaemon message;
  v1::RankReport& report = *message.mutable_report();
  {
    MutexLock lock(&mu_);
    if (current_ == nullptr) return;
    report.set_job(current_->order().assign().job());
    report.set_epoch(current_->epoch());
    report.set_rank(current_->order().rank());
  }
  const absl::string_view where = job::ToString(phase);
  report.mutable_event()->set_type(job::kFaultReached);
  report.mutable_event()->set_message(absl::StrCat(job::FaultWord(fault), " at step ", step,
                                                   where.empty() ? "" : absl::StrCat(", ", where)));
  spdlog::info("rank={} fault on demand: {}", report.rank(), report.event().message());
  channel_.Send(message, kDaemonTimeout).IgnoreError();
}

void RankProcess::WarmUp(EpochRun& run) {
  run.WarmUp();
  {
    const MutexLock lock(&mu_);
    current_ = nullptr;
  }
  v1::ToDaemon message;
  message.mutable_warmed();
  channel_.Send(message, kDaemonTimeout).IgnoreError();
}

void RankProcess::LetGo(std::vector<std::shared_ptr<EpochRun>> given_up) {
  for (std::shared_ptr<EpochRun>& run : given_up) {
    // On a GPU nothing of NCCL is made while another thread still makes some, or gives it up.
    if (run->order().device_kind() == "gpu") {
      run = nullptr;
    } else {
      endings_.Add(std::move(run));
    }
  }
}

int RankProcess::Run() {
  v1::ToDaemon hello;
  hello.mutable_hello()->set_pid(getpid());
  hello.mutable_hello()->set_version(PHALANX_VERSION);
  if (!channel_.Send(hello, kDaemonTimeout).ok()) return 2;
  std::thread reader([this] { ReadOrders(); });
  int exit_code = 0;
  while (true) {
    std::shared_ptr<EpochRun> run, last, warm;
    std::vector<std::shared_ptr<EpochRun>> given_up;
    {
      MutexLock lock(&mu_);
      while (!quit_ && !daemon_gone_ && next_ == nullptr && to_warm_ == nullptr)
        changed_.Wait(&mu_);
      if (quit_ || daemon_gone_) {
        exit_code = daemon_gone_ && !quit_ ? 2 : 0;
        break;
      }
      warm = std::exchange(to_warm_, nullptr);
      if (next_ != nullptr) warm = nullptr;  // an epoch was quicker
      run = current_ = warm != nullptr ? warm : std::exchange(next_, nullptr);
      last = std::exchange(last_, nullptr);
      given_up = std::exchange(given_up_, {});
    }
    LetGo(std::move(given_up));  // the next one begins at once
    if (last != nullptr) last->WindDown();
    last = nullptr;  // before anything that it uses goes
    if (warm != nullptr) {
      WarmUp(*warm);
      continue;
    }
    const v1::RunEpoch& order = run->order();
    const v1::Assign& assign = order.assign();
    spdlog::info("job={} epoch={} rank={} begins", assign.job(), assign.epoch(), order.rank());
    const absl::Status ended = run->Run();
    bool told_to_stop = false;
    {
      MutexLock lock(&mu_);
      current_ = nullptr;
      changed_.SignalAll();
      if (ended.ok()) last_ = run;
      last_epoch_ = run->epoch();
      told_to_stop = run->stop_requested() || (next_ != nullptr && next_->beside());
    }
    spdlog::info("job={} epoch={} rank={} ends: {}", assign.job(), assign.epoch(), order.rank(),
                 ended.ToString());
    if (order.keeps()) {
      exit_code = ended.ok() || told_to_stop ? 0 : 1;
      break;
    }
    if (told_to_stop) TellStopped(assign.epoch());
    if (!ended.ok() && !IsCollateral(ended)) {
      exit_code = 1;
      break;
    }
  }
  std::vector<std::shared_ptr<EpochRun>> given_up;
  {
    std::shared_ptr<EpochRun> last;
    MutexLock lock(&mu_);
    last = std::exchange(last_, nullptr);
    given_up = std::exchange(given_up_, {});
    if (next_ != nullptr) {
      next_->Stop(absl::CancelledError("the process ends"));
      given_up.push_back(std::exchange(next_, nullptr));
    }
  }
  LetGo(std::move(given_up));
  if (!endings_.AwaitAll(comm::DeadlineIn(kEndingsTimeout)))
    spdlog::warn("an epoch that was given up does not end, nor is it waited for");
  channel_.Shutdown();
  reader.join();
  return exit_code;
}

}  // namespace phalanx::rank

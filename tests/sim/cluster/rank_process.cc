#include "tests/sim/cluster/rank_process.h"

#include <algorithm>
#include <utility>

#include "core/wire/layout_codec.h"
#include "tests/sim/cluster/epoch_run.h"

namespace phalanx::sim {
namespace {

// As in worker/rank/standby_pool.cc.
constexpr absl::Duration kStandbyMeetTimeout = absl::Seconds(10);

}  // namespace

RankProcess::RankProcess(Shared& shared, size_t node, int32_t device, JobId job,
                         agent::ProcessNumber number, Daemon daemon)
    : shared_(shared),
      node_(node),
      device_(device),
      job_(job),
      number_(number),
      key_(++shared.last_process),
      daemon_(std::move(daemon)) {
  // To load the program.
  After(shared_.timeline.Between(absl::Milliseconds(5), absl::Milliseconds(400)),
        [this] { daemon_.tell(agent::RankHelloReceived{number_}); });
  ShowThatItRuns();
}

RankProcess::~RankProcess() = default;

void RankProcess::ShowThatItRuns() {
  shared_.timeline.After(absl::Seconds(1), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || dead_) return;
    const bool stopped = suspended_ > hanging_;
    if (!stopped) {
      const uint64_t wait = current_ == nullptr || hanging_ > 0 ? 0 : current_->wait();
      const bool same = std::exchange(wait_, wait) == wait;
      daemon_.tell(agent::ProcessRan{number_, hanging_ > 0, same && wait != 0});
    }
    ShowThatItRuns();
  });
}

void RankProcess::After(absl::Duration delay, std::function<void()> what) {
  shared_.timeline.After(delay,
                         [this, alive = std::weak_ptr<bool>(alive_), what = std::move(what)] {
                           if (!alive.expired()) Do(what);
                         });
}

void RankProcess::Do(std::function<void()> what) {
  if (dead_) return;
  if (suspended()) {
    deferred_.push_back(std::move(what));
  } else {
    what();
  }
}

void RankProcess::RunEpoch(const v1::Assign& assign, int32_t rank, bool beside, bool keeps) {
  Do([this, assign, rank, beside, keeps] {
    const Epoch epoch{assign.epoch()};
    // By hand: each may end at once, and then the next one's turn has come.
    const std::shared_ptr<EpochRun> current = current_, next = next_;
    absl::StatusOr<plan::Layout> layout = wire::FromProto(assign.layout());
    if (!layout.ok()) {
      shared_.ledger.Violate("a layout cannot be read");
      return;
    }
    if ((current != nullptr && current->epoch() >= epoch) ||
        (next != nullptr && next->epoch() >= epoch)) {
      shared_.ledger.Violate("a process is told to go back to an earlier epoch");
    }
    next_ = std::make_shared<EpochRun>(*this, EpochRun::Order{.epoch = epoch,
                                                              .rank = rank,
                                                              .goes_on = assign.goes_on(),
                                                              .from_copies = assign.from_copies(),
                                                              .keeps = keeps,
                                                              .standby = assign.standby(),
                                                              .fence = assign.fence(),
                                                              .text = assign.document().text(),
                                                              .layout = *std::move(layout)});
    if (next != nullptr) next->GiveUp();
    if (beside && current == nullptr) TellStopped(last_epoch_);
    if (current != nullptr && !beside) current->Stop();
    if (current != nullptr && beside) next_->ConnectBeside();
    StartNext();
  });
}

void RankProcess::PrepareStandby(const v1::PrepareStandby& order) {
  Do([this, order] {
    const std::shared_ptr<EpochRun> run = current_;
    if (run == nullptr || run->epoch().value != order.epoch() || next_ != nullptr) return;
    const absl::StatusOr<plan::Layout> layout = wire::FromProto(order.layout());
    if (!layout.ok()) return shared_.ledger.Violate("a standby layout cannot be read");
    const JobPlanPtr plan = shared_.planner.Expand(run->text(), *layout);
    if (std::find(plan->ranks.begin(), plan->ranks.end(), run->rank()) == plan->ranks.end()) return;
    // Some never meet: they say so once they have waited, or, where the order is lost on its way,
    // nothing at all.
    const bool has = standby_.contains(order.set());
    if (!has && shared_.timeline.Chance(0.01)) return;
    const bool late = !has && shared_.timeline.Chance(0.03);
    const absl::Duration time =
        late ? kStandbyMeetTimeout
             : shared_.timeline.Between(absl::Milliseconds(5), absl::Milliseconds(800));
    After(time, [this, run, order, late] {
      if (current_ != run || next_ != nullptr) return;
      const bool fails = !standby_.contains(order.set()) && (late || shared_.timeline.Chance(0.02));
      if (!fails) {
        standby_.insert(order.set());
        shared_.ledger.OnStandbyMade(job_, order.set(), run->rank(), key_);
      }
      v1::RankReport report;
      report.mutable_standby()->set_set(order.set());
      if (fails) report.mutable_standby()->set_error(late ? "not all are here" : "no memory");
      Report(run->epoch(), run->rank(), agent::ReportKind::kOther, std::move(report));
    });
  });
}

bool RankProcess::TakeStandby(const std::string& set, const std::set<int32_t>& ranks,
                              int32_t rank) {
  const bool has = standby_.erase(set) != 0;
  standby_.clear();
  shared_.ledger.OnStandbyUsed(job_, set, ranks, rank, has ? key_ : 0);
  return has;
}

void RankProcess::OnConnected(const EpochRun& run) {
  const std::shared_ptr<EpochRun> current = current_;
  if (current != nullptr && next_.get() == &run) current->Stop();
}

void RankProcess::StartNext() {
  if (dead_ || current_ != nullptr) return;
  if (quit_) return Die(0, 0);
  if (next_ == nullptr) return;
  if (last_ != nullptr) std::exchange(last_, nullptr)->Release();
  current_ = std::exchange(next_, nullptr);
  std::erase_if(standby_, [this](const std::string& set) { return set != current_->standby(); });
  current_->Start();
}

void RankProcess::Stop(Epoch epoch) {
  Do([this, epoch] {
    const std::shared_ptr<EpochRun> current = current_, next = next_;
    if (current == nullptr && next == nullptr) return TellStopped(epoch);
    if (current != nullptr && current->epoch() <= epoch) current->Stop();
    if (next != nullptr && next->epoch() <= epoch) next->Stop();
  });
}

void RankProcess::TellStopped(Epoch epoch) { daemon_.tell(agent::EpochStopped{number_, epoch}); }

void RankProcess::Deliver(const v1::Rendezvous& message) {
  Do([this, message] {
    for (const std::shared_ptr<EpochRun>& run : {current_, next_}) {
      if (run != nullptr && run->epoch().value == message.epoch()) run->Deliver(message);
    }
  });
}

void RankProcess::Deliver(const v1::BeginEpoch& message) {
  Do([this, message] {
    for (const std::shared_ptr<EpochRun>& run : {current_, next_}) {
      if (run != nullptr && run->epoch().value == message.epoch()) run->Deliver(message);
    }
  });
}

void RankProcess::Quit() {
  Do([this] {
    quit_ = true;
    const std::shared_ptr<EpochRun> current = current_;
    if (current != nullptr) current->Stop();
    if (current_ == nullptr) Die(0, 0);
  });
}

void RankProcess::Die(int32_t exit_code, int32_t signal, bool silent) {
  if (std::exchange(dead_, true)) return;
  for (const std::shared_ptr<EpochRun>& run : {current_, next_, last_}) {
    if (run != nullptr) run->OnProcessGone(silent);
  }
  shared_.ledger.UnlockMetrics(job_, key_);
  shared_.ledger.OnProcessGone(job_, key_, exit_code != 0 || signal != 0);
  deferred_.clear();
  daemon_.ended(exit_code, signal);
}

void RankProcess::Suspend() { ++suspended_; }

void RankProcess::Hang() {
  ++hanging_;
  Suspend();
}

void RankProcess::GoOn() {
  --hanging_;
  Resume();
}

void RankProcess::EndWithin(absl::Duration time) {
  const absl::Duration delay = shared_.timeline.Between(absl::ZeroDuration(), time);
  shared_.timeline.After(delay, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Die(0, 6);
  });
}

bool RankProcess::Breaks(double probability) {
  if (!shared_.timeline.Chance(probability)) return false;
  shared_.timeline.Note("fault: process $1 of node $0, job $2, in the middle of a write",
                        static_cast<int64_t>(node_), number_.value, job_.value);
  Die(0, 9);
  return true;
}

void RankProcess::Resume() {
  if (--suspended_ > 0) return;
  const std::weak_ptr<bool> alive = alive_;
  while (!alive.expired() && !dead_ && !suspended() && !deferred_.empty()) {
    const std::function<void()> next = std::move(deferred_.front());
    deferred_.pop_front();
    next();
  }
}

void RankProcess::Report(Epoch epoch, int32_t rank, agent::ReportKind kind, v1::RankReport report,
                         agent::RankOutcome outcome) {
  report.set_job(job_.value);
  report.set_epoch(epoch.value);
  report.set_rank(rank);
  daemon_.tell(agent::RankReported{number_, epoch, kind, report.SerializeAsString(), outcome});
}

void RankProcess::ReportProgress(Epoch epoch, int64_t step) {
  daemon_.tell(agent::RankProgressed{number_, epoch, step});
}

void RankProcess::OnRunEnded(bool ok, bool collateral, bool told_to_stop) {
  const std::shared_ptr<EpochRun> run = std::exchange(current_, nullptr);
  if (ok) {
    last_ = run;
  } else {
    run->Release();
  }
  last_epoch_ = run->epoch();
  if (told_to_stop || (next_ != nullptr && next_->connects())) TellStopped(run->epoch());
  if (!ok && !collateral) return Die(1, 0);
  StartNext();
}

}  // namespace phalanx::sim

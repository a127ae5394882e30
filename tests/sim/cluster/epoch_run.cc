// From an order to the first step.
#include "tests/sim/cluster/epoch_run.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/wire/common_codec.h"

namespace phalanx::sim {
namespace {

// As in worker/rank/epoch_run.cc.
constexpr absl::Duration kSetupTimeout = absl::Seconds(60);
constexpr absl::Duration kBeginTimeout = absl::Minutes(10);
constexpr absl::Duration kMetricsPatience = absl::Seconds(15);

}  // namespace

EpochRun::EpochRun(RankProcess& process, Order order)
    : process_(process), order_(std::move(order)) {}

void EpochRun::After(absl::Duration delay, std::function<void()> what) {
  process_.After(delay,
                 [weak = weak_from_this(), generation = generation_, what = std::move(what)] {
                   const auto self = weak.lock();
                   if (self == nullptr) return;
                   auto* run = static_cast<EpochRun*>(self.get());
                   if (!run->ended_ && run->generation_ == generation) what();
                 });
}

void EpochRun::Then(absl::Duration low, absl::Duration high, Next next) {
  After(shared().timeline.Between(low, high), [this, next] { (this->*next)(); });
}

void EpochRun::ConnectBeside() {
  connects_ = true;
  Then(absl::Milliseconds(1), absl::Milliseconds(20), &EpochRun::MakePlan);
}

void EpochRun::GiveUp() {
  ++generation_;
  awaited_.reset();
  ended_ = true;
  LeaveFabric();
}

void EpochRun::Start() {
  started_ = true;
  if (stopped_) return Fail(Kind::kCancelled, -1, "stopped");
  if (connects_) {
    if (!connected_.has_value()) return;
    return *connected_ ? AwaitBegin() : Fail(Kind::kPeerLost, -1, "not all were connected");
  }
  Then(absl::Milliseconds(1), absl::Milliseconds(20), &EpochRun::MakePlan);
}

void EpochRun::MakePlan() {
  plan_ = shared().planner.Expand(order_.text, order_.layout);
  if (!plan_->wrong.empty()) shared().ledger.Violate(plan_->wrong);
  if (!order_.from_copies) return OpenData();
  return shared().copies ? FindCopies() : SayCopies();
}

void EpochRun::OpenData() {
  Then(absl::Milliseconds(1), absl::Milliseconds(50),
       order_.goes_on ? &EpochRun::Connect : &EpochRun::OpenMetrics);
}

// Only the reporter writes metrics; another writer's hold on the folder is waited for.
void EpochRun::OpenMetrics() {
  lock_until_ = shared().timeline.now() + kMetricsPatience;
  TryMetrics();
}

void EpochRun::TryMetrics() {
  const Next next = order_.goes_on ? &EpochRun::BorrowState : &EpochRun::Connect;
  if (plan_->reporter != rank()) return (this->*next)();
  if (!shared().ledger.LockMetrics(process_.job(), process_.key())) {
    if (shared().timeline.now() > lock_until_)
      return Fail(Kind::kOutput, -1, "another writer holds the output folder");
    return Then(absl::Milliseconds(100), absl::Milliseconds(100), &EpochRun::TryMetrics);
  }
  if (!shared().ledger.MarkMetrics(process_.job(), order_.fence)) {
    shared().ledger.UnlockMetrics(process_.job(), process_.key());
    return Fail(Kind::kPeerLost, -1, "a later epoch has opened the output folder");
  }
  has_metrics_ = true;
  const int64_t first = (start_.has_value() ? start_->step() : 0) + 1;
  last_line_ = shared().ledger.OpenMetrics(process_.job(), epoch(), first);
  (this->*next)();
}

void EpochRun::Connect() {
  shared().ledger.OnConnects(process_.job(), epoch(), order_.standby);
  if (!order_.standby.empty() && !process_.TakeStandby(order_.standby, All(), rank()))
    return Fail(Kind::kPeerLost, -1, "another process had the communicators");
  shared().fabric.Join(process_.job(), epoch(), rank(), process_.node(), weak_from_this());
  joined_ = true;
  v1::RankReport report;
  report.mutable_rendezvous()->set_key(absl::StrCat(rank()));
  report.mutable_rendezvous()->set_value("here");
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report));
  awaits_entries_ = true;
  After(kSetupTimeout, [this] {
    if (!awaits_entries_) return;
    for (const int32_t other : plan_->ranks) {
      if (!entries_.contains(other))
        return Fail(Kind::kPeerLost, other, "it has not said where it is");
    }
  });
  CheckEntries();
}

void EpochRun::Deliver(const v1::Rendezvous& message) {
  for (const auto& [key, value] : message.entries()) {
    int32_t other = 0;
    if (absl::SimpleAtoi(key, &other)) entries_.insert(other);
    absl::string_view keeper = key;
    if (absl::ConsumePrefix(&keeper, kKeeperKey) && absl::SimpleAtoi(keeper, &other))
      keepers_there_.insert(other);
  }
  CheckEntries();
  CheckKeepers();
}

void EpochRun::CheckEntries() {
  if (!awaits_entries_) return;
  const std::set<int32_t> all = All();
  if (!std::includes(entries_.begin(), entries_.end(), all.begin(), all.end())) return;
  awaits_entries_ = false;
  Then(absl::Microseconds(100), absl::Milliseconds(30), &EpochRun::SayHello);
}

void EpochRun::SayHello() {
  Broadcast({.kind = Message::Kind::kHello});
  Await(Message::Kind::kHello, 0, All(), kSetupTimeout,
        order_.goes_on ? &EpochRun::OnConnected : &EpochRun::BorrowState);
}

void EpochRun::OnConnected() {
  connected_ = true;
  if (connects_ && !started_) return process_.OnConnected(*this);
  AwaitBegin();
}

void EpochRun::AwaitBegin() {
  if (start_.has_value()) return order_.keeps ? GiveCopies() : OpenMetrics();
  awaits_begin_ = true;
  After(kBeginTimeout, [this] {
    if (awaits_begin_)
      Fail(Kind::kRankError, -1, "nobody has said from which step the epoch goes on");
  });
}

void EpochRun::Deliver(const v1::BeginEpoch& message) {
  if (start_.has_value()) return;
  start_ = coordinator::FromProto(message.begins());
  if (!start_.has_value()) return shared().ledger.Violate("an epoch's beginning cannot be read");
  source_ = message.copies();
  if (!std::exchange(awaits_begin_, false)) return;
  order_.keeps ? GiveCopies() : OpenMetrics();
}

void EpochRun::BorrowState() {
  std::optional<RankState>& kept = process_.state();
  if (!order_.goes_on) {
    kept = RankState::Initial(rank(), plan_);
    kept->epoch = epoch();
    return KeepHostCopy();
  }
  if (order_.from_copies && shared().copies) return TakeCopies();
  if (!kept.has_value() || kept->rank != rank() || !kept->MayGoOn(*start_)) {
    kept.emplace();
    kept->rank = rank();
    kept->decided = *start_;
    kept->told = start_->step();
  }
  kept->epoch = epoch();
  if (kept->layout != nullptr) {
    if (const std::string wrong = kept->GoOn(*start_); !wrong.empty()) {
      shared().ledger.Violate(absl::StrCat(ToString(process_.job()), " epoch ", epoch().value,
                                           " rank ", rank(), " cannot go on: ", wrong));
      return Fail(Kind::kRankError, -1, wrong);
    }
    kept->Leave();
  }
  if (shared().copies) kept->NameAs(plan_);
  Then(absl::Microseconds(100), absl::Milliseconds(20), &EpochRun::ExchangeHoldings);
}

void EpochRun::ExchangeHoldings() {
  Broadcast({.kind = Message::Kind::kHoldings,
             .step = state().decided.step(),
             .bits = state().bits,
             .holdings = std::make_shared<const Holdings>(state().loose)});
  Await(Message::Kind::kHoldings, 0, All(), kOperationTimeout, &EpochRun::PlanTransfers);
}

void EpochRun::PlanTransfers() {
  bool any = !state().loose.empty();
  for (const auto& [other, message] : inbox_.at({Message::Kind::kHoldings, 0})) {
    if (message.holdings->empty()) continue;
    if (!std::exchange(any, true)) state().bits = message.bits;
    if (message.step != start_->step() || message.bits != state().bits) {
      shared().ledger.Violate(absl::StrCat(ToString(process_.job()), " epoch ", epoch().value,
                                           ": rank ", other, " holds state of step ", message.step,
                                           ", or other bits, behind step ", start_->step()));
    }
    holdings_[other] = *message.holdings;
  }
  const std::map<int32_t, Holdings>& needs = plan_->holdings;
  const auto& rounds = shared().fabric.TransfersOf(process_.job(), epoch(), needs, holdings_);
  if (!rounds.ok()) return Fail(Kind::kStateLost, -1, std::string(rounds.status().message()));
  rounds_ = *rounds;
  TransferNext();
}

void EpochRun::TransferNext() {
  if (round_ == rounds_.size()) {
    const auto needed = plan_->holdings.find(rank());
    if (state().loose != (needed == plan_->holdings.end() ? Holdings() : needed->second))
      shared().ledger.Violate("a rank does not hold what its layout gives it");
    state().Enter(plan_);
    return Then(absl::Microseconds(100), absl::Milliseconds(20), &EpochRun::Prepare);
  }
  const TransferRound& round = rounds_[round_];
  std::set<int32_t> givers;
  for (const auto& [pair, pieces] : round.messages) {
    if (pair.second == rank()) givers.insert(pair.first);
    if (pair.first != rank()) continue;
    shared().fabric.Send(process_.job(), epoch(), pair.second,
                         {.kind = Message::Kind::kState,
                          .from = rank(),
                          .key = static_cast<int64_t>(round_),
                          .step = state().decided.step(),
                          .bits = state().bits,
                          .holdings = std::make_shared<const Holdings>(pieces)});
  }
  Await(Message::Kind::kState, static_cast<int64_t>(round_), std::move(givers), kOperationTimeout,
        &EpochRun::OnRoundReceived);
}

void EpochRun::OnRoundReceived() {
  if (process_.Breaks(shared().dies_moving)) return;
  const auto key = static_cast<int64_t>(round_);
  std::set<int32_t> takers;
  for (const auto& [pair, pieces] : rounds_[round_].messages) {
    if (pair.first == rank()) takers.insert(pair.second);
    if (pair.second != rank()) continue;
    const Message& message = inbox_.at({Message::Kind::kState, key}).at(pair.first);
    if (message.step != start_->step() || message.bits != state().bits)
      shared().ledger.Violate("state of another step is moved");
    for (const auto& [ruler, ranges] : *message.holdings) {
      for (const plan::UnitRange& range : ranges) AddRange(range, &state().loose[ruler]);
    }
    shared().fabric.Send(process_.job(), epoch(), pair.first,
                         {.kind = Message::Kind::kHave, .from = rank(), .key = key});
  }
  Await(Message::Kind::kHave, key, std::move(takers), kOperationTimeout, &EpochRun::OnRoundDone);
}

// Those who were given some of it have it: what the layout does not give this rank goes.
void EpochRun::OnRoundDone() {
  const BucketName bucket = rounds_[round_].bucket;
  std::erase_if(state().loose, [&](const auto& entry) { return entry.first.bucket == bucket; });
  const auto needed = plan_->holdings.find(rank());
  if (needed != plan_->holdings.end()) {
    for (const auto& [ruler, ranges] : needed->second) {
      if (ruler.bucket == bucket) state().loose[ruler] = ranges;
    }
  }
  ++round_;
  TransferNext();
}

void EpochRun::Prepare() {
  shared().ledger.OnHolds(process_.job(), process_.key());
  if (start_.has_value() && start_->step() > state().told) Tell();
  Broadcast({.kind = Message::Kind::kGathered});
  Await(Message::Kind::kGathered, 0, All(), kOperationTimeout, &EpochRun::GetReady);
}

void EpochRun::GetReady() {
  // Whoever wrote metrics before may have died before it wrote the last line.
  const int64_t begun = start_.has_value() ? start_->step() : 0;
  if (has_metrics_ && last_line_ < begun) {
    shared().ledger.WriteMetrics(process_.job(), epoch(), *start_->decision);
    last_line_ = begun;
  }
  v1::RankReport report;
  report.mutable_ready();
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report));
  step_ = begun + 1;
  if (step_ > plan_->plan.spec.steps) return Succeed();
  Then(absl::ZeroDuration(), absl::Milliseconds(1), &EpochRun::BeginStep);
}

void EpochRun::Broadcast(Message message) {
  message.from = rank();
  for (const int32_t other : plan_->ranks) {
    if (other != rank()) shared().fabric.Send(process_.job(), epoch(), other, message);
  }
  inbox_[{message.kind, message.key}][rank()] = std::move(message);
}

void EpochRun::Await(Message::Kind kind, int64_t key, std::set<int32_t> from,
                     absl::Duration timeout, Next next) {
  awaited_ = {.kind = kind,
              .key = key,
              .from = std::move(from),
              .next = next,
              .deadline = shared().timeline.now() + timeout};
  Watch();
  CheckAwaited();
  CheckGone();
}

// One timer for all that is awaited one after the other.
void EpochRun::Watch() {
  if (watched_ || !awaited_.has_value()) return;
  watched_ = true;
  After(awaited_->deadline - shared().timeline.now(), [this] {
    watched_ = false;
    if (!awaited_.has_value()) return;
    if (shared().timeline.now() < awaited_->deadline) return Watch();
    const auto& have = inbox_[{awaited_->kind, awaited_->key}];
    for (const int32_t other : awaited_->from) {
      if (!have.contains(other)) return Fail(Kind::kPeerLost, other, "it says nothing");
    }
  });
}

// What a rank had sent before it left has come.
void EpochRun::CheckGone() {
  if (!awaited_.has_value() || ended_ || failed_) return;
  const auto& have = inbox_[{awaited_->kind, awaited_->key}];
  for (const int32_t other : awaited_->from) {
    if (gone_.contains(other) && !have.contains(other))
      return Fail(Kind::kPeerLost, other, "the connection broke");
  }
}

void EpochRun::CheckAwaited() {
  if (!awaited_.has_value()) return;
  const auto& have = inbox_[{awaited_->kind, awaited_->key}];
  for (const int32_t other : awaited_->from) {
    if (!have.contains(other)) return;
  }
  const Next next = awaited_->next;
  awaited_.reset();
  (this->*next)();
}

void EpochRun::Deliver(const Message& message) {
  process_.Do([weak = weak_from_this(), message] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    auto* run = static_cast<EpochRun*>(self.get());
    if (run->ended_ || run->failed_) return;
    run->inbox_[{message.kind, message.key}][message.from] = message;
    run->CheckAwaited();
  });
}

void EpochRun::OnGone(int32_t gone) {
  After(shared().network.LocalDelay(), [this, gone] {
    gone_.insert(gone);
    CheckGone();
  });
}

}  // namespace phalanx::sim

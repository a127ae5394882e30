// Copies of a rank's state in memory of its node's daemon: it makes them while it trains, and takes
// them back where an epoch goes on from them (worker/rank/epoch_copies.cc, epoch_memory.cc).
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/common_codec.h"
#include "core/plan/copy_takers.h"
#include "core/plan/shares.h"
#include "core/wire/layout_codec.h"
#include "tests/sim/cluster/epoch_run.h"

namespace phalanx::sim {
namespace {

constexpr absl::Duration kDaemonTimeout = absl::Seconds(30);
// A copy is whole before the next step is decided: what is done again stays within what is promised
// (docs/recovery.md) only then.
constexpr double kCopyTimeMax = 0.7;  // of a step
// As in worker/rank/epoch_inherit.cc.
constexpr absl::Duration kCopiesMeetTimeout = absl::Minutes(5);

}  // namespace

void EpochRun::AskDaemon(std::function<void(CopyMemory&)> question,
                         std::function<void()> answered) {
  process_.Ask(std::move(question),
               [weak = weak_from_this(), generation = generation_, answered = std::move(answered)] {
                 const auto self = weak.lock();
                 if (self == nullptr) return;
                 auto* run = static_cast<EpochRun*>(self.get());
                 if (!run->ended_ && run->generation_ == generation) answered();
               });
}

bool EpochRun::KeepsCopies() {
  return shared().copies && plan_->copies_to_host && plan_->primaries.contains(rank());
}

void EpochRun::FindCopies() {
  plan::RankList ranks;
  if (order_.keeps) {
    for (const plan::NodeDevices& node : order_.layout.nodes) {
      for (size_t i = 0; i < node.devices.size(); ++i)
        ranks.push_back(Rank{static_cast<int32_t>(ranks.size())});
    }
  } else {
    ranks = plan::CopiesToTake(plan_->plan, Rank{rank()});
  }
  AskDaemon([this, self = shared_from_this(), job = process_.job(), ranks = std::move(ranks)](
                CopyMemory& memory) { found_ = memory.PairsBefore(job, epoch(), ranks); },
            [this] {
              copies_given_ = true;
              SayCopies();
            });
  After(kDaemonTimeout, [this] {
    if (!copies_given_)
      Fail(Kind::kRankError, -1, "the daemon does not say what copies of state it has");
  });
}

void EpochRun::SayCopies() {
  v1::RankReport report;
  v1::RankCopies& found = *report.mutable_copies();
  for (const CopyPairPtr& pair : found_) {
    v1::RankCopies::Pair& out = *found.add_pairs();
    out.set_rank(pair->rank);
    out.set_epoch(pair->epoch.value);
    for (const CopyPair::Buffer& buffer : pair->buffers) {
      if (!buffer.whole) continue;
      v1::RankCopies::Copy& copy = *out.add_copies();
      coordinator::ToProto(buffer.start, copy.mutable_start());
      copy.set_plan(buffer.plan);
    }
  }
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report));
  order_.keeps ? AwaitBegin() : OpenData();
}

std::vector<plan::InheritedCopies> EpochRun::Inherited() {
  const absl::StatusOr<plan::Layout> layout = wire::FromProto(source_.layout());
  if (!layout.ok()) {
    shared().ledger.Violate("a layout of copies cannot be read");
    return {};
  }
  source_plan_ = shared().planner.Expand(order_.text, *layout);
  if (source_plan_->plan.digest != source_.plan_digest())
    shared().ledger.Violate("copies lie in the layout of another plan");
  plan::RankList keepers;
  for (const int32_t keeper : source_.keepers()) keepers.push_back(Rank{keeper});
  return plan::CopiesToInherit(source_plan_->plan, plan_->plan, keepers);
}

void EpochRun::GiveCopies() {
  std::set<int32_t> takers;
  for (const plan::InheritedCopies& inherited : Inherited()) {
    if (inherited.keeper.value == rank()) takers.insert(inherited.taker.value);
  }
  if (takers.empty()) return EndKeeping();
  shared().fabric.Join(process_.job(), epoch(), rank(), process_.node(), weak_from_this());
  joined_ = true;
  v1::RankReport report;
  report.mutable_rendezvous()->set_key(absl::StrCat(kKeeperKey, rank()));
  report.mutable_rendezvous()->set_value("here");
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report));
  Await(Message::Kind::kAskCopies, 0, std::move(takers), kCopiesMeetTimeout, &EpochRun::SendCopies);
}

void EpochRun::SendCopies() {
  std::map<int32_t, std::vector<CopyPair>> given;  // by taker
  for (const plan::InheritedCopies& inherited : Inherited()) {
    if (inherited.keeper.value != rank()) continue;
    for (const CopyPairPtr& pair : found_) {
      if (pair->rank == inherited.of.value && pair->epoch.value == source_.epoch())
        given[inherited.taker.value].push_back(*pair);
    }
    given.try_emplace(inherited.taker.value);
  }
  for (auto& [taker, pairs] : given) {
    shared().fabric.Send(
        process_.job(), epoch(), taker,
        {.kind = Message::Kind::kCopies,
         .from = rank(),
         .copies = std::make_shared<const std::vector<CopyPair>>(std::move(pairs))});
  }
  Then(absl::Milliseconds(1), absl::Milliseconds(50), &EpochRun::EndKeeping);
}

void EpochRun::EndKeeping(int32_t exit_code) {
  ended_ = true;
  LeaveFabric();
  process_.Die(exit_code, 0);
}

void EpochRun::TakeCopies() {
  for (const plan::InheritedCopies& inherited : Inherited()) {
    if (inherited.taker.value == rank()) keepers_.insert(inherited.keeper.value);
  }
  if (keepers_.empty()) return TakeFound();
  awaits_keepers_ = true;
  After(kCopiesMeetTimeout, [this] {
    if (awaits_keepers_)
      Fail(Kind::kStateLost, -1, "a node that has copies of state does not give them");
  });
  CheckKeepers();
}

void EpochRun::CheckKeepers() {
  const bool all =
      std::includes(keepers_there_.begin(), keepers_there_.end(), keepers_.begin(), keepers_.end());
  if (!awaits_keepers_ || !all) return;
  awaits_keepers_ = false;
  for (const int32_t keeper : keepers_) {
    shared().fabric.Send(process_.job(), epoch(), keeper,
                         {.kind = Message::Kind::kAskCopies, .from = rank()});
  }
  Await(Message::Kind::kCopies, 0, keepers_, kCopiesMeetTimeout, &EpochRun::TakeFound);
}

void EpochRun::TakeFound() {
  const JobPlanPtr before = source_plan_;
  for (const auto& [keeper, message] : inbox_[{Message::Kind::kCopies, 0}]) {
    for (const CopyPair& pair : *message.copies) found_.push_back(std::make_shared<CopyPair>(pair));
  }
  RankState& taken = process_.state().emplace();
  taken.rank = rank();
  taken.epoch = epoch();
  taken.decided = *start_;
  taken.told = start_->step();
  taken.named_as = before;
  for (const CopyPairPtr& pair : std::exchange(found_, {})) {
    if (pair->epoch.value != source_.epoch()) continue;
    const CopyPair::Buffer* copy = pair->Find(start_->step());
    if (copy == nullptr || copy->plan != FirstBits(before->plan.digest)) {
      return Fail(Kind::kStateLost, -1,
                  absl::StrCat("there is no whole copy of the state of rank ", pair->rank,
                               " of step ", start_->step(), " in epoch ", source_.epoch()));
    }
    if (!(copy->start == *start_) || (!taken.loose.empty() && copy->bits != taken.bits)) {
      shared().ledger.Violate(absl::StrCat(ToString(process_.job()), " epoch ", epoch().value,
                                           ": the copy of rank ", pair->rank, " of step ",
                                           start_->step(), " is of another one"));
    }
    taken.bits = copy->bits;
    for (const auto& [ruler, ranges] : before->primaries.at(pair->rank)) {
      for (const plan::UnitRange& range : ranges) AddRange(range, &taken.loose[ruler]);
    }
  }
  taken.NameAs(plan_);
  Then(absl::Microseconds(100), absl::Milliseconds(20), &EpochRun::ExchangeHoldings);
}

// A rank that begins with initial values has its memory before it trains; one that goes on asks
// once a step is decided.
void EpochRun::KeepHostCopy() {
  if (!KeepsCopies()) return Prepare();
  DropEarlierCopies();  // they are not of this training
  AskCopyMemory(&EpochRun::Prepare);
  After(kDaemonTimeout, [this] {
    if (!copy_.has_value()) Fail(Kind::kRankError, -1, "the daemon gives no host memory");
  });
}

void EpochRun::AskCopyMemory(Next next) {
  memory_asked_ = true;
  const auto pair = std::make_shared<CopyPairPtr>();
  AskDaemon(
      [pair, &ledger = shared().ledger, node = process_.node(),
       owner = CopyMemory::Owner{process_.job(), epoch(), rank()}](CopyMemory& memory) {
        *pair = memory.PairOf(owner);
        ledger.OnCopyMemory(owner.job, owner.epoch, node);
      },
      [this, pair, next] {
        copy_.emplace(*pair, plan_->plan.spec.recovery.state_every);
        if (next != nullptr) (this->*next)();
      });
}

void EpochRun::DropEarlierCopies() {
  process_.Ask([job = process_.job(),
                epoch = epoch()](CopyMemory& memory) { memory.FreeBefore(job, epoch); },
               [] {});
}

int64_t EpochRun::CopiedOfRecord() {
  if (!KeepsCopies()) return train::kKeepsNoCopies;
  return copy_.has_value() ? copy_->copied() : train::kCopiesNotYet;
}

// The step is settled, and nothing of the next one has changed the state.
void EpochRun::TendCopies() {
  if (KeepsCopies() && !memory_asked_) AskCopyMemory(nullptr);
  if (copy_.has_value() && !state().homes.empty()) {
    const CopyPair::Buffer now = {.start = state().decided,
                                  .bits = state().homes[0].bits,
                                  .plan = FirstBits(plan_->plan.digest)};
    if (copy_->AfterStep(now, copied_)) {
      const absl::Duration time = shared().step_time;
      After(shared().timeline.Between(time * 0.01, time * kCopyTimeMax),
            [this] { copy_->MarkDone(); });
    }
  }
  // What mirrors lack comes to them before the first step here.
  const bool mirrored = copied_ == train::kKeepsNoCopies && plan::AllIsMirrored(plan_->plan);
  if ((!mirrored && !CopiesAreWhole()) || std::exchange(whole_told_, true)) return;
  if (mirrored) shared().ledger.OnMirrored(process_.job(), epoch());
  DropEarlierCopies();
}

}  // namespace phalanx::sim

// A step of an epoch, and its ends.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/wire/common_codec.h"
#include "tests/sim/cluster/epoch_run.h"

namespace phalanx::sim {
namespace {

using coordinator::StepDecision;

StepDecision DecisionOf(const train::Decision& decision) {
  StepDecision out{.step = decision.step,
                   .loss = decision.loss,
                   .gradient_norm = decision.gradient_norm,
                   .gradient_scale = decision.gradient_scale,
                   .counted_tokens = decision.counted_tokens,
                   .corrupt_samples = decision.corrupt_samples,
                   .tokens = decision.volume.tokens};
  out.verdict = decision.verdict == train::Verdict::kCommitted ? StepDecision::Verdict::kCommitted
                : decision.verdict == train::Verdict::kSkipped ? StepDecision::Verdict::kSkipped
                                                               : StepDecision::Verdict::kEmpty;
  return out;
}

}  // namespace

uint64_t EpochRun::wait() const {
  if (!training() || !awaited_.has_value()) return 0;
  return (static_cast<uint64_t>(epoch().value) << 40) |
         (static_cast<uint64_t>(awaited_->key) << 8) | static_cast<uint64_t>(awaited_->kind);
}

void EpochRun::BeginStep() {
  for (const RankState::Home& home : state().homes)
    shared().ledger.OnStepBegins(process_.job(), epoch(), rank(), step_, home.applied, home.bits);
  state().reduced = 0;
  const absl::Duration time = shared().step_time;
  Then(time * 0.8, time * 1.2, &EpochRun::SendGradients);
}

void EpochRun::SendGradients() {
  Broadcast({.kind = Message::Kind::kGradients, .key = step_});
  Await(Message::Kind::kGradients, step_, All(), kOperationTimeout, &EpochRun::OnReduced);
}

void EpochRun::OnReduced() {
  state().reduced = step_;
  Then(absl::Microseconds(20), absl::Milliseconds(2), &EpochRun::SendRecord);
}

// Sums are a function of the step, but for what the layout does to their last bits. Some steps are
// not finite, and some have no token that counts.
train::Record EpochRun::RecordOf(int64_t step) {
  train::Record header{.epoch = epoch().value, .step = step, .applied = step - 1};
  header.plan_digest = StreamOf(plan_->plan.digest);
  header.copied = CopiedOfRecord();
  const uint64_t hash =
      Hash64(static_cast<uint64_t>(process_.job().value), 1, static_cast<uint64_t>(step));
  const bool empty = hash % 97 == 0;
  double sums[4] = {
      1 + static_cast<double>(hash % 1000) * 1e-3 + static_cast<double>(epoch().value) * 1e-12, 2.0,
      empty ? 0.0 : 32.0, 0.0};
  if (hash % 89 == 1) sums[0] = std::numeric_limits<double>::infinity();
  return train::CompleteRecord(header, sums);
}

void EpochRun::SendRecord() {
  if (!state().AllApplied(step_ - 1))
    shared().ledger.Violate("a record is written before its step's state is there");
  Broadcast({.kind = Message::Kind::kRecord, .key = step_, .record = RecordOf(step_)});
  Await(Message::Kind::kRecord, step_, All(), kOperationTimeout, &EpochRun::DecideStep);
}

// As the device does it, with the real decision.
void EpochRun::DecideStep() {
  std::vector<train::Record> records;
  for (const auto& [other, message] : inbox_.at({Message::Kind::kRecord, step_}))
    records.push_back(message.record);
  const train::Decision decision =
      train::Decide(records.data(), static_cast<int32_t>(records.size()),
                    {.epoch = epoch().value,
                     .step = step_,
                     .plan_digest = StreamOf(plan_->plan.digest),
                     .clip_norm = 1.0},
                    stopped_);
  if (!train::IsDecided(decision.verdict)) {
    const size_t place = decision.invalid_rank < 0 ? 0 : static_cast<size_t>(decision.invalid_rank);
    return Fail(Kind::kPeerLost, plan_->ranks[place], "its record is missing or of another step");
  }
  // Nobody asks for earlier messages any more.
  std::erase_if(inbox_, [this](const auto& entry) { return entry.first.second < step_; });
  slot_ = DecisionOf(decision);
  copied_ = decision.copied;
  settled_ = false;
  Then(absl::Microseconds(10), absl::Milliseconds(2), &EpochRun::SettleStep);
  for (size_t home = 0; home < state().homes.size(); ++home) {
    const bool mirror = state().homes[home].spec.primary != rank();
    After(shared().timeline.Between(absl::Microseconds(10),
                                    mirror ? absl::Milliseconds(20) : absl::Milliseconds(4)),
          [this, home] { ApplyHome(home); });
  }
}

void EpochRun::ApplyHome(size_t home) {
  if (process_.Breaks(shared().dies_applying)) return;
  if (const std::string wrong = state().Apply(home, *slot_); !wrong.empty())
    shared().ledger.Violate(absl::StrCat(ToString(process_.job()), " rank ", rank(), ": ", wrong));
  EndStep();
}

// The host reads the decision.
void EpochRun::SettleStep() {
  settled_ = true;
  Account(*slot_);
  EndStep();
}

void EpochRun::Account(const StepDecision& decision) {
  state().decided = sim::After(state().decided, decision);
  shared().ledger.OnDecided(process_.job(), epoch(), rank(), state().decided);
  if (CopiesAreWhole()) {
    shared().ledger.OnCopied(process_.job(), epoch(), copied_,
                             plan_->plan.spec.recovery.state_every);
  }
  Tell();
}

void EpochRun::Tell() {
  const coordinator::EpochStart& known = state().decided;
  state().told = known.step();
  process_.ReportProgress(epoch(), known.step());
  if (plan_->reporter != rank()) return;
  if (has_metrics_ && last_line_ < known.step()) {
    shared().ledger.WriteMetrics(process_.job(), epoch(), *known.decision);
    last_line_ = known.step();
  }
  v1::RankReport report;
  coordinator::ToProto(coordinator::StepReport{.step = known.step(),
                                               .loss = known.decision->loss,
                                               .tokens = known.decision->tokens,
                                               .seconds = 1,
                                               .epoch = epoch()},
                       report.mutable_step());
  coordinator::ToProto(known, report.mutable_decided());
  process_.Report(epoch(), rank(), agent::ReportKind::kStep, std::move(report));
}

void EpochRun::EndStep() {
  if (!settled_ || !state().AllApplied(step_)) return;
  TendCopies();
  if (step_ == plan_->plan.spec.steps) return Succeed();
  ++step_;
  Then(absl::ZeroDuration(), absl::Microseconds(100), &EpochRun::BeginStep);
}

void EpochRun::Succeed() {
  succeeded_ = true;
  v1::RankReport report;
  report.mutable_succeeded()->set_step(plan_->plan.spec.steps);
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report),
                  agent::RankOutcome::kSucceeded);
  // Others may be lost that have not come so far.
  Report(state().Standing(/*context_ok=*/true));
  Then(absl::Microseconds(10), absl::Milliseconds(1), &EpochRun::EndWell);
}

void EpochRun::EndWell() {
  ended_ = true;
  LeaveFabric();
  process_.OnRunEnded(/*ok=*/true, /*collateral=*/true, stopped_);
}

void EpochRun::Stop() {
  if (ended_ || std::exchange(stopped_, true)) return;
  if (!started_ || failed_ || succeeded_) return;  // it finds out by itself
  Fail(Kind::kCancelled, -1, "stopped");
}

void EpochRun::Fail(Kind kind, int32_t accused, const std::string& message) {
  if (ended_ || failed_) return;
  if (order_.keeps) return EndKeeping(kind == Kind::kCancelled ? 0 : 1);
  // Who is to give it copies, and does not, has taken them with him.
  if (kind == Kind::kPeerLost && keepers_.contains(accused)) kind = Kind::kStateLost;
  if (connects_ && !started_) {  // said when its turn has come
    ++generation_;
    awaited_.reset();
    connected_ = false;
    return process_.OnConnected(*this);
  }
  failed_ = true;
  failure_ = kind;
  ++generation_;
  awaited_.reset();
  shared().timeline.Note("job $0 epoch $1 rank $2 leaves at step $3: $4", process_.job().value,
                         epoch().value, rank(), step_,
                         accused < 0 ? message : absl::StrCat("rank ", accused, ": ", message));
  if (kind != Kind::kCancelled) {
    v1::RankReport report;
    v1::RankError& error = *report.mutable_error();
    error.set_message(message);
    error.set_kind(kind == Kind::kPeerLost    ? v1::FAILURE_KIND_PEER_LOST
                   : kind == Kind::kOutput    ? v1::FAILURE_KIND_OUTPUT_UNAVAILABLE
                   : kind == Kind::kStateLost ? v1::FAILURE_KIND_STATE_LOST
                                              : v1::FAILURE_KIND_RANK_ERROR);
    if (kind == Kind::kPeerLost && accused >= 0) error.set_accused_rank(accused);
    process_.Report(
        epoch(), rank(), agent::ReportKind::kOther, std::move(report),
        kind == Kind::kPeerLost ? agent::RankOutcome::kNone : agent::RankOutcome::kFailed);
  }
  LeaveFabric();
  // What the device was given is waited for.
  const bool slow = shared().timeline.Chance(0.03);
  Then(absl::Microseconds(100), slow ? absl::Seconds(2) : absl::Milliseconds(60),
       &EpochRun::SayQuiet);
}

void EpochRun::SayQuiet() {
  const bool context_ok = !shared().timeline.Chance(shared().bad_context);
  if (!context_ok) shared().bad_nodes.insert(process_.node());
  if (context_ok && slot_.has_value() && process_.state().has_value()) {
    for (size_t home = 0; home < state().homes.size(); ++home) {
      const bool late = state().homes[home].applied == slot_->step - 1;
      if (!late || !shared().timeline.Chance(0.5)) continue;
      if (const std::string wrong = state().Apply(home, *slot_); !wrong.empty())
        shared().ledger.Violate(wrong);
    }
    if (!settled_) Account(*slot_);  // the slot is read again
  }
  coordinator::RankQuiet quiet{.context_ok = context_ok};
  if (process_.state().has_value()) quiet = state().Standing(context_ok);
  Report(quiet);
  ended_ = true;
  const bool collateral =
      context_ok &&
      (failure_ == Kind::kCancelled || failure_ == Kind::kPeerLost || failure_ == Kind::kStateLost);
  process_.OnRunEnded(/*ok=*/false, collateral, stopped_);
}

void EpochRun::Report(const coordinator::RankQuiet& quiet) {
  v1::RankReport report;
  v1::EpochBegins known;
  coordinator::ToProto(quiet.known, &known);
  v1::RankQuiet& out = *report.mutable_quiet();
  if (known.has_decision()) *out.mutable_decision() = known.decision();
  out.set_updates(known.updates());
  out.set_skipped_in_a_row(known.skipped_in_a_row());
  out.set_context_ok(quiet.context_ok);
  out.set_layout_epoch(quiet.layout_epoch.value);
  for (const coordinator::RankQuiet::Home& home : quiet.homes) {
    v1::RankQuiet::Home& entry = *out.add_homes();
    entry.set_module(home.module);
    entry.set_chunk(home.chunk);
    entry.set_primary(home.primary);
    entry.set_applied(home.applied);
  }
  process_.Report(epoch(), rank(), agent::ReportKind::kOther, std::move(report));
}

void EpochRun::LeaveFabric(bool silent) {
  if (std::exchange(joined_, false)) shared().fabric.Leave(process_.job(), epoch(), rank(), silent);
}

void EpochRun::Release() {
  if (std::exchange(has_metrics_, false))
    shared().ledger.UnlockMetrics(process_.job(), process_.key());
}

void EpochRun::OnProcessGone(bool silent) {
  ended_ = true;
  LeaveFabric(silent);
}

}  // namespace phalanx::sim

#include "worker/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/accused.h"
#include "core/base/status.h"
#include "core/schedule/program.h"
#include "worker/train/learning_rate.h"
#include "worker/train/trace.h"

namespace phalanx::train {
namespace {

// New tokens of a caption at most.
constexpr int32_t kCaptionTokensMax = 16;
constexpr absl::Duration kDecisionPoll = absl::Microseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const plan::Plan& plan, Rank rank,
                                                         comm::Communicators& communicators,
                                                         SampleSource& source, TrainingState& state,
                                                         const TrainerOptions& options,
                                                         TrainerCallbacks callbacks) {
  std::unique_ptr<Trainer> trainer(new Trainer(plan, state, options, std::move(callbacks)));
  state.TakeBackStop();
  ASSIGN_OR_RETURN(trainer->executor_, Executor::Create(plan, rank, communicators, state));
  trainer->batches_ = std::make_unique<Batches>(plan, source, state.options().device,
                                                state.options().compute, options.length_multiple);
  auto seen = std::make_shared<std::set<int64_t>>();
  trainer->executor_->set_on_corrupt_sample(
      [seen,
       callback = trainer->callbacks_.on_corrupt_sample](const Batches::CorruptSample& sample) {
        if (callback != nullptr && seen->insert(sample.sample).second) callback(sample);
      });
  return trainer;
}

Trainer::Volume Trainer::VolumeOf(const std::vector<Microbatch>& microbatches) {
  Volume volume;
  for (const Microbatch& microbatch : microbatches) {
    for (const data::SampleShape& shape : microbatch.shapes) {
      volume.tokens += shape.positions;
      volume.items += shape.images + shape.sounds;
    }
  }
  return volume;
}

absl::Status Trainer::Prepare() {
  const Start start = options_.start.value_or(Start{});
  const int64_t known = state_.decided().step;
  RETURN_IF_ERROR(state_.GoOn(plan_, start));
  if (start.decision.step > known) {
    VolumeOfStep(start.decision.step) = VolumeOf(batches_->OfStep(start.decision.step));
    Tell(start.decision);
  }
  if (options_.start.has_value()) RETURN_IF_ERROR(executor_->RestoreParameters());
  // Who holds the state of a decided step has run every kernel; before that some rank's process may
  // be new.
  if (start.decision.step > 0 || !state_.options().device.is_cuda()) return absl::OkStatus();
  microbatches_ = batches_->OfStep(1);
  batches_->Announce(executor_->places(), microbatches_, {});
  RETURN_IF_ERROR(executor_->WarmUp(*batches_, microbatches_));
  WaitForDevice();
  return absl::OkStatus();
}

void Trainer::WaitForDevice() {
  at::zeros({1}, at::TensorOptions().device(state_.options().device)).cpu();
}

absl::Status Trainer::Settle() {
  if (pending_step_ == 0) return absl::OkStatus();
  Decision decision;
  while (!state_.kernels().ReadDecision(pending_step_, &decision)) {
    if (state_.stop_requested()) return absl::CancelledError("asked to stop");
    absl::SleepFor(kDecisionPoll);
  }
  if (!IsDecided(decision.verdict)) {
    if (decision.invalid_rank < 0) return absl::CancelledError("asked to stop");
    const Rank rank = RankOfRecord(decision.invalid_rank);
    return Accusing(rank, absl::AbortedError(absl::StrCat(
                              "step ", pending_step_, " did not commit: the record of rank ",
                              rank.value, " is missing or of another step")));
  }
  pending_step_ = 0;
  state_.Account(decision);
  Tell(decision);
  return skipped_.Add(decision, state_.counts().skipped_in_a_row);
}

Rank Trainer::RankOfRecord(int32_t place) const {
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    if (!plan_.PlacesOf(Rank{rank}).empty() && place-- == 0) return Rank{rank};
  }
  return Rank{plan_.world - 1};
}

void Trainer::AccountForLast() {
  Decision decision;
  if (!state_.kernels().ReadDecision(state_.decided().step + 1, &decision)) return;
  if (!IsDecided(decision.verdict)) return;
  state_.Account(decision);
  Tell(decision);
}

void Trainer::Tell(const Decision& decision) {
  const SteadyTime now = std::chrono::steady_clock::now();
  const double seconds =
      last_decided_.has_value() ? std::chrono::duration<double>(now - *last_decided_).count() : 0;
  const Volume& volume = VolumeOfStep(decision.step);
  StepSummary summary{
      .step = decision.step,
      .loss = decision.loss,
      .gradient_norm = decision.gradient_norm,
      .learning_rate = LearningRate(plan_.spec.optimizer, decision.step, plan_.spec.steps),
      .tokens = volume.tokens,
      .counted_tokens = static_cast<int64_t>(decision.counted_tokens),
      .items = volume.items,
      .seconds = seconds,
      .skipped = decision.verdict == Verdict::kSkipped,
      .corrupt_samples = static_cast<int64_t>(decision.corrupt_samples)};
  if (decision.step > FirstStep()) summary.previous = executor_->ReadFigures(decision.step - 1);
  if (options_.trace_step > 0 && decision.step == options_.trace_step + 1)
    trace_ = summary.previous.instructions;
  last_decided_ = now;
  if (callbacks_.on_step != nullptr) callbacks_.on_step(summary);
}

absl::Status Trainer::Enqueue(int64_t step) {
  microbatches_ = batches_->OfStep(step);
  const std::vector<Microbatch> next =
      step < plan_.spec.steps ? batches_->OfStep(step + 1) : std::vector<Microbatch>();
  batches_->Announce(executor_->places(), microbatches_, next);
  VolumeOfStep(step) = VolumeOf(microbatches_);
  RETURN_IF_ERROR(executor_->RunStep(step, *batches_, microbatches_, [this] { return Settle(); }));
  pending_step_ = step;
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  last_decided_ = std::chrono::steady_clock::now();
  for (int64_t step = FirstStep(); step <= plan_.spec.steps; ++step) RETURN_IF_ERROR(Enqueue(step));
  RETURN_IF_ERROR(Settle());
  return options_.trace_step >= FirstStep() ? ShareTrace() : absl::OkStatus();
}

absl::Status Trainer::ShareTrace() {
  if (options_.trace_step == plan_.spec.steps) {
    // No step comes after it whose decision would say that all its work is done.
    WaitForDevice();
    trace_ = executor_->ReadFigures(options_.trace_step).instructions;
  }
  if (state_.options().device.is_cuda()) MoveWaitsToReceives(plan_, executor_->program(), trace_);
  std::vector<double> values = {static_cast<double>(trace_.size())};
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> sizes, GatherOverRanks(values));
  size_t longest = 0;
  for (const std::vector<double>& size : sizes)
    longest = std::max(longest, static_cast<size_t>(size[0]));
  values.clear();
  for (const InstructionTime& time : trace_) {
    values.insert(values.end(), {static_cast<double>(time.instruction), time.begin, time.end});
  }
  values.resize(3 * longest);
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> all, GatherOverRanks(values));
  if (callbacks_.on_trace == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<schedule::Program> programs, schedule::BuildStep(plan_));
  std::vector<schedule::TimedInstruction> timeline;
  size_t member = 0;  // of the control communicator: ranks that have work, ascending
  for (int32_t rank = 0; rank < plan_.world; ++rank) {
    if (plan_.PlacesOf(Rank{rank}).empty()) continue;
    for (size_t i = 0; i < static_cast<size_t>(sizes[member][0]); ++i) {
      const double* entry = all[member].data() + 3 * i;
      timeline.push_back({Rank{rank},
                          programs[static_cast<size_t>(rank)].at(static_cast<size_t>(entry[0])),
                          entry[1], entry[2]});
    }
    ++member;
  }
  AlignAtRecord(timeline);
  callbacks_.on_trace(timeline);
  return absl::OkStatus();
}

absl::StatusOr<Decision> Trainer::RunOne(int64_t step) {
  RETURN_IF_ERROR(Enqueue(step));
  RETURN_IF_ERROR(Settle());
  return state_.decided();
}

absl::StatusOr<std::vector<std::vector<double>>> Trainer::GatherOverRanks(
    const std::vector<double>& values) {
  comm::Communicator* control = executor_->control();
  if (control == nullptr || values.empty()) return std::vector<std::vector<double>>{values};
  const int64_t count = static_cast<int64_t>(values.size());
  at::Tensor mine = at::empty({count}, at::TensorOptions().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), mine.mutable_data_ptr<double>());
  mine = mine.to(state_.options().device);
  at::Tensor all = at::empty({control->size(), count}, mine.options());
  RETURN_IF_ERROR(
      control->AllGather(mine.const_data_ptr(), all.mutable_data_ptr(), count, comm::DType::kFp64));
  RETURN_IF_ERROR(control->Join());
  const at::Tensor host = all.cpu();
  std::vector<std::vector<double>> result;
  for (int64_t r = 0; r < control->size(); ++r) {
    const double* row = host.const_data_ptr<double>() + r * count;
    result.emplace_back(row, row + count);
  }
  return result;
}

// Sums in rank order, the same bits everywhere.
absl::StatusOr<std::vector<double>> Trainer::SumOverRanks(const std::vector<double>& values) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<double>> all, GatherOverRanks(values));
  std::vector<double> sums(values.size(), 0);
  for (const std::vector<double>& one : all) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += one[i];
  }
  return sums;
}

absl::StatusOr<EvaluationSummary> Trainer::Evaluate(SampleSource& validation, int32_t captions,
                                                    const data::Tokenizer* tokenizer,
                                                    int32_t end_token) {
  Batches batches(plan_, validation, state_.options().device, state_.options().compute,
                  options_.length_multiple);
  const int64_t chunk =
      plan_.spec.batch.micro * plan_.replicas(plan_.spec.language).present_replicas();
  const std::vector<plan::Place> places = executor_->places();
  std::vector<double> sums = {0, 0};
  for (int64_t first = 0; first < validation.size(); first += chunk) {
    std::vector<int64_t> samples;
    for (int64_t s = first; s < std::min(validation.size(), first + chunk); ++s)
      samples.push_back(s);
    const Microbatch microbatch = batches.OfSamples(samples);
    batches.Announce(places, {&microbatch, 1}, {});
    ASSIGN_OR_RETURN(const Executor::Evaluation part,
                     executor_->Evaluate(batches, microbatch, false));
    sums[0] += part.loss_sum;
    sums[1] += part.counted_tokens;
  }
  ASSIGN_OR_RETURN(sums, SumOverRanks(sums));
  EvaluationSummary summary;
  summary.counted_tokens = static_cast<int64_t>(sums[1]);
  summary.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;
  summary.uniform_loss =
      std::log(static_cast<double>(plan_.module_spec(plan_.spec.language).architecture.vocabulary));

  std::vector<int64_t> shown;
  for (int64_t s = 0; s < validation.size() && static_cast<int32_t>(shown.size()) < captions; ++s) {
    const data::SampleShape shape = validation.shape(s);
    if (shape.images + shape.sounds > 0 && !shape.corrupt) shown.push_back(s);
  }
  if (shown.empty() || end_token < 0) return summary;
  ASSIGN_OR_RETURN(const auto decoded, DecodeGreedily(batches, shown, end_token));
  if (tokenizer == nullptr) return summary;
  for (size_t i = 0; i < shown.size(); ++i) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const data::Sample> sample, validation.Take(shown[i]));
    std::vector<int32_t> truth;
    for (size_t t = 0; t < sample->labels.size(); ++t) {
      if (sample->label_counts[t] != 0 && sample->labels[t] != end_token)
        truth.push_back(sample->labels[t]);
    }
    summary.captions.push_back(
        {validation.NameOf(shown[i]), tokenizer->Decode(truth), tokenizer->Decode(decoded[i])});
  }
  return summary;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> Trainer::DecodeGreedily(
    Batches& batches, absl::Span<const int64_t> samples, int32_t end_token) {
  const Microbatch microbatch = batches.OfSamples(samples);
  const int64_t context = plan_.module_spec(plan_.spec.language).architecture.context;
  Batches::Growth growth;
  for (const data::SampleShape& shape : microbatch.shapes) {
    growth.prompt_positions.push_back(shape.positions - shape.counted + 1);
  }
  growth.tokens.resize(samples.size());
  std::vector<bool> ended(samples.size(), false);
  batches.SetGrowth(&growth);
  const std::vector<plan::Place> places = executor_->places();
  absl::Status status;
  for (int32_t round = 0; round < kCaptionTokensMax && status.ok(); ++round) {
    batches.Announce(places, {&microbatch, 1}, {});
    absl::StatusOr<Executor::Evaluation> part = executor_->Evaluate(batches, microbatch, true);
    if (!part.ok()) {
      status = part.status();
      break;
    }
    // Each lane's first tensor rank tells everyone the next tokens of its samples; 0 elsewhere.
    std::vector<double> next(samples.size(), 0);
    for (const plan::Place& place : places) {
      if (!part->predicted.defined() || place.module != plan_.spec.language) continue;
      if (place.tp != 0 || place.cp != 0) continue;
      const plan::UnitRange lane =
          plan::LaneSamples(plan_, place.module, place.dp, microbatch.positions);
      for (int64_t b = 0; b < lane.count; ++b) {
        const size_t index = static_cast<size_t>(lane.first + b);
        const int64_t position =
            growth.prompt_positions[index] + static_cast<int64_t>(growth.tokens[index].size()) - 1;
        next[index] = static_cast<double>(part->predicted[b][position].item<int64_t>());
      }
    }
    absl::StatusOr<std::vector<double>> tokens = SumOverRanks(std::move(next));
    if (!tokens.ok()) {
      status = tokens.status();
      break;
    }
    bool all_ended = true;
    for (size_t i = 0; i < samples.size(); ++i) {
      const int32_t token = static_cast<int32_t>((*tokens)[i]);
      const int64_t length =
          growth.prompt_positions[i] + static_cast<int64_t>(growth.tokens[i].size());
      ended[i] = ended[i] || token == end_token || length + 1 > context;
      if (!ended[i]) growth.tokens[i].push_back(token);
      all_ended = all_ended && ended[i];
    }
    if (all_ended) break;
  }
  batches.SetGrowth(nullptr);
  RETURN_IF_ERROR(status);
  return growth.tokens;
}

}  // namespace phalanx::train

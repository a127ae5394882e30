#include "worker/train/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/train/learning_rate.h"

namespace phalanx::train {

using schedule::Instruction;
using schedule::Op;

namespace {

bool IsCompute(Op op) {
  return op == Op::kForward || op == Op::kBackwardInput || op == Op::kBackwardWeight || op == Op::kOptimize;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const plan::Plan& plan, Rank rank,
                                                           comm::Communicators& communicators,
                                                           const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(plan, rank, options));
  RETURN_IF_ERROR(executor->Build(communicators));
  return executor;
}

absl::Status Executor::Build(comm::Communicators& communicators) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan_);
  std::map<plan::RankList, comm::Communicator*> tensor_groups, data_groups;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (communicators[i] == nullptr) continue;
    comm::Communicator* communicator = communicators[i].get();
    auto peers = [&specs, i](std::map<Rank, int32_t>& table) {
      for (size_t p = 0; p < specs[i].ranks.size(); ++p) table[specs[i].ranks[p]] = static_cast<int32_t>(p);
    };
    switch (specs[i].use) {
      case plan::CommunicatorSpec::Use::kControl: control_ = communicator; break;
      case plan::CommunicatorSpec::Use::kForward: forward_ = communicator; peers(forward_peer_); break;
      case plan::CommunicatorSpec::Use::kBackward: backward_ = communicator; peers(backward_peer_); break;
      case plan::CommunicatorSpec::Use::kTensor: tensor_groups[specs[i].ranks] = communicator; break;
      case plan::CommunicatorSpec::Use::kData: data_groups[specs[i].ranks] = communicator; break;
    }
  }
  auto find = [](const std::map<plan::RankList, comm::Communicator*>& groups, const plan::RankList& ranks) {
    auto it = groups.find(ranks);
    return it == groups.end() ? nullptr : it->second;
  };
#ifdef PHALANX_WITH_CUDA
  timer_ = std::make_unique<StepTimer>(options_.device.is_cuda() ? MakeCudaMarks() : MakeCpuMarks());
#else
  timer_ = std::make_unique<StepTimer>(MakeCpuMarks());
#endif
  const at::TensorOptions on_device = at::TensorOptions().device(options_.device);
  for (const plan::Place& place : plan_.PlacesOf(rank_)) {
    const job::Parallel& parallel = plan_.parallel(place.module);
    ModuleGroups groups;
    groups.tensor = find(tensor_groups, plan_.TensorGroup(place.module, place.dp, place.pp, place.cp));
    groups.data = find(data_groups, plan_.DataGroup(place.module, place.pp, place.tp));
    groups.control = control_;
    if (plan_.module_spec(place.module).architecture.tied_head && parallel.pp > 1 &&
        (place.pp == 0 || place.pp == parallel.pp - 1)) {
      const int32_t other = place.pp == 0 ? parallel.pp - 1 : 0;
      groups.tied_peer =
          plan_.TensorGroup(place.module, place.dp, other, place.cp)[static_cast<size_t>(place.tp)].value;
    }
    states_.push_back(std::make_unique<ModuleState>(plan_, place, 0, groups, options_.device, options_.compute,
                                                    options_.init_threads));
    Part part;
    part.place = place;
    part.state = states_.back().get();
    part.tensor = groups.tensor;
    part.links_in = plan_.LinksInto(place.module, place.pp);
    part.links_out = plan_.LinksOutOf(place.module, place.pp);
    part.last_stage = place.pp == parallel.pp - 1;
    part.sink = part.last_stage && plan_.IsSink(place.module);
    model::StageOptions stage_options;
    stage_options.device = options_.device;
    stage_options.compute = options_.compute;
    stage_options.gradient = GradientType(options_.compute);
    comm::Communicator* tensor = groups.tensor;
    if (tensor != nullptr) {
      timed_.push_back(MakeTimed(*tensor, *timer_));
      tensor = timed_.back().get();
    }
    ASSIGN_OR_RETURN(part.stage, model::MakeStage(plan_, place, 0, part.state->parameters(), part.state->weights(),
                                                  part.state->gradients(), tensor, stage_options));
    part_of_module_[place.module] = parts_.size();
    parts_.push_back(std::move(part));
  }
  ASSIGN_OR_RETURN(program_, schedule::BuildStepOf(plan_, rank_));
  evaluation_program_ = schedule::BuildEvaluationOf(plan_, rank_, 1);
#ifdef PHALANX_WITH_CUDA
  kernels_ = options_.device.is_cuda() ? MakeCudaStepKernels() : MakeCpuStepKernels();
#else
  kernels_ = MakeCpuStepKernels();
#endif
  sums_ = at::zeros({4}, on_device.dtype(at::kDouble));
  const int64_t members = control_ == nullptr ? 1 : control_->size();
  records_ = at::zeros({members * static_cast<int64_t>(sizeof(Record))}, on_device.dtype(at::kByte));
  if (!absl::SimpleHexAtoi(plan_.digest.substr(0, 16), &plan_digest_)) plan_digest_ = 0;
  flags_travel_ = std::any_of(plan_.spec.edges.begin(), plan_.spec.edges.end(), [this](const job::Edge& edge) {
    return edge.to == plan_.spec.language;
  });
  return absl::OkStatus();
}

std::vector<plan::Place> Executor::places() const {
  std::vector<plan::Place> places;
  for (const Part& part : parts_) places.push_back(part.place);
  return places;
}

int32_t Executor::PeerIn(bool forward, Rank rank) const {
  return (forward ? forward_peer_ : backward_peer_).at(rank);
}

absl::Status Executor::RunStep(int64_t step, Batches& batches, const std::vector<Microbatch>& microbatches,
                               const std::function<absl::Status()>& previous_decided) {
  sums_.zero_();
  records_.fill_(0xFF);  // "invalid": no field of a true record looks like it
  for (auto& state : states_) state->ZeroGradients();
  const StepContext context{step, &batches, &microbatches, true};
  timer_->BeginStep(step);
  int32_t before = timer_->Mark();
  bool asked = false;
  for (const Instruction& instruction : program_) {
    if (!asked && (instruction.op == Op::kBackwardInput || instruction.op == Op::kRecord)) {
      asked = true;
      RETURN_IF_ERROR(previous_decided());
      before = timer_->Mark();
    }
    RETURN_IF_ERROR(Execute(instruction, context));
    const int32_t after = timer_->Mark();
    timer_->Add(IsCompute(instruction.op) ? StepTimer::Kind::kCompute : StepTimer::Kind::kComm, before, after);
    before = after;
  }
  flights_.clear();
  return FinishMessages();
}

absl::Status Executor::FinishMessages() {
  for (comm::Communicator* communicator : {forward_, backward_}) {
    if (communicator != nullptr) RETURN_IF_ERROR(communicator->Flush());
  }
  in_use_.clear();
  return absl::OkStatus();
}

absl::Status Executor::Execute(const Instruction& instruction, const StepContext& context) {
  const int32_t microbatch = instruction.microbatch;
  switch (instruction.op) {
    case Op::kReceiveForward: return ReceiveForward(instruction.link, microbatch, context);
    case Op::kForward: return Forward(PartOf(instruction.module), microbatch, context);
    case Op::kSendForward: return SendForward(instruction.link, microbatch, context);
    case Op::kReceiveBackward: return ReceiveBackward(instruction.link, microbatch, context);
    case Op::kBackwardInput: return BackwardInput(PartOf(instruction.module), microbatch);
    case Op::kBackwardWeight: return BackwardWeight(PartOf(instruction.module), microbatch);
    case Op::kSendBackward: return SendBackward(instruction.link, microbatch, context);
    case Op::kReduce: return PartOf(instruction.module).state->Reduce();
    case Op::kRecord: return RecordStep(context);
    case Op::kDecide:
      kernels_->MakeDecision(records_, control_ == nullptr ? 1 : control_->size(),
                             {.epoch = plan_.epoch.value,
                              .step = context.step,
                              .plan_digest = plan_digest_,
                              .clip_norm = plan_.spec.optimizer.clip_norm});
      return absl::OkStatus();
    case Op::kOptimize: return OptimizeModule(PartOf(instruction.module), context);
    case Op::kGather: return PartOf(instruction.module).state->Gather();
  }
  return absl::InternalError("a program holds an instruction that is none");
}

absl::Status Executor::FillInput(Part& part, const Microbatch& microbatch, const plan::UnitRange& lane,
                                 Flight& flight, const StepContext& context, model::StageInput& input) {
  Batches& batches = *context.batches;
  const job::Module& module = plan_.module_spec(part.place.module);
  if (module.architecture.family == job::Family::kClipVision && part.place.pp == 0) {
    std::vector<Batches::CorruptSample> corrupt;
    RETURN_IF_ERROR(batches.FillVision(microbatch, lane, input, flight.valid, corrupt));
    if (on_corrupt_sample_ != nullptr && part.place.tp == 0) {
      for (const Batches::CorruptSample& sample : corrupt) on_corrupt_sample_(sample);
    }
  }
  if (part.place.module == plan_.spec.language) {
    RETURN_IF_ERROR(batches.FillLanguage(microbatch, lane, part.place.pp == 0, part.last_stage, input));
    if (part.last_stage && flight.valid.defined()) {
      input.label_weights =
          input.label_weights * flight.valid.to(input.label_weights.scalar_type()).unsqueeze(1);
    }
  }
  std::vector<at::Tensor> rows;
  for (int32_t link : part.links_in) {
    at::Tensor& received = flight.received[link];
    if (!received.defined()) continue;
    if (plan_.links[static_cast<size_t>(link)].edge < 0) {
      input.hidden = received;
    } else {
      rows.push_back(received);
    }
  }
  if (!rows.empty()) input.rows = rows.size() == 1 ? rows[0] : at::cat(rows);
  return absl::OkStatus();
}

absl::Status Executor::Forward(Part& part, int32_t index, const StepContext& context) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(index)];
  Flight& flight = FlightOf(part.place.module, index);
  const plan::UnitRange lane =
      plan::LaneSamples(plan_, part.place.module, part.place.dp, microbatch.positions);
  const bool language = part.place.module == plan_.spec.language;
  if (lane.count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(TakeForward(part, flight));
  model::StageInput input;
  RETURN_IF_ERROR(FillInput(part, microbatch, lane, flight, context, input));
  // A lane without items has nothing to encode; its samples are valid all the same.
  if (!language && context.batches->ItemsOf(microbatch, lane) == 0) return absl::OkStatus();
  flight.ran = true;
  if (context.training) {
    ASSIGN_OR_RETURN(flight.output, part.stage->Forward(index, input));
    if (part.sink) AccountLoss(part, flight, input);
  } else {
    ASSIGN_OR_RETURN(flight.output, part.stage->Evaluate(input));
    if (part.sink) {
      sums_[1] += flight.output.loss_sum.to(at::kDouble);
      sums_[2] += input.label_weights.sum(at::kDouble);
    }
  }
  flight.received.clear();
  return absl::OkStatus();
}

// One rank of each replica gives the record its loss and tokens.
void Executor::AccountLoss(const Part& part, const Flight& flight, const model::StageInput& input) {
  if (part.place.tp != 0 || part.place.cp != 0) return;
  sums_[1] += flight.output.loss_sum.to(at::kDouble);
  sums_[2] += input.label_weights.sum(at::kDouble);
  if (flight.valid.defined()) sums_[3] += (1 - flight.valid).sum(at::kDouble);
}

absl::Status Executor::BackwardInput(Part& part, int32_t index) {
  Flight& flight = FlightOf(part.place.module, index);
  if (!flight.ran) return absl::OkStatus();
  RETURN_IF_ERROR(TakeBackward(part, flight));
  std::vector<at::Tensor> gradients;
  for (int32_t link : part.links_out) gradients.push_back(flight.received_gradients[link]);
  ASSIGN_OR_RETURN(flight.input_gradients, part.stage->BackwardInput(index, gradients));
  flight.output = {};
  flight.received_gradients.clear();
  return absl::OkStatus();
}

absl::Status Executor::BackwardWeight(Part& part, int32_t index) {
  if (!FlightOf(part.place.module, index).ran) return absl::OkStatus();
  return part.stage->BackwardWeight(index);
}

absl::Status Executor::RecordStep(const StepContext& context) {
  at::Tensor norm = sums_.narrow(0, 0, 1);
  for (auto& state : states_) kernels_->AddSquaredNorm(state->gradients(), state->shard(), norm);
  const int32_t self = control_ == nullptr ? 0 : control_->rank();
  const Record header{.epoch = plan_.epoch.value,
                      .step = context.step,
                      .plan_digest = plan_digest_,
                      .applied = context.step - 1};
  kernels_->WriteRecord(records_, self, header, sums_);
  if (control_ == nullptr) return absl::OkStatus();
  char* base = static_cast<char*>(records_.mutable_data_ptr());
  RETURN_IF_ERROR(control_->AllGather(base + static_cast<size_t>(self) * sizeof(Record), base, sizeof(Record),
                                      comm::DType::kByte));
  return control_->Join();
}

absl::Status Executor::OptimizeModule(Part& part, const StepContext& context) {
  const job::Optimizer& optimizer = plan_.spec.optimizer;
  kernels_->AdamW(part.state->gradients(), part.state->shard(), part.state->weights(),
                  {.learning_rate = LearningRate(optimizer, context.step, plan_.spec.steps),
                   .beta1 = optimizer.betas[0],
                   .beta2 = optimizer.betas[1],
                   .epsilon = optimizer.epsilon,
                   .weight_decay = optimizer.weight_decay,
                   .update = updates_ + 1},
                  context.step);
  return absl::OkStatus();
}

absl::StatusOr<Executor::Evaluation> Executor::Evaluate(Batches& batches, const Microbatch& microbatch,
                                                        bool predict) {
  sums_.zero_();
  timer_->BeginStep(0);
  const std::vector<Microbatch> microbatches = {microbatch};
  const StepContext context{0, &batches, &microbatches, false};
  for (const Instruction& instruction : evaluation_program_) RETURN_IF_ERROR(Execute(instruction, context));
  RETURN_IF_ERROR(FinishMessages());
  Evaluation result;
  for (Part& part : parts_) {
    if (!part.sink) continue;
    const at::Tensor sums = sums_.cpu();
    result.loss_sum = sums.const_data_ptr<double>()[1];
    result.counted_tokens = sums.const_data_ptr<double>()[2];
    Flight& flight = FlightOf(part.place.module, 0);
    if (predict && flight.ran) result.predicted = flight.output.predicted.cpu();
  }
  flights_.clear();
  return result;
}

}  // namespace phalanx::train

// worker/train/executor.h: carries out a rank's program for one step.
//
// The executor knows what each instruction means for this rank: which peers a link connects it
// with, which rows travel, which stage computes. It decides nothing: order comes from the program
// (core/schedule), division of samples from core/plan/samples.h, the fate of a step from the
// records.
//
// On CUDA everything is enqueued; the host reads one pinned word a step, before the first backward
// pass of the next one, and runs ahead of the device no further than run_ahead.h says.
//
// Not thread-safe. To end a step early, request a stop of the state and abort the communicators,
// from any thread.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "core/schedule/program.h"
#include "worker/comm/communicator.h"
#include "worker/model/stage_io.h"
#include "worker/train/batches.h"
#include "worker/train/part_reduction.h"
#include "worker/train/run_ahead.h"
#include "worker/train/step_kernels.h"
#include "worker/train/step_timer.h"
#include "worker/train/training_state.h"

namespace phalanx::train {

// A sample whose item did not decode, as this rank found it.
using OnCorruptSample = std::function<void(const Batches::CorruptSample&)>;

class Executor {
 public:
  // `communicators`: one an entry of plan::Communicators(plan), nullptr where this rank is no
  // member. Everything given by reference outlives the executor.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const plan::Plan& plan, Rank rank,
                                                          comm::Communicators& communicators,
                                                          TrainingState& state);

  // Runs the step's program to its end (CUDA: enqueues it). `previous_decided` is called before the
  // first backward pass and before gradients are cleared: the moment by which the step before must
  // be known. Errors: Cancelled after a request to stop; what communicators and stages return.
  absl::Status RunStep(int64_t step, Batches& batches, const std::vector<Microbatch>& microbatches,
                       const std::function<absl::Status()>& previous_decided);
  // Runs the same program without a decision, so that every kernel has run once and the state is as
  // before. Every rank calls it with the same microbatches.
  absl::Status WarmUp(Batches& batches, const std::vector<Microbatch>& microbatches);
  // Makes the parameters of every replica those of its shards, and checks it. Every rank calls it.
  absl::Status RestoreParameters();
  // The parameters that the last step's program has begun to gather are those of every replica.
  // The next program begins with it, each part before its first pass.
  absl::Status AwaitParts();
  // Of a step on this rank; once step + 1 is decided.
  StepFigures ReadFigures(int64_t step);

  // Forward passes of one microbatch through the whole pipeline. Every rank calls it with the same
  // microbatch. Loss and counted tokens are to be summed over all ranks. With `predict`, ranks of
  // the last language part have the most probable next token at each position of their lane.
  struct Evaluation {
    double loss_sum = 0, counted_tokens = 0;
    at::Tensor predicted;  // [B, T] int64 on the CPU
  };
  absl::StatusOr<Evaluation> Evaluate(Batches& batches, const Microbatch& microbatch, bool predict);

  std::vector<plan::Place> places() const { return plan_.PlacesOf(rank_); }
  const schedule::Program& program() const { return program_; }
  comm::Communicator* control() { return control_; }
  void set_on_corrupt_sample(OnCorruptSample callback) { on_corrupt_sample_ = std::move(callback); }

 private:
  // One pipeline part on this rank: a chunk of a stage of a module.
  struct Part {
    plan::Place place;
    int32_t chunk = 0;
    plan::Trains trains;
    bool first = false, last = false;  // of its module
    bool loss = false;
    PartState* state = nullptr;
    std::unique_ptr<PartReduction> reduction;
    std::unique_ptr<model::Stage> stage;
    comm::Communicator* tensor = nullptr;
    std::vector<int32_t> links_in, links_out;
  };
  // A message of activations that has been asked for.
  struct Arrival {
    plan::LinkMessage message;
    at::Tensor payload, flags;
    int64_t rows = 0;  // along an edge: of the whole lane pair
  };
  // Gradients of one lane pair of an edge (or of a whole stage boundary) that have been asked for.
  struct ArrivingGradients {
    int64_t first = 0, rows = 0;
    int32_t slices = 1;
    std::vector<at::Tensor> own;  // the slices that come to this rank
  };
  // What a part holds of one microbatch between instructions. Receives may stand long before the
  // pass that needs them, so the compute stream joins them only there (TakeForward, TakeBackward).
  struct Flight {
    std::map<int32_t, std::vector<Arrival>> arriving;                      // by link
    std::map<int32_t, std::vector<ArrivingGradients>> arriving_gradients;  // by link
    std::map<int32_t, at::Tensor> received;                                // link -> activations
    std::map<int32_t, at::Tensor> received_gradients;  // link -> gradient of what was sent
    model::StageOutput output;
    model::StageOutput input_gradients;
    at::Tensor valid;  // [samples of the part's lane] fp32; undefined: all valid
    bool ran = false;
    int64_t targets_left_out = 0;  // samples whose targets are not finite
  };
  // What one call of a message communicator carries: the messages of one instruction, or of a send
  // and a receive with one ticket.
  struct Posting {
    bool forward = true;
    std::vector<comm::Outgoing> sends;
    std::vector<comm::Incoming> receives;
  };
  // A message of this rank to itself, from its send to the receive next to it.
  struct Delivery {
    at::Tensor payload, flags;
  };
  struct StepContext {
    int64_t step = 0;
    Batches* batches = nullptr;
    const std::vector<Microbatch>* microbatches = nullptr;
    bool training = true;
    bool decides = true;  // else nothing is decided, and so nothing is updated
  };

  Executor(const plan::Plan& plan, Rank rank, TrainingState& state)
      : plan_(plan), rank_(rank), state_(state), options_(state.options()) {}
  absl::Status Build(comm::Communicators& communicators);
  absl::Status AddPart(PartState& state, const PartGroups& groups);
  void TieEnds();
  Part& PartOf(int32_t module, int32_t chunk) { return parts_[part_at_.at({module, chunk})]; }
  Part& SourceOf(const plan::Link& link) { return PartOf(link.from_module, link.from_chunk); }
  Part& DestinationOf(const plan::Link& link) { return PartOf(link.to_module, link.to_chunk); }
  Flight& FlightOf(const Part& part, int32_t microbatch) {
    return flights_[{static_cast<int32_t>(&part - parts_.data()), microbatch}];
  }

  absl::Status RunProgram(const StepContext& context,
                          const std::function<absl::Status()>& previous_decided);
  // Waits until the device has little enough before it.
  absl::Status AwaitRoom(int32_t instruction);
  // Carries out program[at], and what is one exchange with it; tells how many instructions that
  // was.
  absl::StatusOr<size_t> Execute(const schedule::Program& program, size_t at,
                                 const StepContext& context);
  absl::Status ExecuteOne(const schedule::Instruction& instruction, const StepContext& context);
  absl::Status Forward(Part& part, int32_t microbatch, const StepContext& context);
  absl::Status FillInput(const Part& part, const Microbatch& microbatch,
                         const plan::UnitRange& lane, Flight& flight, const StepContext& context,
                         model::StageInput& input);
  absl::Status FillFromSamples(const Part& part, const Microbatch& microbatch,
                               const plan::UnitRange& lane, Flight& flight,
                               const StepContext& context, model::StageInput& input);
  void AccountLoss(const Part& part, const Flight& flight, const model::StageInput& input);
  absl::Status BackwardInput(Part& part, int32_t microbatch);
  absl::Status BackwardWeight(Part& part, int32_t microbatch);
  // Adds what the instruction sends and receives to the posting.
  void PostMessages(const schedule::Instruction& instruction, const StepContext& context,
                    Posting& posting);
  void PostSendForward(int32_t link, int32_t microbatch, const StepContext& context,
                       Posting& posting);
  void PostReceiveForward(int32_t link, int32_t microbatch, const StepContext& context,
                          Posting& posting);
  void PostSendBackward(int32_t link, int32_t microbatch, const StepContext& context,
                        Posting& posting);
  void PostReceiveBackward(int32_t link, int32_t microbatch, const StepContext& context,
                           Posting& posting);
  absl::Status TakeForward(const Part& part, Flight& flight);
  absl::Status TakeBackward(const Part& part, Flight& flight);
  absl::Status RecordStep(const StepContext& context);

  // Shape of the activation that link carries for the samples of `part`, [rows, hidden] along an
  // edge.
  std::vector<int64_t> LinkShape(int32_t link, const Microbatch& microbatch, plan::UnitRange part,
                                 const Batches& batches) const;
  // Joins row slices that the ranks of a tensor group hold: slice s of `slices` at rank s mod size.
  absl::StatusOr<at::Tensor> GatherSlices(comm::Communicator* group,
                                          const std::vector<at::Tensor>& own, int64_t rows,
                                          int32_t slices, int64_t hidden);
  int32_t PeerIn(bool forward, Rank rank) const;
  void Keep(at::Tensor tensor) { in_use_.push_back(std::move(tensor)); }
  absl::Status FinishMessages();

  const plan::Plan& plan_;
  const Rank rank_;
  TrainingState& state_;
  const BufferOptions options_;
  schedule::Program program_, evaluation_program_;
  std::unique_ptr<StepTimer> timer_;
  std::vector<std::unique_ptr<comm::Communicator>> timed_;  // tensor groups, as the stages use them
  std::vector<Part> parts_;
  std::map<std::pair<int32_t, int32_t>, size_t> part_at_;  // by module, chunk
  std::map<int32_t, CopyExchange> ties_;  // of tied embeddings with an end here, by module
  RunAhead run_ahead_;
  comm::Communicator* control_ = nullptr;
  comm::Communicator* forward_ = nullptr;
  comm::Communicator* backward_ = nullptr;
  std::map<Rank, int32_t> control_peer_, forward_peer_, backward_peer_;
  at::Tensor sums_;     // fp64 [4]: squared norm, loss sum, counted tokens, corrupt samples
  at::Tensor records_;  // bytes [ranks of control * sizeof(Record)]
  uint64_t plan_digest_ = 0;
  bool flags_travel_ = false;  // items can be corrupt, so validity goes along with activations
  OnCorruptSample on_corrupt_sample_;

  std::map<std::pair<int32_t, int32_t>, Flight> flights_;  // (part, microbatch)
  std::map<int64_t, Delivery> deliveries_;  // by place of the message in its link's list
  std::vector<at::Tensor> in_use_;          // memory of messages that may still be under way
};

}  // namespace phalanx::train

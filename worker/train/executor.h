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

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/plan/plan.h"
#include "core/schedule/program.h"
#include "worker/comm/communicator.h"
#include "worker/model/stage_io.h"
#include "worker/train/batches.h"
#include "worker/train/bound_program.h"
#include "worker/train/message_stream.h"
#include "worker/train/messages_ahead.h"
#include "worker/train/part_reduction.h"
#include "worker/train/run_ahead.h"
#include "worker/train/step_kernels.h"
#include "worker/train/step_timer.h"
#include "worker/train/training_state.h"
#include "worker/train/warm_passes.h"

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
  // Runs the passes whose shapes `known` has not, on zeros instead of what others send and with
  // nobody to sum or gather with, every weight product in both ways, and adds them to it. Of each
  // shape one microbatch is enough; kEvery runs all, so that no length of them is new. Where the
  // rows held to labels are filled up, one of each new shape runs with all rows listed first, so
  // that shorter lists find their memory. The device has done it when it returns. Nobody else need
  // call it. The state is as before, but for gradients.
  enum class Passes : uint8_t { kUnknown, kEvery };
  absl::Status RunPassesAlone(Batches& batches, const std::vector<Microbatch>& microbatches,
                              Passes which, WarmPasses& known);
  // Runs the step's program without a decision, so that every kernel has run once and the state is
  // as before. Every rank calls it with the same microbatches.
  absl::Status RunUndecided(Batches& batches, const std::vector<Microbatch>& microbatches);
  // Makes the parameters of every replica those that the homes of their shares have, and checks it.
  // Every rank calls it.
  absl::Status RestoreParameters();
  // No mirror of the epoch lacks anything: from the next program on ranks update all weights of
  // parts of which they are homes (plan::EveryReplicaIsHome), and gather none of these. Every rank
  // calls it, before the same step or before all. Errors: Internal where something is lacking here.
  absl::Status UpdateEverywhere();
  // The parameters that the last step's program has begun to gather are those of every replica.
  // The next program begins with it, each part before its first pass.
  absl::Status AwaitParts();
  // Waits for what the device is to bring about, as AwaitDevice() does, and with its errors: asks
  // the device and all communicators.
  absl::Status Await(absl::FunctionRef<bool()> done, absl::Duration patience,
                     absl::string_view missing);
  // In Await, since the executor was made.
  double seconds_waited() const { return seconds_waited_; }
  // Of a step on this rank; once step + 1 is decided.
  StepFigures ReadFigures(int64_t step);

  // Forward passes of `samples` of the data set, as one microbatch, through the whole pipeline.
  // Every rank calls it with the same samples. Loss and counted tokens are to be summed over all
  // ranks. With `predict`, ranks of the last language part have the most probable token behind each
  // row of their lane that is held to a label.
  struct Evaluation {
    double loss_sum = 0, counted_tokens = 0;
    at::Tensor predicted;  // [rows] int64 on the CPU
  };
  absl::StatusOr<Evaluation> Evaluate(Batches& batches, absl::Span<const int64_t> samples,
                                      bool predict);

  std::vector<plan::Place> places() const { return plan_.PlacesOf(rank_); }
  const schedule::Program& program() const { return program_; }
  const BufferOptions& options() const { return options_; }
  // A request to stop ends what the executor does.
  bool stop_requested() const { return state_.stop_requested(); }
  comm::Communicator* control() { return control_; }
  // Of that step's figures communicators' operations are part; 0: of none's.
  void set_traced_step(int64_t step) { traced_step_ = step; }
  void set_on_corrupt_sample(OnCorruptSample callback) { on_corrupt_sample_ = std::move(callback); }

 private:
  // One pipeline part on this rank: a chunk of a stage of a module.
  struct Part {
    plan::Place place;
    int32_t chunk = 0;
    plan::Trains trains;
    bool first = false, last = false;  // of its module
    bool loss = false;
    bool one_backward = false;  // plan::BackwardIsOne
    // While its last backward pass runs: the layers that are done; -1: another pass.
    int32_t layers_done = -1;
    absl::Status reduced;      // of the sums that began in it
    bool everywhere = false;   // this rank updates all weights, and gathers none
    size_t normed = 0;         // of the step's buckets, those whose squares are in the norm
    int32_t layers_begun = 0;  // of its last forward pass
    absl::Status awaited;      // of the parameters of their layers
    PartState* state = nullptr;
    PartGroups groups;
    std::unique_ptr<PartReduction> reduction;
    std::unique_ptr<model::Stage> stage;
    comm::Communicator* tensor = nullptr;
    std::vector<int32_t> links_in, links_out;
    std::string matrices;  // in words: those that the part computes with
  };
  // Activations, or gradients of them, of one pair of lanes that have been asked for.
  struct Arrival {
    plan::UnitRange samples;
    int64_t rows = 0;      // of the pair
    int32_t slices = 1;    // of them, one of which comes to each rank of the tensor group here
    plan::UnitRange have;  // the rows of this rank's slice
    // They come into `buffer`, but for what this rank handed itself: those from `handed_first` on.
    at::Tensor buffer, handed;
    int64_t handed_first = 0;
    at::Tensor flags;  // validity, beside activations
  };
  // What a part holds of one microbatch between instructions. Receives may stand long before the
  // pass that needs them, so the compute stream waits for them only there.
  struct Flight {
    std::map<int32_t, std::vector<Arrival>> arriving, arriving_gradients;  // by link
    std::vector<Moment> arrived;                                           // of what is arriving
    std::map<int32_t, at::Tensor> received;                                // link -> activations
    std::map<int32_t, at::Tensor> received_gradients;  // link -> gradient of what was sent
    model::StageOutput output;                         // until all of it is sent
    model::StageOutput input_gradients;                // likewise
    Moment ready;                                      // of what is to be sent
    int32_t sends_left = 0;
    at::Tensor valid;  // [samples of the part's lane] fp32; undefined: all valid
    bool ran = false;
    int64_t targets_left_out = 0;  // samples whose targets are not finite
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
    bool alone = false;   // passes and messages only; nobody is there to talk to
  };

  Executor(const plan::Plan& plan, Rank rank, TrainingState& state)
      : plan_(plan), rank_(rank), state_(state), options_(state.options()) {}
  absl::Status Build(comm::Communicators& communicators);
  // Those of which this rank is a member, by what they are for.
  struct Groups {
    comm::Communicator *forward = nullptr, *backward = nullptr;
    std::map<plan::RankList, comm::Communicator*> tensor, data;
  };
  Groups SortCommunicators(comm::Communicators& communicators);
  absl::Status BindProgram();
  absl::Status AddPart(PartState& state, const PartGroups& groups);
  void BindReductions();
  Part& PartOf(int32_t module, int32_t chunk) {
    return parts_[static_cast<size_t>(tables_.part_of.at({module, chunk}))];
  }
  Part& PartOf(const BoundInstruction& instruction) {
    return parts_[static_cast<size_t>(instruction.part)];
  }
  const plan::Link& LinkOf(const BoundInstruction& instruction) const {
    return plan_.links[static_cast<size_t>(instruction.link)];
  }
  static const Microbatch& MicrobatchOf(const BoundInstruction& instruction,
                                        const StepContext& context) {
    return (*context.microbatches)[static_cast<size_t>(instruction.microbatch)];
  }
  Flight& FlightOf(const BoundInstruction& instruction) {
    return flights_[{instruction.part, instruction.microbatch}];
  }

  absl::Status RunProgram(const StepContext& context,
                          const std::function<absl::Status()>& previous_decided);
  // Passes and messages of these microbatches.
  absl::Status RunAlone(const std::set<int32_t>& microbatches, const StepContext& context);
  // Whether the timer is told of what communicators do.
  void ObserveCommunicators(bool observed);
  static std::string MatricesOf(const PartState& state);
  // Of a pass of a part (warm_passes.h).
  std::string ShapeOf(const Part& part, int64_t samples) const;
  // Waits until the device has little enough before it; meanwhile, where it stands still, enqueues
  // messages.
  absl::Status AwaitRoom(int32_t instruction, const StepContext& context);
  absl::Status EnqueueAhead(int32_t at, const StepContext& context);
  // Carries out program[at], and what is one exchange with it; tells how many instructions that
  // was.
  absl::StatusOr<size_t> Execute(absl::Span<const BoundInstruction> program, size_t at,
                                 const StepContext& context);
  // The moment from which on everything received is there.
  absl::StatusOr<Moment> Exchange(absl::Span<const BoundInstruction> messages,
                                  const StepContext& context);
  absl::Status ExecuteOne(const BoundInstruction& instruction, const StepContext& context);
  // With the fault that is to come about in it.
  absl::Status ExecuteFaultily(const BoundInstruction& instruction, const StepContext& context);
  absl::Status Carry(const BoundInstruction& instruction, const StepContext& context);
  // Whether the fault that waits makes what comes of this phase no number; once.
  bool Spoils(job::FaultPhase phase) {
    return faulty_step_ > 0 && state_.faults().Spoils(phase, faulty_step_);
  }
  // Makes the part's gradients no numbers, where the fault that waits is that: what comes to them
  // later in the step changes nothing of it. Where their sums have begun it waits for another step.
  void SpoilGradients(Part& part, job::FaultPhase phase);
  // A stage's forward pass of a step, as the fault that waits makes it: what leaves the part is no
  // number, nor is what its loss weighs rows by.
  absl::StatusOr<model::StageOutput> ForwardOf(const Part& part,
                                               const BoundInstruction& instruction,
                                               const model::StageInput& input);
  // The same, never further ahead of the device than RunAhead allows, between its layers too.
  absl::Status RunPaced(const BoundInstruction& instruction, int32_t at,
                        const StepContext& context);
  void Pace();
  // Of those of a layer, and of what is before it, which their gather and their copies may hold up.
  absl::Status AwaitParameters(Part& part, int32_t layer);
  // Of a step, or of an evaluation (0): its times begin, and stages see weights anew that have
  // changed since the last ones.
  void BeginPasses(int64_t step);
  absl::Status Forward(const BoundInstruction& instruction, const StepContext& context);
  absl::Status FillInput(const Part& part, const Microbatch& microbatch,
                         const plan::UnitRange& lane, Flight& flight, const StepContext& context,
                         model::StageInput& input);
  absl::Status FillFromSamples(const Part& part, const Microbatch& microbatch,
                               const plan::UnitRange& lane, Flight& flight,
                               const StepContext& context, model::StageInput& input);
  void AccountLoss(const Part& part, const Flight& flight, const model::StageInput& input);
  absl::Status BackwardInput(const BoundInstruction& instruction, const StepContext& context);
  // Before a layer of a part's forward pass, but for the first.
  void LayerBegins(size_t part);
  // Behind a layer of a part's backward pass.
  void LayerDone(size_t part);
  // Adds the squares of the sums that have begun, beside the passes that go on.
  absl::Status AddNormBeside(Part& part);
  // Those of the part's buckets before `end` that are not in it yet.
  void AddNorm(Part& part, size_t end);
  absl::Status BackwardWeight(const BoundInstruction& instruction);
  // Adds what the instruction sends and receives to the posting.
  using Posting = MessageStream::Posting;
  void PostMessages(const BoundInstruction& instruction, const StepContext& context,
                    Posting& posting);
  void PostSendForward(const BoundInstruction& instruction, const StepContext& context,
                       Posting& posting);
  void PostReceiveForward(const BoundInstruction& instruction, const StepContext& context,
                          Posting& posting);
  void PostSendBackward(const BoundInstruction& instruction, const StepContext& context,
                        Posting& posting);
  void PostReceiveBackward(const BoundInstruction& instruction, const StepContext& context,
                           Posting& posting);
  void AwaitArrivals(Flight& flight);
  // What has arrived of a link, pair by pair, whole unless the part works on slices; undefined
  // where there are no rows.
  absl::StatusOr<at::Tensor> JoinRows(const Part& part, int32_t link,
                                      const std::vector<Arrival>& pairs);
  // Of the rows that a link carries.
  int64_t WidthOf(int32_t link) const;
  absl::Status TakeForward(const Part& part, Flight& flight);
  absl::Status TakeBackward(const Part& part, Flight& flight);
  // Waits for the evaluation that was enqueued last: one at a time is on its way.
  absl::Status AwaitEvaluation();
  absl::Status RecordStep(const StepContext& context);

  // Rows that a link carries of these samples of one lane at each of its ends.
  int64_t RowsOfLink(int32_t link, const Microbatch& microbatch, plan::UnitRange samples,
                     const Batches& batches) const;
  // What a message carries of `rows`, which has, from `first` on, what this rank has of the rows of
  // its lane.
  at::Tensor PayloadOf(const BoundInstruction& instruction, const StepContext& context,
                       const plan::LinkMessage& message, const at::Tensor& rows,
                       int64_t first) const;
  // That of the message's pair of lanes, in whose order messages come.
  Arrival& ArrivalOf(const BoundInstruction& instruction, const StepContext& context,
                     const plan::LinkMessage& message, std::vector<Arrival>& arrivals) const;
  void PostRows(const BoundInstruction& instruction, const BoundMessage& message, Arrival& arrival,
                Posting& posting);
  absl::Status FinishMessages();

  const plan::Plan& plan_;
  const Rank rank_;
  TrainingState& state_;
  const BufferOptions options_;
  BindingTables tables_;
  schedule::Program program_, evaluation_program_;
  BoundProgram bound_program_;
  std::unique_ptr<StepTimer> timer_;
  bool muted_ = false;            // passes run alone
  bool weights_changed_ = false;  // since passes began
  // Tensor groups as the stages use them: of each what can be muted, then what is timed.
  std::vector<std::unique_ptr<comm::Communicator>> muted_groups_, timed_;
  std::vector<Part> parts_;
  std::map<int32_t, CopyExchange> ties_;  // of tied embeddings with an end here, by module
  RunAhead run_ahead_;
  double seconds_waited_ = 0;
  int64_t evaluated_ = 0;  // its mark
  struct {
    int32_t instruction = -1;  // that is being enqueued; -1: none, or nothing to wait for
    const StepContext* context = nullptr;
    int32_t layers = 1;
    absl::Status status;
  } pacing_;
  // While a fault slows this rank: what an instruction took on the device before it did.
  std::map<int32_t, double> unslowed_;
  // That of the instruction which is carried out while a fault on demand waits; 0: none does.
  int64_t faulty_step_ = 0;
  MessagesAhead ahead_;                  // of the program of a step
  std::array<Moment, 2> arrived_ahead_;  // backward, forward: of what came before its turn
  std::vector<comm::Communicator*> communicators_;  // of which this rank is a member
  std::vector<int32_t> communicator_entries_;       // of those in plan::Communicators(plan)
  std::vector<std::unique_ptr<OperationTimer>> operation_timers_;  // of each
  int64_t traced_step_ = 0;
  comm::Communicator* control_ = nullptr;
  std::unique_ptr<MessageStream> forward_, backward_;
  std::map<Rank, int32_t> control_peer_;
  Moment normed_;       // behind the squares that were added beside passes
  at::Tensor sums_;     // fp64 [4]: squared norm, loss sum, counted tokens, corrupt samples
  at::Tensor records_;  // bytes [ranks of control * sizeof(Record)]
  uint64_t plan_digest_ = 0;
  bool flags_travel_ = false;  // items can be corrupt, so validity goes along with activations
  OnCorruptSample on_corrupt_sample_;

  std::map<std::pair<int32_t, int32_t>, Flight> flights_;  // (part, microbatch)
  std::map<int64_t, Delivery> deliveries_;  // by place of the message in its link's list
  at::Tensor predicted_;                    // of the last evaluation
};

}  // namespace phalanx::train

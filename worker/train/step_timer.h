// worker/train/step_timer.h: where the time of a step goes on this rank: computing, waiting for
// messages and collectives, or idle.
//
// Marks are taken on the compute stream (CUDA: events, read steps later so that nobody waits; CPU:
// the clock). A step's figures can be read once the decision of the step after it is known: by then
// all its work is done. So three steps' marks are kept.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {

// Of one instruction of the rank's program, as the compute stream saw it.
struct InstructionTime {
  int32_t instruction = 0;    // position in the program
  double begin = 0, end = 0;  // seconds from the step's first mark
  double waited = 0;          // seconds of them in which it waited for messages
  double gathered = 0;        // likewise for its parameters
  // What the pass itself took.
  double work() const { return end - begin - waited - gathered; }
};

// Of one operation of a communicator, as its own stream saw it.
struct OperationTime {
  int32_t communicator = 0;  // entry of plan::Communicators(plan)
  plan::CommunicatorOperation operation = plan::CommunicatorOperation::kAllReduce;
  double begin = 0, end = 0;  // seconds from the step's first mark
};

struct StepFigures {
  // Seconds of layers and optimizer, without what they waited for: collectives, messages, samples.
  double busy = 0;
  double flops = 0;         // of its passes, as their shapes say (step_flops.h); 0: not known
  double exposed_comm = 0;  // seconds in which the compute stream waited for communication
  std::vector<InstructionTime> instructions;  // in program order
  std::vector<OperationTime> operations;      // of communicators that were observed, as issued
};

// A source of marks. Marks of one step are numbered from 0.
class Marks {
 public:
  virtual ~Marks() = default;
  virtual void Clear(int64_t step) = 0;
  virtual int32_t Mark(int64_t step) = 0;
  // On a stream of the device (a cudaStream_t) instead of the compute stream; nullptr: there is
  // none. Nothing where it could not be recorded. Does not throw.
  virtual std::optional<int32_t> MarkOn(int64_t step, void* /*stream*/) { return Mark(step); }
  // Of two marks of the step; nothing where the device does not say.
  virtual std::optional<double> SecondsBetween(int64_t step, int32_t from, int32_t to) = 0;
};
std::unique_ptr<Marks> MakeCpuMarks();
#ifdef PHALANX_WITH_CUDA
std::unique_ptr<Marks> MakeCudaMarks();
#endif

class StepTimer {
 public:
  explicit StepTimer(std::unique_ptr<Marks> marks) : marks_(std::move(marks)) {}

  void BeginStep(int64_t step) {
    step_ = step;
    spans_[Slot(step)].clear();
    operations_[Slot(step)].clear();
    marks_->Clear(step);
  }
  int32_t Mark() { return marks_->Mark(step_); }
  // The instruction that the spans added from now on belong to.
  void BeginInstruction(int32_t instruction) { instruction_ = instruction; }
  // kCompute and kComm: a whole instruction. Inside one of kCompute: a collective, a wait for
  // messages, one for its parameters, which may begin with its first pass, and one for samples.
  enum class Kind : uint8_t { kCompute, kComm, kCollective, kWait, kParameters, kSamples };
  void Add(Kind kind, int32_t from, int32_t to) {
    spans_[Slot(step_)].push_back({kind, instruction_, from, to});
  }
  int64_t step() const { return step_; }
  std::optional<int32_t> MarkOn(void* stream) { return marks_->MarkOn(step_, stream); }
  void AddOperation(int32_t communicator, plan::CommunicatorOperation operation, int32_t from,
                    int32_t to) {
    operations_[Slot(step_)].push_back({communicator, operation, from, to});
  }
  // Without those of which a time is not known.
  StepFigures Read(int64_t step);

 private:
  struct Operation {
    int32_t communicator;
    plan::CommunicatorOperation operation;
    int32_t from, to;
  };
  struct Span {
    Kind kind;
    int32_t instruction, from, to;
  };
  static size_t Slot(int64_t step) { return static_cast<size_t>(step % 3); }

  std::unique_ptr<Marks> marks_;
  int64_t step_ = 0;
  int32_t instruction_ = 0;
  std::array<std::vector<Span>, 3> spans_;
  std::array<std::vector<Operation>, 3> operations_;
};

// Marks the operations of one communicator of the rank, of a timer that outlives it: those of which
// both ends were recorded, in one step.
class OperationTimer final : public comm::Observer {
 public:
  // `communicator`: entry of plan::Communicators(plan).
  OperationTimer(StepTimer& timer, int32_t communicator)
      : timer_(timer), communicator_(communicator) {}
  void Begins(plan::CommunicatorOperation operation, void* stream) override;
  void Ends(void* stream) override;

 private:
  StepTimer& timer_;
  const int32_t communicator_;
  plan::CommunicatorOperation operation_ = plan::CommunicatorOperation::kAllReduce;
  int64_t step_ = 0;  // in which it began
  std::optional<int32_t> begun_;
};

// A communicator whose operations are marked: from the first after a Join to the next Join or Mark,
// and the waits for points.
std::unique_ptr<comm::Communicator> MakeTimed(comm::Communicator& inner, StepTimer& timer);

}  // namespace phalanx::train

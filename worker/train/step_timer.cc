#include "worker/train/step_timer.h"

#include <chrono>
#include <optional>
#include <utility>

namespace phalanx::train {
namespace {

class CpuMarks final : public Marks {
 public:
  void Clear(int64_t step) override { marks_[Slot(step)].clear(); }
  int32_t Mark(int64_t step) override {
    marks_[Slot(step)].push_back(std::chrono::steady_clock::now());
    return static_cast<int32_t>(marks_[Slot(step)].size()) - 1;
  }
  std::optional<double> SecondsBetween(int64_t step, int32_t from, int32_t to) override {
    const auto& marks = marks_[Slot(step)];
    return std::chrono::duration<double>(marks[static_cast<size_t>(to)] -
                                         marks[static_cast<size_t>(from)])
        .count();
  }

 private:
  static size_t Slot(int64_t step) { return static_cast<size_t>(step % 3); }
  std::array<std::vector<std::chrono::steady_clock::time_point>, 3> marks_;
};

class TimedCommunicator final : public comm::Communicator {
 public:
  TimedCommunicator(comm::Communicator& inner, StepTimer& timer) : inner_(inner), timer_(timer) {}
  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override {
    Begin();
    return inner_.AllReduceSum(data, count, dtype);
  }
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override {
    Begin();
    return inner_.ReduceScatterSum(in, out, count, dtype);
  }
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override {
    Begin();
    return inner_.AllGather(in, out, count, dtype);
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override {
    Begin();
    return inner_.Exchange(sends, receives);
  }
  absl::Status Join() override {
    const absl::Status status = inner_.Join();
    if (begun_ >= 0) timer_.Add(StepTimer::Kind::kCollective, begun_, timer_.Mark());
    begun_ = -1;
    return status;
  }
  absl::Status Flush() override { return inner_.Flush(); }
  absl::StatusOr<Point> Mark() override {
    // What the calls themselves took; on a device they take nothing.
    if (begun_ >= 0) timer_.Add(StepTimer::Kind::kCollective, begun_, timer_.Mark());
    begun_ = -1;
    absl::StatusOr<Point> point = inner_.Mark();
    if (!point.ok()) return point;
    return [this, inner = *std::move(point)] {
      const int32_t before = timer_.Mark();
      const absl::Status status = inner();
      timer_.Add(StepTimer::Kind::kCollective, before, timer_.Mark());
      return status;
    };
  }
  absl::Status Lead() override { return inner_.Lead(); }
  absl::Status Check() override { return inner_.Check(); }
  void Abort(absl::Status reason) override { inner_.Abort(std::move(reason)); }

 private:
  void Begin() {
    if (begun_ < 0) begun_ = timer_.Mark();
  }

  comm::Communicator& inner_;
  StepTimer& timer_;
  int32_t begun_ = -1;
};

}  // namespace

std::unique_ptr<Marks> MakeCpuMarks() { return std::make_unique<CpuMarks>(); }

StepFigures StepTimer::Read(int64_t step) {
  StepFigures figures;
  // Inside the instruction whose own span comes next.
  double inside = 0, waited = 0, gathered = 0;
  for (const Span& span : spans_[Slot(step)]) {
    const std::optional<double> begin = marks_->SecondsBetween(step, 0, span.from),
                                end = marks_->SecondsBetween(step, 0, span.to),
                                took = marks_->SecondsBetween(step, span.from, span.to);
    const bool known = begin.has_value() && end.has_value() && took.has_value();
    const bool whole = span.kind == Kind::kCompute || span.kind == Kind::kComm;
    if (known && span.kind != Kind::kCompute && span.kind != Kind::kSamples)
      figures.exposed_comm += *took;
    if (known && !whole) {
      inside += *took;
      if (span.kind == Kind::kWait) waited += *took;
      if (span.kind == Kind::kParameters) gathered += *took;
    }
    if (!whole) continue;
    if (known) {
      figures.busy += (span.kind == Kind::kCompute ? *took : 0) - inside;
      figures.instructions.push_back({.instruction = span.instruction,
                                      .begin = *begin,
                                      .end = *end,
                                      .waited = waited,
                                      .gathered = gathered});
    }
    inside = waited = gathered = 0;
  }
  figures.busy -= inside;
  for (const Operation& operation : operations_[Slot(step)]) {
    const std::optional<double> begin = marks_->SecondsBetween(step, 0, operation.from),
                                end = marks_->SecondsBetween(step, 0, operation.to);
    if (!begin.has_value() || !end.has_value()) continue;
    figures.operations.push_back({.communicator = operation.communicator,
                                  .operation = operation.operation,
                                  .begin = *begin,
                                  .end = *end});
  }
  return figures;
}

void OperationTimer::Begins(plan::CommunicatorOperation operation, void* stream) {
  operation_ = operation;
  step_ = timer_.step();
  begun_ = timer_.MarkOn(stream);
}

void OperationTimer::Ends(void* stream) {
  const std::optional<int32_t> begun = std::exchange(begun_, std::nullopt),
                               ended = timer_.MarkOn(stream);
  if (begun.has_value() && ended.has_value() && step_ == timer_.step())
    timer_.AddOperation(communicator_, operation_, *begun, *ended);
}

std::unique_ptr<comm::Communicator> MakeTimed(comm::Communicator& inner, StepTimer& timer) {
  return std::make_unique<TimedCommunicator>(inner, timer);
}

}  // namespace phalanx::train

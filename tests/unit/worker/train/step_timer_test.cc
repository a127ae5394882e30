#include "worker/train/step_timer.h"

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

using Kind = StepTimer::Kind;
using testing::ElementsAre;
using testing::FieldsAre;

// Mark i is at times[i] seconds. Of those of a stream the calls in `failing` record nothing, and of
// marks in `unknown` nothing is said.
class FixedMarks final : public Marks {
 public:
  explicit FixedMarks(std::vector<double> times, std::set<int> failing = {},
                      std::set<int32_t> unknown = {})
      : times_(std::move(times)), failing_(std::move(failing)), unknown_(std::move(unknown)) {}
  void Clear(int64_t) override { next_ = 0; }
  int32_t Mark(int64_t) override { return next_++; }
  std::optional<int32_t> MarkOn(int64_t, void*) override {
    if (failing_.contains(calls_++)) return std::nullopt;
    return next_++;
  }
  std::optional<double> SecondsBetween(int64_t, int32_t from, int32_t to) override {
    if (unknown_.contains(from) || unknown_.contains(to)) return std::nullopt;
    return times_[static_cast<size_t>(to)] - times_[static_cast<size_t>(from)];
  }

 private:
  const std::vector<double> times_;
  const std::set<int> failing_;
  const std::set<int32_t> unknown_;
  int calls_ = 0;
  int32_t next_ = 0;
};

// A pass of 16 seconds: 1 for its parameters, 2 for a message, 4 in collectives; then a record.
TEST(StepTimerTest, WaitsInsideAPass_AreNeitherBusyNorItsWork) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{0, 0, 1, 3, 8, 12, 16, 19}));
  timer.BeginStep(3);
  const int32_t begin = timer.Mark();
  timer.BeginInstruction(5);
  const int32_t gather = timer.Mark(), message = timer.Mark(), ready = timer.Mark();
  timer.Add(Kind::kParameters, gather, message);
  timer.Add(Kind::kWait, message, ready);
  const int32_t sum = timer.Mark(), summed = timer.Mark();
  timer.Add(Kind::kCollective, sum, summed);
  const int32_t end = timer.Mark();
  timer.Add(Kind::kCompute, begin, end);
  timer.BeginInstruction(6);
  timer.Add(Kind::kComm, end, timer.Mark());

  const StepFigures figures = timer.Read(3);
  EXPECT_EQ(figures.busy, 9);
  EXPECT_EQ(figures.exposed_comm, 1 + 2 + 4 + 3);
  EXPECT_THAT(figures.instructions,
              ElementsAre(FieldsAre(5, 0, 16, 2, 1), FieldsAre(6, 16, 19, 0, 0)));
  // What a host that runs ahead learns of it: its collectives are its own.
  EXPECT_EQ(figures.instructions[0].work(), 13);
}

// Two operations of a communicator, the second on a device's stream, beside a pass of 6 seconds.
TEST(StepTimerTest, OperationsOfCommunicators_StandBesidePasses) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{1, 2, 3, 4, 6, 7}));
  OperationTimer operations(timer, 4);
  for (const int64_t step : {3, 4}) {  // what an earlier step had is not there
    timer.BeginStep(step);
    const int32_t begin = timer.Mark();
    operations.Begins(plan::CommunicatorOperation::kReduceScatter, nullptr);
    operations.Ends(nullptr);
    operations.Begins(plan::CommunicatorOperation::kAllGather, &timer);
    operations.Ends(&timer);
    timer.Add(Kind::kCompute, begin, timer.Mark());
  }
  const StepFigures figures = timer.Read(4);
  EXPECT_THAT(figures.operations,
              ElementsAre(FieldsAre(4, plan::CommunicatorOperation::kReduceScatter, 1, 2),
                          FieldsAre(4, plan::CommunicatorOperation::kAllGather, 3, 5)));
  EXPECT_EQ(figures.busy, 6);
  EXPECT_EQ(figures.exposed_comm, 0);
  timer.BeginStep(7);
  EXPECT_TRUE(timer.Read(7).operations.empty());
}

// The first lacks its end, the second its beginning, the last one began in the step before.
TEST(StepTimerTest, OperationsOfWhichAnEndWasNotRecorded_HaveNoTime) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{0, 8, 1, 2, 3, 4},
                                               /*failing=*/std::set<int>{1, 2}));
  OperationTimer operations(timer, 0);
  const auto operation = plan::CommunicatorOperation::kAllReduce;
  timer.BeginStep(3);
  for (int i = 0; i < 3; ++i) {
    operations.Begins(operation, nullptr);
    operations.Ends(nullptr);
  }
  operations.Ends(nullptr);  // what it ended was never begun
  const StepFigures figures = timer.Read(3);
  EXPECT_THAT(figures.operations, ElementsAre(FieldsAre(0, operation, 1, 2)));
  operations.Begins(operation, nullptr);
  timer.BeginStep(4);
  operations.Ends(nullptr);
  EXPECT_TRUE(timer.Read(4).operations.empty());
}

TEST(StepTimerTest, SpansOfWhichTheDeviceSaysNothing_CountNowhere) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{0, 1, 0, 7, 9}, std::set<int>(),
                                               /*unknown=*/std::set<int32_t>{2}));
  timer.BeginStep(3);
  const int32_t begin = timer.Mark(), wait = timer.Mark(), lost = timer.Mark(), end = timer.Mark();
  timer.BeginInstruction(5);
  timer.Add(Kind::kWait, begin, wait);
  timer.Add(Kind::kCompute, begin, lost);
  timer.BeginInstruction(6);
  timer.Add(Kind::kCompute, end, timer.Mark());
  const StepFigures figures = timer.Read(3);
  EXPECT_THAT(figures.instructions, ElementsAre(FieldsAre(6, 7, 9, 0, 0)));
  EXPECT_EQ(figures.busy, 2);
  EXPECT_EQ(figures.exposed_comm, 1);
}

// A pass of 10 seconds, in which 4 are for samples that storage gives late.
TEST(StepTimerTest, WaitForSamples_IsNeitherBusyNorCommunication) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{0, 1, 5, 10}));
  timer.BeginStep(3);
  const int32_t begin = timer.Mark(), asked = timer.Mark();
  timer.Add(Kind::kSamples, asked, timer.Mark());
  timer.Add(Kind::kCompute, begin, timer.Mark());
  const StepFigures figures = timer.Read(3);
  EXPECT_EQ(figures.busy, 6);
  EXPECT_EQ(figures.exposed_comm, 0);
  EXPECT_EQ(figures.instructions.at(0).work(), 10);
}

class IdleCommunicator final : public comm::Communicator {
 public:
  int32_t rank() const override { return 0; }
  int32_t size() const override { return 1; }
  absl::Status AllReduceSum(void*, int64_t, comm::DType) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(const void*, void*, int64_t, comm::DType) override {
    return absl::OkStatus();
  }
  absl::Status AllGather(const void*, void*, int64_t, comm::DType) override {
    return absl::OkStatus();
  }
  absl::Status Exchange(absl::Span<const comm::Outgoing>,
                        absl::Span<const comm::Incoming>) override {
    return absl::OkStatus();
  }
  absl::Status Join() override { return absl::OkStatus(); }
  absl::Status Flush() override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}
};

// A pass of 32 seconds: a collective is called (1 s), 8 s of other work, 2 s of waiting for it;
// then one that is joined at once, 4 s.
TEST(StepTimerTest, WorkBesideACollective_IsBusy) {
  StepTimer timer(std::make_unique<FixedMarks>(std::vector<double>{0, 3, 4, 12, 14, 20, 24, 32}));
  timer.BeginStep(3);
  IdleCommunicator inner;
  const std::unique_ptr<comm::Communicator> timed = MakeTimed(inner, timer);
  const int32_t begin = timer.Mark();
  ASSERT_TRUE(timed->AllReduceSum(nullptr, 0, comm::DType::kFp32).ok());
  const auto point = timed->Mark();
  ASSERT_TRUE(point.ok() && timed->Lead().ok());
  ASSERT_TRUE((*point)().ok());
  ASSERT_TRUE(timed->AllReduceSum(nullptr, 0, comm::DType::kFp32).ok());
  ASSERT_TRUE(timed->Join().ok());
  timer.Add(Kind::kCompute, begin, timer.Mark());
  const StepFigures figures = timer.Read(3);
  EXPECT_EQ(figures.exposed_comm, 1 + 2 + 4);
  EXPECT_EQ(figures.busy, 32 - 7);
}

}  // namespace
}  // namespace phalanx::train

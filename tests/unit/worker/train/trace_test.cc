// From measured times to one timeline.
#include "worker/train/trace.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::train {
namespace {

using schedule::Op;
using schedule::Program;
using schedule::TimedInstruction;
using testing::ElementsAre;
using testing::FieldsAre;

// Three stages: links 0 (first to second) and 1.
plan::Plan ThreeStages() {
  const job::JobSpec spec =
      support::AJob().Module("language", support::Llama({.layers = 3}), {.pp = 3}).Batch(2, 1);
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, 3), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

// What the second stage does with microbatch 0.
const Program kSecondStage = {{.op = Op::kReceiveForward, .link = 0, .microbatch = 0, .ticket = 1},
                              {.op = Op::kReceiveForward, .link = 0, .microbatch = 1, .ticket = 2},
                              {.op = Op::kForward, .module = 0, .microbatch = 0},
                              {.op = Op::kSendForward, .link = 1, .microbatch = 0, .ticket = 3},
                              {.op = Op::kReceiveBackward, .link = 1, .microbatch = 0, .ticket = 4},
                              {.op = Op::kBackwardInput, .module = 0, .microbatch = 0},
                              {.op = Op::kBackwardWeight, .module = 0, .microbatch = 0}};

TEST(MoveWaitsToReceivesTest, Wait_BecomesTheReceiveOfThatMessageAlone) {
  std::vector<InstructionTime> times = {{0, 0, 0.5, 0}, {1, 0.5, 1, 0}, {2, 1, 6, 2},
                                        {3, 6, 6.5, 0}, {4, 6.5, 7, 0}, {5, 7, 12, 3},
                                        {6, 12, 13, 0}};
  MoveWaitsToReceives(ThreeStages(), kSecondStage, times);
  EXPECT_THAT(times, ElementsAre(FieldsAre(0, 1, 3, 0, 0),    // where the pass waited
                                 FieldsAre(1, 0.5, 1, 0, 0),  // its pass is not there
                                 FieldsAre(2, 3, 6, 0, 0),    // begins behind
                                 FieldsAre(3, 6, 6.5, 0, 0),  // a send stays
                                 FieldsAre(4, 7, 10, 0, 0), FieldsAre(5, 10, 12, 0, 0),
                                 FieldsAre(6, 12, 13, 0, 0)));
}

// A pass waits for its parameters, then for its message.
TEST(MoveWaitsToReceivesTest, WaitForParameters_IsNobodys) {
  std::vector<InstructionTime> times = {{0, 0, 0.5}, {2, 1, 6, 2, 1}};
  MoveWaitsToReceives(ThreeStages(), kSecondStage, times);
  EXPECT_THAT(times, ElementsAre(FieldsAre(0, 2, 4, 0, 0), FieldsAre(2, 4, 6, 0, 0)));
}

TEST(AlignAtRecordTest, RanksLeaveTheRecordTogether_AndTheFirstBeginsAtZero) {
  const schedule::Instruction pass{.op = Op::kForward, .module = 0, .microbatch = 0};
  const schedule::Instruction record{.op = Op::kRecord, .ticket = 9};
  std::vector<TimedInstruction> timeline = {{Rank{0}, pass, 100, 101},
                                            {Rank{0}, record, 101, 110},
                                            {Rank{1}, pass, 3, 5},
                                            {Rank{1}, record, 5, 8}};
  std::vector<schedule::TimedOperation> operations = {
      {Rank{1}, 2, plan::CommunicatorOperation::kAllGather, 4, 9},
      {Rank{0}, 1, plan::CommunicatorOperation::kExchange, 100, 103}};
  AlignAtRecord(timeline, operations);
  // As their ranks'; one ends behind the record.
  EXPECT_THAT(operations,
              ElementsAre(FieldsAre(Rank{1}, 2, plan::CommunicatorOperation::kAllGather, 6, 11),
                          FieldsAre(Rank{0}, 1, plan::CommunicatorOperation::kExchange, 0, 3)));
  EXPECT_THAT(timeline,
              ElementsAre(FieldsAre(Rank{0}, pass, 0, 1), FieldsAre(Rank{0}, record, 1, 10),
                          FieldsAre(Rank{1}, pass, 5, 7), FieldsAre(Rank{1}, record, 7, 10)));
}

TEST(AlignAtRecordTest, EmptyTimeline_StaysEmpty) {
  std::vector<TimedInstruction> timeline;
  std::vector<schedule::TimedOperation> operations;
  AlignAtRecord(timeline, operations);
  EXPECT_TRUE(timeline.empty());
}

}  // namespace
}  // namespace phalanx::train

#include "worker/train/messages_ahead.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace phalanx::train {
namespace {

using schedule::Op;

constexpr bool kForward = true, kBackward = false;

BoundInstruction Pass(Op op, int32_t microbatch) { return {.op = op, .microbatch = microbatch}; }
BoundInstruction Message(Op op, int32_t microbatch, int32_t behind, int32_t exchange = 1) {
  return {.op = op, .microbatch = microbatch, .exchange = exchange, .behind = behind};
}

// A stage in the middle, two microbatches ahead of its first backward pass.
std::vector<BoundInstruction> MiddleStage() {
  return {Message(Op::kReceiveForward, 0, -1), Pass(Op::kForward, 0),
          Message(Op::kReceiveForward, 1, -1), Pass(Op::kForward, 1),
          Message(Op::kSendForward, 0, 1),     Message(Op::kSendForward, 1, 3),
          Message(Op::kReceiveBackward, 0, 1), Pass(Op::kBackwardInput, 0),
          Message(Op::kReceiveForward, 2, -1), Message(Op::kReceiveForward, 3, -1),
          Message(Op::kSendBackward, 0, 7)};
}

TEST(MessagesAheadTest, Next_ASendOfAPassThatIsEnqueued_MayGo) {
  const std::vector<BoundInstruction> program = MiddleStage();
  MessagesAhead ahead(program);
  ahead.Advance(kForward);
  ahead.Advance(kForward);
  EXPECT_EQ(ahead.Next(kForward, 3, false), 4u);
  ahead.Advance(kForward);
  EXPECT_EQ(ahead.Next(kForward, 3, true), std::nullopt) << "microbatch 1 is not forwarded yet";
  EXPECT_EQ(ahead.Next(kForward, 7, false), 5u);
}

TEST(MessagesAheadTest, Next_AReceive_WaitsForTheOneBefore) {
  const std::vector<BoundInstruction> program = MiddleStage();
  MessagesAhead ahead(program);
  for (int i = 0; i < 4; ++i) ahead.Advance(kForward);
  EXPECT_EQ(ahead.Next(kForward, 7, false), std::nullopt);
  EXPECT_EQ(ahead.Next(kForward, 7, true), 8u);
  ahead.Advance(kForward);
  EXPECT_EQ(ahead.Next(kForward, 7, true), 9u);
  ahead.Advance(kForward);
  EXPECT_EQ(ahead.Next(kForward, 7, true), std::nullopt) << "none is left";
}

TEST(MessagesAheadTest, Next_AGradientBeforeItsForwardPass_StaysInItsTurn) {
  const std::vector<BoundInstruction> program = MiddleStage();
  const MessagesAhead ahead(program);
  EXPECT_EQ(ahead.Next(kBackward, 1, true), std::nullopt);
  EXPECT_EQ(ahead.Next(kBackward, 3, true), 6u);
}

TEST(MessagesAheadTest, Next_AnExchange_GoesAsAWhole) {
  const std::vector<BoundInstruction> program = {Pass(Op::kForward, 0), Pass(Op::kForward, 1),
                                                 Message(Op::kSendForward, 1, 1, 2),
                                                 Message(Op::kReceiveForward, 1, -1)};
  const MessagesAhead ahead(program);
  EXPECT_EQ(ahead.Next(kForward, 1, true), std::nullopt) << "its send is not made";
  EXPECT_EQ(ahead.Next(kForward, 2, false), std::nullopt) << "its receive has to wait";
  EXPECT_EQ(ahead.Next(kForward, 2, true), 2u);
}

TEST(MessagesAheadTest, IsEnqueued_OfWhatWentBeforeItsTurn_UntilTheProgramBeginsAnew) {
  const std::vector<BoundInstruction> program = MiddleStage();
  MessagesAhead ahead(program);
  EXPECT_FALSE(ahead.IsEnqueued(kForward, 0));
  ahead.Advance(kForward);
  EXPECT_TRUE(ahead.IsEnqueued(kForward, 0));
  EXPECT_FALSE(ahead.IsEnqueued(kForward, 2));
  for (int i = 0; i < 5; ++i) ahead.Advance(kForward);
  EXPECT_TRUE(ahead.IsEnqueued(kForward, 9));
  EXPECT_FALSE(ahead.IsEnqueued(kBackward, 6));
  ahead.Begin();
  EXPECT_FALSE(ahead.IsEnqueued(kForward, 0));
}

}  // namespace
}  // namespace phalanx::train

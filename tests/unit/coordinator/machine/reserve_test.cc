// Nodes that are kept in reserve: the queue gives their devices to no job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/unit/coordinator/machine/recovering.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReserveTest : public RecoveringTest {
 protected:
  absl::StatusOr<MarkedNode> Set(const NodeName& node, std::optional<ReserveMark> reserve) {
    h_.Feed(ReserveRequested{Token{++token_}, node, std::move(reserve), "ops"});
    return h_.marked.back();
  }
  absl::StatusOr<MarkedNode> Reserve(const NodeName& node) {
    return Set(node, ReserveMark{.reason = "spares"});
  }
  absl::StatusOr<MarkedNode> Unreserve(const NodeName& node) { return Set(node, std::nullopt); }
  void Mark(const NodeName& node, std::optional<NodeMark> mark) {
    h_.Feed(NodeMarkRequested{Token{++token_}, node, std::move(mark), "ops"});
  }

  uint64_t token_ = 1'000'000;  // beside those of the harness
};

TEST_F(ReserveTest, ReservedNode_GetsNoJobUntilItIsUnreserved) {
  node_ = h_.Open("a", 2);
  ASSERT_TRUE(Reserve("a").ok());
  const JobId job = h_.Submit(AJob("j", 2));
  EXPECT_EQ(h_.Free("a"), 2);
  EXPECT_THAT(h_.Explain(job), Contains("node a matches but is reserved by ops: spares"));
  EXPECT_EQ(h_.node_views["a"]->reserve->reason, "spares");
  EXPECT_EQ(h_.node_views["a"]->reserve->since, h_.now());
  ASSERT_TRUE(Unreserve("a").ok());
  EXPECT_EQ(h_.Free("a"), 0);
  EXPECT_FALSE(h_.node_views["a"]->reserve.has_value());
}

TEST_F(ReserveTest, DevicesInReserve_AreNoCapacity) {
  h_.Open("a", 2);
  h_.Open("b", 1);
  ASSERT_TRUE(Reserve("a").ok());
  const JobId job = h_.Submit(AJob("j", 2));
  EXPECT_THAT(h_.views[job]->reason, HasSubstr("all nodes that match have fewer"));
  h_.Submit(AJob("k", 1));
  EXPECT_EQ(h_.Free("b"), 0) << "one that can never start holds nobody up";
}

TEST_F(ReserveTest, ReservedNode_KeepsWhatRunsThere) {
  node_ = h_.Open("a", 2);
  const JobId job = h_.Run(node_, AJob("j", 2));
  ASSERT_TRUE(Reserve("a").ok());
  EXPECT_EQ(h_.Phase(job), JobPhase::kRunning);
  EXPECT_THAT(Events(job, "NodeReserved"), ElementsAre("node a: reserved by ops: spares"));
  ASSERT_TRUE(Unreserve("a").ok());
  EXPECT_THAT(Events(job, "NodeUnreserved"),
              ElementsAre("node a: is not in reserve any more, by ops"));
}

TEST_F(ReserveTest, RankThatIsLostOnAReservedNode_ReturnsToTheDeviceOfItsJob) {
  const JobId job = Train();
  ASSERT_TRUE(Reserve("n").ok());
  Step(job, 3, 1);
  h_.Report(node_, job, 1, kKilled);
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, Quiet(3, rank));
  for (const int32_t rank : {0, 2}) h_.Report(node_, job, rank, RankReady{}, 2);
  Step(job, 4, 2);
  h_.Prepare(node_);
  EXPECT_EQ(h_.State(job).epoch, Epoch{3});
  EXPECT_TRUE(h_.State(job).layout->lost.empty());
}

TEST_F(ReserveTest, NodeThatIsReservedWhileAPlanForItIsMade_IsLeft) {
  node_ = h_.Open("a", 2);
  h_.plans_held = true;
  const JobId job = h_.Submit(AJob("j", 2));
  ASSERT_TRUE(Reserve("a").ok());
  h_.plans_held = false;
  h_.AnswerPlans();
  h_.Commit();
  EXPECT_EQ(h_.Phase(job), JobPhase::kQueued);
  EXPECT_EQ(h_.Free("a"), 2);
}

// Service of the node is no reason to give its devices to the queue behind it.
TEST_F(ReserveTest, DrainedNode_IsInReserveAgainOnceItIsUncordoned) {
  h_.Open("a", 2);
  ASSERT_TRUE(Reserve("a").ok());
  Mark("a", NodeMark{.drains = true, .reason = "new fan"});
  EXPECT_TRUE(h_.node_views["a"]->mark->drains);
  EXPECT_TRUE(h_.node_views["a"]->reserve.has_value());
  Mark("a", std::nullopt);
  EXPECT_FALSE(h_.node_views["a"]->mark.has_value());
  h_.Submit(AJob("j", 2));
  EXPECT_EQ(h_.Free("a"), 2);
}

TEST_F(ReserveTest, Mark_HoldsOverARestartAndIsShownOnlyOnceItIsStored) {
  h_.Open("a", 2);
  h_.store_held = true;
  h_.Feed(ReserveRequested{Token{++token_}, "a", ReserveMark{.reason = "spares"}, "ops"});
  EXPECT_TRUE(h_.marked.empty());
  EXPECT_FALSE(h_.node_views["a"]->reserve.has_value());
  h_.store_held = false;
  h_.Commit();
  ASSERT_TRUE(h_.marked.back().ok());
  h_.Restart();
  EXPECT_EQ(h_.node_views["a"]->reserve->by, "ops");
  h_.Open("a", 2, /*incarnation=*/2);
  h_.Submit(AJob("j", 2));
  EXPECT_EQ(h_.Free("a"), 2);
}

TEST_F(ReserveTest, UnknownNode_IsRefused_AndUnreservingIsIdempotent) {
  EXPECT_EQ(Reserve("nobody").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Unreserve("nobody").status().code(), absl::StatusCode::kNotFound);
  h_.Open("a", 1);
  const size_t stored = h_.records.size();
  ASSERT_TRUE(Unreserve("a").ok());
  EXPECT_EQ(h_.records.size(), stored);
}

TEST_F(ReserveTest, LargestPriority_DoesNotPreemptForDevicesInReserve) {
  node_ = h_.Open("a", 2);
  JobRequest request = *AJob("j", 2);
  request.preemptible = request.checkpoints = true;
  const JobId job = h_.Run(node_, std::make_shared<const JobRequest>(std::move(request)));
  ASSERT_TRUE(Reserve("a").ok());
  JobRequest urgent = *AJob("urgent", 2);
  urgent.priority = 5;
  h_.Submit(std::make_shared<const JobRequest>(std::move(urgent)));
  EXPECT_FALSE(h_.State(job).ending.has_value());
}

TEST_F(ReserveTest, NodeInReserve_StaysListedHoweverLongItIsAway) {
  const SessionId session = h_.Open("a", 1);
  ASSERT_TRUE(Reserve("a").ok());
  h_.Feed(SessionClosed{session});
  h_.Advance(2 * Harness::Options().node_forget_delay);
  EXPECT_EQ(h_.machine().nodes().count("a"), 1u);
  ASSERT_TRUE(Unreserve("a").ok());
  h_.Advance(absl::Seconds(1));
  EXPECT_EQ(h_.machine().nodes().count("a"), 0u);
}

}  // namespace
}  // namespace phalanx::coordinator

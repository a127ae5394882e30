// Every loss of a node and what becomes of the job.
#include "coordinator/machine/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(PolicyTest, DecideNodeLoss_Table) {
  struct Case {
    std::string what;
    bool assigned, back;
    Rung rung;
    std::string reason;  // part of it
  };
  for (const Case& c : std::initializer_list<Case>{
           {"no rank had started, and it is back", false, true, Rung::kWait, "no rank had started"},
           {"it is away", false, false, Rung::kFail, "node b is away"},
           {"its ranks may have trained", true, true, Rung::kFail, "may have trained"},
           {"its ranks may train", true, false, Rung::kFail, "may have trained"},
       }) {
    Node node;
    node.session = SessionId{c.back ? 2u : 0u};
    const Decision decision = DecideNodeLoss({.node = "b", .assigned = c.assigned}, node);
    EXPECT_EQ(decision.rung, c.rung) << c.what;
    EXPECT_THAT(decision.reason, HasSubstr(c.reason)) << c.what;
  }
}

}  // namespace
}  // namespace phalanx::coordinator

#include "core/schedule/search_look.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "core/schedule/search_space.h"
#include "tests/unit/core/schedule/searches.h"

namespace phalanx::schedule {
namespace {

using searches::LargeWithEncoder;
using searches::SteadyH200;

// Looks at all layouts of a job on four devices, some of which fit with moved homes alone.
class LayoutLookTest : public ::testing::Test {
 protected:
  Looked Look(const SearchLayout& layout, double threshold) {
    const auto go_on = [] { return absl::OkStatus(); };
    auto looked = look_.Look(layout, 0, threshold, go_on);
    EXPECT_TRUE(looked.ok()) << looked.status();
    return looked.ok() ? *std::move(looked) : Looked();
  }

  const job::JobSpec spec_ = LargeWithEncoder();
  const SearchSpace space_{.open = {true, true}, .devices = 4, .node_devices = 4};
  const SearchOptions options_{
      .devices = 4, .device_memory = int64_t{48} << 30, .profile = SteadyH200(), .items = 4};
  const plan::Cluster cluster_ = plan::MakeCluster(1, 4);
  const std::vector<SearchLayout> layouts_ = LayoutsOf(spec_, space_);
  LayoutLook look_{spec_, space_, options_, cluster_};
};

// Nothing has to be looked at again below what is known to be the least of it.
TEST_F(LayoutLookTest, Look_BelowWhatALayoutTakes_SaysFromWhereOnItIsOfInterest) {
  int slow = 0, above = 0;
  for (const SearchLayout& layout : layouts_) {
    const Looked all = Look(layout, kAnyStep);
    EXPECT_EQ(all.slow, kAnyStep) << "nothing is too slow where anything is of interest";
    if (!all.found.has_value()) continue;
    const double step = all.found->proposal.step, threshold = 0.7 * step;
    const Looked below = Look(layout, threshold);
    EXPECT_FALSE(below.found.has_value());
    ASSERT_LT(below.slow, kAnyStep) << "it would be lost";
    EXPECT_GT(below.slow, threshold);
    EXPECT_LE(below.slow, step * (1 + 1e-9));
    ++slow;
    above += below.slow > 1.02 * threshold ? 1 : 0;
    const Looked again = Look(layout, 0.9999 * below.slow);
    EXPECT_FALSE(again.found.has_value());
    EXPECT_EQ(again.slow, below.slow);
  }
  EXPECT_GT(slow, 20);
  EXPECT_GT(above, slow / 2) << "which spares looking at it again";
}

}  // namespace
}  // namespace phalanx::schedule

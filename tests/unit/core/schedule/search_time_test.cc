// How long people wait for a layout: processor time, in the build that they use, the least of three
// tries, to which others on the machine only add. Other builds search for 64 devices and look at no
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <limits>

#include "core/schedule/search.h"
#include "tests/support/profiles.h"
#include "tests/unit/core/schedule/plans.h"

namespace phalanx::schedule {
namespace {

#ifdef NDEBUG
constexpr bool kOptimised = !kSanitized;
#else
constexpr bool kOptimised = false;
#endif

// `seconds_max` of a search for a decoder of 8 billion parameters.
void ExpectWithin(double seconds_max, int32_t devices, int encoders, const DeviceProfile& profile,
                  int64_t gib = 141) {
  if (!kOptimised && devices > 64) return;
  double least = std::numeric_limits<double>::infinity();
  int64_t settings = 0;
  for (int tries = 0; tries < 3 && least >= seconds_max; ++tries) {
    const std::clock_t begin = std::clock();
    const auto found = SearchLayouts(
        support::SearchedJob(encoders, /*large=*/false),
        {.devices = devices, .device_memory = gib << 30, .profile = profile, .items = 4});
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->best.size(), SearchOptions().best);
    if (!kOptimised) return;
    settings = found->simulated;
  }
  EXPECT_LT(least, seconds_max) << settings << " settings";
}

DeviceProfile H200() { return *FindProfile("h200"); }
DeviceProfile H200WithPower() { return support::Powered(H200(), 650, 1980); }

TEST(SearchTimeTest, Devices64_OneEncoder) { ExpectWithin(2, 64, 1, H200()); }

TEST(SearchTimeTest, Devices64_TwoEncoders) { ExpectWithin(2, 64, 2, H200()); }

// Much does not fit, and what does is lowered.
TEST(SearchTimeTest, Devices64_OfLittleMemory) { ExpectWithin(2, 64, 2, H200(), 80); }

TEST(SearchTimeTest, Devices1024_TwoEncoders) { ExpectWithin(10, 1024, 2, H200()); }

// Bounds are further from steps: more settings are planned.
TEST(SearchTimeTest, Devices64_ClocksSolvedFromPower) { ExpectWithin(2, 64, 2, H200WithPower()); }

TEST(SearchTimeTest, Devices1024_ClocksSolvedFromPower) {
  ExpectWithin(10, 1024, 2, H200WithPower());
}

}  // namespace
}  // namespace phalanx::schedule

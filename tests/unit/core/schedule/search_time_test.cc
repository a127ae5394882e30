// How long people wait for a layout. Processor time, in the build that they use; others search the
// same and look at no time.
#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>

#include "absl/strings/str_cat.h"
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

struct Wait {
  int32_t devices;
  double seconds_max;
};
constexpr Wait kWaits[] = {{64, 2}, {1024, 10}};

// With a profile whose clocks are solved, bounds are further from steps and more is simulated.
void ExpectInTime(const DeviceProfile& profile, int encoders, bool large) {
  for (const Wait& wait : kWaits) {
    if (!kOptimised && wait.devices > 64) continue;
    const std::clock_t begin = std::clock();
    const auto found =
        SearchLayouts(support::SearchedJob(encoders, large), {.devices = wait.devices,
                                                              .device_memory = int64_t{141} << 30,
                                                              .profile = profile,
                                                              .items = 4});
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_FALSE(found->best.empty());
    testing::Test::RecordProperty(absl::StrCat("milliseconds_", wait.devices),
                                  static_cast<int>(1e3 * seconds));
    if (kOptimised) {
      EXPECT_LT(seconds, wait.seconds_max)
          << wait.devices << " devices, " << found->simulated << " settings";
    }
  }
}

DeviceProfile H200() { return *FindProfile("h200"); }

TEST(SearchTimeTest, OneEncoder) { ExpectInTime(H200(), 1, /*large=*/false); }

TEST(SearchTimeTest, TwoEncoders) { ExpectInTime(H200(), 2, /*large=*/false); }

TEST(SearchTimeTest, TwoEncodersAndALargeDecoder) { ExpectInTime(H200(), 2, /*large=*/true); }

TEST(SearchTimeTest, TwoEncoders_ClocksSolvedFromPower) {
  ExpectInTime(support::Powered(H200(), 650, 1980), 2, /*large=*/false);
}

TEST(SearchTimeTest, TwoEncodersAndALargeDecoder_ClocksSolvedFromPower) {
  ExpectInTime(support::Powered(H200(), 650, 1980), 2, /*large=*/true);
}

}  // namespace
}  // namespace phalanx::schedule

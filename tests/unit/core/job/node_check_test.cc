// What rates of copies make of a device.
#include "core/job/node_check.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

using Verdict = std::pair<CheckVerdict, std::string>;

Verdict Judged(bool gpu, DeviceCheck check) {
  check.verdict = CheckVerdict::kPassed;
  JudgeRates(gpu, check);
  return {check.verdict, check.reason};
}

TEST(NodeCheckTest, DeviceAtItsBounds_Passes) {
  const Verdict passed{CheckVerdict::kPassed, ""};
  EXPECT_EQ(Judged(false, {.to_bytes_per_second = 100e6, .from_bytes_per_second = 100e6}), passed);
  EXPECT_EQ(Judged(true, {.to_bytes_per_second = 1e9,
                          .from_bytes_per_second = 1e9,
                          .peer_bytes_per_second = 1e9,
                          .peer = 0}),
            passed);
}

TEST(NodeCheckTest, SlowDevice_IsSaidToBeWithEveryFigure) {
  EXPECT_EQ(Judged(false, {.to_bytes_per_second = 99e6, .from_bytes_per_second = 1e9}),
            Verdict(CheckVerdict::kSlow, "copies to it at 99 MB/s, below 100 MB/s"));
  EXPECT_EQ(
      Judged(true, {.to_bytes_per_second = 20e9,
                    .from_bytes_per_second = 500e6,
                    .peer_bytes_per_second = 250e6,
                    .peer = 3}),
      Verdict(CheckVerdict::kSlow,
              "copies from it at 500 MB/s, below 1000 MB/s; copies from device 3 at 250 MB/s, "
              "below 1000 MB/s"));
}

TEST(NodeCheckTest, DeviceOutOfReach_HasFailed) {
  EXPECT_EQ(
      Judged(true, {.to_bytes_per_second = 500e6,
                    .from_bytes_per_second = 20e9,
                    .peer_bytes_per_second = 0.5e6,
                    .peer = 3}),
      Verdict(CheckVerdict::kFailed, "copies from device 3 at 0.500 MB/s: it cannot be used"));
}

TEST(NodeCheckTest, NoPeer_IsNotJudged) {
  EXPECT_EQ(Judged(true, {.to_bytes_per_second = 20e9, .from_bytes_per_second = 20e9}),
            Verdict(CheckVerdict::kPassed, ""));
}

}  // namespace
}  // namespace phalanx::job

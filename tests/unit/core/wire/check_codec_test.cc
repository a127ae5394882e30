#include "core/wire/check_codec.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::wire {
namespace {

TEST(CheckCodecTest, Check_ComesBackAsItWas) {
  const job::NodeCheck check{
      .number = 3,
      .devices = {{.device = 1,
                   .verdict = job::CheckVerdict::kSlow,
                   .reason = "copies to it at 90 MB/s",
                   .time = absl::FromUnixNanos(1'700'000'000'123'456'789),
                   .memory_bytes = 1 << 24,
                   .operations_per_second = 4e10,
                   .to_bytes_per_second = 9e7,
                   .from_bytes_per_second = 9e9,
                   .peer_bytes_per_second = 2e11,
                   .peer = 0},
                  {.device = 2, .verdict = job::CheckVerdict::kPassed, .time = absl::UnixEpoch()}},
      .loopback = {.bytes_per_second = 3e9, .round_trip_seconds = 2e-5, .reason = "none"}};
  v1::NodeCheck message;
  ToProto(check, &message);
  EXPECT_EQ(FromProto(message, 1024), check);
  EXPECT_EQ(FromProto(message, 1).devices.size(), 1u);
}

TEST(CheckCodecTest, Nonsense_IsNotTaken) {
  v1::DeviceCheck message;
  message.set_verdict(static_cast<v1::DeviceCheck::Verdict>(77));
  message.set_reason(std::string(100'000, 'x'));
  message.set_memory_bytes(-1);
  message.set_operations_per_second(std::numeric_limits<double>::quiet_NaN());
  message.set_to_bytes_per_second(std::numeric_limits<double>::infinity());
  message.set_from_bytes_per_second(-1);
  const job::DeviceCheck check = FromProto(message);
  EXPECT_EQ(check.verdict, job::CheckVerdict::kNone);
  EXPECT_LT(check.reason.size(), 1000u);
  EXPECT_EQ(check.memory_bytes, 0);
  EXPECT_EQ(check.operations_per_second, 0);
  EXPECT_EQ(check.to_bytes_per_second, 0);
  EXPECT_EQ(check.from_bytes_per_second, 0);
  EXPECT_EQ(check.peer, -1);
}

TEST(NodeCheckTest, Figures_AreThoseThatWereMeasured) {
  EXPECT_EQ(job::FiguresOf(job::DeviceCheck{}), "");
  EXPECT_EQ(job::FiguresOf(job::DeviceCheck{.memory_bytes = 1 << 24,
                                            .operations_per_second = 4.12e10,
                                            .to_bytes_per_second = 9.1e9,
                                            .from_bytes_per_second = 8.8e9,
                                            .peer_bytes_per_second = 2e11,
                                            .peer = 3}),
            "16.0 MiB kept, 41.2 GFLOP/s, 9.1 GB/s to it, 8.8 GB/s from it, 200.0 GB/s from "
            "device 3");
  EXPECT_EQ(job::FiguresOf(job::DeviceCheck{.operations_per_second = 5.678e14}), "567.8 TFLOP/s");
  EXPECT_EQ(
      job::FiguresOf(job::LoopbackCheck{.bytes_per_second = 3.14e9, .round_trip_seconds = 21e-6}),
      "3.1 GB/s, 21 us there and back");
}

}  // namespace
}  // namespace phalanx::wire

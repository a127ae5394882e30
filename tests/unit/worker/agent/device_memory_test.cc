// With two libraries in NVML's place: one of a driver that knows what it keeps for itself, an
// older.
#include "worker/agent/device_memory.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  // `sizes`: of the node's GPUs, in GiB.
  absl::StatusOr<std::vector<int64_t>> Ask(const char* sizes, GpuSelection selection) {
    setenv("FAKE_NVML_GIB", sizes, 1);
    if (selection.library == GpuSelection{}.library) selection.library = PHALANX_FAKE_NVML;
    return GpuMemory(selection);
  }
};

TEST_F(DeviceMemoryTest, Gpus_HaveWhatTheDriverLeavesThem) {
  EXPECT_THAT(*Ask("80 80 80", {.devices = 2}), ElementsAre(79 * kGib, 79 * kGib));
}

TEST_F(DeviceMemoryTest, OlderDriver_SaysTheWhole) {
  EXPECT_THAT(*Ask("80", {.devices = 1, .library = PHALANX_FAKE_NVML_OLD}), ElementsAre(80 * kGib));
}

TEST_F(DeviceMemoryTest, VisibleDevices_AreThoseOfTheList) {
  EXPECT_THAT(*Ask("80 24 40", {.devices = 2, .visible = "2, 0,1", .bus_order = true}),
              ElementsAre(39 * kGib, 79 * kGib));
  EXPECT_THAT(*Ask("80 24 40", {.devices = 2, .visible = "GPU-1,GPU-2"}),
              ElementsAre(23 * kGib, 39 * kGib));
}

TEST_F(DeviceMemoryTest, UnequalGpusInAnUnknownOrder_AreNotGuessed) {
  const absl::Status status = Ask("80 24", {.devices = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  EXPECT_THAT(*Ask("80 24", {.devices = 1, .bus_order = true}), ElementsAre(79 * kGib));
}

TEST_F(DeviceMemoryTest, FewerGpusThanDevices_AreNotFound) {
  EXPECT_EQ(Ask("80", {.devices = 2}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("80 80", {.devices = 2, .visible = "1"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("80 80", {.devices = 1, .visible = ""}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Ask("80 80", {.devices = 1, .visible = "GPU-7"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DeviceMemoryTest, NodeWithoutADriver_IsUnavailable) {
  const absl::Status status = Ask("none", {.devices = 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Driver Not Loaded"));
  EXPECT_EQ(Ask("80", {.devices = 1, .library = "/nonexistent.so"}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Ask("80", {.devices = 1, .library = "libm.so.6"}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(DeviceMemoryTest, Fp8_IsThereIfAllDevicesHaveIt) {
  setenv("FAKE_NVML_GIB", "80 80", 1);
  setenv("FAKE_NVML_CAPABILITY", "8.6", 1);
  const auto have = [](GpuSelection selection) {
    selection.library = PHALANX_FAKE_NVML;
    return GpusHaveFp8(selection);
  };
  EXPECT_TRUE(*have({.devices = 1}));
  EXPECT_FALSE(*have({.devices = 2}));
  EXPECT_FALSE(*have({.devices = 1, .visible = "1"}));
  unsetenv("FAKE_NVML_CAPABILITY");
  EXPECT_TRUE(*have({.devices = 2}));
  EXPECT_EQ(GpusHaveFp8({.devices = 1, .library = PHALANX_FAKE_NVML_OLD}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(DeviceMemoryTest, Names_AreThoseOfTheDriver) {
  setenv("FAKE_NVML_GIB", "80 80", 1);
  setenv("FAKE_NVML_NAME", "NVIDIA\tL40S\n", 1);
  const auto names = [](GpuSelection selection) {
    selection.library = PHALANX_FAKE_NVML;
    return GpuNames(selection);
  };
  EXPECT_THAT(*names({.devices = 2}), ElementsAre("NVIDIA H200", "NVIDIAL40S"));
  EXPECT_THAT(*names({.devices = 1, .visible = "GPU-1"}), ElementsAre("NVIDIAL40S"));
  unsetenv("FAKE_NVML_NAME");
  EXPECT_EQ(GpuNames({.devices = 1, .library = PHALANX_FAKE_NVML_OLD}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(DeviceMemoryTest, Environment_SaysWhichGpus) {
  setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
  const GpuSelection set = GpusOfEnvironment(2);
  EXPECT_EQ(set.visible, "3,1");
  EXPECT_TRUE(set.bus_order);
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("CUDA_DEVICE_ORDER");
  const GpuSelection bare = GpusOfEnvironment(2);
  EXPECT_EQ(bare.visible, std::nullopt);
  EXPECT_FALSE(bare.bus_order);
  EXPECT_EQ(bare.devices, 2);
}

}  // namespace
}  // namespace phalanx::agent

// Streams of the process: whoever has done with one leaves it to the next.
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "worker/device/cuda_device.h"

namespace phalanx::device {
namespace {

class StreamsCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    const absl::Status used = UseCudaDevice(0);
    ASSERT_TRUE(used.ok()) << used;
  }
};

TEST_F(StreamsCudaTest, OwnedAtOnce_AreDifferent) {
  std::vector<OwnedStream> owned;
  std::set<void*> handles;
  for (int i = 0; i < 5; ++i) {
    owned.push_back(TakeStream());
    handles.insert(Handle(*owned.back().get()));
  }
  EXPECT_EQ(handles.size(), owned.size());
}

TEST_F(StreamsCudaTest, GivenBack_IsTheNextOneOfItsPriority) {
  void* before = nullptr;
  {
    OwnedStream first = TakeStream(StreamPriority::kLast);
    OwnedStream moved = std::move(first);
    EXPECT_FALSE(first.get().has_value());  // NOLINT(bugprone-use-after-move)
    before = Handle(*moved.get());
  }
  const OwnedStream other = TakeStream(StreamPriority::kFirst);
  EXPECT_NE(Handle(*other.get()), before);
  const OwnedStream again = TakeStream(StreamPriority::kLast);
  EXPECT_EQ(Handle(*again.get()), before);
}

TEST_F(StreamsCudaTest, TakenAgainAndAgain_NoMemoryOfTheDeviceGoes) {
  const auto take = [] {
    std::vector<OwnedStream> owned;
    for (int i = 0; i < 8; ++i) owned.push_back(TakeStream());
  };
  take();
  const int64_t before = MemoryInUse();
  for (int i = 0; i < 50; ++i) take();
  EXPECT_LE(MemoryInUse(), before + (int64_t{16} << 20));  // others may use the device, too
}

}  // namespace
}  // namespace phalanx::device

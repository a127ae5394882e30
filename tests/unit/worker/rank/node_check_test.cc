// What a check of CPU slots and of loopback finds, as it is and where something is spoiled.
#include "worker/rank/node_check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "worker/rank/loopback_check.h"

namespace phalanx::rank {
namespace {

using job::CheckVerdict;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

NodeCheckOptions Spoiled(const std::string& faults) {
  const std::string path = support::MakeFolder("check-faults") + "/faults";
  support::WriteFile(path, faults);
  return {.device_kind = "cpu", .devices = {0, 1}, .faults = path};
}

TEST(NodeCheckTest, SoundDevice_Passes_WithItsFigures) {
  const job::DeviceCheck check = CheckDevice({.device_kind = "cpu", .devices = {0}}, 0, -1);
  EXPECT_TRUE(check.verdict == CheckVerdict::kPassed || check.verdict == CheckVerdict::kSlow)
      << check.reason;
  EXPECT_EQ(check.memory_bytes, int64_t{16} << 20);
  EXPECT_GT(check.operations_per_second, 0);
  EXPECT_GT(check.to_bytes_per_second, 0);
  EXPECT_GT(check.from_bytes_per_second, 0);
  EXPECT_EQ(check.peer, -1);
}

TEST(NodeCheckTest, WrongProduct_Fails_AndSaysWhatItIs) {
  const job::DeviceCheck check = CheckDevice(Spoiled("1 arithmetic\n"), 1, -1);
  EXPECT_EQ(check.verdict, CheckVerdict::kFailed);
  EXPECT_THAT(check.reason, StartsWith("arithmetic: 1 of 65536 entries of a product in Double are "
                                       "wrong, the first in row 0, column 1: "));
}

TEST(NodeCheckTest, MemoryThatForgets_Fails_AndSaysWhere) {
  const job::DeviceCheck check = CheckDevice(Spoiled("0 memory\n"), 0, -1);
  EXPECT_EQ(check.verdict, CheckVerdict::kFailed);
  EXPECT_THAT(check.reason, StartsWith("memory: 1 of 2097152 words are not what was written, the "
                                       "first is word 7: 0x"));
}

TEST(NodeCheckTest, CopyFromItsPeer_IsTimed_AndOneThatIsWrongSaysWhere) {
  const job::DeviceCheck sound = CheckDevice({.device_kind = "cpu", .devices = {0, 1}}, 1, 0);
  EXPECT_NE(sound.verdict, CheckVerdict::kFailed) << sound.reason;
  EXPECT_EQ(sound.peer, 0);
  EXPECT_GT(sound.peer_bytes_per_second, 0);
  const job::DeviceCheck wrong = CheckDevice(Spoiled("1 copy\n"), 1, 0);
  EXPECT_EQ(wrong.verdict, CheckVerdict::kFailed);
  EXPECT_THAT(wrong.reason,
              StartsWith("copied from device 0: 1 of 2097152 words are not what was written, the "
                         "first is word 7: 0x"));
}

TEST(NodeCheckTest, FaultOfAnotherDevice_IsNotThisOnes) {
  EXPECT_NE(CheckDevice(Spoiled("0 memory\n10 arithmetic\n"), 1, -1).verdict,
            CheckVerdict::kFailed);
}

TEST(NodeCheckTest, EachDevice_HasALineOfJson_AndTheNodeOne) {
  std::ostringstream out;
  CheckNode(Spoiled("1 memory\n"), out);
  std::istringstream lines(out.str());
  std::string first, second, third, more;
  std::getline(lines, first);
  std::getline(lines, second);
  std::getline(lines, third);
  EXPECT_THAT(first, StartsWith("{\"devices\":[{\"verdict\":\"VERDICT_"));
  EXPECT_THAT(second,
              HasSubstr("\"device\":1,\"verdict\":\"VERDICT_FAILED\",\"reason\":\"memory: "));
  EXPECT_THAT(third, StartsWith("{\"loopback\":{\"bytesPerSecond\":"));
  std::getline(lines, more);
  EXPECT_EQ(more, "");
}

TEST(NodeCheckTest, GpuThatFails_HasTheLastWord) {
  NodeCheckOptions options = Spoiled("0 error\n");
  options.device_kind = "gpu";
  std::ostringstream out;
  CheckNode(options, out);
  EXPECT_THAT(out.str(), HasSubstr("VERDICT_FAILED"));
  EXPECT_THAT(out.str(), EndsWith("}\n"));
  const std::string said = out.str();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1)
      << "its error may be found of others in this process";
}

TEST(NodeCheckTest, CpuSlotThatFails_DoesNotKeepTheOthersFromACheck) {
  std::ostringstream out;
  CheckNode(Spoiled("0 error\n"), out);
  EXPECT_THAT(out.str(), HasSubstr("\"device\":1"));
}

template <typename Throw>
CheckVerdict VerdictOf(bool gpu, Throw&& body) {
  try {
    body();
  } catch (...) {
    return VerdictOfCurrentException(gpu).first;
  }
  return CheckVerdict::kPassed;
}

TEST(NodeCheckTest, LackOfMemoryOrThreads_IsNoFaultOfADevice) {
  for (const bool gpu : {false, true}) {
    EXPECT_EQ(VerdictOf(gpu, [] { throw std::bad_alloc(); }), CheckVerdict::kNone);
    EXPECT_EQ(VerdictOf(gpu, [] { throw std::system_error(EAGAIN, std::generic_category()); }),
              CheckVerdict::kNone);
    EXPECT_EQ(VerdictOf(gpu, [] { TORCH_CHECK(false, "you tried to: can't allocate memory"); }),
              CheckVerdict::kNone);
    EXPECT_EQ(VerdictOf(gpu, [] { TORCH_CHECK(false, "CUBLAS_STATUS_ALLOC_FAILED"); }),
              CheckVerdict::kNone);
  }
  EXPECT_EQ(VerdictOf(false, [] { TORCH_CHECK(false, "no such kernel"); }), CheckVerdict::kNone);
}

TEST(NodeCheckTest, ErrorOfAGpu_IsItsFault) {
  EXPECT_EQ(VerdictOf(true, [] { TORCH_CHECK(false, "CUBLAS_STATUS_EXECUTION_FAILED"); }),
            CheckVerdict::kFailed);
}

TEST(NodeCheckTest, WrongWords_AreAUsageError) {
  EXPECT_EQ(CheckNodeMain({}), 2);
  EXPECT_EQ(CheckNodeMain({"tpu", "0"}), 2);
  EXPECT_EQ(CheckNodeMain({"cpu", "0,x"}), 2);
  EXPECT_EQ(CheckNodeMain({"cpu", "-1"}), 2);
}

TEST(LoopbackCheckTest, Loopback_IsMeasured) {
  const job::LoopbackCheck check = CheckLoopback();
  EXPECT_GT(check.bytes_per_second, 0) << check.reason;
  EXPECT_GT(check.round_trip_seconds, 0);
}

}  // namespace
}  // namespace phalanx::rank

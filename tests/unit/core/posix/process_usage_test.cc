#include "core/posix/process_usage.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "core/posix/unique_fd.h"
#include "gtest/gtest.h"

namespace phalanx {
namespace {

TEST(ProcessUsageTest, Descriptors_AreThoseThatAreOpen) {
  const int64_t before = UsageOfThisProcess().open_descriptors;
  std::vector<UniqueFd> opened;
  for (int i = 0; i < 3; ++i) opened.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(UsageOfThisProcess().open_descriptors, before + 3);
}

TEST(ProcessUsageTest, Memory_CountsWhatIsWritten) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const int64_t before = UsageOfThisProcess().resident_bytes;
  const std::string written(kBytes, 'x');
  EXPECT_GT(UsageOfThisProcess().resident_bytes, before + kBytes / 2) << written.back();
  EXPECT_GT(ResidentBytesOf(getpid()), before + kBytes / 2);
  EXPECT_EQ(ResidentBytesOf(-1), 0) << "nobody is there";
}

TEST(ProcessUsageTest, Time_Grows) {
  const double before = UsageOfThisProcess().cpu_seconds;
  EXPECT_GT(before, 0);
  volatile double sum = 0;
  while (UsageOfThisProcess().cpu_seconds <= before) sum = sum + 1;
}

}  // namespace
}  // namespace phalanx

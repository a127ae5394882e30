// Texts of events that tell of logs of which something is missing.
#include "core/job/log_dropped.h"

#include <cerrno>

#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

TEST(LogDroppedTest, Texts_SayWhy_AndBeginWithWhatIsMissing) {
  const std::string fast = LogDroppedText(7000, 3, 4096);
  EXPECT_EQ(fast,
            "7000 bytes of the log of rank 3 were dropped: it writes more than 4096 a second "
            "(phalanx-worker --log-rate)");
  EXPECT_EQ(BytesDropped(fast), 7000);
  const std::string full = LogNotWrittenText(12, 3, ENOSPC);
  EXPECT_EQ(full,
            "12 bytes of the log of rank 3 were dropped: its node cannot write them below --state: "
            "No space left on device; make room there");
  EXPECT_EQ(BytesDropped(full), 12);
  EXPECT_EQ(LogNotWrittenText(12, 3, EIO),
            "12 bytes of the log of rank 3 were dropped: its node cannot write them below --state: "
            "Input/output error");
  EXPECT_EQ(LogNotWrittenText(12, 3, 0),
            "12 bytes of the log of rank 3 were dropped: its node cannot write them below --state: "
            "the file cannot be made; the log of phalanx-worker there says why");
  EXPECT_EQ(BytesDropped("bytes of a log"), 0);
}

}  // namespace
}  // namespace phalanx::job

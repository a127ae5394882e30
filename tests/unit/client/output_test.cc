#include "client/output.h"

#include <fcntl.h>

#include <cerrno>
#include <ostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::client {
namespace {

// More than the buffer holds, so that a write fails long before somebody looks.
const std::string kLong(1 << 18, 'x');

TEST(FdBufferTest, WriteThatFails_KeepsItsReason) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  FdBuffer buffer(full.get());
  std::ostream out(&buffer);
  out << kLong << std::flush;
  errno = 0;
  out << "more" << std::flush;
  EXPECT_FALSE(out);
  EXPECT_EQ(buffer.error(), ENOSPC);
}

TEST(FdBufferTest, Text_ArrivesWholeAndInOrder) {
  const std::string path = support::MakeFolder("output") + "/text";
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  FdBuffer buffer(file.get());
  std::ostream out(&buffer);
  out << "a" << kLong << 7 << std::flush;
  EXPECT_EQ(buffer.error(), 0);
  EXPECT_EQ(support::ReadFile(path), "a" + kLong + "7");
}

TEST(OutputFileTest, FileThatCannotBeWritten_IsNamedWithTheReason) {
  OutputFile full("/dev/full"), nowhere("/nowhere/a");
  full.Write("x");
  nowhere.Write("x");
  EXPECT_EQ(full.Close().message(), "cannot write /dev/full: No space left on device");
  EXPECT_EQ(nowhere.Close().message(), "cannot write /nowhere/a: No such file or directory");
}

}  // namespace
}  // namespace phalanx::client

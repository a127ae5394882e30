// Which folders a job may be submitted with.
#include "core/job/directory.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::Lt;
using ::testing::SizeIs;

std::string RuleBroken(const std::string& directory) {
  return std::string(CheckDirectory(directory).message());
}

TEST(DirectoryTest, FoldersWithoutDetours_AreTaken) {
  EXPECT_EQ(RuleBroken("/"), "");
  EXPECT_EQ(RuleBroken("/shared/two words/..jobs"), "");
  EXPECT_EQ(RuleBroken("/" + std::string(4095, 'd')), "");
}

TEST(DirectoryTest, Others_AreRefusedWithTheRule) {
  EXPECT_EQ(RuleBroken("jobs"), "document.directory: jobs: must be an absolute path");
  EXPECT_EQ(RuleBroken(""), "document.directory: must be an absolute path");
  EXPECT_EQ(RuleBroken("/a/../b"), "document.directory: /a/../b: must have no '..' in it");
  EXPECT_THAT(RuleBroken("/a\nb"), EndsWith(": must have no control characters"));
  EXPECT_THAT(RuleBroken("/a\x7F"), EndsWith(": must have no control characters"));
  EXPECT_THAT(RuleBroken("/" + std::string(4096, 'd')),
              AllOf(EndsWith(": may be at most 4096 bytes long"), SizeIs(Lt(200u))));
}

}  // namespace
}  // namespace phalanx::job

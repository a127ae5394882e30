// `phalanx checkpoints` as people and scripts call it: no server is there.
#include "tests/support/checkpoints.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/specs.h"

namespace phalanx::e2e {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

support::Finished Checkpoints(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {support::Program("phalanx"), "checkpoints"});
  return support::RunToEnd(arguments);
}

std::string WriteTwo() {
  const std::string folder = support::MakeFolder("e2e-checkpoints");
  const auto plan =
      plan::MakePlan(support::AJob().Module("language", support::Llama(), {.tp = 2, .pp = 2}),
                     plan::MakeCluster(1, 4), Epoch{1});
  support::WriteCheckpoint(*plan, folder, 50);
  support::WriteCheckpoint(*plan, folder, 100);
  return folder;
}

TEST(CheckpointsTest, PathsThatListPrints_AreThoseThatVerifyAndShowTake) {
  const support::Finished list = Checkpoints({"list", WriteTwo(), "-o", "name"});
  EXPECT_EQ(list.exit_code, 0);
  const std::vector<std::string> paths = absl::StrSplit(list.out, '\n', absl::SkipEmpty());
  ASSERT_THAT(paths, SizeIs(2));
  for (const std::string& path : paths) {
    const support::Finished verify = Checkpoints({"verify", path});
    EXPECT_EQ(verify.exit_code, 0) << verify.talk;
    EXPECT_THAT(verify.out, StartsWith("step-"));
    EXPECT_EQ(verify.talk, "") << "no bar but on a terminal";
    EXPECT_EQ(Checkpoints({"show", path}).exit_code, 0);
  }
}

TEST(CheckpointsTest, ExitCodes_TellDamageFromWhatIsNotThere) {
  const std::string folder = WriteTwo(), path = folder + "/step-00000100.epoch-3";
  std::filesystem::resize_file(path + "/rank-00002.safetensors", 100);
  const support::Finished damaged = Checkpoints({"verify", path});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.talk,
              HasSubstr("error: rank-00002.safetensors: has 100 bytes, the manifest"));
  EXPECT_EQ(Checkpoints({"verify", folder}).exit_code, 66);
  EXPECT_EQ(Checkpoints({"show", folder + "/none"}).exit_code, 66);
  EXPECT_EQ(Checkpoints({"list", folder + "/none"}).exit_code, 66);
  EXPECT_EQ(Checkpoints({"verify"}).exit_code, 2);
  const support::Finished unknown = Checkpoints({"remove", path});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.talk,
            "unknown command 'checkpoints remove'; phalanx checkpoints --help lists them\n");
}

}  // namespace
}  // namespace phalanx::e2e

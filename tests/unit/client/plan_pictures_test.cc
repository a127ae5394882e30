// The pictures of `phalanx plan`: what is written where.
#include "client/plan_pictures.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "client/commands.h"
#include "client/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kSpeechExample = tests::SourceDir() + "/examples/emoji-speech.yaml";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PlanPicturesTest, Files_AreWrittenBesideTheTable) {
  const std::string folder = ::testing::TempDir();
  const PictureFiles files{folder + "/plan.svg", folder + "/plan.json", folder + "/plan.dot"};
  for (const std::string& file : {files.svg, files.trace, files.dot}) {
    std::filesystem::remove(file);
  }
  Captured captured;
  ASSERT_EQ(Plan({.file = kSpeechExample, .pictures = files}, captured.io), kSuccess)
      << captured.talk.str();
  EXPECT_THAT(captured.out.str(), HasSubstr("emoji-speech"));
  EXPECT_THAT(ReadAll(files.svg), StartsWith("<svg "));
  EXPECT_THAT(ReadAll(files.trace), StartsWith("{\"displayTimeUnit\":\"ms\""));
  EXPECT_THAT(ReadAll(files.dot), StartsWith("digraph \"emoji-speech\""));
}

TEST(PlanPicturesTest, StandardOutput_HoldsThePictureAlone) {
  Captured captured;
  ASSERT_EQ(Plan({.file = kSpeechExample, .pictures = {.dot = "-"}}, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), StartsWith("digraph "));
  EXPECT_THAT(captured.out.str(), Not(HasSubstr("MODULE")));
}

TEST(PlanPicturesTest, TwoThingsForStandardOutput_AreUsageErrors) {
  Captured two, format;
  EXPECT_EQ(Plan({.file = kSpeechExample, .pictures = {.svg = "-", .trace = "-"}}, two.io), kUsage);
  EXPECT_THAT(two.talk.str(), HasSubstr("--svg - and --trace -: only one"));
  EXPECT_EQ(
      Plan({.file = kSpeechExample, .format = Format::kJson, .pictures = {.svg = "-"}}, format.io),
      kUsage);
  EXPECT_THAT(format.talk.str(), HasSubstr("--svg - and -o: only one"));
  EXPECT_EQ(two.out.str() + format.out.str(), "");
}

TEST(PlanPicturesTest, TraceThatNoViewerTakes_IsRefused) {
  const std::vector<schedule::TimedInstruction> timeline(250'001);
  Captured captured;
  const absl::Status status = WritePictures({.trace = "-"}, {}, {}, timeline, captured.io);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 250001 instructions"));
  EXPECT_EQ(captured.out.str(), "");
}

TEST(PlanPicturesTest, FileThatCannotBeWritten_IsNamed) {
  Captured captured;
  EXPECT_EQ(Plan({.file = kSpeechExample, .pictures = {.svg = "/nowhere/plan.svg"}}, captured.io),
            kCannotCreate);
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("--svg: cannot write /nowhere/plan.svg: No such file"));
  EXPECT_EQ(captured.out.str(), "");
}

TEST(PlanPicturesTest, DiskThatIsFull_IsTheReason) {
  Captured captured;
  EXPECT_EQ(Plan({.file = kSpeechExample, .pictures = {.svg = "/dev/full"}}, captured.io),
            kCannotCreate);
  EXPECT_EQ(captured.talk.str(),
            "error: --svg: cannot write /dev/full: No space left on device\n"
            "what to do: mend that, and run the command again\n");
}

}  // namespace
}  // namespace phalanx::client

// What phalanx-worker says about data: as a daemon and as `--check-data`.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/shards.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kInvalidArgument = 3;

v1::JobDocument With(v1::JobDocument document, const std::string& from, const std::string& to) {
  document.set_text(absl::StrReplaceAll(document.text(), {{from, to}}));
  return document;
}

// What a daemon answers that is to prepare the data of the job.
v1::CommandResult Prepared(const v1::JobDocument& job) {
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  return coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, job)));
}

TEST(WorkerDataTest, GoodData_IsAnsweredWithItsDigest_TheSameTheSecondTime) {
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  const v1::CommandResult first =
      coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, Job("wait"))));
  EXPECT_EQ(first.code(), 0) << first.message();
  EXPECT_EQ(first.data_digest().size(), 32u);
  EXPECT_EQ(first.corrupt_samples(), 0);
  const v1::CommandResult second =
      coordinator.AwaitResult(coordinator.Send(PrepareCommand(8, Job("wait"))));
  EXPECT_EQ(second.data_digest(), first.data_digest());
}

TEST(WorkerDataTest, BadData_IsAnsweredWithEveryViolation) {
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  const v1::JobDocument job = With(With(Job("wait"), "set-{000..001}", "none-{000..001}"),
                                   "\"set-001.tar\"", "\"none-002.tar\"");
  const v1::CommandResult result =
      coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, job)));
  EXPECT_EQ(result.code(), kInvalidArgument);
  ASSERT_EQ(result.data_violations_size(), 3);
  EXPECT_THAT(result.data_violations(0).field(), HasSubstr("spec.data.shards"));
  EXPECT_THAT(result.data_violations(0).value(), HasSubstr("none-000.tar"));
  EXPECT_THAT(result.data_violations(2).field(), HasSubstr("spec.data.validation"));
  // And the assignment of such a job fails the same way, before any process.
  const v1::CommandResult assigned =
      coordinator.AwaitResult(coordinator.Send(AssignCommandOf(7, 1, job, {0})));
  EXPECT_EQ(assigned.code(), kInvalidArgument);
  EXPECT_EQ(worker.Children(), 0);
}

TEST(WorkerDataTest, FaultySamples_AreCorrupt_AndNamedWithTheirShard) {
  const std::string folder = support::MakeFolder("agent-faulty");
  support::WriteShards(folder, {.samples = 4, .shards = 2});
  const std::string picture = support::EncodePng({}, {255, 0, 0});
  support::TarBuilder tar;
  tar.File("lacking.txt", "red").File("lacking.1.png", picture);
  tar.File("many.txt", "red");
  for (int i = 0; i < 3; ++i) tar.File(absl::StrCat("many.", i, ".png"), picture);
  tar.File("marked.txt", "<image> red <image>").File("marked.0.png", picture);
  support::WriteFile(folder + "/set-000.tar", tar.Finish());
  v1::JobDocument job = With(Job("wait"), "tokenizer: ", "items_max: 2, tokenizer: ");
  job.set_directory(folder);
  const v1::CommandResult result = Prepared(job);
  EXPECT_EQ(result.code(), 0) << result.message();
  EXPECT_EQ(result.corrupt_samples(), 3);
  EXPECT_THAT(result.corrupt_messages(),
              ElementsAre("set-000.tar: lacking: lacks its item 0",
                          "set-000.tar: many: has 3 images; must have at most items_max (2)",
                          "set-000.tar: marked: has 2 <image> marks and 1 image"));
}

TEST(WorkerDataTest, ShardsThatChanged_AreIndexedAgain) {
  const std::string folder = support::MakeFolder("agent-changing");
  support::WriteShards(folder, {.samples = 4, .shards = 2});
  v1::JobDocument job = Job("wait");
  job.set_directory(folder);
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  const auto digest = [&] {
    return coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, job))).data_digest();
  };
  const std::string before = digest();
  support::WriteShards(folder, {.samples = 6, .shards = 2});
  EXPECT_NE(digest(), before);
}

TEST(WorkerDataTest, ValidationThatChanged_ChangesTheDigest) {
  const std::string folder = support::MakeFolder("agent-validation");
  support::WriteShards(folder, {.samples = 4, .shards = 2});
  support::WriteShards(folder, {.samples = 4, .shards = 1, .name = "validation"});
  v1::JobDocument job = With(Job("wait"), "\"set-001.tar\"", "\"validation-000.tar\"");
  job.set_directory(folder);
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address());
  coordinator.AwaitHello();
  const auto digest = [&] {
    return coordinator.AwaitResult(coordinator.Send(PrepareCommand(7, job))).data_digest();
  };
  const std::string before = digest();
  EXPECT_EQ(before.size(), 32u);
  support::WriteShards(folder, {.samples = 5, .shards = 1, .name = "validation"});
  EXPECT_NE(digest(), before);
}

TEST(WorkerDataTest, Answer_SaysWhatSamplesAreLike) {
  const std::string folder = support::MakeFolder("agent-shape");
  support::WriteShards(folder, {.samples = 8, .shards = 2, .images_min = 3, .images_max = 3});
  v1::JobDocument job = Job("wait");
  job.set_directory(folder);
  const v1::CommandResult result = Prepared(job);
  EXPECT_EQ(result.code(), 0) << result.message();
  EXPECT_EQ(result.data_shape().items(), 3);
  EXPECT_GT(result.data_shape().labelled_share(), 0);
  EXPECT_LT(result.data_shape().labelled_share(), 1);
}

class CheckDataTest : public ::testing::Test {
 protected:
  support::Finished Check(const v1::JobDocument& document) {
    const std::string path = document.directory() + "/job.yaml";
    support::WriteFile(path, document.text());
    return support::RunToEnd({support::Program("phalanx-worker"), "--check-data", path});
  }
};

TEST_F(CheckDataTest, GoodJob_Exits0_AndPrintsNothing) {
  const support::Finished finished = Check(Job("wait"));
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
  EXPECT_EQ(finished.out, "");
}

TEST_F(CheckDataTest, MoreCorruptSamplesThanAllowed_Exit65_WithTheJobsSentence) {
  const std::string folder = support::MakeFolder("agent-corrupt");
  support::WriteShards(folder, {.samples = 4, .shards = 2});
  support::TarBuilder tar;
  for (const char* key : {"a", "b", "c"}) tar.File(absl::StrCat(key, ".txt"), "<image> red");
  support::WriteFile(folder + "/set-000.tar", tar.Finish());
  v1::JobDocument job = With(Job("wait"), "tokenizer: ", "corrupt_max: 2, tokenizer: ");
  job.set_directory(folder);
  const support::Finished finished = Check(job);
  EXPECT_EQ(finished.exit_code, 65);
  EXPECT_THAT(finished.out, HasSubstr("3 corrupt samples; spec.data.corrupt_max allows 2"));
  EXPECT_EQ(Check(With(job, "corrupt_max: 2", "corrupt_max: 3")).exit_code, 0);
}

TEST_F(CheckDataTest, MissingShards_Exit65_OneLineEach) {
  const support::Finished finished = Check(With(Job("wait"), "set-{000..001}", "none-{000..001}"));
  EXPECT_EQ(finished.exit_code, 65);
  EXPECT_THAT(finished.out, HasSubstr("none-000.tar"));
  EXPECT_THAT(finished.out, HasSubstr("none-001.tar"));
}

TEST_F(CheckDataTest, TokenizerThatDoesNotFit_Exits65_NamingTheField) {
  const std::string text = Job("wait").text();
  const size_t begin = text.find("vocabulary: ");
  const std::string vocabulary = text.substr(begin, text.find(',', begin) - begin);
  const support::Finished finished = Check(With(Job("wait"), vocabulary, "vocabulary: 16"));
  EXPECT_EQ(finished.exit_code, 65);
  EXPECT_THAT(finished.out, HasSubstr("spec.modules[1].architecture.vocabulary"));
}

TEST_F(CheckDataTest, JobFileThatIsWrong_Exits65_WithItsViolations) {
  const support::Finished finished = Check(With(Job("wait"), "steps: 5", "stepz: 5"));
  EXPECT_EQ(finished.exit_code, 65);
  EXPECT_THAT(finished.out, HasSubstr("stepz"));
}

TEST_F(CheckDataTest, FileThatIsNotThere_Exits66) {
  EXPECT_EQ(support::RunToEnd({support::Program("phalanx-worker"), "--check-data", "/nonexistent"})
                .exit_code,
            66);
}

// A device ends nowhere, and a pipe is empty behind whoever has read it.
TEST_F(CheckDataTest, WhatIsNoRegularFile_IsRefused_Exits66) {
  for (const char* path : {"/dev/zero", "/"}) {
    const support::Finished finished =
        support::RunToEnd({support::Program("phalanx-worker"), "--check-data", path});
    EXPECT_EQ(finished.exit_code, 66) << path;
    EXPECT_EQ(finished.talk, absl::StrCat("--check-data: ", path,
                                          ": is not a regular file; name a job file on a disk\n"));
  }
}

}  // namespace
}  // namespace phalanx::agent

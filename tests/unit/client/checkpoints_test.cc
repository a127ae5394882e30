// `phalanx checkpoints`: what it prints and how it ends.
#include "client/checkpoints.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/exit_code.h"
#include "core/checkpoint/names.h"
#include "core/job/json.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/checkpoints.h"
#include "tests/support/files.h"
#include "tests/support/specs.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kJobFile[] = R"(apiVersion: phalanx/v1
kind: TrainingJob
metadata: {name: demo}
spec:
  steps: 100
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 32, layers: 2, heads: 4, mlp_size: 64, vocabulary: 96, context: 32, block: 8}
      parallel: {ranks: 2, tp: 2}
  batch: {global: 8, micro: 2}
)";

class CheckpointsCommandTest : public testing::Test {
 protected:
  std::string Write(int64_t step) const {
    const auto plan = plan::MakePlan(support::AJob()
                                         .Module("vision", support::ClipVision(), {.frozen = true})
                                         .Module("language", support::Llama(), {.tp = 2})
                                         .Edge("vision", "language", {.projector = 48}),
                                     plan::MakeCluster(1, 3), Epoch{1});
    return support::WriteCheckpoint(*plan, folder_ + "/checkpoints", step);
  }
  static void Flip(const std::string& path, size_t byte) {
    std::string bytes = support::ReadFile(path);
    bytes[byte] ^= 1;
    support::WriteFile(path, bytes);
  }
  static void ChangeLoss(const std::string& checkpoint) {
    const std::string path = checkpoint + "/manifest.json";
    support::WriteFile(path, absl::StrReplaceAll(support::ReadFile(path), {{"2.125", "2.625"}}));
  }
  int List(const std::string& where, Format format = Format::kTable) {
    return CheckpointsList(where, format, absl::Now() + absl::Minutes(5), captured_.io);
  }
  // Lines of a terminal's width, but for those that begin with `but`.
  void ExpectNarrow(const std::string& but = "-") const {
    for (const absl::string_view line : absl::StrSplit(out(), '\n')) {
      EXPECT_TRUE(line.size() <= 80 || absl::StartsWith(line, but)) << line;
    }
  }
  std::string out() const { return captured_.out.str(); }
  std::string talk() const { return captured_.talk.str(); }

  const std::string folder_ = support::MakeFolder("checkpoints-command");
  Captured captured_;
};

TEST_F(CheckpointsCommandTest, List_IsATableThatFitsATerminal) {
  Write(50);
  ChangeLoss(Write(100));
  Write(150);
  EXPECT_EQ(List(folder_ + "/checkpoints"), kSuccess);
  EXPECT_THAT(out(),
              MatchesRegex("NAME                   JOB   ID     FILES  SIZE +AGE\n"
                           "step-00000150.epoch-3  demo  job-7  3      [0-9.]+ KiB +5m0.s\n"
                           "step-00000100.epoch-3  -     -      -      - +-\n"
                           "step-00000050.epoch-3  demo  job-7  3      [0-9.]+ KiB +5m0.s\n"));
  ExpectNarrow();
  EXPECT_EQ(talk(),
            "step-00000100.epoch-3: manifest.json: its digest does not fit: it was changed or is "
            "damaged\n");
}

TEST_F(CheckpointsCommandTest, List_OfAJobFile_IsOfItsFolder) {
  Write(50);
  const std::string job = folder_ + "/job.yaml";
  support::WriteFile(job, absl::StrCat(kJobFile, "  checkpoint: {every: 50}\n"));
  EXPECT_EQ(List(job, Format::kName), kSuccess);
  EXPECT_EQ(out(), folder_ + "/checkpoints/step-00000050.epoch-3\n");
}

TEST_F(CheckpointsCommandTest, List_OfAJobWithoutCheckpoints_Fails) {
  const std::string job = folder_ + "/job.yaml";
  support::WriteFile(job, kJobFile);
  EXPECT_EQ(List(job), kFailure);
  EXPECT_THAT(talk(), EndsWith("spec.checkpoint is not written: the job has no checkpoints; name a "
                               "folder that has some\n"));
}

TEST_F(CheckpointsCommandTest, List_OfNothing_IsNoInput) {
  EXPECT_EQ(List(folder_ + "/none"), kNoInput);
  EXPECT_THAT(talk(), HasSubstr("none: No such file or directory"));
  EXPECT_EQ(out(), "");
}

TEST_F(CheckpointsCommandTest, List_OfAPipe_DoesNotWait) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(List(pipe), kNoInput);
  EXPECT_THAT(talk(), StartsWith(absl::StrCat("error: ", pipe,
                                              ": is no folder and no regular file; name a folder "
                                              "of checkpoints, or a job file\n")));
}

TEST_F(CheckpointsCommandTest, PipesInACheckpoint_AreNamed) {
  const std::string part = Write(50) + "/rank-00001.safetensors";
  std::filesystem::remove(part);
  ASSERT_EQ(mkfifo(part.c_str(), 0600), 0);
  EXPECT_EQ(CheckpointsVerify(folder_ + "/checkpoints/step-00000050.epoch-3", Format::kTable,
                              captured_.io),
            kFailure);
  EXPECT_THAT(talk(), StartsWith("error: rank-00001.safetensors: is not a regular file\n"));
  const std::string manifest = Write(100) + "/manifest.json";
  std::filesystem::remove(manifest);
  ASSERT_EQ(mkfifo(manifest.c_str(), 0600), 0);
  EXPECT_EQ(List(folder_ + "/checkpoints"), kSuccess);
  EXPECT_THAT(talk(), EndsWith("\nstep-00000100.epoch-3: manifest.json: is not a regular file\n"));
}

TEST_F(CheckpointsCommandTest, List_OfAnEmptyFolder_IsSaidAside_AndIsEmptyJson) {
  EXPECT_EQ(List(folder_), kSuccess);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(talk(), StartsWith("no checkpoints in /"));
  EXPECT_EQ(List(folder_, Format::kJson), kSuccess);
  EXPECT_EQ(out(), "{\n  \"checkpoints\": []\n}\n");
}

TEST_F(CheckpointsCommandTest, List_YamlAndJson_SayTheSame) {
  Write(50);
  std::filesystem::remove(Write(100) + "/manifest.json");
  List(folder_ + "/checkpoints", Format::kJson);
  const std::string json = out();
  EXPECT_THAT(json, AllOf(HasSubstr("\"step\": 50,"), HasSubstr("\"job\": \"demo\""),
                          HasSubstr("\"number\": 7,"), HasSubstr("\"damage\": \"\""),
                          HasSubstr("\"damage\": \"has no manifest.json\"")));
  captured_.out.str("");
  List(folder_ + "/checkpoints", Format::kYaml);
  EXPECT_EQ(job::EmitJson(*wire::ParseYaml(out())), json);
}

TEST_F(CheckpointsCommandTest, Verify_SoundCheckpoint) {
  const std::string path = Write(50);
  EXPECT_EQ(CheckpointsVerify(path + "/", Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(out(), MatchesRegex(
                         "step-00000050.epoch-3 is sound: 3 files, [0-9]+ entries, [0-9.]+ KiB\n"));
  EXPECT_EQ(talk(), "");
}

TEST_F(CheckpointsCommandTest, Verify_Terminal_HasABarThatGoesAway) {
  captured_.io.terminal = true;
  EXPECT_EQ(CheckpointsVerify(Write(50), Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(talk(), AllOf(StartsWith("\r["), HasSubstr(" %  "), HasSubstr("KiB of "),
                            EndsWith("\r\x1b[K")));
}

TEST_F(CheckpointsCommandTest, Verify_DamagedCheckpoint_NamesFilesAndEntries) {
  const std::string path = Write(50);
  const std::string part = path + "/" + checkpoint::PartFileName(1);
  Flip(part, std::filesystem::file_size(part) - 1);
  std::filesystem::remove(path + "/" + checkpoint::PartFileName(2));
  EXPECT_EQ(CheckpointsVerify(path, Format::kTable, captured_.io), kFailure);
  EXPECT_EQ(out(), "");
  EXPECT_THAT(talk(), AllOf(HasSubstr("error: rank-00001.safetensors: entry language/"),
                            HasSubstr("error: rank-00002.safetensors: cannot be opened"),
                            EndsWith("step-00000050.epoch-3 is damaged; phalanx checkpoints list "
                                     "shows others in its folder\n")));
  captured_.talk.str("");
  EXPECT_EQ(CheckpointsVerify(path, Format::kJson, captured_.io), kFailure);
  EXPECT_THAT(out(), AllOf(HasSubstr("\"sound\": false"), HasSubstr("rank-00002.safetensors")));
  EXPECT_EQ(talk(), "");
}

TEST_F(CheckpointsCommandTest, Verify_DamagedManifest_Fails_WhatIsNone_IsNoInput) {
  const std::string path = Write(50);
  EXPECT_EQ(CheckpointsVerify(folder_ + "/none", Format::kTable, captured_.io), kNoInput);
  EXPECT_THAT(talk(), HasSubstr("/none: is no folder\nwhat to do: "));
  EXPECT_EQ(CheckpointsVerify(folder_ + "/checkpoints", Format::kTable, captured_.io), kNoInput);
  EXPECT_THAT(talk(), HasSubstr("/checkpoints: has no manifest.json\nwhat to do: "));
  ChangeLoss(path);
  EXPECT_EQ(CheckpointsVerify(path, Format::kTable, captured_.io), kFailure);
  EXPECT_THAT(talk(), HasSubstr("error: manifest.json: its digest does not fit"));
}

TEST_F(CheckpointsCommandTest, Show_TellsWhatItHolds) {
  const std::string path = Write(50);
  EXPECT_EQ(CheckpointsShow(path, Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(out(),
              AllOf(HasSubstr("Job:           demo (job-7 of store 00c0ffee00c0ffee)\n"),
                    HasSubstr("Step:          50, committed; 50 updates\n"),
                    HasSubstr("Loss:          2.125\n"), HasSubstr("Compute:       fp32\n"),
                    HasSubstr("language            yes     family llama, hidden_size 32\n"),
                    HasSubstr("vision              frozen  family clip_vision, hidden_size 32\n"),
                    HasSubstr("vision -> language  yes     hidden_size 48\n"),
                    Not(HasSubstr("rank-00000"))));
  ExpectNarrow("Path:");
  captured_.out.str("");
  EXPECT_EQ(CheckpointsShow(path, Format::kWide, captured_.io), kSuccess);
  EXPECT_THAT(out(), HasSubstr("\nrank-00001.safetensors  "));
  captured_.out.str("");
  EXPECT_EQ(CheckpointsShow(path, Format::kJson, captured_.io), kSuccess);
  EXPECT_THAT(support::ReadFile(path + "/manifest.json"),
              StartsWith(out().substr(0, out().size() - 3)));
}

}  // namespace
}  // namespace phalanx::client

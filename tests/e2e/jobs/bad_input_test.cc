// What users get wrong.
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

std::vector<std::string> MessagesOf(const std::vector<v1::JobEvent>& events,
                                    const std::string& type) {
  std::vector<std::string> messages;
  for (const v1::JobEvent& event : events) {
    if (event.type() == type) messages.push_back(event.message());
  }
  return messages;
}

TEST(BadInputTest, JobFile_EveryViolationIsListed_AndNoJobIsThere) {
  const DataFolder data = MakeData();
  const std::string text = absl::StrReplaceAll(
      JobText(data, {.language = "ranks: 4, tp: 3"}),
      {{"steps: 6", "steps: -6"}, {"micro: 2", "mcro: 2"}, {"to: language", "to: langage"}});
  support::WriteFile(data.path + "/job.yaml", text);
  Cluster cluster({.devices = 1});
  const support::Finished submit = cluster.Phalanx({"submit", data.path + "/job.yaml"});
  EXPECT_EQ(submit.exit_code, 65);
  EXPECT_THAT(submit.talk, AllOf(HasSubstr("spec.steps: -6"), HasSubstr("spec.batch.mcro"),
                                 HasSubstr("spec.modules[1].parallel.tp: 3"),
                                 HasSubstr("spec.edges[0].to: langage")));
  EXPECT_EQ(submit.out, "");
  // A client that does not look gets the same answer from the server, and leaves no state there
  // either.
  v1::SubmitJobRequest request;
  request.mutable_document()->set_text(text);
  request.mutable_document()->set_directory(data.path);
  grpc::ClientContext context;
  v1::SubmitJobResponse response;
  const grpc::Status status = cluster.stub().SubmitJob(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(cluster.List().empty());
  EXPECT_EQ(cluster.Phalanx({"list", "-o", "name"}).out, "");
}

// What nobody can read was not said.
TEST(BadInputTest, OutputThatCannotBeWritten_EndsWithAMessageAndAStatus) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {}));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"plan", data.path + "/job.yaml", "-o", "json"},
        {"validate", data.path + "/job.yaml", "-o", "yaml"},
        {"--help"}}) {
    std::vector<std::string> argv = {support::Program("phalanx")};
    argv.insert(argv.end(), command.begin(), command.end());
    support::Process phalanx(argv, support::NewMark(), "/dev/full", data.path + "/talk");
    EXPECT_EQ(phalanx.WaitExitCode(), 73) << command[0];
    EXPECT_THAT(support::ReadText(data.path + "/talk"),
                HasSubstr("cannot write to standard output"));
  }
}

TEST(BadInputTest, OutputFolderWithControlCharacters_IsRefusedBeforeItIsMade) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {}));
  const support::Finished run =
      support::RunToEnd({support::Program("phalanx"), "run", data.path + "/job.yaml", "--output",
                         data.path + "/o\x1b[31m"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.talk, AllOf(HasSubstr("--output"), HasSubstr("o\\x1b[31m")));
  EXPECT_FALSE(std::filesystem::exists(data.path + "/o\x1b[31m"));
}

TEST(BadInputTest, PathOutOfTheFoldersOfANode_FailsTheJobBeforeItsFirstEpoch) {
  const DataFolder data = MakeData();
  const std::string elsewhere = support::MakeFolder("elsewhere");
  std::filesystem::create_directory(data.path + "/runs");
  std::filesystem::create_symlink(elsewhere, data.path + "/runs/link");
  Cluster cluster(
      {.devices = 2,
       .worker_flags = {"--read-folder", data.path, "--write-folder", data.path + "/runs"}});
  const auto end = [&](const std::string& name, const std::string& output) {
    support::WriteFile(data.path + "/job.yaml", JobText(data, {.name = name, .output = output}));
    return cluster.Phalanx({"submit", "--wait", data.path + "/job.yaml"});
  };
  EXPECT_EQ(end("inside", "runs/out").exit_code, 0);
  for (const char* output : {"runs/../out", "runs/link/out"}) {
    const support::Finished refused = end("outside", output);
    EXPECT_EQ(refused.exit_code, 100) << refused.talk;
    EXPECT_THAT(
        cluster.Phalanx({"describe", "outside"}).out,
        AllOf(HasSubstr(absl::StrCat("spec.output: ", output, ": leads to ")),
              HasSubstr(absl::StrCat("; jobs of this node write only in ", data.path, "/runs"))));
    EXPECT_EQ(cluster.Phalanx({"delete", "outside"}).exit_code, 0);
  }
  EXPECT_FALSE(std::filesystem::exists(data.path + "/out"));
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
}

// Such as an empty variable of a shell.
TEST(BadInputTest, ListOfLostRanksThatNamesNone_IsRefused) {
  const DataFolder data = MakeData();
  support::WriteFile(data.path + "/job.yaml", JobText(data, {}));
  for (const char* command : {"plan", "run"}) {
    for (const std::string list : {"", ",", "0,,1", "0,"}) {
      const support::Finished ended = support::RunToEnd(
          {support::Program("phalanx"), command, data.path + "/job.yaml", "--lost", list});
      EXPECT_EQ(ended.exit_code, 2) << command << " " << list;
      EXPECT_EQ(ended.out, "");
      const std::string rule = list.empty() ? "\": must have a value, or be left out\n"
                                            : "\" must be ranks such as 3 or 1,3\n";
      EXPECT_THAT(ended.talk, HasSubstr(absl::StrCat("--lost: \"", list, rule)));
    }
  }
}

TEST(BadInputTest, TruncatedShard_FailsTheJobBeforeAnyRankStarts) {
  const DataFolder data = MakeData();
  const std::string bytes = support::ReadFile(data.files.shards[1]);
  support::WriteFile(data.files.shards[1], bytes.substr(0, bytes.size() / 2 + 100));
  support::WriteFile(data.path + "/job.yaml", JobText(data, {}));
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {})).id();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "DataInvalid");
  EXPECT_THAT(failed.failure().message(),
              AllOf(HasSubstr("spec.data.shards"), HasSubstr("set-001.tar")));
  EXPECT_THAT(cluster.WorkerLog(), Not(HasSubstr("started pid=")));
  // Where the client can read the shards it says the same.
  const support::Finished checked = support::RunToEnd(
      {support::Program("phalanx"), "validate", "--check-data", data.path + "/job.yaml"});
  EXPECT_EQ(checked.exit_code, 65);
  EXPECT_THAT(checked.out + checked.talk, HasSubstr("set-001.tar"));
}

TEST(BadInputTest, JobBeyondTheMemoryOfItsDevices_FailsBeforeAnyRankStarts) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2, .worker_flags = {"--device-memory", "64Ki"}});
  const int64_t job = cluster.Submit(Document(data, {})).id();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "PlanInvalid");
  constexpr char kSentence[] =
      "spec.modules: rank [01] needs [0-9.]+ [KM]iB "
      "\\((parameters|gradients|optimizer|activations) "
      "[0-9.]+ [KM]iB is the largest term\\), device has 64.0 KiB for it; another rank does not "
      "fit "
      "either";
  EXPECT_THAT(failed.failure().message(), MatchesRegex(kSentence));
  EXPECT_THAT(cluster.Why(job), HasSubstr(failed.failure().message()));
  const support::Finished described = cluster.Phalanx({"describe", absl::StrCat("job-", job)});
  EXPECT_THAT(described.out, HasSubstr(failed.failure().message()));
  EXPECT_THAT(cluster.WorkerLog(), Not(HasSubstr("started pid=")));
  EXPECT_FALSE(std::filesystem::exists(data.path + "/out"));
}

TEST(BadInputTest, JobWhoseSecondHomesTheNodeHasNoMemoryFor_FailsBeforeAnyRankStarts) {
  const DataFolder data = MakeData();
  Cluster cluster({.devices = 2, .worker_flags = {"--host-memory", "64Ki"}});
  const auto failed = [&](const JobOptions& options) {
    const v1::JobStatus ended = cluster.AwaitEnd(cluster.Submit(Document(data, options)).id());
    EXPECT_EQ(ended.phase(), v1::JOB_PHASE_FAILED);
    EXPECT_EQ(ended.failure().cause(), "PlanInvalid");
    return ended.failure().message();
  };
  EXPECT_THAT(failed({.recovery = "{state_home: host}"}),
              MatchesRegex("spec.recovery.state_home: host: [A-Za-z0-9._-]+ needs [0-9.]+ [KM]iB "
                           "of host memory for second homes of optimizer state and has 64.0 KiB"));
  EXPECT_THAT(failed({.checkpoint = "{every: 3}"}),
              MatchesRegex("spec.checkpoint: [A-Za-z0-9._-]+ needs [0-9.]+ [KM]iB of host memory "
                           "for the copy that checkpoints are written from and has 64.0 KiB"));
  EXPECT_THAT(cluster.WorkerLog(), Not(HasSubstr("started pid=")));
  EXPECT_FALSE(std::filesystem::exists(data.path + "/out"));
  // Where it does not ask for them it trains without them.
  const v1::JobStatus trained = cluster.AwaitEnd(cluster.Submit(Document(data, {})).id());
  EXPECT_EQ(trained.phase(), v1::JOB_PHASE_SUCCEEDED) << trained.failure().message();
  const support::Finished described =
      cluster.Phalanx({"describe", absl::StrCat("job-", trained.id())});
  EXPECT_THAT(described.out, HasSubstr("optimizer state of module language has no second home: "));
  EXPECT_THAT(described.out, Not(HasSubstr("NoSecondHome")));
}

TEST(BadInputTest, CorruptPicture_IsLeftOutAndNamedOnce) {
  const DataFolder data = MakeData({.samples = 16});
  DamagePicture(data, 9);
  Cluster cluster({.devices = 4});
  // Both vision lanes and both encoder passes of a second epoch over the data come across it.
  const int64_t job =
      cluster
          .Submit(Document(data, {.steps = 4, .vision = "ranks: 2", .language = "ranks: 2, tp: 2"}))
          .id();
  const v1::JobStatus ended = cluster.AwaitEnd(job);
  EXPECT_EQ(ended.phase(), v1::JOB_PHASE_SUCCEEDED) << ended.reason();
  const std::vector<std::string> corrupt = MessagesOf(cluster.Events(job), "CorruptSample");
  ASSERT_EQ(corrupt.size(), 1u);
  EXPECT_THAT(corrupt[0], AllOf(HasSubstr("set-001.tar"), HasSubstr("000009")));
  int64_t left_out = 0;
  for (const Metric& metric : ReadMetrics(data.path + "/out")) left_out += metric.corrupt_samples;
  EXPECT_EQ(left_out, 2) << "four steps of eight samples pass twice over sixteen";
}

TEST(BadInputTest, MoreCorruptSamplesThanAllowed_FailTheJob) {
  const DataFolder data = MakeData({.samples = 16});
  for (const int32_t picture : {2, 1, 0}) DamagePicture(data, picture);
  Cluster cluster({.devices = 2});
  const int64_t job = cluster.Submit(Document(data, {.steps = kForEver, .corrupt_max = 2})).id();
  const v1::JobStatus failed = cluster.AwaitEnd(job);
  EXPECT_EQ(failed.phase(), v1::JOB_PHASE_FAILED);
  EXPECT_EQ(failed.failure().cause(), "DataCorrupt");
  EXPECT_THAT(failed.failure().message(),
              AllOf(HasSubstr("3 corrupt samples"), HasSubstr("spec.data.corrupt_max"),
                    HasSubstr("set-000.tar")));
  EXPECT_EQ(MessagesOf(cluster.Events(job), "CorruptSample").size(), 3u);
}

}  // namespace
}  // namespace phalanx::e2e

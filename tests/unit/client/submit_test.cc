// `phalanx submit`: what is sent, what is refused before, and what is printed.
#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/unit/client/example.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SubmitTest, Id_GoesToStdoutAlone) {
  FakeServer server;
  v1::JobDocument sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent = request.document();
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "job-7\n");
  EXPECT_EQ(captured.talk.str(), "submitted demo as job-7\n");
  EXPECT_EQ(sent.directory(), tests::SourceDir() + "/examples");
}

// A read that fails is no end of the document: what is there may be another one.
TEST(SubmitTest, FileThatCannotBeReadToItsEnd_IsRefused) {
  Captured captured;
  EXPECT_EQ(Validate({.file = "/proc/self/mem"}, captured.io), kNoInput);
  EXPECT_THAT(captured.talk.str(), HasSubstr("/proc/self/mem: cannot be read: "));
}

TEST(SubmitTest, Directory_IsOfTheClusterAndNeedNotBeHere) {
  FakeServer server;
  std::vector<std::string> sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent.push_back(request.document().directory());
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample, .directory = "/no/such/./folder/"}, stopper,
                   captured.io),
            kSuccess);
  EXPECT_EQ(Submit(connection, {.file = kExample, .directory = "jobs"}, stopper, captured.io),
            kUsage);
  EXPECT_THAT(sent, testing::ElementsAre("/no/such/folder"));
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("error: --directory: jobs: must begin with /: it is a "
                        "folder of the cluster's machines\nwhat to do: name "
                        "it as the nodes do, such as /shared/jobs, or leave "));
  // Behind a link of the cluster's machines it would be a folder that nobody here knows.
  Captured up;
  EXPECT_EQ(Submit(connection, {.file = kExample, .directory = "/shared/../etc"}, stopper, up.io),
            kUsage);
  EXPECT_EQ(up.talk.str(), "error: --directory: /shared/../etc: must have no '..' in it\n");
}

// "link/.." is the folder above what the link leads to, as for whoever opens the file.
TEST(SubmitTest, FileAboveALink_IsOfTheFolderThatItLiesIn) {
  const std::string folder =
      std::filesystem::canonical(support::MakeFolder("submit-above-a-link")).string();
  std::filesystem::create_directories(folder + "/real/deep");
  std::filesystem::create_directories(folder + "/other");
  std::filesystem::create_directory_symlink("../real/deep", folder + "/other/link");
  std::filesystem::copy_file(kExample, folder + "/real/job.yaml");
  FakeServer server;
  std::string sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent = request.document().directory();
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = folder + "/other/link/../job.yaml"}, stopper, captured.io),
            kSuccess)
      << captured.talk.str();
  EXPECT_EQ(sent, folder + "/real");
}

TEST(SubmitTest, DryRun_TellsWhatTheCoordinatorWouldRefuse_WhereOneIsNamed) {
  FakeServer server;
  server.check = [](const v1::CheckSubmitRequest& request, v1::CheckSubmitResponse*) {
    EXPECT_EQ(request.document().directory(), tests::SourceDir() + "/examples");
    return grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "job-7 is named \"demo\"");
  };
  Connection connection = server.Connect();
  Stopper stopper;
  Captured refused, alone;
  EXPECT_EQ(
      Submit(connection, {.file = kExample, .dry_run = true, .asks = true}, stopper, refused.io),
      kFailure);
  EXPECT_THAT(refused.talk.str(), StartsWith("error: job-7 is named \"demo\"\n"));
  EXPECT_EQ(Submit(connection, {.file = kExample, .dry_run = true}, stopper, alone.io), kSuccess);
  EXPECT_THAT(alone.talk.str(), HasSubstr(" is valid; nothing was submitted\n"));
}

TEST(SubmitTest, DryRun_RefusesLabelsThatASubmitWould) {
  FakeServer server;
  Connection connection = server.Connect();
  Stopper stopper;
  const std::string file = ::testing::TempDir() + "/labels.yaml";
  const std::string text = support::ReadFile(kExample);
  for (const bool selector : {false, true}) {
    const auto [before, after] =
        selector ? std::pair("{device: cpu", "{node_selector: {rack: \"a\\nb\"}, device: cpu")
                 : std::pair("labels: {", "labels: {k: \"a\\nb\", ");
    ASSERT_THAT(text, HasSubstr(before));
    support::WriteFile(file, absl::StrReplaceAll(text, {{before, after}}));
    Captured captured;
    EXPECT_EQ(Submit(connection, {.file = file, .dry_run = true}, stopper, captured.io),
              kBadJobFile);
    EXPECT_THAT(
        captured.talk.str(),
        HasSubstr(selector ? "spec.resources.node_selector.rack: \"a b\": must have no control "
                             "characters\n"
                           : "metadata.labels.k: \"a b\": must have no control characters\n"));
  }
}

TEST(SubmitTest, DryRun_OfACoordinatorThatDoesNotKnowTheQuestion_SaysSo) {
  FakeServer server;
  Connection connection = server.Connect();
  Stopper stopper;
  Captured captured;
  EXPECT_EQ(
      Submit(connection, {.file = kExample, .dry_run = true, .asks = true}, stopper, captured.io),
      kSuccess);
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("note: what the coordinator would refuse was not checked: "));
}

TEST(SubmitTest, Name_IsThatOfTheJob_AndCheckedAsTheFilesIs) {
  FakeServer server;
  std::vector<std::string> sent;
  server.submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    sent.push_back(wire::ReadJobFile(request.document().text(), job::Purpose::kSubmit)->spec.name);
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured, refused;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample, .name = "another"}, stopper, captured.io),
            kSuccess);
  EXPECT_THAT(sent, testing::ElementsAre("another"));
  EXPECT_EQ(Submit(connection, {.file = kExample, .name = "No Name", .dry_run = true}, stopper,
                   refused.io),
            kBadJobFile);
  EXPECT_THAT(refused.talk.str(), HasSubstr("metadata.name: "));
}

TEST(SubmitTest, BadFile_IsNeverSent) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    ++calls;
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  const std::string bad = ::testing::TempDir() + "/bad.yaml";
  support::WriteFile(bad, "metadata: {name: X}\nspec: {stepz: 1}\n");
  EXPECT_EQ(Submit(connection, {.file = bad}, stopper, captured.io), kBadJobFile);
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(captured.talk.str(),
              HasSubstr("spec.stepz: 1: unknown field; did you mean steps?\n"));
  EXPECT_THAT(captured.talk.str(), HasSubstr("metadata.name: X: "));
}

TEST(SubmitTest, LadderThatCannotBeMet_IsRefused_AndOneWithoutRungsIsWarnedOf) {
  FakeServer server;
  std::atomic<int> calls = 0;
  server.submit = [&](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    ++calls;
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Stopper stopper;
  const auto submit = [&](const std::string& ladder, int code) {
    const std::string file = ::testing::TempDir() + "/ladder.yaml";
    support::WriteFile(
        file,
        absl::StrReplaceAll(support::ReadFile(kExample),
                            {{"\nspec:\n", "\nspec:\n  recovery: {ladder: " + ladder + "}\n"}}));
    Captured captured;
    EXPECT_EQ(Submit(connection, {.file = file}, stopper, captured.io), code);
    return captured.talk.str();
  };
  EXPECT_EQ(submit("[spare]", kBadJobFile),
            "spec.recovery.ladder: [spare]: none of its rungs can ever be taken: spare needs "
            "resources.spares; [] is for a job that ends with its first loss\n1 violation\n");
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(submit("[]", kSuccess),
              StartsWith("warning: spec.recovery.ladder: the job tolerates no loss: it ends with "
                         "the first device that it loses\n"));
  EXPECT_EQ(calls, 1);
}

TEST(SubmitTest, ModuleThatCanLoseNoDevice_IsWarnedOfWithWhatALossComesTo) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  const std::string file = ::testing::TempDir() + "/intolerant.yaml";
  support::WriteFile(file,
                     absl::StrReplaceAll(support::ReadFile(kExample),
                                         {{"ranks: 4, tp: 2, pp: 2, layers: [3, 3]", "ranks: 1"},
                                          {"devices: 6", "devices: 3"}}));
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = file}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.talk.str(),
            "warning: language: the loss of its device stops the job: no replica of module "
            "language is left without these ranks; it waits up to 10m (recovery.hold) for what is "
            "lost, then fails, since it writes no checkpoint before its last step\n"
            "submitted demo as job-7\n");
}

TEST(SubmitTest, ServersViolations_AreShownFieldByField) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    google::rpc::BadRequest bad;
    for (const char* field : {"spec.steps", "spec.batch.global"}) {
      auto* violation = bad.add_field_violations();
      violation->set_field(field);
      violation->set_description("0\x1b[2J: must be more");
    }
    return WithDetails(grpc::StatusCode::INVALID_ARGUMENT, bad);
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample}, stopper, captured.io), kBadJobFile);
  EXPECT_EQ(captured.talk.str(),
            "spec.steps: 0 [2J: must be more\nspec.batch.global: 0 [2J: must be more\n"
            "2 violations\n");
}

TEST(SubmitTest, DryRun_AsksNobody) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(nobody, {.file = kExample, .dry_run = true}, stopper, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "");
}

TEST(SubmitTest, DryRun_RefusesADirectoryThatCoordinatorsDo) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(100)});
  const auto said = [&nobody](const std::string& directory) {
    Captured captured;
    Stopper stopper;
    EXPECT_EQ(Submit(nobody, {.file = kExample, .directory = directory, .dry_run = true}, stopper,
                     captured.io),
              kBadJobFile);
    return captured.talk.str();
  };
  EXPECT_THAT(said("/a\tb"), HasSubstr("must have no control characters\n1 violation\n"));
  EXPECT_THAT(said("/" + std::string(4096, 'd')),
              HasSubstr("may be at most 4096 bytes long\n1 violation\n"));
}

TEST(SubmitTest, Wait_EndsWithTheJobsOutcome) {
  FakeServer server;
  server.submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
    return grpc::Status::OK;
  };
  server.watch = [](grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse response;
    *response.mutable_job() = AJob(v1::JOB_PHASE_FAILED, 3);
    response.mutable_job()->mutable_failure()->set_cause("RankKilled");
    response.mutable_job()->mutable_failure()->set_rank(2);
    response.mutable_job()->mutable_failure()->set_node("n1");
    response.mutable_job()->mutable_failure()->set_signal(9);
    writer->Write(response);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = kExample, .wait = true}, stopper, captured.io), kJobFailed);
  EXPECT_THAT(captured.talk.str(), HasSubstr("RankKilled rank 2 on n1, signal 9\n"));
}

}  // namespace
}  // namespace phalanx::client

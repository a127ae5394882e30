// Commands about jobs and events that are there already: rerun, get, events.
#include <string>
#include <vector>

#include "client/commands.h"
#include "client/exit_code.h"
#include "core/job/job_reader.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kText = support::ReadFile(tests::SourceDir() + "/examples/emoji-captions.yaml");

class RerunTest : public ::testing::Test {
 protected:
  RerunTest() {
    server_.get = [this](const v1::GetJobRequest&, v1::GetJobResponse* response) {
      *response->mutable_job() = AJob(phase_);
      response->mutable_job()->mutable_document()->set_text(kText);
      response->mutable_job()->mutable_document()->set_directory("/jobs");
      return grpc::Status::OK;
    };
    server_.submit = [this](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
      sent_.push_back(request);
      *response->mutable_job() = AJob(v1::JOB_PHASE_QUEUED);
      response->mutable_job()->set_id(8);
      return grpc::Status::OK;
    };
  }

  FakeServer server_;
  v1::JobPhase phase_ = v1::JOB_PHASE_FAILED;
  std::vector<v1::SubmitJobRequest> sent_;
  Connection connection_ = server_.Connect();
  Captured captured_;
  Stopper stopper_;
};

TEST_F(RerunTest, EndedJob_IsQueuedAgainAsItWas) {
  EXPECT_EQ(Rerun(connection_, {.job = "7"}, stopper_, captured_.io), kSuccess);
  EXPECT_EQ(captured_.out.str(), "job-8\n");
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].document().text(), kText);
  EXPECT_EQ(sent_[0].document().directory(), "/jobs");
  EXPECT_EQ(sent_[0].request_id().size(), 32u);
}

TEST_F(RerunTest, Name_IsThatOfTheNewJob) {
  EXPECT_EQ(Rerun(connection_, {.job = "7", .name = "again"}, stopper_, captured_.io), kSuccess);
  ASSERT_EQ(sent_.size(), 1u);
  const auto before = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto after = wire::ReadJobFile(sent_[0].document().text(), job::Purpose::kSubmit);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(after->spec.name, "again");
  EXPECT_EQ(after->spec.steps, before->spec.steps);
}

TEST_F(RerunTest, JobThatHasNotEnded_IsRefusedWithWhatToDo) {
  phase_ = v1::JOB_PHASE_RUNNING;
  EXPECT_EQ(Rerun(connection_, {.job = "7"}, stopper_, captured_.io), kFailure);
  EXPECT_EQ(captured_.talk.str(),
            "error: job-7 is Running; only a job that has ended runs again: phalanx cancel job-7 "
            "ends it\n");
  EXPECT_TRUE(sent_.empty());
}

TEST_F(RerunTest, JobOfSomebodyThatHasNotEnded_SaysWhoMayEndIt) {
  server_.get = [](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_RUNNING);
    response->mutable_job()->set_owner("alice");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Rerun(connection_, {.job = "7"}, stopper_, captured_.io), kFailure);
  EXPECT_EQ(
      captured_.talk.str(),
      "error: job-7 of alice is Running; only a job that has ended runs again\n"
      "what to do: phalanx watch job-7 waits for its end; alice or an operator may end it now: "
      "phalanx cancel job-7\n");
  EXPECT_TRUE(sent_.empty());
}

TEST_F(RerunTest, JobThatIsNotThere_SaysHowToFindOne) {
  server_.get = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job \"7\"");
  };
  EXPECT_EQ(Rerun(connection_, {.job = "7"}, stopper_, captured_.io), kFailure);
  EXPECT_EQ(captured_.talk.str(),
            "error: there is no job \"7\"\nwhat to do: phalanx list shows the jobs that there "
            "are\n");
}

TEST_F(RerunTest, Get_ShowsTheJobFileAsADocumentThatRunsAgain) {
  EXPECT_EQ(Get(connection_, "7", Format::kYaml, captured_.io), kSuccess);
  const absl::StatusOr<job::Tree> tree = wire::ParseYaml(captured_.out.str());
  ASSERT_TRUE(tree.ok()) << tree.status();
  const job::Tree* file = nullptr;
  for (const auto& [key, value] : tree->entries) {
    if (key != "document") continue;
    for (const auto& [field, inner] : value.entries) {
      if (field == "text") file = &inner;
    }
  }
  ASSERT_NE(file, nullptr) << captured_.out.str();
  const auto before = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto after = wire::ReadJobFile(wire::EmitYaml(*file), job::Purpose::kSubmit);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(wire::EmitYaml(job::WriteJobSpec(after->spec)),
            wire::EmitYaml(job::WriteJobSpec(before->spec)));
}

TEST_F(RerunTest, Get_OfADocumentThatIsNone_ShowsItsText) {
  server_.get = [](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = AJob(v1::JOB_PHASE_FAILED);
    response->mutable_job()->mutable_document()->set_text("a: [");
    return grpc::Status::OK;
  };
  Get(connection_, "7", Format::kJson, captured_.io);
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"text\": \"a: [\""));
}

TEST(EventsTest, Filters_GoToTheCoordinatorAndPagesAreFollowed) {
  FakeServer server;
  std::vector<v1::ListEventsRequest> asked;
  server.events = [&](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    asked.push_back(request);
    auto* event = response->add_events();
    event->set_number(request.after_number() + 5);
    event->set_type("NodeLost");
    response->set_more(asked.size() == 1);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Events(connection,
                   {.job = "7",
                    .format = Format::kName,
                    .since = absl::FromUnixMillis(1'700'000'000'250),
                    .types = {"NodeLost"}},
                   captured.io),
            kSuccess);
  EXPECT_EQ(captured.out.str(), "NodeLost\nNodeLost\n");
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[1].after_number(), 5);
  EXPECT_THAT(asked[1].types(), ElementsAre("NodeLost"));
  EXPECT_EQ(asked[1].since().seconds(), 1'700'000'000);
  EXPECT_EQ(asked[1].since().nanos(), 250'000'000);
  EXPECT_GT(asked[0].page_size(), 0);
}

TEST(EventsTest, None_IsSaidAside) {
  FakeServer server;
  server.events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Events(connection, {.job = "7"}, captured.io), kSuccess);
  EXPECT_EQ(captured.out.str(), "");
  EXPECT_EQ(captured.talk.str(), "no such events\n");
}

TEST(ParseSinceTest, IsAnAgeOrATime) {
  const absl::Time now = absl::FromUnixSeconds(1'000'000);
  EXPECT_EQ(ParseSince("2h", now), now - absl::Hours(2));
  EXPECT_EQ(ParseSince("1970-01-02T00:00:00Z", now), absl::FromUnixSeconds(86'400));
  for (const char* bad : {"", "yesterday", "12", "-2h"})
    EXPECT_EQ(ParseSince(bad, now), std::nullopt);
}

}  // namespace
}  // namespace phalanx::client

// `phalanx list` against a server of the test's own.
#include "client/list.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::JobStatus Numbered(int64_t id, v1::JobPhase phase) {
  v1::JobStatus job = AJob(phase);
  job.set_id(id);
  job.set_name(absl::StrCat("j", id));
  return job;
}

// Jobs that a test changes between rounds, listed as a coordinator lists them: newest first, by
// phase.
class Cluster {
 public:
  Cluster() {
    server.list = [this](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
      requests.push_back(request);
      for (auto it = jobs.rbegin(); it != jobs.rend(); ++it) {
        const auto& phases = request.phases();
        if (phases.empty() ||
            std::find(phases.begin(), phases.end(), it->second.phase()) != phases.end()) {
          *response->add_jobs() = it->second;
        }
      }
      return grpc::Status::OK;
    };
    server.get = [this](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
      const auto found = jobs.find(std::stoll(request.job().substr(4)));
      if (found == jobs.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "none");
      *response->mutable_job() = found->second;
      return grpc::Status::OK;
    };
  }
  void Put(int64_t id, v1::JobPhase phase) { jobs[id] = Numbered(id, phase); }

  FakeServer server;
  std::map<int64_t, v1::JobStatus> jobs;
  std::vector<v1::ListJobsRequest> requests;
};

TEST(ListTest, Filters_GoToTheCoordinator) {
  Cluster cluster;
  Connection connection = cluster.server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection,
                 {.phases = {v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_FAILED},
                  .labels = {{"team", "demo"}},
                  .node = "a",
                  .owner = "sam"},
                 stopper, captured.io),
            kSuccess);
  ASSERT_EQ(cluster.requests.size(), 1u);
  EXPECT_THAT(cluster.requests[0].phases(),
              ElementsAre(v1::JOB_PHASE_QUEUED, v1::JOB_PHASE_FAILED));
  EXPECT_EQ(cluster.requests[0].labels().at("team"), "demo");
  EXPECT_EQ(cluster.requests[0].node(), "a");
  EXPECT_EQ(cluster.requests[0].owner(), "sam");
  EXPECT_EQ(captured.talk.str(), "no such jobs\n");
}

TEST(ListTest, EmptyPage_IsNotTheEnd) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    if (request.page_token().empty()) {
      response->set_next_page_token("more");
    } else {
      *response->add_jobs() = Numbered(3, v1::JOB_PHASE_FAILED);
    }
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  List(connection, {.format = Format::kName, .labels = {{"a", "b"}}}, stopper, captured.io);
  EXPECT_EQ(captured.out.str(), "job-3\n");
}

TEST(ListTest, LimitOfZero_IsAll) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    const bool first = request.page_token().empty();
    if (first) response->set_next_page_token("more");
    for (int32_t i = 0; i < request.page_size(); ++i)
      *response->add_jobs() = Numbered((first ? 200 : 100) - i, v1::JOB_PHASE_FAILED);
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Stopper stopper;
  for (const auto& [limit, listed] : std::map<int32_t, int>{{0, 200}, {1, 1}, {101, 101}}) {
    Captured captured;
    List(connection, {.format = Format::kName, .limit = limit}, stopper, captured.io);
    const std::string names = captured.out.str();
    EXPECT_EQ(std::count(names.begin(), names.end(), '\n'), listed) << limit;
  }
}

TEST(ListTest, PagesThatGoRoundInCircles_AreAnError) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    response->set_next_page_token(request.page_token() == "a" ? "b" : "a");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_NE(List(connection, {.labels = {{"a", "b"}}}, stopper, captured.io), kSuccess);
  EXPECT_THAT(captured.talk.str(), HasSubstr("pages of jobs do not go on after 0 jobs"));
}

TEST(ListTest, Watch_TellsOfWhatIsNewChangedEndedAndDeleted) {
  Cluster cluster;
  cluster.Put(1, v1::JOB_PHASE_SUCCEEDED);
  cluster.Put(2, v1::JOB_PHASE_RUNNING);
  cluster.Put(3, v1::JOB_PHASE_QUEUED);
  Stopper stopper;
  int lists = 0;
  const auto answer = cluster.server.list;
  // The first request finds the newest job, the second is the list; each round makes two.
  cluster.server.list = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    ++lists;
    if (lists == 3) {
      cluster.Put(2, v1::JOB_PHASE_FAILED);
      cluster.Put(4, v1::JOB_PHASE_QUEUED);
    }
    if (lists == 5) cluster.jobs.erase(3);
    if (lists == 7) stopper.Stop();
    return answer(request, response);
  };
  Connection connection = cluster.server.Connect();
  Captured captured;
  EXPECT_EQ(
      List(connection, {.format = Format::kName, .watch = true, .interval = absl::ZeroDuration()},
           stopper, captured.io),
      kSuccess);
  EXPECT_EQ(captured.out.str(), "job-3\njob-2\njob-1\njob-2\njob-4\n");
  EXPECT_EQ(captured.talk.str(), "job-3 is deleted\n");
}

TEST(ListTest, Watch_InYaml_IsADocumentAJob) {
  Cluster cluster;
  cluster.Put(1, v1::JOB_PHASE_RUNNING);
  cluster.Put(2, v1::JOB_PHASE_QUEUED);
  Stopper stopper;
  stopper.Stop();  // behind the first list
  Connection connection = cluster.server.Connect();
  Captured captured;
  EXPECT_EQ(List(connection, {.format = Format::kYaml, .watch = true}, stopper, captured.io),
            kSuccess);
  const std::string out = captured.out.str();
  EXPECT_THAT(out, StartsWith("---\n"));
  const size_t second = out.find("\n---\n");
  ASSERT_NE(second, std::string::npos) << out;
  for (const std::string& one : {out.substr(0, second + 1), out.substr(second + 1)})
    EXPECT_TRUE(wire::ParseYaml(one.substr(4)).ok()) << one;
}

TEST(ListTest, Watch_OfAState_TellsOfAJobThatComesToIt) {
  Cluster cluster;
  cluster.Put(1, v1::JOB_PHASE_RUNNING);
  cluster.Put(2, v1::JOB_PHASE_RUNNING);
  Stopper stopper;
  int lists = 0;
  const auto answer = cluster.server.list;
  cluster.server.list = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    ++lists;
    if (lists == 5) {
      cluster.Put(1, v1::JOB_PHASE_FAILED);
      cluster.Put(2, v1::JOB_PHASE_SUCCEEDED);
    }
    if (lists == 7) stopper.Stop();
    return answer(request, response);
  };
  Connection connection = cluster.server.Connect();
  Captured captured;
  List(connection,
       {.phases = {v1::JOB_PHASE_FAILED}, .watch = true, .interval = absl::ZeroDuration()}, stopper,
       captured.io);
  EXPECT_THAT(captured.out.str(), StartsWith("NAME  ID     STATE"));
  EXPECT_THAT(captured.out.str(), HasSubstr("j1    job-1  Failed"));
  EXPECT_EQ(captured.out.str().find("job-2"), std::string::npos) << captured.out.str();
}

TEST(ListTest, WatchOfACoordinatorThatFails_EndsWithItsCode) {
  FakeServer server;
  server.list = [](const v1::ListJobsRequest&, v1::ListJobsResponse*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
  };
  Connection connection = server.Connect();
  Captured captured;
  Stopper stopper;
  EXPECT_EQ(List(connection, {.watch = true}, stopper, captured.io), kNotAllowed);
}

TEST(ParseTest, PhasesAreWordsInAnyCase) {
  EXPECT_THAT(*ParsePhases({"running,Queued", "queued"}),
              ElementsAre(v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_QUEUED));
  EXPECT_EQ(ParsePhases({"runing"}).status().message(),
            "\"runing\" must be one of queued, starting, running, succeeded, failed, cancelled");
  EXPECT_THAT(std::string(ParsePhases({"Suspended"}).status().message()),
              HasSubstr("; a job that is suspended is queued, which list says beside it"));
  EXPECT_FALSE(ParsePhases({""}).ok());
}

TEST(ParseTest, SelectorsArePairs) {
  const auto labels = ParseSelector({"team=demo,tier=", "a=b=c"});
  ASSERT_TRUE(labels.ok());
  EXPECT_EQ(labels->at("team"), "demo");
  EXPECT_EQ(labels->at("tier"), "");
  EXPECT_EQ(labels->at("a"), "b=c");
  for (const char* bad : {"team", "=x", "", "a=1,a=2"}) EXPECT_FALSE(ParseSelector({bad}).ok());
}

}  // namespace
}  // namespace phalanx::client

// What `phalanx incidents` prints, against a server of the test's own.
#include "client/incidents.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/exit_code.h"
#include "core/wire/incident_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr const char* kPhases[] = {
    "detected",    "planned", "survivors_quiet", "communicators_ready",
    "state_moved", "resumed", "first_step",      "safe_again"};

v1::Incident AnIncident(int64_t number) {
  v1::Incident incident;
  incident.set_number(number);
  incident.set_kind(v1::Incident::LOSS);
  incident.set_from_epoch(1);
  incident.set_to_epoch(2);
  incident.mutable_detected()->set_seconds(1'700'000'000);
  incident.mutable_cause()->set_cause("OutputUnavailable");  // the longest name
  incident.mutable_cause()->set_rank(3);
  incident.mutable_cause()->set_node("b");
  incident.mutable_cause()->set_message("rank 3 on node b died");
  incident.set_device(1);
  incident.set_device_kind("gpu");
  incident.add_evidence("rank 3 on node b died");
  for (int32_t rank = 0; rank < 12; ++rank) incident.add_lost(rank);
  incident.set_summary("rank 3 (node b, GPU 1) died; back after 100 s");
  incident.set_next("look at it");
  incident.set_decided_step(180);
  incident.set_steps_redone(1);
  for (size_t i = 0; i < std::size(kPhases); ++i) {
    v1::Incident::Phase& phase = *incident.add_phases();
    phase.set_name(kPhases[i]);
    phase.set_begin(static_cast<int64_t>(i) * 100'000'000);
    phase.set_end(static_cast<int64_t>(i + 1) * 100'000'000);
    phase.set_slowest_rank(i == 4 ? 2 : -1);
  }
  return incident;
}

class IncidentsTest : public testing::Test {
 protected:
  IncidentsTest() : connection_(server_.Connect()) {
    server_.incidents = [](const v1::ListIncidentsRequest& request,
                           v1::ListIncidentsResponse* response) {
      if (request.job() != "job-7") return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job");
      *response->add_incidents() = AnIncident(1);
      *response->add_incidents() = AnIncident(2);
      response->mutable_incidents(1)->set_not_safe("no room");
      response->mutable_incidents(1)->mutable_phases(7)->clear_end();
      return grpc::Status::OK;
    };
  }
  int Show(const ShowIncidentOptions& options) {
    return IncidentsShow(connection_, options, captured_.io);
  }

  FakeServer server_;
  Connection connection_;
  Captured captured_;
};

TEST_F(IncidentsTest, List_FitsATerminal) {
  EXPECT_EQ(IncidentsList(connection_, "job-7", Format::kTable, captured_.io), kSuccess);
  const std::vector<std::string> lines = absl::StrSplit(captured_.out.str(), '\n');
  ASSERT_THAT(lines, SizeIs(4));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(lines[0], StartsWith("N  DETECTED "));
  EXPECT_THAT(lines[1], HasSubstr("OutputUnavailable  12 ranks  600.000 s  700.000 s  800.000 s"));
  EXPECT_THAT(lines[2], HasSubstr("700.000 s  no"));
}

TEST_F(IncidentsTest, Json_IsThatOfTheFile) {
  EXPECT_EQ(Show({.job = "job-7", .number = 1, .format = Format::kJson}), kSuccess);
  EXPECT_EQ(captured_.out.str(), wire::IncidentJson(AnIncident(1)));
}

TEST_F(IncidentsTest, Show_HasTheVerdictAndEachPhase) {
  EXPECT_EQ(Show({.job = "job-7", .number = 2}), kSuccess);
  const std::string out = captured_.out.str();
  for (const char* text :
       {"rank 3 (node b, GPU 1) died; back after 100 s", "3 on node b, GPU 1", "certain",
        "look at it", "state_moved          400.000 s  500.000 s  100.000 s  2\n",
        "safe_again           700.000 s  -          -          -\n", "no room"}) {
    EXPECT_THAT(out, HasSubstr(text));
  }
}

TEST_F(IncidentsTest, Show_OfOneThatNothingCameBackFrom_DoesNotSayThatStepsWereRedone) {
  EXPECT_EQ(Show({.job = "job-7", .number = 2}), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("step 180; 1 redone"));
  server_.incidents = [](const v1::ListIncidentsRequest& /*request*/,
                         v1::ListIncidentsResponse* response) {
    v1::Incident& incident = *response->add_incidents();
    incident = AnIncident(1);
    for (const int phase : {5, 6, 7}) incident.mutable_phases(phase)->clear_end();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Show({.job = "job-7", .number = 1}), kSuccess);
  const std::string out = captured_.out.str();
  EXPECT_THAT(out.substr(out.rfind("Went on behind")), StartsWith("Went on behind: step 180\n"));
}

TEST_F(IncidentsTest, Svg_GoesToItsFileOrToStandardOutputAlone) {
  const std::string file = support::MakeFolder("incidents") + "/one.svg";
  EXPECT_EQ(Show({.job = "job-7", .number = 1, .svg = file}), kSuccess);
  EXPECT_THAT(support::ReadFile(file), StartsWith("<svg "));
  EXPECT_THAT(captured_.out.str(), HasSubstr("first_step"));
  Captured second;
  EXPECT_EQ(IncidentsShow(connection_, {.job = "job-7", .number = 1, .svg = "-"}, second.io),
            kSuccess);
  EXPECT_EQ(second.out.str(), support::ReadFile(file));
  EXPECT_EQ(Show({.job = "job-7", .number = 1, .format = Format::kJson, .svg = "-"}), kUsage);
}

TEST_F(IncidentsTest, SvgThatCannotBeWritten_NamesFlagAndFile) {
  EXPECT_EQ(Show({.job = "job-7", .number = 1, .svg = "/dev/full"}), kCannotCreate);
  EXPECT_THAT(captured_.talk.str(),
              HasSubstr("error: --svg: cannot write /dev/full: No space left on device\n"));
  EXPECT_EQ(captured_.out.str(), "");
}

TEST_F(IncidentsTest, NoSuchIncident_SaysWhereToLook) {
  EXPECT_EQ(Show({.job = "job-7", .number = 3}), kFailure);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("job-7 has no incident 3; phalanx incidents list"));
}

TEST_F(IncidentsTest, JobWithoutAny_IsTold) {
  server_.incidents = [](const v1::ListIncidentsRequest&, v1::ListIncidentsResponse*) {
    return grpc::Status::OK;
  };
  EXPECT_EQ(IncidentsList(connection_, "job-7", Format::kTable, captured_.io), kSuccess);
  EXPECT_EQ(captured_.talk.str(), "no incidents\n");
}

}  // namespace
}  // namespace phalanx::client

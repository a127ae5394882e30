// What people see of a loss: the job's events, its incident's file, and the command that shows it.
#include <signal.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/recovery/trouble.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

struct IncidentCase {
  const char* name;
  const char* language;
  const char* change;
};

class IncidentTest : public testing::TestWithParam<IncidentCase> {
 protected:
  support::Finished Show(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"incidents", "show", absl::StrCat("job-", job_), "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return cluster_.Phalanx(arguments);
  }

  const DataFolder data_ = MakeSmallData();
  const std::string file_ =
      (std::filesystem::path(data_.path) / "out/incidents/1/incident.json").string();
  Cluster cluster_;
  int64_t job_ = 0;
};

struct Span {
  int64_t begin = -1, end = -1;
};

TEST_P(IncidentTest, KilledRank_IsToldInOneLineAndPhaseByPhase) {
  job_ = cluster_
             .Submit(Document(data_, {.steps = kForEver,
                                      .precision = "fp64",
                                      .vision = "",
                                      .language = GetParam().language,
                                      .batch = 7,
                                      .recovery = "{rejoin: manual}",
                                      .standby = true,
                                      .output = "out"}))
             .id();
  const std::string name = absl::StrCat("job-", job_);
  cluster_.AwaitStep(job_, 5);
  const std::string watched = support::MakeFolder("e2e-watch") + "/talk";
  support::Process watch({support::Program("phalanx"), "watch", name, "--server", cluster_.grpc()},
                         support::NewMark(), watched, watched);
  support::AwaitText(watched, "loss ", watch);
  cluster_.AwaitStep(job_, 10);
  kill(cluster_.Ranks(job_).at(1).pid(), SIGKILL);
  // Written at the first step behind it, and again when all state has its homes.
  cluster_.Await(job_, [&](const v1::JobStatus& status) {
    if (status.epoch() < 2 || !std::filesystem::exists(file_)) return false;
    const json shown = json::parse(support::ReadText(file_));
    return shown["phases"].back()["end"].is_number() && shown["cause"]["signal"] == 9;
  });
  const std::string written = support::ReadText(file_);
  EXPECT_EQ(Show({"-o", "json"}).out, written);
  const json incident = json::parse(written);
  EXPECT_EQ(incident["kind"], "loss");
  EXPECT_EQ(incident["cause"]["name"], "RankKilled");
  EXPECT_EQ(incident["first_failing_rank"], 1);
  EXPECT_EQ(incident["confidence"], "certain");
  EXPECT_EQ(incident["lost"], json({1}));
  EXPECT_THAT(incident["changes"].get<std::vector<std::string>>(), ElementsAre(GetParam().change));
  EXPECT_FALSE(incident["evidence"].empty());
  std::map<std::string, Span> phases;
  for (const json& phase : incident["phases"]) {
    ASSERT_TRUE(phase["begin"].is_number() && phase["end"].is_number()) << written;
    const Span span{phase["begin"], phase["end"]};
    EXPECT_LE(span.begin, span.end) << phase["name"];
    phases[phase["name"]] = span;
  }
  ASSERT_EQ(phases.size(), 8u) << written;
  const char* order[] = {"detected",    "planned", "survivors_quiet", "communicators_ready",
                         "state_moved", "resumed", "first_step"};
  for (size_t i = 1; i < std::size(order); ++i)
    EXPECT_LE(phases[order[i - 1]].begin, phases[order[i]].begin) << order[i];
  EXPECT_LE(phases["planned"].end, phases["communicators_ready"].end);
  EXPECT_LE(phases["survivors_quiet"].end, phases["state_moved"].end);
  EXPECT_LE(phases["resumed"].end, phases["first_step"].end);

  const std::string sentence = incident["summary"];
  EXPECT_THAT(sentence, StartsWith("rank 1 (node here, slot 1) "));
  EXPECT_THAT(MessagesOf(cluster_, job_, "Verdict"), StartsWith("RankKilled (certain): rank 1 "));
  EXPECT_THAT(cluster_.Why(job_), HasSubstr(sentence));
  const support::Finished described = cluster_.Phalanx({"describe", name});
  EXPECT_EQ(described.exit_code, 0) << described.talk;
  EXPECT_THAT(described.out, HasSubstr("RankKilled (certain): rank 1 (node here, slot 1) "))
      << "cause, rank and device of a job that trains on";
  EXPECT_THAT(described.out, HasSubstr(sentence));
  const support::Finished list = cluster_.Phalanx({"incidents", "list", name});
  EXPECT_EQ(list.exit_code, 0) << list.talk;
  EXPECT_THAT(list.out, HasSubstr("RankKilled  1 "));
  EXPECT_THAT(Show({"--svg", "-"}).out, StartsWith("<svg "));
  EXPECT_THAT(Show({}).out, HasSubstr("communicators_ready"));
  cluster_.Cancel(job_);
  cluster_.AwaitEnd(job_);
  watch.Wait();
  const std::string talk = support::ReadText(watched);
  EXPECT_THAT(talk, HasSubstr("\nRecovered: rank 1 (node here, slot 1) "));
  EXPECT_THAT(talk, HasSubstr("; back after "));
  EXPECT_EQ(Show({"-o", "json"}).out, written) << "the store keeps it";
}

INSTANTIATE_TEST_SUITE_P(Homes, IncidentTest,
                         testing::Values(IncidentCase{"Mirrors", "ranks: 4", "language dp 4 -> 3"},
                                         IncidentCase{"HostMemory", "ranks: 2",
                                                      "language dp 2 -> 1"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace phalanx::e2e

// `trace: true` and `profile: true`: what a run leaves that it measured of one step.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/samples.h"
#include "core/schedule/program.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

plan::Plan PlanOf(const DataFolder& data, const JobOptions& options) {
  const auto read = wire::ReadJobFile(JobText(data, options), job::Purpose::kSubmit);
  EXPECT_TRUE(read.ok()) << read.status();
  if (!read.ok()) return {};
  auto plan = plan::MakePlan(read->spec, plan::MakeCluster(1, read->spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : plan::Plan();
}

// Rows that travel, by sender, receiver and direction.
using Flows = std::multiset<std::tuple<int, int, std::string>>;

Flows ExpectedFlows(const plan::Plan& plan) {
  Flows flows;
  for (int64_t microbatch = 0; microbatch < plan.microbatches; ++microbatch) {
    const auto samples = plan::SamplesOfMicrobatch(plan, microbatch);
    for (int32_t link = 0; link < static_cast<int32_t>(plan.links.size()); ++link) {
      for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
        flows.insert({message.from.value, message.to.value, "activation"});
        flows.insert({message.to.value, message.from.value, "gradient"});
      }
    }
  }
  return flows;
}

struct Trace {
  Json about;
  std::map<int, std::vector<Json>> events;  // of instructions, by rank, in program order
  std::map<int, std::map<std::string, std::set<std::string>>> streams;  // operations, by thread
  Flows flows;
};

Trace ReadTrace(const std::string& path) {
  const Json file = Json::parse(support::ReadText(path));
  Trace trace{.about = file.at("otherData")};
  std::map<int64_t, std::pair<int, std::string>> senders;
  std::map<std::pair<int, int>, std::string> threads;
  for (const Json& event : file.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const int rank = event.at("pid");
    if (phase == "M" && event.at("name") == "thread_name")
      threads[{rank, event.at("tid").get<int>()}] = event.at("args").at("name");
    if (phase == "X" && event.at("cat") == "communication") {
      EXPECT_GE(event.at("dur").get<double>(), 0);
      const std::string& thread = threads.at({rank, event.at("tid").get<int>()});
      trace.streams[rank][thread].insert(event.at("name").get<std::string>());
    } else if (phase == "X") {
      trace.events[rank].push_back(event);
    }
    if (phase == "s") senders[event.at("id")] = {rank, event.at("name")};
    if (phase != "f") continue;
    const auto& [sender, name] = senders.at(event.at("id"));
    trace.flows.insert({sender, rank, name});
  }
  EXPECT_EQ(senders.size(), trace.flows.size());
  return trace;
}

double EndOf(const Json& event) {
  return event.at("ts").get<double>() + event.at("dur").get<double>();
}

class TraceTest : public testing::TestWithParam<JobOptions> {};

TEST_P(TraceTest, Run_LeavesWhatEveryRankDidInTheLastStepButOne) {
  const DataFolder data = MakeData({.samples = 24, .images_min = 0, .images_max = 2, .words = 4});
  JobOptions options = GetParam();
  options.trace = true;
  const plan::Plan plan = PlanOf(data, options);
  const auto programs = schedule::BuildStep(plan);
  ASSERT_TRUE(programs.ok()) << programs.status();
  Cluster cluster({.devices = plan.world});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  const std::string path = data.path + "/out/trace.json";
  const Trace trace = ReadTrace(path);
  EXPECT_EQ(trace.about.at("step"), options.steps - 1);
  EXPECT_THAT(cluster.Phalanx({"logs", options.name}).out,
              HasSubstr(absl::StrCat("trace of step ", options.steps - 1, " is in ", path)));

  // A step lies between the decisions of the second step before it and of the one behind it.
  const std::vector<Metric> metrics = ReadMetrics(data.path + "/out");
  ASSERT_EQ(StepsFault(metrics, options.steps), "");
  double limit = 0;
  for (size_t i = metrics.size() - 3; i < metrics.size(); ++i) limit += 1e6 * metrics[i].seconds;
  ASSERT_EQ(trace.events.size(), static_cast<size_t>(plan.world));
  double first = 1e30;
  int with_messages = 0;
  for (const auto& [rank, events] : trace.events) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const schedule::Program& program = (*programs)[static_cast<size_t>(rank)];
    ASSERT_EQ(events.size(), program.size());
    double begin = 1e30, end = 0, computed = 0, last = -1;
    int gaps = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      const Json& event = events[i];
      EXPECT_EQ(event.at("cat"), std::string(schedule::OpName(program[i].op)));
      EXPECT_EQ(event.at("args").value("microbatch", -1), program[i].microbatch);
      EXPECT_GE(event.at("dur").get<double>(), 0);
      begin = std::min(begin, event.at("ts").get<double>());
      end = std::max(end, EndOf(event));
      // A rank waits in receives and collectives; of what is none only for the last decision.
      if (i > 0) gaps += std::abs(event.at("ts").get<double>() - last) > 1e-3;
      last = EndOf(event);
      if (event.at("tid") != 0) continue;
      EXPECT_GE(event.at("ts").get<double>(), computed - 1e-3) << event;
      computed = EndOf(event);
    }
    EXPECT_LT(end - begin, limit);
    EXPECT_LE(gaps, 1);
    const auto& streams = trace.streams.at(rank);
    EXPECT_TRUE(streams.at("stream of control").contains("all-gather")) << "of records";
    for (const char* name : {"stream of forward", "stream of backward"}) {
      const auto messages = streams.find(name);
      if (messages == streams.end()) continue;  // its samples may have no items
      EXPECT_EQ(messages->second, std::set<std::string>{"exchange"});
      ++with_messages;
    }
    first = std::min(first, begin);
  }
  EXPECT_GE(with_messages, 4);
  EXPECT_NEAR(first, 0, 1e-6);
  EXPECT_EQ(trace.flows, ExpectedFlows(plan));
}

INSTANTIATE_TEST_SUITE_P(Jobs, TraceTest,
                         testing::Values(JobOptions{.name = "disjoint",
                                                    .steps = 5,
                                                    .vision = "ranks: 2",
                                                    .language = "ranks: 4, tp: 2, pp: 2"},
                                         JobOptions{
                                             .name = "colocated",
                                             .steps = 4,
                                             .vision = "ranks: 2",
                                             .language = "ranks: 2, pp: 2",
                                             .language_offset = "vision",
                                             .schedule = "{name: three_phase, encoder_chunks: 2}"}),
                         [](const auto& info) { return info.param.name; });

// No step behind it says when it is done.
TEST(ShortTraceTest, OneRankAndTwoSteps_LeaveTheLast) {
  const DataFolder data = MakeData();
  const JobOptions options{.steps = 2, .vision = "", .trace = true};
  Cluster cluster({.devices = 1});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  const Trace trace = ReadTrace(data.path + "/out/trace.json");
  EXPECT_EQ(trace.about.at("step"), 2);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_GT(EndOf(trace.events.at(0).back()), 0);
}

TEST(ProfileTest, Run_LeavesWhereEachRanksTimeWentInTheLastStepButOne) {
  const DataFolder data = MakeData();
  const JobOptions options{.steps = 6, .profile = true};
  Cluster cluster({.devices = 2});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  for (int rank = 0; rank < 2; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    std::ifstream in(absl::StrCat(data.path, "/out/ranks/rank-", rank, ".json"));
    const Json figures = Json::parse(in);
    ASSERT_TRUE(figures.contains("profile")) << cluster.WorkerLog();
    const Json& profile = figures.at("profile");
    EXPECT_EQ(profile.at("step"), 5);
    double sum = profile.at("waiting").get<double>();
    for (const auto& [name, part] : profile.at("parts").items())
      sum += part.at("share").get<double>();
    EXPECT_NEAR(sum, profile.at("seconds").get<double>(), 1e-6);
    EXPECT_GT(profile.at("parts").at("products").at("kernels"), 0);
    EXPECT_GT(profile.at("parts").at("attention").at("kernels"), 0);
  }
}

TEST(NoTraceTest, RunThatDoesNotAsk_LeavesNone) {
  const DataFolder data = MakeData();
  const JobOptions options{.steps = 2, .vision = ""};
  Cluster cluster({.devices = 1});
  const v1::JobStatus job = cluster.Submit(Document(data, options));
  ASSERT_EQ(cluster.AwaitEnd(job.id()).phase(), v1::JOB_PHASE_SUCCEEDED) << cluster.WorkerLog();
  EXPECT_TRUE(std::filesystem::exists(data.path + "/out/metrics.jsonl"));
  EXPECT_FALSE(std::filesystem::exists(data.path + "/out/trace.json"));
}

}  // namespace
}  // namespace phalanx::e2e

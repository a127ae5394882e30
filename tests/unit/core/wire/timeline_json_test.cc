#include "core/wire/timeline_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "core/plan/samples.h"
#include "tests/support/specs.h"
#include "tests/unit/core/wire/pictured.h"

namespace phalanx::wire {
namespace {

using Json = nlohmann::json;
using schedule::TimedInstruction;
using ::testing::ElementsAre;

std::vector<Json> EventsOf(const Json& trace, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

// Every rank, not one of each class.
std::vector<TimedInstruction> TimelineOfAllRanks(const plan::Plan& plan) {
  const auto programs = schedule::BuildStep(plan);
  EXPECT_TRUE(programs.ok()) << programs.status();
  return schedule::Simulate(plan, *programs, schedule::CostFromShapes(plan)).timeline;
}

TEST(TraceJsonTest, Examples_HaveEveryInstructionAndTheWholeStep) {
  for (const std::string& file : Examples()) {
    SCOPED_TRACE(file);
    const Pictured pictured = MustPicture(MustReadExample(file));
    const Json trace = Json::parse(TraceJson(pictured.plan, pictured.preview.timeline));
    const std::vector<Json> events = EventsOf(trace, "X");
    ASSERT_EQ(events.size(), pictured.preview.timeline.size());
    double end = 0, last = 0;
    for (const auto& timed : pictured.preview.timeline) last = std::max(last, timed.end);
    for (const Json& event : events) {
      EXPECT_GE(event["dur"].get<double>(), 0);
      end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
    }
    EXPECT_NEAR(end, last * 1e6, 1e-9 * last * 1e6);
    EXPECT_EQ(trace["otherData"]["job"], pictured.plan.spec.name);
  }
}

TEST(TraceJsonTest, Processes_AreRanksWithFourNamedThreads) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  const Json trace = Json::parse(TraceJson(plan, TimelineOfAllRanks(plan)));
  std::map<int, std::string> processes;
  std::map<int, std::vector<std::string>> threads;
  for (const Json& event : EventsOf(trace, "M")) {
    const int rank = event["pid"];
    if (event["name"] == "process_name") processes[rank] = event["args"]["name"];
    if (event["name"] == "thread_name") threads[rank].push_back(event["args"]["name"]);
  }
  ASSERT_EQ(processes.size(), 8u);
  EXPECT_EQ(processes[3], "rank 3: vision stage 0");
  EXPECT_EQ(processes[6], "rank 6: language stage 1");
  for (const auto& [rank, names] : threads) {
    EXPECT_THAT(names,
                ElementsAre("compute", "forward messages", "backward messages", "collectives"));
  }
}

TEST(TraceJsonTest, Instructions_HaveNamesArgumentsAndTimes) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  using schedule::Op;
  const Json trace = Json::parse(TraceJson(
      plan,
      {{Rank{4}, {.op = Op::kForward, .module = 1, .microbatch = 2}, 0.5, 0.75},
       {Rank{4}, {.op = Op::kSendForward, .link = 0, .microbatch = 2, .ticket = 9}, 0.75, 0.75},
       {Rank{4}, {.op = Op::kSendBackward, .link = 1, .microbatch = 2, .ticket = 9}, 1, 1.5},
       {Rank{4}, {.op = Op::kReduce, .module = 1, .ticket = 12}, 2, 3},
       {Rank{4}, {.op = Op::kRecord, .ticket = 13}, 3, 3}}));
  const std::vector<Json> events = EventsOf(trace, "X");
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["name"], "F language 0 m2");
  EXPECT_EQ(events[0]["args"], Json::parse(R"({"module":"language","chunk":0,"microbatch":2})"));
  EXPECT_EQ(events[0]["pid"], 4);
  EXPECT_EQ(events[0]["tid"], 0);
  EXPECT_DOUBLE_EQ(events[0]["ts"], 500'000);
  EXPECT_DOUBLE_EQ(events[0]["dur"], 250'000);
  EXPECT_EQ(events[1]["name"], "send language stage 0 -> language stage 1 m2");
  EXPECT_EQ(events[1]["args"], Json::parse(R"({"microbatch":2,"link":0})"));
  EXPECT_EQ(events[1]["tid"], 1);
  EXPECT_EQ(events[2]["name"], "send vision stage 0 -> language stage 0 m2");
  EXPECT_EQ(events[2]["tid"], 2);
  EXPECT_EQ(events[3]["name"], "reduce language 0");
  EXPECT_EQ(events[3]["tid"], 3);
  EXPECT_EQ(events[4]["name"], "record");
}

TEST(TraceJsonTest, OperationsOfCommunicators_HaveAThreadForEach) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  using plan::CommunicatorOperation;
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  const auto unknown = static_cast<int32_t>(specs.size());
  const Json trace =
      Json::parse(TraceJson(plan, {{Rank{4}, {.op = schedule::Op::kRecord, .ticket = 13}, 3, 3}}, 7,
                            {{Rank{4}, 0, CommunicatorOperation::kAllGather, 0.25, 0.5},
                             {Rank{4}, 3, CommunicatorOperation::kReduceScatter, 0.5, 0.75},
                             {Rank{4}, 0, CommunicatorOperation::kAllGather, 0.5, 1},
                             {Rank{4}, unknown, CommunicatorOperation::kExchange, 0, 1}}));
  const std::vector<Json> events = EventsOf(trace, "X");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1]["name"], "all-gather");
  EXPECT_EQ(events[1]["cat"], "communication");
  EXPECT_EQ(events[1]["pid"], 4);
  EXPECT_EQ(events[1]["tid"], 4);
  EXPECT_DOUBLE_EQ(events[1]["ts"], 250'000);
  EXPECT_DOUBLE_EQ(events[1]["dur"], 250'000);
  EXPECT_EQ(events[2]["name"], "reduce-scatter");
  EXPECT_EQ(events[2]["tid"], 7);
  EXPECT_EQ(events[3]["tid"], 4);
  std::map<int, std::string> threads;
  for (const Json& event : EventsOf(trace, "M")) {
    if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ(threads.size(), 6u);
  EXPECT_EQ(threads[4], "stream of control");
  EXPECT_EQ(threads[7], "stream of " + specs[3].name);
}

TEST(TraceJsonTest, Flows_OfAllRanks_JoinExactlyTheRanksThatExchangeRows) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  const std::vector<TimedInstruction> timeline = TimelineOfAllRanks(plan);
  // A flow a message and direction.
  std::multiset<std::tuple<int, int>> expected, drawn;
  for (int64_t microbatch = 0; microbatch < plan.microbatches; ++microbatch) {
    const auto samples = plan::SamplesOfMicrobatch(plan, microbatch);
    for (int32_t link = 0; link < static_cast<int32_t>(plan.links.size()); ++link) {
      for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
        expected.insert({message.from.value, message.to.value});
        expected.insert({message.to.value, message.from.value});
      }
    }
  }
  const Json trace = Json::parse(TraceJson(plan, timeline));
  std::map<int64_t, int> senders;
  for (const Json& event : EventsOf(trace, "s")) senders[event["id"]] = event["pid"];
  for (const Json& event : EventsOf(trace, "f")) {
    ASSERT_TRUE(senders.contains(event["id"]));
    EXPECT_EQ(event["bp"], "e");
    drawn.insert({senders[event["id"]], event["pid"].get<int>()});
  }
  EXPECT_EQ(drawn, expected);
  EXPECT_EQ(senders.size(), expected.size()) << "one end of a flow is missing";
}

TEST(TraceJsonTest, Flows_OfOneRankOfEachClass_JoinThoseThatThereAre) {
  // Class representatives 0 (vision), 4 and 6 (language stages).
  const Pictured pictured = MustPicture(EncoderBesideLanguage());
  const Json trace = Json::parse(TraceJson(pictured.plan, pictured.preview.timeline));
  // Two links, both directions, three microbatches.
  EXPECT_EQ(EventsOf(trace, "s").size(), 12u);
  EXPECT_EQ(EventsOf(trace, "f").size(), 12u);
}

TEST(TraceJsonTest, Flow_WithOneEndMissing_IsLeftOut) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  const Json trace = Json::parse(TraceJson(
      plan, {{Rank{4}, {.op = schedule::Op::kSendForward, .link = 0, .microbatch = 0}, 0, 0}}));
  EXPECT_TRUE(EventsOf(trace, "s").empty());
  EXPECT_TRUE(EventsOf(trace, "f").empty());
}

TEST(TraceJsonTest, OtherData_NamesTheStepOfAMeasuredTimelineAlone) {
  const plan::Plan plan = MustPlan(EncoderBesideLanguage());
  EXPECT_EQ(Json::parse(TraceJson(plan, {}, 7))["otherData"]["step"], 7);
  EXPECT_FALSE(Json::parse(TraceJson(plan, {}))["otherData"].contains("step"));
}

TEST(TraceJsonTest, Name_ThatIsNotUtf8_IsReplaced) {
  plan::Plan plan = MustPlan(EncoderBesideLanguage());
  plan.spec.name = "caf\xe9";
  EXPECT_EQ(Json::parse(TraceJson(plan, {}))["otherData"]["job"], "caf\xEF\xBF\xBD");
}

}  // namespace
}  // namespace phalanx::wire

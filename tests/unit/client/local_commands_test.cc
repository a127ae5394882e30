// Commands that need no server: validate and plan.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/rank_list.h"
#include "core/schedule/choice.h"
#include "core/schedule/profile.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/unit/client/example.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Written(const std::string& name, const std::string& text) {
  std::string path = ::testing::TempDir() + "/" + name;
  support::WriteFile(path, text);
  return path;
}

TEST(ValidateTest, Yaml_IsTheCompleteDocument) {
  Captured captured;
  EXPECT_EQ(Validate({.file = kExample, .format = Format::kYaml}, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("  batch:\n    global: 48\n"));
  EXPECT_TRUE(wire::ReadJobFile(captured.out.str(), job::Purpose::kSubmit).ok());
}

TEST(ValidateTest, LayoutThatThePlannerCannotFind_IsRefusedAsBySubmit) {
  const std::string text = absl::StrReplaceAll(
      support::ReadFile(kExample), {{"{ranks: 2, tp: 1}", "auto"},
                                    {"{ranks: 4, tp: 2, pp: 2, layers: [3, 3]}", "auto"},
                                    {"      offset: 2\n", ""},
                                    {"devices: 6", "devices: 4096"}});
  Captured captured;
  EXPECT_EQ(Validate({.file = Written("validate-auto.yaml", text)}, captured.io), kBadJobFile);
  EXPECT_THAT(captured.talk.str(), HasSubstr("spec.modules: no layout on 4096 devices"));
}

TEST(ValidateTest, MissingFile_IsNoInput) {
  Captured captured;
  EXPECT_EQ(Validate({.file = "/nowhere/job.yaml"}, captured.io), kNoInput);
}

TEST(ValidateTest, CheckData_EndsLikeTheProgramThatReadsIt) {
  Captured good, bad;
  EXPECT_EQ(Validate({.file = kExample, .check_data = true, .worker = "/bin/true"}, good.io),
            kSuccess);
  EXPECT_EQ(Validate({.file = kExample, .check_data = true, .worker = "/bin/false"}, bad.io), 1);
}

TEST(PlanTest, ThatTakesLong_SaysSoOnATerminalAlone) {
  Captured terminal, pipe, quick;
  terminal.io.terminal = true;
  EXPECT_EQ(Plan({.file = kExample, .note_delay = absl::ZeroDuration()}, terminal.io), kSuccess);
  EXPECT_EQ(terminal.talk.str(), "planning: laying the job out and simulating a step ...\n");
  EXPECT_EQ(Plan({.file = kExample, .note_delay = absl::ZeroDuration()}, pipe.io), kSuccess);
  EXPECT_EQ(pipe.talk.str(), "");
  quick.io.terminal = true;
  EXPECT_EQ(Plan({.file = kExample, .note_delay = absl::Hours(1)}, quick.io), kSuccess);
  EXPECT_EQ(quick.talk.str(), "");
}

TEST(PlanTest, NeedsNoServer) {
  Captured json, table, small;
  EXPECT_EQ(Plan({.file = kExample, .format = Format::kJson, .nodes = "2x4"}, json.io), kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("\"kind\": \"Plan\""));
  EXPECT_EQ(Plan({.file = kExample}, table.io), kSuccess);
  EXPECT_THAT(table.out.str(), HasSubstr("emoji-captions"));
  EXPECT_EQ(Plan({.file = kExample, .nodes = "1x4"}, small.io), kFailure);
  EXPECT_EQ(Plan({.file = kExample, .nodes = "many"}, small.io), kUsage);
}

TEST(PlanTest, FailureDomains_AreOfSoManyNodesEach_OrAreRefused) {
  Captured json, alone, search;
  EXPECT_EQ(
      Plan({.file = kExample, .format = Format::kJson, .nodes = "6x1", .domain_nodes = {1, 2}},
           json.io),
      kSuccess)
      << json.talk.str();
  for (const char* node : {"\"node\":\"node-0\",\"domain\":\"domain-0\"",
                           "\"node\":\"node-1\",\"domain\":\"domain-1\"",
                           "\"node\":\"node-2\",\"domain\":\"domain-1\"",
                           "\"node\":\"node-3\",\"domain\":\"domain-2\"",
                           "\"node\":\"node-5\",\"domain\":\"domain-3\""}) {
    EXPECT_THAT(json.out.str(), HasSubstr(node));
  }
  EXPECT_EQ(Plan({.file = kExample, .domain_nodes = {1}}, alone.io), kUsage);
  EXPECT_EQ(alone.talk.str(), "error: --domain-nodes needs --nodes\n");
  EXPECT_EQ(
      Plan({.file = kExample, .nodes = "6x1", .domain_nodes = {1}, .search = true}, search.io),
      kUsage);
  EXPECT_EQ(search.talk.str(), "error: --domain-nodes does not go with --search\n");
}

TEST(PlanTest, LostRanks_LeaveTheReducedPlan_OrAreRefused) {
  Captured json, restart, wrong, all;
  EXPECT_EQ(Plan({.file = kExample, .format = Format::kJson, .lost = {3, 1}}, json.io), kSuccess)
      << json.talk.str();
  EXPECT_THAT(json.out.str(), HasSubstr("\"lost\": [1,3]"));
  EXPECT_THAT(json.out.str(), HasSubstr("\"epoch\": 1,"));
  // The language model has one replica: what the lost rank kept is in memory of its node.
  EXPECT_THAT(json.out.str(), HasSubstr("\"from\":\"host\""));
  EXPECT_THAT(json.out.str(), HasSubstr("\"moves_left_out\": false"));
  EXPECT_THAT(json.out.str(), HasSubstr("\"steps_lost\": 2,"));
  EXPECT_THAT(json.out.str(), HasSubstr("\"safe_again_steps\": 2,"));
  EXPECT_EQ(Plan({.file = kExample, .lost = {6, 1, 1}}, wrong.io), kBadJobFile);
  EXPECT_EQ(
      wrong.talk.str(),
      "--lost: 6: must be a rank of the job, below 6\n--lost: 1: is named twice\n2 violations\n");
  EXPECT_EQ(Plan({.file = kExample, .lost = {2, 3}}, restart.io), kSuccess);
  EXPECT_THAT(restart.out.str(), HasSubstr("Restart: language pp 2 -> 1 on ranks 4, 5\n"));
  EXPECT_EQ(Plan({.file = kExample, .lost = {2, 3, 4, 5}}, all.io), kFailure);
  EXPECT_EQ(all.talk.str(),
            "error: no replica of module language is left without these ranks\n"
            "what to do: change that first, and run the command again\n");
}

TEST(PlanTest, Search_ShowsLayoutsAndWritesAJobThatTrains) {
  Captured table, json, name, again;
  const std::string path = ::testing::TempDir() + "/found.yaml";
  EXPECT_EQ(Plan({.file = kExample, .search = true, .devices = 4, .write = path}, table.io),
            kSuccess)
      << table.talk.str();
  EXPECT_THAT(table.out.str(), HasSubstr("4 devices of kind nominal"));
  EXPECT_EQ(Plan({.file = kExample,
                  .format = Format::kJson,
                  .search = true,
                  .devices = 4,
                  .device_kind = "h200",
                  .items = 2},
                 json.io),
            kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("\"device_kind\": \"h200\""));
  EXPECT_EQ(
      Plan({.file = kExample, .format = Format::kName, .search = true, .devices = 4}, name.io),
      kSuccess);
  EXPECT_THAT(table.out.str(), HasSubstr(name.out.str()));
  // What it wrote can be submitted, and a search leaves it as it is.
  EXPECT_TRUE(wire::ReadJobFile(support::ReadFile(path), job::Purpose::kSubmit).ok());
  EXPECT_EQ(Plan({.file = path, .format = Format::kName, .search = true}, again.io), kSuccess);
  EXPECT_EQ(again.out.str(), name.out.str());
}

TEST(PlanTest, Search_WhatDoesNotGoTogether_IsUsage) {
  const auto refusal = [](const PlanOptions& options) {
    Captured captured;
    EXPECT_EQ(Plan(options, captured.io), kUsage);
    return captured.talk.str();
  };
  EXPECT_EQ(refusal({.file = kExample, .devices = 4}), "error: --devices needs --search\n");
  EXPECT_EQ(refusal({.file = kExample, .write = "x"}), "error: --write needs --search\n");
  EXPECT_EQ(refusal({.file = kExample, .items = 4}),
            "error: --items needs --search, --device-kind or --device-profile\n");
  EXPECT_EQ(refusal({.file = kExample, .lost = {1}, .search = true}),
            "error: --lost does not go with --search\n");
  EXPECT_EQ(refusal({.file = kExample, .nodes = "2x4", .search = true, .devices = 4}),
            "error: --devices does not go with --nodes, which says how many there are\n");
  EXPECT_THAT(refusal({.file = kExample, .search = true, .items = 65536}),
              HasSubstr("--items: 65536: a sample has room for "));
  EXPECT_THAT(refusal({.file = kExample, .search = true, .device_kind = "h300"}),
              HasSubstr("there is no profile of devices"));
}

TEST(PlanTest, DeviceKind_PredictsAStep) {
  Captured table, json, file, none;
  EXPECT_EQ(Plan({.file = kExample, .device_kind = "h200", .items = 2}, table.io), kSuccess)
      << table.talk.str();
  EXPECT_THAT(table.out.str(), HasSubstr("Predicted step: "));
  EXPECT_THAT(table.out.str(), HasSubstr(" ms on h200, 2 items a sample; "));
  EXPECT_EQ(Plan({.file = kExample, .format = Format::kJson, .device_kind = "h200"}, json.io),
            kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("\"prediction\": {"));
  EXPECT_THAT(json.out.str(), HasSubstr("\"device_kind\":\"h200\""));
  EXPECT_THAT(json.out.str(), HasSubstr("\"memory_parts\":{"));
  EXPECT_THAT(table.out.str(), Not(HasSubstr("not measured")));
  EXPECT_EQ(Plan({.file = kExample}, none.io), kSuccess);
  EXPECT_THAT(none.out.str(), Not(HasSubstr("Predicted step")));
  // The same profile from a file.
  const std::string path =
      Written("h200.json", schedule::WriteProfile(*schedule::FindProfile("h200")));
  EXPECT_EQ(Plan({.file = kExample, .format = Format::kJson, .device_profile = path}, file.io),
            kSuccess)
      << file.talk.str();
  EXPECT_EQ(file.out.str(), json.out.str());
}

TEST(PlanTest, DeviceProfile_WithoutCommunicators_SaysSo) {
  schedule::DeviceProfile profile = *schedule::FindProfile("h200");
  profile.process->communicators.reset();
  const std::string path = Written("alone.json", schedule::WriteProfile(profile));
  Captured table;
  EXPECT_EQ(Plan({.file = kExample, .device_profile = path}, table.io), kSuccess);
  EXPECT_THAT(table.out.str(), HasSubstr("; not measured: communicators, standby"));
}

TEST(PlanTest, DeviceKind_OfWhatALossLeaves_PredictsItAndItsStepInHealthyOnes) {
  const auto shown = [](const PlanOptions& options) {
    Captured captured;
    EXPECT_EQ(Plan(options, captured.io), kSuccess) << captured.talk.str();
    return nlohmann::json::parse(captured.out.str());
  };
  PlanOptions options = {.file = kExample, .format = Format::kJson, .device_kind = "h200"};
  const double before = shown(options)["prediction"]["step"];
  options.lost = {1};
  const nlohmann::json left = shown(options);
  const double behind = left["prediction"]["step"];
  EXPECT_NE(behind, before);
  EXPECT_NEAR(left["step_ratio"], behind / before, 1e-5);
}

TEST(PlanTest, DeviceProfile_GoesWithSearch) {
  Captured kind, file, broken;
  const std::string path =
      Written("profile.json", schedule::WriteProfile(*schedule::FindProfile("h200")));
  EXPECT_EQ(Plan({.file = kExample, .search = true, .device_kind = "h200"}, kind.io), kSuccess);
  EXPECT_EQ(Plan({.file = kExample, .search = true, .device_profile = path}, file.io), kSuccess);
  EXPECT_EQ(file.out.str(), kind.out.str());
  const std::string wrong = Written("wrong.json", R"({"version": 7})");
  EXPECT_EQ(Plan({.file = kExample, .device_profile = wrong}, broken.io), kBadJobFile);
  EXPECT_THAT(broken.talk.str(), HasSubstr("version: 7: this build reads profiles of version"));
  Captured text;
  EXPECT_EQ(Plan({.file = kExample, .device_profile = Written("text.json", "no JSON")}, text.io),
            kBadJobFile);
  EXPECT_THAT(text.talk.str(), HasSubstr("--device-profile: "));
}

TEST(PlanTest, Search_NothingFits_IsABadJob) {
  Captured captured;
  EXPECT_EQ(Plan({.file = kExample, .device_memory = "1Ki", .search = true}, captured.io),
            kBadJobFile);
  EXPECT_THAT(captured.talk.str(), HasSubstr("fits the memory of each, 1.0 KiB"));
}

TEST(RankListTest, Lists_NameRanks_AndEmptyItemsAreRefused) {
  EXPECT_THAT(*ParseRanks({}), ElementsAre());
  EXPECT_THAT(*ParseRanks({"3", "1,2", "-1"}), ElementsAre(3, 1, 2, -1));
  for (const char* list : {"", ",", "1,,2", "1,", ",1", "x", "1,2x", "1.5", "99999999999"}) {
    EXPECT_EQ(ParseRanks({list}).status().message(),
              absl::StrCat("\"", list, "\" must be ranks such as 3 or 1,3"));
  }
}

// Two ranks of one module.
constexpr char kTwo[] = R"(metadata: {name: two}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, vocabulary: 64, context: 16, block: 32}
      parallel: {ranks: 2, AXIS}
  batch: {global: 8, micro: 1}
)";

TEST(PlanTest, WhatNoEstimateCounts_HasItsPlaceOnDevicesOfAKind) {
  const std::string path = Written("room.yaml", absl::StrReplaceAll(kTwo, {{"AXIS", "tp: 1"}}));
  Captured any, h200, larger;
  EXPECT_EQ(Plan({.file = path, .device_memory = "1Gi"}, any.io), kSuccess);
  EXPECT_EQ(Plan({.file = path, .device_memory = "1Gi", .device_kind = "h200"}, h200.io),
            kBadJobFile);
  EXPECT_THAT(h200.talk.str(), HasSubstr("device has 1 B for it; another rank does not fit"));
  EXPECT_EQ(Plan({.file = path, .device_memory = "4Gi", .device_kind = "h200"}, larger.io),
            kSuccess);
}

TEST(PlanTest, WhatIsLeftBeyondTheMemory_IsRefusedWithTheRanksThatAreLost) {
  const auto refusal = [&](const char* axis, const char* memory) {
    const std::string path = Written("two.yaml", absl::StrReplaceAll(kTwo, {{"AXIS", axis}}));
    Captured captured;
    EXPECT_EQ(Plan({.file = path, .device_memory = memory, .lost = {1}}, captured.io), kBadJobFile);
    return captured.talk.str();
  };
  EXPECT_EQ(refusal("tp: 1", "1400Ki"),
            "spec.modules: without rank 1, rank 0 needs 1.5 MiB (optimizer 706.5 KiB is the "
            "largest term), device has 1.4 MiB for it\n1 violation\n");
  EXPECT_EQ(
      refusal("tp: 2", "1Mi"),
      "spec.modules: without rank 1, rank 0 needs 1.5 MiB (optimizer 706.5 KiB is the largest "
      "term), device has 1.0 MiB for it; replica 0 of module language is 1 wide there instead of "
      "2\n1 violation\n");
}

TEST(PlanTest, AnOpenLayout_IsChosenForTheDevicesAndItemsOfTheCommandLine_AndANoteSaysSo) {
  const std::string path =
      Written("open.yaml",
              absl::StrReplaceAll(kTwo, {{"{ranks: 2, AXIS}", "auto"},
                                         {"micro: 1}", "micro: 1}\n  resources: {devices: 2}"}}));
  Captured nominal, named;
  EXPECT_EQ(Plan({.file = path}, nominal.io), kSuccess) << nominal.talk.str();
  EXPECT_THAT(nominal.out.str(), HasSubstr("Note: parallel: auto became language "));
  EXPECT_THAT(nominal.out.str(), HasSubstr("under nominal costs (no --device-kind), with 1 item"));
  EXPECT_EQ(Plan({.file = path, .device_kind = "h200", .items = 3}, named.io), kSuccess)
      << named.talk.str();
  EXPECT_THAT(named.out.str(), HasSubstr("under the profile of h200, with 3 items a sample"));
}

TEST(PlanTest, AnOpenLayout_KeepsTensorGroupsWithinTheNodesOfTheCommandLine_ElseOfEight) {
  const std::string path = Written("wide.yaml", R"(metadata: {name: wide}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 512, layers: 16, heads: 16, mlp_size: 512, vocabulary: 512, context: 16, block: 32}
      parallel: auto
  batch: {global: 1, micro: 1}
  resources: {devices: 16}
)");
  const auto axes = [&path](const std::string& nodes) {
    Captured captured;
    EXPECT_EQ(Plan({.file = path, .format = Format::kJson, .nodes = nodes}, captured.io), kSuccess)
        << nodes << ": " << captured.talk.str();
    return nlohmann::json::parse(captured.out.str())["modules"][0]["axes"];
  };
  EXPECT_EQ(axes("16x1")["tp"], 1);
  EXPECT_EQ(axes("16x1")["pp"], 16) << "a step of one sample has one replica";
  EXPECT_LE(axes("4x4")["tp"], 4);
  EXPECT_LE(axes("")["tp"], 8) << "as a search and a coordinator without nodes count";
}

TEST(PlanTest, AnOpenLayout_BesideAWrittenOne_HasTheDevicesOfTheJobAndNoMore) {
  const std::string path = Written("beside.yaml", R"(metadata: {name: beside}
spec:
  steps: 1
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, image_size: 32, patch_size: 16, block: 32}
      parallel: {ranks: 2}
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, vocabulary: 64, context: 64, block: 32}
      parallel: auto
  edges:
    - {from: vision, to: language, projector: {hidden_size: 64}}
  batch: {global: 4, micro: 2}
  resources: {devices: 2}
)");
  Captured one, named;
  EXPECT_EQ(Plan({.file = path, .format = Format::kName}, one.io), kSuccess) << one.talk.str();
  EXPECT_EQ(Plan({.file = path, .format = Format::kName, .nodes = "1x2"}, named.io), kSuccess);
  EXPECT_EQ(one.out.str(), named.out.str()) << "the digest names the devices";
}

TEST(PlanTest, AnOpenSchedule_IsTheOneThatEveryPlannerChooses) {
  const std::string text = R"(metadata: {name: open}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 8, heads: 4, mlp_size: 128, vocabulary: 64, context: 16}
      parallel: {ranks: 4, pp: 4}
  batch: {global: 8, micro: 1}
  schedule: {name: auto}
)";
  const std::string file = Written("open.yaml", text);
  Captured name, table;
  ASSERT_EQ(Plan({.file = file, .format = Format::kName}, name.io), kSuccess) << name.talk.str();
  const auto read = wire::ReadJobFile(text, job::Purpose::kPlan);
  const auto plan = schedule::PlanJob(read->spec, plan::MakeCluster(1, 4), Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(name.out.str(), plan->digest + "\n");
  ASSERT_EQ(Plan({.file = file}, table.io), kSuccess) << table.talk.str();
  EXPECT_THAT(table.out.str(), HasSubstr("SCHEDULE TRIED"));
  EXPECT_THAT(table.out.str(), HasSubstr("chosen"));
}

TEST(PlanTest, MoreThanTheDevicesHave_IsABadJobFile) {
  Captured enough, little, wrong;
  EXPECT_EQ(Plan({.file = kExample, .device_memory = "16Gi"}, enough.io), kSuccess);
  EXPECT_EQ(Plan({.file = kExample, .device_memory = "1Mi"}, little.io), kBadJobFile);
  EXPECT_EQ(little.out.str(), "");
  EXPECT_THAT(little.talk.str(), HasSubstr("spec.modules: rank "));
  EXPECT_THAT(little.talk.str(),
              HasSubstr(" is the largest term), device has 1.0 MiB for it; 5 other ranks"));
  for (const char* text : {"much", "", "0", "-1Gi"}) {
    EXPECT_EQ(Plan({.file = kExample, .device_memory = text}, wrong.io), kUsage) << text;
    EXPECT_THAT(wrong.talk.str(),
                HasSubstr(absl::StrCat("--device-memory \"", text, "\": must be")));
    EXPECT_EQ(Plan({.file = kExample, .host_memory = text}, wrong.io), kUsage) << text;
    EXPECT_THAT(wrong.talk.str(), HasSubstr(absl::StrCat("--host-memory \"", text, "\": must be")));
  }
}

// A module of one replica has its second home in host memory, if there is room.
TEST(PlanTest, SecondHomesBeyondHostMemory_AreLeftOutAsARunDoes) {
  Captured enough, little;
  const std::string file = Written("tensor.yaml", absl::StrReplaceAll(kTwo, {{"AXIS", "tp: 2"}}));
  EXPECT_EQ(Plan({.file = file, .host_memory = "16Gi"}, enough.io), kSuccess);
  EXPECT_THAT(enough.out.str(), testing::Not(HasSubstr("has no second home")));
  EXPECT_EQ(Plan({.file = file, .host_memory = "1Ki"}, little.io), kSuccess) << little.talk.str();
  EXPECT_THAT(little.out.str(), HasSubstr("has no second home: node-0 needs "));
}

// Context and expert parallelism: planned, groups shown, not trained.
TEST(PlanTest, AxesThatAreNotTrainedYet_ArePlannedAndNotSubmitted) {
  const std::string file = Written("axes.yaml", R"(metadata: {name: axes}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 192, layers: 6, heads: 6, mlp_size: 512, vocabulary: 512, context: 64}
      parallel: {ranks: 16, tp: 2, cp: 2, pp: 2, ep: 2, expt_tp: 2}
  batch: {global: 48}
  data: {shards: a.tar, tokenizer: a.model}
)");
  Captured plan, submit;
  ASSERT_EQ(Plan({.file = file, .format = Format::kJson}, plan.io), kSuccess) << plan.talk.str();
  for (const char* group :
       {"\"cp\":[[0,2],[1,3],", "\"dp-cp\":[[0,2,4,6],[1,3,5,7],", "\"ep\":[[0,2],[1,3],",
        "\"expt_tp\":[[0,1],[2,3],", "\"expt_dp\":[[0,4],[1,5],"}) {
    EXPECT_NE(plan.out.str().find(group), std::string::npos) << group;
  }
  FakeServer server;
  Connection connection = server.Connect();
  Stopper stopper;
  EXPECT_EQ(Submit(connection, {.file = file}, stopper, submit.io), kBadJobFile);
  for (const char* refusal :
       {"parallel.cp: 2: this release does not train with context parallelism yet",
        "parallel.ep: 2: this release does not train with expert parallelism yet",
        "parallel.expt_tp: 2: this release does not train with tensor-parallel experts yet"}) {
    EXPECT_THAT(submit.talk.str(), HasSubstr(refusal));
  }
}

}  // namespace
}  // namespace phalanx::client

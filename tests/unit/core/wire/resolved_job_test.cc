#include "core/wire/resolved_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "core/base/violation.h"
#include "core/plan/plan.h"
#include "core/schedule/search.h"
#include "core/wire/job_yaml.h"
#include "core/wire/search_text.h"

namespace phalanx::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kText[] = R"(metadata: {name: open}
spec:
  steps: 1
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, image_size: 32, patch_size: 8, block: 32}
      parallel: auto
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 4, heads: 4, mlp_size: 128, vocabulary: 64, context: 64, block: 32}
      parallel: LANGUAGE
  edges: [{from: vision, to: language, projector: {type: mlp}}]
  batch: {global: 8, micro: 2}
  recovery: {ladder: [drop-replica]}
  resources: {devices: 4}
)";

std::string Text(const std::string& language) {
  return absl::StrReplaceAll(kText, {{"LANGUAGE", language}});
}

absl::StatusOr<ResolvedJob> ResolveText(const std::string& text,
                                        const SearchedDevices& devices = {}) {
  auto read = ReadJobFile(text, job::Purpose::kPlan);
  if (!read.ok()) return read.status();
  return Resolve(text, *std::move(read), job::Purpose::kPlan, devices);
}

TEST(ResolvedJobTest, Auto_BecomesALayoutThatCanBePlanned_AlwaysTheSame) {
  const auto resolved = ResolveText(Text("auto")), again = ResolveText(Text("auto"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->text, again->text);
  const job::JobSpec& spec = resolved->job.spec;
  EXPECT_FALSE(spec.HasOpenLayout());
  EXPECT_EQ(spec.resources.devices, 4);
  EXPECT_LE(spec.batch.micro, 2);
  EXPECT_TRUE(plan::MakePlan(spec, plan::MakeCluster(1, 4), Epoch{1}).ok());
  EXPECT_EQ(ReadJobFile(resolved->text, job::Purpose::kPlan)->spec.modules[1].parallel.ranks,
            spec.modules[1].parallel.ranks);
}

TEST(ResolvedJobTest, Auto_BesideAWrittenLayout_LeavesThat) {
  const auto resolved = ResolveText(Text("{ranks: 2, tp: 2}"));
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->job.spec.modules[1].parallel.tp, 2);
  EXPECT_EQ(resolved->job.spec.modules[1].parallel.ranks, 2);
}

TEST(ResolvedJobTest, Auto_IsWhatASearchFindsForTheDevicesAndTheItemsOfTheJob_AndTheNoteSaysSo) {
  const std::string text = absl::StrReplaceAll(
      Text("auto"), {{"micro: 2}", "micro: 2, items: 4, labelled_share: 0.5}"}});
  SearchedDevices devices{.node_devices = 4, .device_memory = int64_t{8} << 30};
  devices.costs.profile = *schedule::FindProfile("h200");
  const auto read = ReadJobFile(text, job::Purpose::kPlan);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto found = schedule::SearchLayouts(read->spec, {.devices = 4,
                                                          .node_devices = 4,
                                                          .device_memory = int64_t{8} << 30,
                                                          .profile = devices.costs.profile,
                                                          .items = 4,
                                                          .open = {true, true},
                                                          .keep_written = true});
  ASSERT_TRUE(found.ok()) << found.status();
  const std::string layout = LayoutText(found->best.front().spec);
  const auto resolved = ResolveText(text, devices);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(LayoutText(resolved->job.spec), layout);
  EXPECT_EQ(resolved->job.spec.batch.items, 4);
  EXPECT_EQ(resolved->note,
            "parallel: auto became " + layout +
                ": fastest by search under the profile of h200, with 4 items a sample "
                "(batch.items) and a label at 50 % of positions (batch.labelled_share)");
}

TEST(ResolvedJobTest, Auto_WithoutAProfile_SaysWhyCostsAreNominal) {
  SearchedDevices devices;
  EXPECT_THAT(ResolveText(Text("auto"), devices)->note,
              HasSubstr("under nominal costs, with 1 item a"));
  devices.costs = schedule::CostsOfDevices({"NVIDIA L40S"});
  EXPECT_THAT(ResolveText(Text("auto"), devices)->note,
              HasSubstr("under nominal costs (no profile of NVIDIA L40S), with 1 item a sample"));
}

TEST(ResolvedJobTest, NothingLeftOpen_StaysAsItIs) {
  const std::string text =
      absl::StrReplaceAll(Text("{ranks: 2}"), {{"parallel: auto", "parallel: {ranks: 2}"}});
  const auto resolved = ResolveText(text);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->text, text);
  EXPECT_EQ(resolved->note, "");
}

TEST(ResolvedJobTest, Auto_ThatNobodyWaitsFor_EndsWithWhatItIsTold) {
  const auto refused = [](const std::string& text) {
    auto read = ReadJobFile(text, job::Purpose::kPlan);
    EXPECT_TRUE(read.ok()) << read.status();
    return Resolve(text, *std::move(read), job::Purpose::kPlan, {}, std::nullopt,
                   [] { return absl::CancelledError("nobody waits"); })
        .status();
  };
  EXPECT_EQ(refused(Text("auto")), absl::CancelledError("nobody waits"));
  EXPECT_TRUE(
      refused(absl::StrReplaceAll(Text("{ranks: 2}"), {{"parallel: auto", "parallel: {ranks: 2}"}}))
          .ok())
      << "there is nothing to search for";
}

TEST(ResolvedJobTest, Auto_ThatNothingFits_IsRefused) {
  const auto resolved = ResolveText(Text("auto"), {.device_memory = 1024});
  EXPECT_THAT(std::string(resolved.status().message()), HasSubstr("fits the memory of each"));
}

TEST(ResolvedJobTest, Unresolved_IsNotPlanned) {
  const auto read = ReadJobFile(Text("auto"), job::Purpose::kPlan);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(EmitYaml(job::WriteJobSpec(read->spec)), HasSubstr("parallel: auto"));
  const auto plan = plan::MakePlan(read->spec, plan::MakeCluster(1, 4), Epoch{1});
  const std::vector<Violation> violations = ViolationsOf(plan.status());
  ASSERT_FALSE(violations.empty());
  EXPECT_EQ(ToString(violations.front()),
            "spec.modules[0].parallel: auto: is left to the planner, which has not chosen yet");
}

std::vector<std::string> Wrong(const std::string& text) {
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(ReadJobFile(text, job::Purpose::kPlan).status()))
    lines.push_back(ToString(violation));
  return lines;
}

TEST(ResolvedJobTest, Auto_NeedsDevicesAndNoOffsets) {
  EXPECT_THAT(Wrong(absl::StrReplaceAll(Text("auto"), {{"  resources: {devices: 4}\n", ""}})),
              ElementsAre("spec.resources.devices: is required where a module's parallel is auto: "
                          "on how many devices"));
  EXPECT_THAT(Wrong(Text("auto\n      offset: vision")),
              ElementsAre("spec.modules[1].offset: vision: may not be written where a module's "
                          "parallel is auto: the planner places all modules"));
  EXPECT_THAT(Wrong(Text("automatic")),
              ElementsAre("spec.modules[1].parallel: automatic: must be a mapping, or auto"));
}

}  // namespace
}  // namespace phalanx::wire

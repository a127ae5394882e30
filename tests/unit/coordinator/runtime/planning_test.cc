// The coordinator's planning: the same plan, by digest, as whoever else plans the document.
#include "coordinator/runtime/planning.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/schedule/choice.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Document kOpen = {.text = R"(metadata: {name: open}
spec:
  steps: 1
  modules:
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 8, heads: 4, mlp_size: 128, vocabulary: 64, context: 16}
      parallel: {ranks: 4, pp: 4}
  batch: {global: 8, micro: 1}
  schedule: {name: auto}
  data: {shards: a.tar, tokenizer: a.model}
)",
                        .directory = "/data"};

plan::Plan PlanOf(const Document& document) {
  auto read = wire::ReadJobFile(document.text, job::Purpose::kSubmit);
  EXPECT_TRUE(read.ok()) << read.status();
  auto plan = schedule::PlanJob(read->spec, plan::MakeCluster(1, 4), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(PlanningTest, AnOpenSchedule_IsChosenAsEveryoneElseDoes) {
  const plan::Plan plan = PlanOf(kOpen);
  EXPECT_NE(plan.spec.schedule.name, job::ScheduleName::k1F1B) << "nothing was chosen";
  const auto summary = PlanDocument(kOpen, {{.node = "node-0", .devices = {0, 1, 2, 3}}}, Epoch{1});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->digest, plan.digest);

  const auto json = PlanJson(
      kOpen, {{.name = "node-0", .connected = true, .device_jobs = std::vector<JobId>(4)}});
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, HasSubstr(absl::StrCat("\"digest\": \"", plan.digest, "\"")));
  EXPECT_THAT(*json, HasSubstr("\"chosen\":true"));
  EXPECT_THAT(*json, Not(HasSubstr("auto")));
}

}  // namespace
}  // namespace phalanx::coordinator

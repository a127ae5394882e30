// What the coordinator makes of job documents: refused at submit, or at the plan on given devices.
#include "coordinator/runtime/planning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/prng.h"
#include "core/base/violation.h"
#include "core/plan/cost.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/schedule/admission.h"
#include "core/schedule/choice.h"
#include "core/schedule/preview.h"
#include "core/wire/job_yaml.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Two ranks of an encoder and two of a language model.
constexpr char kText[] = R"(metadata: {name: demo}
spec:
  steps: 10
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 64, layers: 2, heads: 4, mlp_size: 128, image_size: 32, patch_size: 16, block: 32}
      parallel: {ranks: 2}
    - name: language
      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, mlp_size: 128, vocabulary: 256, context: 64, block: 32}
      parallel: {ranks: 2, tp: 2}
  edges:
    - {from: vision, to: language, projector: {hidden_size: 64}}
  batch: {global: 4, micro: 2}
  data: {shards: "a-{0..1}.tar", tokenizer: t.model}
)";
const JobRequest kRequest = {.document = {.text = kText, .directory = "/jobs"}};
const Placement kPlacement = {{"n", {0, 1}}, {"m", {4, 2}}};

Document With(const std::string& from, const std::string& to) {
  return {absl::StrReplaceAll(kText, {{from, to}}), "/jobs"};
}

std::vector<std::string> Wrong(const absl::Status& status) {
  std::vector<std::string> lines;
  for (const Violation& violation : ViolationsOf(status)) lines.push_back(ToString(violation));
  return lines;
}

// Bytes that each rank needs.
std::vector<int64_t> Needs() {
  const auto job = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto plan = schedule::PlanJob(job->spec, plan::MakeCluster(1, 4), Epoch{1});
  std::vector<int64_t> needs;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(*plan)) {
    needs.push_back(estimate.total());
  }
  return needs;
}

TEST(ReadRequestTest, JobInFp8OnGpus_AsksForNodesThatHaveIt) {
  const auto selector = [](const std::string& precision, const std::string& device) {
    const auto request =
        ReadRequest(With("  steps: 10\n", absl::StrCat("  steps: 10\n  precision: {", precision,
                                                       "}\n  resources: {device: ", device,
                                                       ", node_selector: {rack: a}}\n")),
                    {});
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? (*request)->node_selector : std::map<std::string, std::string>();
  };
  using ::testing::Pair;
  EXPECT_THAT(selector("linear: fp8", "gpu"),
              ElementsAre(Pair("phalanx/fp8", "yes"), Pair("rack", "a")));
  EXPECT_THAT(selector("linear: fp8", "cpu"), ElementsAre(Pair("rack", "a")));
  EXPECT_THAT(selector("linear: compute", "gpu"), ElementsAre(Pair("rack", "a")));
}

TEST(ReadRequestTest, GoodDocument_IsRead) {
  const absl::StatusOr<JobRequestPtr> request = ReadRequest({kText, "/jobs"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->world, 4);
  EXPECT_EQ((*request)->devices, 4);
  EXPECT_EQ((*request)->output, "/jobs/runs/demo");
}

TEST(ReadRequestTest, EveryViolation_IsReportedAtOnce) {
  Document document = With("steps: 10", "steps: 0");
  document.text = absl::StrReplaceAll(document.text, {{"ranks: 2, tp: 2", "ranks: 2, tp: 3"}});
  EXPECT_THAT(Wrong(ReadRequest(document).status()),
              ElementsAre(StartsWith("spec.steps: 0: "),
                          "spec.modules[1].parallel.tp: 3: tp*cp*pp must divide ranks (2)"));
}

TEST(ReadRequestTest, OpenLayout_IsChosenAndWrittenIntoTheDocument) {
  Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
  document.text += "  resources: {devices: 4}\n";
  EXPECT_TRUE(MayNeedSearch(document.text));
  const absl::StatusOr<JobRequestPtr> request = ReadRequest(document);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->devices, 4);
  EXPECT_FALSE(MayNeedSearch((*request)->document.text));
  // What is stored is planned without another search.
  EXPECT_TRUE(PlanRequest(**request, kPlacement, {}, Epoch{1}).ok());
  const NodeView small{.name = "n",
                       .connected = true,
                       .device_jobs = std::vector<JobId>(4),
                       .device_memory = std::vector<int64_t>(4, 1024)};
  EXPECT_THAT(Wrong(ReadRequest(document, {}, [&small] { return std::vector{small}; }).status()),
              ElementsAre(HasSubstr("fits the memory of each, 1.0 KiB")));
}

// A submit does not wait until thousands of nodes are copied that it does not look at.
TEST(ReadRequestTest, LayoutsThatAreWritten_DoNotAskForNodes) {
  bool asked = false;
  EXPECT_TRUE(ReadRequest({kText, "/jobs"}, {}, [&asked] {
                asked = true;
                return std::vector<NodeView>();
              }).ok());
  EXPECT_FALSE(asked);
}

TEST(ReadRequestTest, MayNeedSearch_SeesTheWordHoweverItIsWritten) {
  for (const char* text : {"parallel: auto", "{\"parallel\": \"auto\"}", "parallel:\n  auto",
                           "parallel: *same", "parallel: {ranks: 1}\nparallel: 'auto'"}) {
    EXPECT_TRUE(MayNeedSearch(text)) << text;
  }
  for (const char* text : {kText, "schedule: auto", "parallel: {ranks: 2}", "parallel"})
    EXPECT_FALSE(MayNeedSearch(text)) << text;
}

// A document of up to four modules, drawn from a seed without looking whether its parts fit.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : prng_(seed) {}

  std::string Make() {
    const bool vision = prng_.Below(2) == 0, voice = prng_.Below(3) == 0;
    const bool regressor = prng_.Below(4) == 0;
    std::string modules, edges;
    const auto add_edge = [&](const std::string& from, const std::string& to) {
      absl::StrAppend(&edges, "    - {from: ", from, ", to: ", to,
                      Pick({"", ", projector: {}", ", projector: {hidden_size: 32}"}), "}\n");
    };
    if (vision) {
      modules += Module("vision", "clip_vision", "image_size: 8, patch_size: 4");
      add_edge("vision", "language");
    }
    if (voice) {
      modules += Module("voice", "whisper", "mel_bins: 4, frames: 8");
      add_edge("voice", Pick({"language", "regressor"}));
    }
    modules += Module("language", "llama", "context: 32, vocabulary: " + Pick({"16", "96", "96"}));
    if (regressor) {
      modules += Module("regressor", "regressor", "context: 32");
      add_edge("language", "regressor");
    }
    return absl::StrCat(
        "metadata: {name: random}\nspec:\n  steps: 3\n  modules:\n", modules,
        edges.empty() ? "" : "  edges:\n", edges, "  batch: {global: ", Pick({"1", "3", "8"}),
        ", micro: ", Pick({"1", "2"}), "}\n  schedule: {name: ",
        Pick({"auto", "1f1b", "interleaved", "zero_bubble_h1", "zero_bubble_v", "three_phase"}),
        ", chunks: ", Pick({"1", "1", "1", "2"}), ", encoder_chunks: ", Pick({"1", "1", "1", "2"}),
        "}\n");
  }

 private:
  std::string Pick(const std::vector<std::string>& choices) {
    return choices[prng_.Below(choices.size())];
  }
  std::string Module(const std::string& name, const std::string& family, const std::string& more) {
    return absl::StrCat(
        "    - name: ", name, "\n      architecture: {family: ", family,
        ", hidden_size: ", Pick({"16", "16", "16", "32"}), ", layers: ", Pick({"4", "8", "8"}),
        ", heads: ", Pick({"1", "2", "4", "4"}), ", mlp_size: 32, block: ", Pick({"8", "8", "16"}),
        ", ", more, "}\n      parallel: {ranks: ", Pick({"2", "4", "4", "8"}),
        ", tp: ", Pick({"1", "1", "2", "4"}), ", pp: ", Pick({"1", "1", "2"}),
        Rarely({", cp: 2", ", ep: 2", ", expt_tp: 2"}), Rarely({", layers: [1, 3]"}),
        Rarely({", order: [dp, tp, cp, pp]"}),
        "}\n      frozen: ", Pick({"false", "false", "true"}), "\n",
        Rarely({"      offset: 0\n", "      offset: language\n", "      offset: 11\n"}));
  }
  // Mostly nothing.
  std::string Rarely(const std::vector<std::string>& choices) {
    return prng_.Below(6) == 0 ? Pick(choices) : "";
  }

  Prng prng_;
};

TEST(ReadRequestTest, WhateverTheRulesOfDocumentsLetPass_CanBePlanned) {
  int32_t passed = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    const std::string text = RandomText(seed).Make();
    const auto job = wire::ReadJobFile(text, job::Purpose::kPlan);
    if (!job.ok()) continue;
    ++passed;
    const auto plan = plan::MakePlan(job->spec, plan::MakeCluster(1, job->spec.World()), Epoch{1});
    ASSERT_TRUE(plan.ok()) << "seed " << seed << "\n" << text << plan.status();
  }
  EXPECT_GE(passed, 300);
}

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

TEST(PlanRequestTest, AnOpenSchedule_IsChosenAsEveryoneElseDoes) {
  const plan::Plan plan = PlanOf(kOpen);
  EXPECT_NE(plan.spec.schedule.name, job::ScheduleName::k1F1B) << "nothing was chosen";
  const auto summary =
      PlanRequest({.document = kOpen}, {{.node = "node-0", .devices = {0, 1, 2, 3}}}, {}, Epoch{1});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->digest, plan.digest);

  const auto preview = PreviewPlan(
      kOpen, {}, {{.name = "node-0", .connected = true, .device_jobs = std::vector<JobId>(4)}});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_EQ(preview->digest(), plan.digest);
  EXPECT_NE(preview->schedule().name(), "auto");
  EXPECT_EQ(std::count_if(preview->candidates().begin(), preview->candidates().end(),
                          [](const auto& candidate) { return candidate.chosen(); }),
            1);
}

TEST(PlanRequestTest, DevicesOfUnknownMemory_HoldAnything) {
  const absl::StatusOr<PlanSummary> plan =
      PlanRequest(kRequest, kPlacement, {.devices = {0, 0, 0, 0}}, Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->digest, PlanRequest(kRequest, kPlacement, {}, Epoch{1})->digest);
  EXPECT_THAT(plan->layout.idle, IsEmpty());
}

TEST(PlanRequestTest, RanksOfNoModule_AreIdle) {
  const Document document = With("ranks: 2, tp: 2}", "ranks: 2, tp: 2}\n      offset: 4");
  const Placement placement = {{"n", {0, 1, 2, 3, 4, 5, 6}}};
  EXPECT_THAT(PlanRequest({.document = document}, placement, {}, Epoch{1})->layout.idle,
              ElementsAre(Rank{2}, Rank{3}, Rank{6}));
}

TEST(PlanRequestTest, DevicesThatHoldTheirRanksToTheByte_AreTaken) {
  EXPECT_TRUE(PlanRequest(kRequest, kPlacement, {.devices = Needs()}, Epoch{1}).ok());
}

TEST(PlanRequestTest, DeviceThatIsTooSmall_IsRefusedInOneSentence) {
  const std::vector<int64_t> needs = Needs();
  std::vector<int64_t> memory = needs;
  memory[3] = needs[3] / 2;
  const absl::Status status =
      PlanRequest(kRequest, kPlacement, {.devices = memory}, Epoch{1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_THAT(Wrong(status), ElementsAre(StartsWith("spec.modules: rank 3 needs ")));
  EXPECT_EQ(status.message(), Wrong(status)[0]) << "what becomes the job's failure";
  EXPECT_THAT(Wrong(status)[0], ::testing::EndsWith(" is the largest term), device has " +
                                                    plan::FormatBytes(memory[3])));
}

TEST(ReadRequestTest, RanksThatAJobCannotDoWithout_AreRefusedByName) {
  const auto read = [](plan::RankList lost) {
    return ReadRequest({kText, "/jobs"}, std::move(lost)).status();
  };
  EXPECT_THAT(
      Wrong(read({Rank{4}, Rank{1}, Rank{1}})),
      ElementsAre("lost: 4: must be a place of the job, below 4", "lost: 1: is named twice"));
  EXPECT_EQ(
      read({Rank{2}, Rank{3}}),
      absl::FailedPreconditionError("no replica of module language is left without these ranks"));
  EXPECT_EQ(read(plan::RankList(5)).message(),
            "lost: 5 ranks: must be no more than the places of the job, 4");
}

TEST(PlanRequestTest, RanksThatAJobBeginsWithout_AreLeftOutOfItsFirstEpoch) {
  const auto request = ReadRequest({kText, "/jobs"}, {Rank{1}, Rank{3}});
  ASSERT_TRUE(request.ok()) << request.status();
  const auto summary = PlanRequest(**request, kPlacement, {}, Epoch{1});
  ASSERT_TRUE(summary.ok()) << summary.status();
  const plan::Layout& layout = summary->layout;
  EXPECT_EQ(layout.epoch, Epoch{1});
  EXPECT_EQ(layout.nodes, kPlacement);
  EXPECT_THAT(layout.lost, ElementsAre(Rank{1}, Rank{3}));
  EXPECT_THAT(layout.modules[0].changes, ElementsAre(plan::SlotChange{.dp = 1}));
  EXPECT_THAT(layout.modules[1].changes, ElementsAre(plan::SlotChange{.ranks = {Rank{2}}}));
  // What the ranks derive from document and layout.
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, layout)->digest, summary->digest);
  const auto preview =
      PreviewPlan({kText, "/jobs"}, {Rank{1}, Rank{3}},
                  {{.name = "n", .connected = true, .device_jobs = std::vector<JobId>(4)}});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_THAT(preview->lost(), ElementsAre(1, 3));
  // Once there is a layout, it says what is lost.
  const auto again = PlanRequest(**request, kPlacement, {}, Epoch{2}, layout);
  ASSERT_TRUE(again.ok()) << again.status();
  plan::Layout next = layout;
  next.epoch = Epoch{2};
  EXPECT_EQ(again->layout, next);
}

TEST(PlanRequestTest, NotesOfThePlan_ComeAlong) {
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto admitted =
      schedule::AdmitJob(read->spec, plan::ClusterOf(kPlacement), {.devices = Needs()}, Epoch{1});
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  ASSERT_THAT(admitted->notes, Contains(HasSubstr("losing device ")));
  EXPECT_EQ(PlanRequest(kRequest, kPlacement, {.devices = Needs()}, Epoch{1})->notes,
            admitted->notes);
}

TEST(PlanRequestTest, LayoutForRanksOfTheReleaseBefore_IsOfTheirDerivation) {
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  ComputePlan order{.request = std::make_shared<const JobRequest>(kRequest),
                    .placement = kPlacement,
                    .epoch = Epoch{1}};
  const auto now = PlanJobOf(order);
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->layout.derivation, plan::kDerivation);
  order.derivation = plan::kOldestDerivation;
  const auto old = PlanJobOf(order);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->layout.derivation, plan::kOldestDerivation);
  EXPECT_EQ(old->digest, plan::Expand(read->spec, old->layout)->digest);
  EXPECT_NE(old->digest, now->digest);
  EXPECT_EQ(old->notes, now->notes);
  // A layout keeps its own as ranks are lost.
  order.layout = Shared<plan::Layout>(old->layout);
  order.derivation = plan::kDerivation;
  order.lost = {Rank{1}};
  order.any_rung = true;
  const auto after = PlanJobOf(order);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->layout.derivation, plan::kOldestDerivation);
}

NodeView ANode(const std::string& name, std::vector<int64_t> memory) {
  return {.name = name,
          .connected = true,
          .device_jobs = std::vector<JobId>(2),
          .device_memory = std::move(memory)};
}

// The encoder's state is mirrored on n, the language model's second home is memory of m; and so the
// state of both is copied.
TEST(PlanRequestTest, HostMemoryOfEachNode_ComesAlong_AndItsLimitsAreKept) {
  const absl::StatusOr<PlanSummary> plan = PlanRequest(kRequest, kPlacement, {}, Epoch{1});
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->host_memory, ElementsAre(::testing::Gt(0), ::testing::Gt(0)));
  const int64_t need = plan->host_memory[1];
  EXPECT_EQ(PlanRequest(kRequest, kPlacement, {.nodes = {0, need}}, Epoch{1})->digest,
            plan->digest);
  const PlanSummary less = *PlanRequest(kRequest, kPlacement, {.nodes = {0, need - 1}}, Epoch{1});
  EXPECT_THAT(less.host_memory, IsEmpty());
  EXPECT_THAT(less.notes, Contains(HasSubstr("module language has no second home: m needs ")));
  NodeView small = ANode("m", {});
  small.host_memory = need - 1;
  const auto preview = PreviewPlan({kText, "/jobs"}, {}, {ANode("a", {}), small});
  ASSERT_TRUE(preview.ok()) << preview.status();
  EXPECT_THAT(preview->notes(),
              Contains(HasSubstr("module language has no second home: m needs ")));
  // What was decided stays, where the job has not asked for it: its ranks find out.
  const auto again =
      PlanRequest(kRequest, kPlacement, {.nodes = {0, need - 1}}, Epoch{2}, plan->layout);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->host_memory, plan->host_memory);
}

// Rank 2 has the language model to itself then.
TEST(PlanRequestTest, WhatIsLeftBeyondItsMemory_IsRefusedWithWhatIsLost_AsThePreviewDoes) {
  std::vector<int64_t> memory(4, 0);
  memory[2] = Needs()[2];
  const auto request = ReadRequest({kText, "/jobs"}, {Rank{1}, Rank{3}});
  ASSERT_TRUE(request.ok()) << request.status();
  const absl::Status refused =
      PlanRequest(**request, kPlacement, {.devices = memory}, Epoch{1}).status();
  EXPECT_THAT(
      Wrong(refused),
      ElementsAre(AllOf(
          StartsWith("spec.modules: without ranks 1, 3, rank 2 needs "),
          EndsWith(absl::StrCat(", device has ", plan::FormatBytes(memory[2]),
                                "; replica 0 of module language is 1 wide there instead of 2")))));
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  const auto preview = schedule::PreviewJob(read->spec, plan::MakeCluster(1, 4),
                                            {.devices = memory}, plan::RankList{Rank{1}, Rank{3}});
  EXPECT_EQ(preview.status(), refused);
}

TEST(PlanRequestTest, AnyRung_IsNotOfTheLadderAndTheDigestStillOfTheDocument) {
  const JobRequest waits{.document = With("  data:", "  recovery: {ladder: [wait]}\n  data:")};
  const auto first = PlanRequest(waits, kPlacement, {}, Epoch{1});
  ASSERT_TRUE(first.ok()) << first.status();
  const plan::RankList lost = {Rank{3}};
  const auto plan_of = [&](bool any_rung) {
    return PlanRequest(waits, kPlacement, {}, Epoch{2}, first->layout, lost, {}, {}, any_rung);
  };
  EXPECT_THAT(plan_of(false).status().message(), HasSubstr("recovery.ladder"));
  const auto saved = plan_of(true);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->layout.epoch, Epoch{2});
  EXPECT_THAT(saved->layout.lost, ElementsAre(Rank{3}));
  const auto read = wire::ReadJobFile(waits.document.text, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, saved->layout)->digest, saved->digest);
}

TEST(ReadRequestTest, JobThatBorrows_HasSpareInItsLadder) {
  EXPECT_TRUE((*ReadRequest({kText, "/jobs"}))->borrows);
  const Document document =
      With("  data:", "  recovery: {ladder: [shrink, drop-replica]}\n  data:");
  EXPECT_FALSE((*ReadRequest(document))->borrows);
}

TEST(PlanRequestTest, RankThatReturnsOnALentDevice_IsThereAndNothingElseChanges) {
  const absl::StatusOr<PlanSummary> whole = PlanRequest(kRequest, kPlacement, {}, Epoch{1});
  ASSERT_TRUE(whole.ok()) << whole.status();
  const plan::RankList hit = {Rank{3}};
  const auto without = PlanRequest(kRequest, kPlacement, {}, Epoch{2}, whole->layout, hit);
  ASSERT_TRUE(without.ok()) << without.status();
  const std::map<Rank, plan::Device> lent = {{Rank{3}, {"spares", 5}}};
  // It is the device of which the limit is.
  std::vector<int64_t> memory = Needs();
  const auto again = PlanRequest(kRequest, kPlacement, {.devices = memory}, Epoch{3},
                                 without->layout, {}, hit, {}, false, lent);
  ASSERT_TRUE(again.ok()) << again.status();
  plan::Layout expected = whole->layout;
  expected.epoch = Epoch{3};
  plan::Cluster cluster = plan::ClusterOf(kPlacement);
  cluster.devices[3] = {"spares", 5};
  expected.nodes = plan::PlacementOf(cluster);
  EXPECT_EQ(again->layout, expected);
  const auto read = wire::ReadJobFile(kText, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, again->layout)->digest, again->digest);
  // All wait for it: it is lost and there at once.
  const auto at_once =
      PlanRequest(kRequest, kPlacement, {}, Epoch{3}, whole->layout, hit, hit, {}, false, lent);
  ASSERT_TRUE(at_once.ok()) << at_once.status();
  EXPECT_EQ(at_once->layout, expected);
}

// Nobody of it is lost: the order says who is slow, and the answer what that comes to.
TEST(PlanJobTest, SlowPlaces_SayWhoIsDealtOtherwise) {
  const JobRequest request = {
      .document = With("batch: {global: 4, micro: 2}", "batch: {global: 8, micro: 8}")};
  ComputePlan order{.request = std::make_shared<const JobRequest>(request),
                    .placement = kPlacement,
                    .epoch = Epoch{2}};
  order.layout = PlanRequest(request, kPlacement, {}, Epoch{1})->layout;
  order.slow = plan::SlowPlaces{{Rank{1}, plan::kPaceOfOthers / 2}};
  const absl::StatusOr<PlanSummary> plan = PlanJobOf(order);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->layout.epoch, Epoch{2});
  EXPECT_EQ(plan->layout.slow, *order.slow);
  EXPECT_THAT(plan->dealt, ElementsAre("replica 1 of vision has 2 of 8 samples a step, not 4"));
  const auto read = wire::ReadJobFile(request.document.text, job::Purpose::kSubmit);
  EXPECT_EQ(plan::Expand(read->spec, plan->layout)->digest, plan->digest);
  // It is the only replica of language.
  order.slow = plan::SlowPlaces{{Rank{3}, plan::kPaceOfOthers / 2}};
  EXPECT_THAT(PlanJobOf(order)->dealt, IsEmpty());
  order.layout = plan->layout;
  order.slow = plan::SlowPlaces{};
  order.epoch = Epoch{3};
  const absl::StatusOr<PlanSummary> back = PlanJobOf(order);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_THAT(back->dealt, ElementsAre("replica 1 of vision has 4 of 8 samples a step, not 2"));
  EXPECT_THAT(back->layout.slow, IsEmpty());
}

TEST(ReadRequestTest, JobThatRelievesSlowDevices_SaysSo) {
  EXPECT_FALSE((*ReadRequest({kText, "/jobs"}))->relieves);
  EXPECT_TRUE((*ReadRequest(With("  data:", "  recovery: {slow_devices: fewer-samples}\n  data:")))
                  ->relieves);
}

// What may still be where it was does not come along.
TEST(PlanRequestTest, PlaceThatMoves_MustNotBeTheOnlyOneWithState) {
  const auto planned = [](const std::string& parallel, const plan::RankList& lost) {
    const std::string text = absl::StrCat(
        "metadata: {name: demo}\nspec:\n  steps: 10\n  modules:\n    - name: language\n",
        "      architecture: {family: llama, hidden_size: 64, layers: 2, heads: 4, kv_heads: 2, "
        "mlp_size: 128, vocabulary: 256, context: 64, block: 32}\n      parallel: ",
        parallel, "\n  batch: {global: 4, micro: 1}\n",
        "  data: {shards: \"a-{0..1}.tar\", tokenizer: t.model}\n");
    auto request = std::make_shared<JobRequest>();
    request->document = {text, "/jobs"};
    const auto whole = PlanRequest(*request, kPlacement, {}, Epoch{1});
    EXPECT_TRUE(whole.ok()) << whole.status();
    ComputePlan order{.request = request,
                      .placement = kPlacement,
                      .epoch = Epoch{2},
                      .layout = whole->layout,
                      .lost = lost,
                      .returned = lost,
                      .stateless = lost};
    for (const Rank rank : lost) order.lent[rank] = {"spares", rank.value};
    return PlanJobOf(order).status();
  };
  EXPECT_TRUE(planned("{ranks: 4, tp: 2}", {Rank{2}}).ok());
  EXPECT_TRUE(planned("{ranks: 4, tp: 2}", {Rank{2}, Rank{3}}).ok()) << "the other has it all";
  EXPECT_TRUE(absl::IsDataLoss(planned("{ranks: 4, tp: 2}", {Rank{0}, Rank{2}})));
  EXPECT_TRUE(absl::IsDataLoss(planned("{ranks: 2, tp: 2}", {Rank{1}})));
}

// The same in each place but for the names of nodes, which digests have in them.
TEST(PlanRequestTest, LayoutWithoutRanks_IsTheOneThatPlanWithoutAServerShows) {
  const std::string replicas = absl::StrReplaceAll(
      kOpen.text,
      {{"ranks: 4, pp: 4", "ranks: 8, tp: 2, pp: 2"}, {"heads: 4", "heads: 4, block: 32"}});
  const std::string parity =
      absl::StrReplaceAll(replicas, {{"  data:", "  recovery: {widths: parity}\n  data:"}});
  // Two replicas of eight, and examples 1.5 of the prior art.
  const std::string wide = absl::StrReplaceAll(
      parity, {{"ranks: 8, tp: 2, pp: 2", "ranks: 16, tp: 8"},
               {"heads: 4, block: 32, mlp_size: 128", "heads: 8, block: 8, mlp_size: 128"}});
  struct Case {
    std::string text;
    plan::RankList lost;
    int64_t memory;
    plan::RankList idle = {};
  };
  const std::vector<Case> cases = {{kText, {Rank{1}, Rank{3}}, 0},
                                   {kText, {Rank{0}}, int64_t{1} << 30},
                                   {kText, {}, 0},
                                   {replicas, {Rank{2}}, 0},
                                   {replicas, {Rank{2}}, int64_t{1} << 27},
                                   {parity, {Rank{0}, Rank{6}}, 0},
                                   {wide, {}, 0},
                                   {wide, {Rank{2}, Rank{5}, Rank{9}, Rank{11}}, 0},
                                   {wide, {Rank{2}, Rank{5}, Rank{9}}, 0, {Rank{15}}},
                                   {wide, {Rank{7}}, 0},
                                   {wide, {Rank{6}, Rank{7}, Rank{15}}, 0, {Rank{14}}},
                                   {wide, {Rank{5}, Rank{2}}, 0}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.text);
    const auto read = wire::ReadJobFile(one.text, job::Purpose::kSubmit);
    ASSERT_TRUE(read.ok()) << read.status();
    const int32_t devices = read->spec.World();
    const std::vector<int64_t> memory(static_cast<size_t>(devices), one.memory);
    const plan::Cluster cluster = plan::MakeCluster(1, devices);
    auto shown = schedule::PreviewJob(read->spec, cluster, {.devices = memory}, one.lost);
    ASSERT_TRUE(shown.ok()) << shown.status();
    plan::Placement placement = plan::PlacementOf(cluster);
    placement.front().node = "here";
    const auto request = ReadRequest({one.text, "/jobs"}, one.lost);
    ASSERT_TRUE(request.ok()) << request.status();
    auto committed = PlanRequest(**request, placement, {.devices = memory}, Epoch{1});
    ASSERT_TRUE(committed.ok()) << committed.status();
    EXPECT_NE(committed->digest, shown->plan.digest);
    committed->layout.nodes = shown->plan.layout.nodes;
    EXPECT_EQ(committed->layout, shown->plan.layout);
    EXPECT_EQ(committed->layout.idle, one.idle);
    EXPECT_EQ(plan::Expand(read->spec, committed->layout)->digest, shown->plan.digest);
  }
}

TEST(PreviewPlanTest, AxisThatIsNotTrainedYet_IsPlannedWithItsGroups_AndRefusedAtSubmit) {
  const Document document = With("ranks: 2, tp: 2}", "ranks: 2, cp: 2}");
  const auto plan = PreviewPlan(document, {}, {ANode("m", {}), ANode("n", {})});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto& groups = plan->modules(1).groups();
  const auto cp = std::find_if(groups.begin(), groups.end(),
                               [](const auto& named) { return named.name() == "cp"; });
  ASSERT_NE(cp, groups.end());
  ASSERT_EQ(cp->groups_size(), 1);
  EXPECT_THAT(cp->groups(0).ranks(), ElementsAre(2, 3));
  EXPECT_THAT(
      Wrong(ReadRequest(document).status()),
      ElementsAre("spec.modules[1].parallel.cp: 2: this release does not train with context "
                  "parallelism yet"));
}

TEST(PreviewPlanTest, NodesWhoseDevicesAreTooSmall_AreRefusedLikewise) {
  const std::vector<int64_t> needs = Needs();
  EXPECT_TRUE(PreviewPlan({kText, "/jobs"}, {},
                          {ANode("m", {needs[0], needs[1]}), ANode("n", {needs[2], needs[3]})})
                  .ok());
  EXPECT_THAT(
      Wrong(
          PreviewPlan({kText, "/jobs"}, {}, {ANode("m", {}), ANode("n", {needs[2], 1})}).status()),
      ElementsAre(StartsWith("spec.modules: rank 3 needs ")));
}

}  // namespace
}  // namespace phalanx::coordinator

// What the coordinator makes of job documents, or refuses at submit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/runtime/planning.h"
#include "core/base/prng.h"
#include "core/base/violation.h"
#include "core/plan/plan.h"
#include "core/wire/job_yaml.h"
#include "tests/unit/coordinator/runtime/planning_jobs.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

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

TEST(ReadRequestTest, JobInFp8_IsRefusedWhereNoNodeOfGpusHasIt_WithoutACopyOfTheNodes) {
  const auto submit = [](const Fp8Nodes& nodes, const std::string& resources,
                         const std::string& linear = "fp8") {
    return ReadRequest(
               With("  steps: 10\n", absl::StrCat("  steps: 10\n  precision: {linear: ", linear,
                                                  "}\n  resources: {", resources, "}\n")),
               {},
               [] {
                 ADD_FAILURE() << "thousands of them are not copied for a submit";
                 return std::vector<NodeView>();
               },
               [](const std::string&) { return std::optional<job::DataShape>(); },
               [&nodes] { return nodes; })
        .status();
  };
  const Fp8Nodes one{.gpu_nodes = 1, .without = 1, .names = {"a"}},
      two{.gpu_nodes = 2, .without = 2, .names = {"a", "b"}},
      many{.gpu_nodes = 20, .without = 20, .names = {"a", "b", "c", "d"}};
  EXPECT_THAT(Wrong(submit(two, "device: gpu")),
              ElementsAre("spec.precision.linear: fp8: needs GPUs of compute capability 9.0 or "
                          "later, which no node of GPUs has (a, b); write `linear: compute`, or "
                          "add a node that has them"));
  EXPECT_THAT(Wrong(submit(one, "device: gpu")),
              ElementsAre(HasSubstr("the node of GPUs has not (a)")));
  EXPECT_THAT(Wrong(submit(many, "device: gpu")), ElementsAre(HasSubstr("(a, b, c, d, ...)")));
  EXPECT_TRUE(submit(one, "device: cpu").ok());
  EXPECT_TRUE(submit(one, "device: gpu", "compute").ok());
  EXPECT_TRUE(submit(one, "device: gpu, node_selector: {phalanx/fp8: \"no\"}", "compute").ok());
  EXPECT_TRUE(submit({}, "device: gpu").ok());
  EXPECT_TRUE(submit({.gpu_nodes = 2, .without = 1, .names = {"a"}}, "device: gpu").ok());
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
  EXPECT_TRUE(ReadDocument(document)->NeedsSearch());
  const absl::StatusOr<JobRequestPtr> request = ReadRequest(document);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->devices, 4);
  EXPECT_FALSE(ReadDocument((*request)->document)->NeedsSearch());
  EXPECT_EQ((*request)->submitted_digest, RequestAsSubmitted(document, {})->submitted_digest);
  EXPECT_EQ((*ReadRequest({kText, "/jobs"}))->submitted_digest, "") << "the document says it";
  // What is stored is planned without another search.
  EXPECT_TRUE(PlanJob(**request, {.placement = kPlacement, .epoch = Epoch{1}}).ok());
  const NodeView small{.name = "n",
                       .connected = true,
                       .device_jobs = std::vector<JobId>(4),
                       .device_memory = std::vector<int64_t>(4, 1024)};
  EXPECT_THAT(Wrong(ReadRequest(document, {}, [&small] { return std::vector{small}; }).status()),
              ElementsAre(HasSubstr("fits the memory of each, 1.0 KiB")));
}

// A node with two GPUs of that name and 141 GiB each.
NodeView GpuNode(const std::string& name, const std::string& device_name) {
  return {.name = name,
          .connected = true,
          .device_kind = job::DeviceKind::kGpu,
          .device_jobs = std::vector<JobId>(2),
          .device_memory = std::vector<int64_t>(2, int64_t{141} << 30),
          .device_names = std::vector<std::string>(2, device_name),
          .labels = {{"rack", name}}};
}

TEST(ReadRequestTest, OpenLayout_IsChosenUnderTheProfileOfItsDevices_AndTheNoteSaysSo) {
  const auto note = [](const std::string& device, const std::vector<NodeView>& nodes) {
    Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
    document.text += absl::StrCat("  resources: {devices: 4, ", device, "}\n");
    const auto request = ReadRequest(document, {}, [&nodes] { return nodes; });
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? (*request)->layout_note : "";
  };
  const NodeView a = GpuNode("a", "NVIDIA H200"), b = GpuNode("b", "NVIDIA H200");
  EXPECT_THAT(note("device: gpu", {a, b}), HasSubstr("under the profile of h200, with 1 item"));
  const NodeView other = GpuNode("c", "NVIDIA L40S");
  EXPECT_THAT(note("device: gpu", {a, other}),
              HasSubstr("nominal costs (devices are not alike: NVIDIA H200, NVIDIA L40S)"));
  EXPECT_THAT(note("device: gpu, node_selector: {rack: a}", {a, other}),
              HasSubstr("under the profile of h200"))
      << "the others are not for this job";
  NodeView older = b;
  older.device_names.clear();
  EXPECT_THAT(note("device: gpu", {older}),
              HasSubstr("nominal costs (nodes do not name their devices)"));
  EXPECT_THAT(note("device: gpu", {}),
              HasSubstr("nominal costs (no node that the job may use is connected)"));
  EXPECT_THAT(note("device: cpu", {a}), HasSubstr("nominal costs (slots on CPU have no profile)"));
  EXPECT_EQ((*ReadRequest({kText, "/jobs"}))->layout_note, "");
}

TEST(ReadRequestTest, OpenLayout_IsChosenWithWhatIsKnownOfItsData_UnlessTheJobSays) {
  std::string asked;
  const auto request = [&asked](const std::string& batch) {
    Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
    document.text = absl::StrReplaceAll(
        document.text, {{"batch: {global: 4, micro: 2}",
                         absl::StrCat("batch: {global: 4, micro: 2", batch, "}")}});
    document.text += "  resources: {devices: 4}\n";
    const auto read = ReadRequest(
        document, {}, [] { return std::vector<NodeView>(); },
        [&asked](const std::string& key) {
          asked = key;
          return std::optional(job::DataShape{.items = 3.6, .labelled_share = 0.31251});
        });
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? *read : std::make_shared<const JobRequest>();
  };
  const JobRequestPtr known = request("");
  EXPECT_THAT(known->layout_note, HasSubstr("with 4 items a sample (batch.items) and a label at "
                                            "31.25 % of positions (batch.labelled_share)"));
  EXPECT_THAT(known->document.text, HasSubstr("labelled_share: 0.3125"))
      << "plans count with it, too";
  EXPECT_FALSE(known->data_key.empty());
  EXPECT_EQ(known->data_key, asked);
  const JobRequestPtr typed = request(", items: 2, labelled_share: 1");
  EXPECT_NE(typed->submitted_digest, known->submitted_digest);
  EXPECT_THAT(typed->layout_note, HasSubstr("with 2 items a sample (batch.items) and a label at "
                                            "100 % of positions"));
  EXPECT_EQ(typed->data_key, known->data_key) << "the same set";
  EXPECT_EQ((*ReadRequest({kText, "/jobs"}))->data_key, "") << "nothing was left to the planner";
}

// Devices and profiles may be others by then: what is stored with the job is planned.
TEST(ReadRequestTest, OpenLayout_StaysWhatItWas_AndEveryFirstPlanHasItsNote) {
  Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
  document.text += "  resources: {devices: 4}\n";
  const absl::StatusOr<JobRequestPtr> request = ReadRequest(document);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto plan = PlanJob(**request, {.placement = kPlacement, .epoch = Epoch{1}});
  const auto again = PlanJob(**request, {.placement = kPlacement, .epoch = Epoch{1}});
  ASSERT_TRUE(plan.ok() && again.ok());
  EXPECT_EQ(plan->digest, again->digest);
  EXPECT_THAT(plan->notes, ::testing::Contains((*request)->layout_note));
  const auto next = PlanJob(
      **request, {.placement = kPlacement, .epoch = Epoch{2}, .layout = Shared(plan->layout)});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->layout.modules, plan->layout.modules);
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

TEST(ReadRequestTest, JobThatRelievesSlowDevices_SaysSo) {
  EXPECT_FALSE((*ReadRequest({kText, "/jobs"}))->relieves);
  EXPECT_TRUE((*ReadRequest(With("  data:", "  recovery: {slow_devices: fewer-samples}\n  data:")))
                  ->relieves);
}

TEST(ReadRequestTest, LayoutLeftToThePlanner_IsSeenHoweverItIsWritten) {
  const auto needs_search = [](const std::string& parallel, const std::string& labels = "{a: b}") {
    Document document = With("parallel: {ranks: 2, tp: 2}", parallel);
    document.text = absl::StrReplaceAll(
        document.text, {{"{name: demo}", absl::StrCat("{name: demo, labels: ", labels, "}")}});
    document.text += "  resources: {devices: 4}\n";
    const absl::StatusOr<ReadSubmit> read = ReadDocument(document);
    EXPECT_TRUE(read.ok()) << parallel << ": " << read.status();
    return read.ok() && read->NeedsSearch();
  };
  for (const char* parallel :
       {"parallel: auto", "parallel : auto", "parallel:  # the planner's\n        auto",
        "\"parallel\": 'auto'", R"(parallel: "\x61uto")", R"("par\x61llel": auto)",
        R"("\u0070arallel": "\u0061uto")", "parallel: >-\n        auto", "parallel: !!str auto"}) {
    EXPECT_TRUE(needs_search(parallel)) << parallel;
  }
  EXPECT_TRUE(needs_search("parallel: *free", "{a: &free auto}"));
  EXPECT_TRUE(needs_search("*where : auto", "{a: &where parallel}"));
  EXPECT_FALSE(needs_search("parallel: {ranks: 2}", "{parallel: auto}"));
  EXPECT_FALSE(needs_search("parallel: {ranks: 2}  # parallel: auto"));
}

TEST(ReadRequestTest, WhatNeedsNoPlan_IsRefusedAtOnce_BeforeALayoutIsSearchedFor) {
  Document document = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
  document.text = absl::StrReplaceAll(
      document.text,
      {{"{name: demo}", "{name: demo, labels: {a: \"x\\ny\", b: z, c: \"x\\ny\"}}"}});
  document.text +=
      "  precision: {linear: fp8}\n"
      "  resources: {devices: 4, device: gpu, node_selector: {d: \"x\\ny\"}}\n";
  const auto violations = [](const Document& read) {
    return Wrong(ReadRequest(
                     read, {},
                     [] {
                       ADD_FAILURE() << "a search was to begin";
                       return std::vector<NodeView>();
                     },
                     [](const std::string&) { return std::optional<job::DataShape>(); },
                     [] { return Fp8Nodes{.gpu_nodes = 1, .without = 1, .names = {"n"}}; })
                     .status());
  };
  EXPECT_THAT(violations(document),
              ElementsAre(StartsWith("metadata.labels.a: "), StartsWith("metadata.labels.c: "),
                          StartsWith("spec.resources.node_selector.d: ")));
  // What the nodes have is asked of a file that is right by itself.
  document.text = absl::StrReplaceAll(document.text, {{"x\\ny", "xy"}});
  EXPECT_THAT(violations(document), ElementsAre(StartsWith("spec.precision.linear: fp8: needs ")));
}

TEST(ReadRequestTest, SearchThatNobodyWaitsFor_EndsWithWhatItIsTold) {
  const auto request = [](const Document& document) {
    absl::StatusOr<ReadSubmit> read = ReadDocument(document);
    EXPECT_TRUE(read.ok()) << read.status();
    return RequestOf(
               *std::move(read), [] { return std::vector<NodeView>(); },
               [](const std::string&) { return std::optional<job::DataShape>(); },
               [] { return absl::DeadlineExceededError("late"); })
        .status();
  };
  Document open = With("parallel: {ranks: 2, tp: 2}", "parallel: auto");
  open.text += "  resources: {devices: 4}\n";
  EXPECT_EQ(request(open), absl::DeadlineExceededError("late"));
  EXPECT_TRUE(request({kText, "/jobs"}).ok()) << "there is nothing to search for";
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

TEST(ReadRequestTest, JobThatBorrows_HasSpareInItsLadder) {
  EXPECT_TRUE((*ReadRequest({kText, "/jobs"}))->borrows);
  const Document document =
      With("  data:", "  recovery: {ladder: [shrink, drop-replica]}\n  data:");
  EXPECT_FALSE((*ReadRequest(document))->borrows);
}

}  // namespace
}  // namespace phalanx::coordinator

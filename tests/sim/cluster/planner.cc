#include "tests/sim/cluster/planner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "coordinator/runtime/planning.h"
#include "core/plan/shares.h"
#include "core/plan/state_table.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"

namespace phalanx::sim {
namespace {

constexpr char kDecoder[] =
    "{family: llama, hidden_size: 32, layers: LAYERS, heads: 4, kv_heads: 2, mlp_size: 64, "
    "vocabulary: 64, context: 32, block: 16}";
constexpr char kVision[] =
    "{family: clip_vision, hidden_size: 32, layers: 2, heads: 4, mlp_size: 64, image_size: 8, "
    "patch_size: 4, block: 16}";

std::string Decoder(int layers) {
  return absl::StrReplaceAll(kDecoder, {{"LAYERS", absl::StrCat(layers)}});
}

// The language module alone.
std::string Language(absl::string_view parallel, absl::string_view more = "", int layers = 2) {
  return absl::StrCat("metadata: {name: NAME}\nspec:\n  steps: STEPS\n  modules:\n",
                      "    - name: language\n      architecture: ", Decoder(layers),
                      "\n      parallel: ", parallel,
                      "\n  batch: {global: 12, micro: 1}\n  schedule: {name: 1f1b}\n"
                      "  data: {shards: \"a.tar\", tokenizer: t.model}\n",
                      more);
}

std::string WithVision(absl::string_view vision, absl::string_view language,
                       absl::string_view more = "") {
  return absl::StrCat(
      "metadata: {name: NAME}\nspec:\n  steps: STEPS\n  modules:\n",
      "    - name: vision\n      architecture: ", kVision, "\n      parallel: ", vision,
      "\n    - name: language\n      architecture: ", Decoder(2), "\n      parallel: ", language,
      "\n  edges:\n    - {from: vision, to: language, projector: {hidden_size: 32}}"
      "\n  batch: {global: 12, micro: 1}\n  schedule: {name: 1f1b}\n"
      "  data: {shards: \"a.tar\", tokenizer: t.model}\n",
      more);
}

// What tells two layouts apart as far as planning goes.
std::string KeyOf(plan::Layout layout) {
  layout.epoch = Epoch{1};
  layout.data_digest.clear();
  v1::Layout message;
  wire::ToProto(layout, &message);
  return message.SerializeAsString();
}

// Every element has its homes: ranks that are there, each once.
std::string CheckTable(const plan::Plan& plan, const plan::PartId& part,
                       const plan::StateTable& table) {
  for (const plan::RankList& homes : table.homes) {
    if (homes.empty()) return "a share has no home";
    if (std::set<Rank>(homes.begin(), homes.end()).size() != homes.size())
      return "a share has a home twice";
    for (const Rank home : homes) {
      const std::optional<plan::Place> place = plan.PlaceOf(home, part.module);
      if (!place.has_value() || place->pp != part.stage)
        return absl::StrCat("rank ", home.value, " is home of what it has no part of");
    }
  }
  const std::vector<plan::BucketRulers> buckets = plan::RulersOf(plan, part);
  size_t rulers = 0;
  for (const plan::BucketRulers& bucket : buckets) rulers += bucket.rulers.size();
  if (rulers != table.rulers.size()) return "a ruler has no homes";
  for (const plan::HomedRuler& ruler : table.rulers) {
    int64_t end = 0;
    for (const plan::HomedRun& run : ruler.runs) {
      if (run.elements.first != end) return "an element has no home, or two";
      end = run.elements.end();
    }
    const plan::FamilyRuler* whole = buckets[static_cast<size_t>(ruler.bucket)].Find(ruler.family);
    if (whole == nullptr || whole->elements() != end) return "the end of a ruler has no home";
  }
  return "";
}

void AddHomes(const plan::PartId& part, JobPlan* job) {
  const plan::StateTable table = plan::StateTableOf(job->plan, part);
  if (job->wrong.empty()) job->wrong = CheckTable(job->plan, part, table);
  std::set<std::pair<int32_t, int32_t>> homes;  // rank, primary
  for (const plan::HomedRuler& ruler : table.rulers) {
    for (const plan::HomedRun& run : ruler.runs) {
      const plan::RankList& ranks = table.homes[static_cast<size_t>(run.homes)];
      for (const Rank rank : ranks) {
        homes.insert({rank.value, ranks[0].value});
        AddRange(run.elements, &job->holdings[rank.value][{{part, ruler.bucket}, ruler.family}]);
      }
      if (ranks.empty()) continue;
      AddRange(run.elements, &job->primaries[ranks[0].value][{{part, ruler.bucket}, ruler.family}]);
    }
  }
  for (const auto& [rank, primary] : homes) job->homes[rank].push_back({part, primary});
}

// Documents whose jobs are lent devices in reserve at times: they come as often as they did before
// there were jobs with copies, which seldom are, three of four times.
const std::set<size_t> kBorrow = {0, 1, 2, 3, 4, 5, 9, 10, 11};
constexpr size_t kBorrowWeight = 4;

[[noreturn]] void GiveUp(const absl::Status& status, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", what.c_str(), status.ToString().c_str());
  std::abort();
}

coordinator::JobRequestPtr Read(const std::string& document, const std::string& name,
                                int64_t steps) {
  const std::string text =
      absl::StrReplaceAll(document, {{"NAME", name}, {"STEPS", absl::StrCat(steps)}});
  absl::StatusOr<coordinator::JobRequestPtr> request =
      coordinator::ReadRequest({.text = text, .directory = "/jobs"});
  if (!request.ok()) GiveUp(request.status(), text);
  return *std::move(request);
}

}  // namespace

Planner::Planner() {
  documents_ = {
      Language("{ranks: 2}"),
      Language("{ranks: 4, tp: 2}"),
      Language("{ranks: 3}"),
      Language("{ranks: 4, pp: 2}"),
      Language("{ranks: 6, tp: 2}"),
      WithVision("{ranks: 2}", "{ranks: 4, tp: 2}"),
      Language("{ranks: 4, tp: 2}", "  recovery: {ladder: [drop-replica]}\n"),
      Language("{ranks: 2, tp: 2}"),
      Language("{ranks: 2}", "  recovery: {ladder: [wait]}\n"),
      Language("{ranks: 3}", "  recovery: {state_copies: 3}\n"),
      Language("{ranks: 3}", "  resources: {spares: 1}\n"),
      Language("{ranks: 4, tp: 2}", "  resources: {spares: 2}\n"),
      // With stages, replicas and tensor ranks at once, and three stages.
      Language("{ranks: 8, tp: 2, pp: 2}"),
      WithVision("{ranks: 2}", "{ranks: 8, tp: 2, pp: 2}"),
      Language("{ranks: 6, pp: 3}", "", 3),
      // Of one replica, or asked for: copies in host memory.
      Language("{ranks: 3, pp: 3}", "", 3),
      Language("{ranks: 4, tp: 2, pp: 2}", "  recovery: {state_every: 3}\n"),
      Language("{ranks: 2, pp: 2}", "  resources: {spares: 1}\n"),
      Language("{ranks: 4, tp: 2}", "  recovery: {state_home: host}\n"),
      WithVision("{ranks: 2}", "{ranks: 2, tp: 2}", "  recovery: {state_every: 2}\n"),
  };
  for (size_t document = 0; document < documents_.size(); ++document)
    drawn_.insert(drawn_.end(), kBorrow.contains(document) ? kBorrowWeight : 1, document);
}

coordinator::JobRequestPtr Planner::MakeRequest(size_t document, const std::string& name,
                                                int64_t steps) {
  return Read(documents_[document], name, steps);
}

coordinator::JobRequestPtr Planner::MakeRequest(absl::string_view parallel, absl::string_view more,
                                                const std::string& name, int64_t steps) {
  return Read(Language(parallel, more), name, steps);
}

absl::StatusOr<coordinator::PlanSummary> Planner::Plan(const coordinator::ComputePlan& order) {
  std::string key = absl::StrCat(order.request->document.text, "\n", order.layout.has_value());
  if (order.layout.has_value()) absl::StrAppend(&key, KeyOf(**order.layout));
  for (const plan::NodeDevices& node : order.placement)
    absl::StrAppend(&key, "\n", node.node, ":", absl::StrJoin(node.devices, ","));
  for (const Rank rank : order.lost) absl::StrAppend(&key, "\n-", rank.value);
  for (const Rank rank : order.returned) absl::StrAppend(&key, "\n+", rank.value);
  for (const auto& [rank, device] : order.lent)
    absl::StrAppend(&key, "\n@", rank.value, " ", device.node, ":", device.index);
  if (order.standby) absl::StrAppend(&key, "\nstandby");
  for (const Rank place : order.unfit) absl::StrAppend(&key, "\n!", place.value);
  for (const Rank place : order.stateless) absl::StrAppend(&key, "\n?", place.value);
  if (order.kept.has_value())
    absl::StrAppend(&key, "\nkept ", order.kept->mirrored, KeyOf(*order.kept->layout));
  if (order.any_rung) absl::StrAppend(&key, "\nany rung");
  const auto known = plans_.find(key);
  absl::StatusOr<coordinator::PlanSummary> plan =
      known != plans_.end() ? known->second : coordinator::PlanJobOf(order);
  if (known == plans_.end()) {
    if (plans_.size() >= kRememberedMax) plans_.clear();
    plans_.emplace(std::move(key), plan);
  }
  if (!plan.ok()) return plan;
  // What the memory does not tell apart: as PlanRequest sets them.
  plan->layout.epoch = order.epoch;
  if (order.layout.has_value()) plan->layout.epoch = std::max(order.epoch, (*order.layout)->epoch);
  plan->layout.data_digest = order.layout.has_value() ? (*order.layout)->data_digest : "";
  return plan;
}

JobPlanPtr Planner::Expand(const std::string& text, const plan::Layout& layout) {
  const std::string key = absl::StrCat(text, "\n", KeyOf(layout));
  if (const auto known = expanded_.find(key); known != expanded_.end()) return known->second;
  if (expanded_.size() >= kRememberedMax) expanded_.clear();
  if (specs_.size() >= kRememberedMax) specs_.clear();
  auto spec = specs_.find(text);
  if (spec == specs_.end()) {
    const absl::StatusOr<job::ReadJob> read = wire::ReadJobFile(text, job::Purpose::kSubmit);
    if (!read.ok()) GiveUp(read.status(), text);
    spec = specs_.emplace(text, read->spec).first;
  }
  absl::StatusOr<plan::Plan> plan = plan::Expand(spec->second, layout);
  if (!plan.ok()) GiveUp(plan.status(), "a layout that was planned does not expand");
  auto made = std::make_shared<JobPlan>();
  made->plan = *std::move(plan);
  made->reporter = made->plan.Reporter().value;
  for (int32_t rank = 0; rank < made->plan.world; ++rank) {
    if (!made->plan.PlacesOf(Rank{rank}).empty()) made->ranks.push_back(rank);
  }
  made->copies_to_host = plan::CopiesToHost(made->plan);
  for (const plan::ModulePlan& module : made->plan.modules) {
    for (int32_t flow = 0; flow < module.order.count(); ++flow) {
      const plan::PartId part = module.PartAt(flow);
      if (module.TrainsOf(part.stage, part.chunk).weights) AddHomes(part, made.get());
    }
  }
  return expanded_.emplace(key, std::move(made)).first->second;
}

}  // namespace phalanx::sim

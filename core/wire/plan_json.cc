#include "core/wire/plan_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/plan/cost.h"
#include "core/plan/parameters.h"
#include "core/plan/samples.h"
#include "core/plan/segments.h"
#include "core/plan/units.h"
#include "core/wire/plan_text.h"

namespace phalanx::wire {
namespace {

using Json = nlohmann::ordered_json;
using plan::ModulePlan;
using plan::Place;
using plan::Plan;
using plan::RankList;
using plan::UnitRange;

Json ToJson(const RankList& ranks) {
  Json json = Json::array();
  for (Rank rank : ranks) json.push_back(rank.value);
  return json;
}

Json ToJson(const std::vector<RankList>& groups) {
  Json json = Json::array();
  for (const RankList& group : groups) json.push_back(ToJson(group));
  return json;
}

Json ToJson(UnitRange range) { return Json::array({range.first, range.count}); }

// ---- Modules ----

void AddGroups(const plan::Grid& grid, const std::vector<std::vector<std::string>>& requests,
               Json* groups) {
  for (const std::vector<std::string>& axes : requests) {
    const auto found = grid.Groups(axes);
    if (found.ok()) (*groups)[grid.GroupName(axes)] = ToJson(*found);
  }
}

// {first, last part} and {first part} of each pipeline line.
void AddEmbeddingGroups(const ModulePlan& layout, Json* groups) {
  const std::vector<std::string> axes = {"pp"};
  const auto lines = layout.grid.Groups(axes);
  if (!lines.ok()) return;
  size_t first = 0, last = 0;  // places on a line; under a V-shaped placement the same one
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    if (HoldsFirst(layout, stage)) first = static_cast<size_t>(stage);
    if (HoldsLast(layout, stage)) last = static_cast<size_t>(stage);
  }
  Json embedding = Json::array(), position = Json::array();
  for (const RankList& line : *lines) {
    embedding.push_back(first == last ? ToJson(RankList{line[first]})
                                      : ToJson(RankList{line[first], line[last]}));
    position.push_back(ToJson(RankList{line[first]}));
  }
  (*groups)["embedding"] = std::move(embedding);
  (*groups)["position_embedding"] = std::move(position);
}

Json ModuleJson(const Plan& plan, const ModulePlan& layout) {
  const job::Module& module = plan.module_spec(layout.index);
  const job::Parallel& parallel = module.parallel;
  Json json;
  json["name"] = module.name;
  json["offset"] = layout.grid.offset();
  Json ranks = Json::array();
  for (int32_t i = 0; i < layout.grid.size(); ++i) ranks.push_back(layout.grid.offset() + i);
  json["ranks"] = std::move(ranks);
  json["axes"] = {
      {"tp", parallel.tp}, {"cp", parallel.cp}, {"dp", parallel.dp}, {"pp", parallel.pp}};
  json["expert_axes"] = {{"expt_tp", parallel.expt_tp},
                         {"ep", parallel.ep},
                         {"expt_dp", parallel.expt_dp},
                         {"pp", parallel.pp}};
  Json stage_layers = Json::array();
  for (const plan::LayerRange& layers : layout.stage_layers) {
    stage_layers.push_back({layers.first, layers.count});
  }
  json["stage_layers"] = std::move(stage_layers);
  Json groups = Json::object();
  AddGroups(layout.grid,
            {{"tp"},
             {"cp"},
             {"dp"},
             {"pp"},
             {"cp", "dp"},
             {"tp", "cp"},
             {"tp", "dp"},
             {"tp", "pp"},
             {"tp", "cp", "dp"},
             {"tp", "cp", "dp", "pp"}},
            &groups);
  AddGroups(layout.expert_grid,
            {{"expt_tp"}, {"ep"}, {"expt_dp"}, {"expt_tp", "ep"}, {"expt_tp", "ep", "pp"}},
            &groups);
  if (layout.index == plan.spec.language) AddEmbeddingGroups(layout, &groups);
  json["groups"] = std::move(groups);
  return json;
}

// ---- Edges ----

// Ranks of one stage that work on each lane; none on the lane of an absent replica.
Json LanesJson(const Plan& plan, int32_t module, int32_t stage) {
  Json lanes = Json::array();
  const plan::ReplicaTable& replicas = plan.replicas(module);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    RankList ranks;
    for (int32_t cp = 0; replicas.Present(dp) && cp < replicas.cp(); ++cp) {
      const RankList group = plan.TensorGroup(module, dp, stage, cp);
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
    std::sort(ranks.begin(), ranks.end());
    lanes.push_back(ToJson(ranks));
  }
  return lanes;
}

Json EdgeJson(const Plan& plan, int32_t link, const plan::MicrobatchSamples& samples) {
  const plan::Link& which = plan.links[static_cast<size_t>(link)];
  const plan::Grid& from = plan.modules[static_cast<size_t>(which.from_module)].grid;
  const plan::Grid& to = plan.modules[static_cast<size_t>(which.to_module)].grid;
  Json json;
  json["from"] = plan.module_spec(which.from_module).name;
  json["to"] = plan.module_spec(which.to_module).name;
  json["colocated"] = from.offset() == to.offset() && from.size() == to.size();
  json["from_lanes"] = LanesJson(plan, which.from_module, which.from_stage);
  json["to_lanes"] = LanesJson(plan, which.to_module, which.to_stage);
  Json links = Json::array();
  for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
    if (message.slice != 0) continue;
    links.push_back({{"from_lane", plan.PlaceOf(message.from, which.from_module)->dp},
                     {"to_lane", plan.PlaceOf(message.to, which.to_module)->dp},
                     {"first", message.first},
                     {"count", message.count}});
  }
  json["links"] = std::move(links);
  return json;
}

// ---- Ranks ----

Json PlaceJson(const Plan& plan, const Place& place) {
  const ModulePlan& layout = plan.modules[static_cast<size_t>(place.module)];
  const bool first = HoldsFirst(layout, place.pp), last = HoldsLast(layout, place.pp);
  const bool language = place.module == plan.spec.language;
  Json json;
  json["name"] = plan.module_spec(place.module).name;
  json["coordinates"] = {{"tp", place.tp}, {"cp", place.cp}, {"dp", place.dp}, {"pp", place.pp}};
  json["first_stage"] = first;
  json["last_stage"] = last;
  json["embedding"] = language && first;
  json["head"] = language && last;
  Json stages = Json::array(), layers = Json::array();
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const plan::LayerRange range = layout.layers(place.pp, chunk);
    stages.push_back(layout.GraphStage(place.pp, chunk));
    layers.push_back({range.first, range.count});
  }
  json["stages"] = std::move(stages);
  json["layers"] = std::move(layers);
  const bool warms_up = plan.spec.schedule.name == job::ScheduleName::k1F1B;
  json["warmup"] = warms_up ? Json(plan.stages - layout.GraphStage(place.pp) - 1) : Json(nullptr);
  return json;
}

Json RankJson(const Plan& plan, Rank rank) {
  const plan::Device& device = plan.devices[static_cast<size_t>(rank.value)];
  Json modules = Json::array();
  for (const Place& place : plan.PlacesOf(rank)) modules.push_back(PlaceJson(plan, place));
  return {{"rank", rank.value},
          {"node", device.node},
          {"device", device.index},
          {"modules", std::move(modules)}};
}

// ---- Replicas, segments, memory ----

Json ReplicaJson(const Plan& plan, const ModulePlan& layout, int32_t dp, int32_t pp,
                 int64_t samples) {
  const job::Architecture& architecture = plan.module_spec(layout.index).architecture;
  const RankList ranks = plan.TensorGroup(layout.index, dp, pp);
  Json units = nullptr;
  if (job::TraitsOf(architecture).known()) {
    Json attention = Json::array(), mlp = Json::array(), vocabulary = Json::array();
    const bool ends = HoldsFirst(layout, pp) || HoldsLast(layout, pp);
    const auto width = static_cast<int32_t>(ranks.size());
    for (int32_t tp = 0; tp < width; ++tp) {
      const plan::Shard shard = plan::ShardOf(architecture, width, tp);
      attention.push_back(ToJson(shard.query_heads));
      mlp.push_back(ToJson(shard.mlp_blocks));
      if (ends && architecture.vocabulary > 0)
        vocabulary.push_back(ToJson(shard.vocabulary_blocks));
    }
    units = {{"attention", std::move(attention)},
             {"mlp", std::move(mlp)},
             {"vocabulary", std::move(vocabulary)}};
  }
  return {{"module", plan.module_spec(layout.index).name},
          {"dp", dp},
          {"pp", pp},
          {"width", ranks.size()},
          {"ranks", ToJson(ranks)},
          {"samples", samples},
          {"units", std::move(units)}};
}

Json ReplicasJson(const Plan& plan) {
  Json replicas = Json::array();
  for (const ModulePlan& layout : plan.modules) {
    const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, layout.index);
    for (int32_t dp = 0; dp < layout.replicas.replicas(); ++dp) {
      if (!layout.replicas.Present(dp)) continue;
      for (int32_t pp = 0; pp < layout.pp(); ++pp) {
        replicas.push_back(ReplicaJson(plan, layout, dp, pp, samples[static_cast<size_t>(dp)]));
      }
    }
  }
  return replicas;
}

const char* NameOf(plan::UnitKind family) {
  switch (family) {
    case plan::UnitKind::kAttention:
      return "attention";
    case plan::UnitKind::kKv:
      return "kv";
    case plan::UnitKind::kMlp:
      return "mlp";
    case plan::UnitKind::kVocabulary:
      return "vocabulary";
    case plan::UnitKind::kReplicated:
      return "replicated";
  }
  return "";
}

Json SegmentsJson(const Plan& plan) {
  Json segments = Json::array();
  for (const plan::Segment& segment : plan::Segments(plan)) {
    segments.push_back({{"module", plan.module_spec(segment.module).name},
                        {"pp", segment.pp},
                        {"family", NameOf(segment.family)},
                        {"first", segment.units.first},
                        {"count", segment.units.count},
                        {"holders", ToJson(segment.holders)}});
    if (segment.edge >= 0) {
      const job::Edge& edge = plan.spec.edges[static_cast<size_t>(segment.edge)];
      segments.back()["projector"] = plan.module_spec(edge.to).name;
    }
  }
  return segments;
}

Json HomesJson(const RankList& ranks, bool host) {
  Json homes = ToJson(ranks);
  if (host) homes.push_back("host");
  return homes;
}

Json SharesJson(const Plan& plan, const std::vector<plan::Share>& listed) {
  Json shares = Json::array();
  for (const plan::Share& share : listed) {
    shares.push_back({{"module", plan.module_spec(share.module).name},
                      {"pp", share.pp},
                      {"chunk", share.chunk},
                      {"segment", share.segment},
                      {"bucket", share.bucket},
                      {"first", share.elements.first},
                      {"count", share.elements.count},
                      {"homes", HomesJson(share.homes, share.host)}});
  }
  return shares;
}

Json StateHomesJson(const Plan& plan) {
  Json all = Json::array();
  for (const plan::StateHomes& state : plan::HomesOfState(plan)) {
    Json homes = Json::array();
    for (const RankList& ranks : state.homes) homes.push_back(HomesJson(ranks, state.host));
    all.push_back({{"module", plan.module_spec(state.module).name},
                   {"pp", state.pp},
                   {"tp", state.tp},
                   {"homes", std::move(homes)}});
  }
  return all;
}

// Empty where some module's parameters are not known: a sum that leaves out a module misleads.
Json MemoryJson(const Plan& plan) {
  Json memory = Json::array();
  if (!MemoryIsKnown(plan)) return memory;
  const std::vector<plan::MemoryEstimate> estimates = plan::EstimateMemory(plan);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const plan::MemoryEstimate& estimate = estimates[static_cast<size_t>(rank)];
    memory.push_back({{"rank", rank},
                      {"parameters", estimate.parameters},
                      {"gradients", estimate.gradients},
                      {"optimizer", estimate.optimizer},
                      {"activations", estimate.activations},
                      {"total", estimate.total()}});
  }
  return memory;
}

// ---- Schedule ----

Json ScheduleJson(const Plan& plan, const PlanFigures& figures) {
  const job::Schedule& schedule = plan.spec.schedule;
  return {{"name", wire::NameOf(schedule.name)},
          {"microbatches", plan.microbatches},
          {"bubble", figures.bubble},
          {"lower_bound", figures.lower_bound},
          {"chunks", schedule.chunks},
          {"encoder_chunks", schedule.encoder_chunks}};
}

Json CandidatesJson(const Plan& plan) {
  Json candidates = Json::array();
  const bool known = MemoryIsKnown(plan);
  for (const plan::ScheduleCandidate& candidate : plan.candidates) {
    const bool tried = candidate.left_out.empty();
    candidates.push_back({{"name", wire::NameOf(candidate.schedule.name)},
                          {"chunks", candidate.schedule.chunks},
                          {"encoder_chunks", candidate.schedule.encoder_chunks},
                          {"step", tried ? Json(candidate.step) : Json(nullptr)},
                          {"bubble", tried ? Json(candidate.bubble) : Json(nullptr)},
                          {"memory", tried && known ? Json(candidate.memory) : Json(nullptr)},
                          {"chosen", candidate.schedule == plan.spec.schedule},
                          {"left_out", tried ? Json(nullptr) : Json(candidate.left_out)}});
  }
  return candidates;
}

// Numbers of idle devices in the cluster's order: ranks in no module, then what follows the world.
Json IdleJson(const Plan& plan) {
  Json idle = Json::array();
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    if (plan.PlacesOf(Rank{rank}).empty()) idle.push_back(rank);
  }
  for (int32_t next = plan.world; idle.size() < plan.idle.size(); ++next) idle.push_back(next);
  return idle;
}

// A node's name is whatever its daemon says; what is not UTF-8 in it must not throw.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// Keys of the document a line each, elements of its lists a line each, everything below compact.
std::string Print(const Json& document) {
  std::string text = "{";
  const char* separator = "\n";
  for (const auto& [key, value] : document.items()) {
    absl::StrAppend(&text, separator, "  ", Dump(key), ": ");
    separator = ",\n";
    if (!value.is_array() || value.empty() || !value.front().is_structured()) {
      absl::StrAppend(&text, Dump(value));
      continue;
    }
    const char* element_separator = "[\n";
    for (const Json& element : value) {
      absl::StrAppend(&text, element_separator, "    ", Dump(element));
      element_separator = ",\n";
    }
    absl::StrAppend(&text, "\n  ]");
  }
  absl::StrAppend(&text, "\n}\n");
  return text;
}

}  // namespace

std::string PlanJson(const Plan& plan, const PlanFigures& figures) {
  Json json;
  json["apiVersion"] = "phalanx/v1";
  json["kind"] = "Plan";
  json["digest"] = plan.digest;
  json["world"] = plan.world;
  json["epoch"] = plan.epoch().value;
  json["modules"] = Json::array();
  for (const ModulePlan& layout : plan.modules) {
    json["modules"].push_back(ModuleJson(plan, layout));
  }
  json["edges"] = Json::array();
  const plan::MicrobatchSamples samples = plan::SamplesOfMicrobatch(plan, 0);
  for (size_t link = 0; link < plan.links.size(); ++link) {
    if (plan.links[link].edge < 0) continue;
    json["edges"].push_back(EdgeJson(plan, static_cast<int32_t>(link), samples));
  }
  json["ranks"] = Json::array();
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    json["ranks"].push_back(RankJson(plan, Rank{rank}));
  }
  json["idle"] = IdleJson(plan);
  json["idle_devices"] = Json::array();
  for (const plan::Device& device : plan.idle) {
    json["idle_devices"].push_back({{"node", device.node}, {"device", device.index}});
  }
  json["stages"] = plan.stages;
  json["schedule"] = ScheduleJson(plan, figures);
  if (!plan.candidates.empty()) json["candidates"] = CandidatesJson(plan);
  json["replicas"] = ReplicasJson(plan);
  json["segments"] = SegmentsJson(plan);
  const std::optional<std::vector<plan::Share>> shares = plan::Shares(plan);
  json["shares"] = SharesJson(plan, shares.value_or(std::vector<plan::Share>()));
  json["shares_left_out"] = !shares.has_value();
  json["state_homes"] = StateHomesJson(plan);
  json["memory"] = MemoryJson(plan);
  return Print(json);
}

}  // namespace phalanx::wire

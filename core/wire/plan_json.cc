#include "core/wire/plan_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace phalanx::wire {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

Json ToJson(const RepeatedField<int32_t>& numbers) { return Json(numbers); }

Json ToJson(const v1::Plan::Ranks& ranks) { return ToJson(ranks.ranks()); }

Json ToJson(const v1::Plan::Run& run) { return Json::array({run.first(), run.count()}); }

template <typename T>
Json ToJson(const RepeatedPtrField<T>& elements);

const std::string& ModuleName(const v1::Plan& plan, int32_t module) {
  return plan.modules(module).name();
}

// ---- Modules and edges ----

Json ToJson(const v1::Plan::Module& module) {
  Json ranks = Json::array(), stage_layers = Json::array(), groups = Json::object();
  for (int32_t i = 0; i < module.ranks(); ++i) ranks.push_back(module.offset() + i);
  for (const v1::Plan::Stage& stage : module.stages()) {
    for (const v1::Plan::Part& part : stage.parts()) stage_layers.push_back(ToJson(part.layers()));
  }
  for (const v1::Plan::Groups& named : module.groups()) {
    groups[named.name()] = ToJson(named.groups());
  }
  Json json = {
      {"name", module.name()},
      {"offset", module.offset()},
      {"ranks", std::move(ranks)},
      {"axes",
       {{"tp", module.tp()}, {"cp", module.cp()}, {"dp", module.dp()}, {"pp", module.pp()}}},
      {"expert_axes",
       {{"expt_tp", module.expt_tp()},
        {"ep", module.ep()},
        {"expt_dp", module.expt_dp()},
        {"pp", module.pp()}}},
      {"stage_layers", std::move(stage_layers)},
      {"groups", std::move(groups)}};
  if (module.has_restart()) {
    const v1::Plan::Restart& restart = module.restart();
    json["restart"] = {{"tp", restart.tp()},
                       {"dp", restart.dp()},
                       {"pp", restart.pp()},
                       {"ranks", ToJson(restart.ranks())}};
  }
  return json;
}

Json ToJson(const v1::Plan::Link& link) {
  return {{"from_lane", link.from_lane()},
          {"to_lane", link.to_lane()},
          {"first", link.samples().first()},
          {"count", link.samples().count()}};
}

Json EdgeJson(const v1::Plan& plan, const v1::Plan::Edge& edge) {
  return {{"from", ModuleName(plan, edge.from())}, {"to", ModuleName(plan, edge.to())},
          {"colocated", edge.colocated()},         {"from_lanes", ToJson(edge.from_lanes())},
          {"to_lanes", ToJson(edge.to_lanes())},   {"links", ToJson(edge.links())}};
}

// ---- Ranks ----

Json PlaceJson(const v1::Plan& plan, const v1::Plan::Place& place) {
  const v1::Plan::Module& module = plan.modules(place.module());
  const v1::Plan::Stage& stage = module.stages(place.pp());
  Json stages = Json::array(), layers = Json::array();
  for (const v1::Plan::Part& part : stage.parts()) {
    stages.push_back(part.graph_stage());
    layers.push_back(ToJson(part.layers()));
  }
  return {{"name", module.name()},
          {"coordinates",
           {{"tp", place.tp()}, {"cp", place.cp()}, {"dp", place.dp()}, {"pp", place.pp()}}},
          {"first_stage", stage.first()},
          {"last_stage", stage.last()},
          {"embedding", module.language() && stage.first()},
          {"head", module.language() && stage.last()},
          {"stages", std::move(stages)},
          {"layers", std::move(layers)},
          {"warmup", stage.has_warmup() ? Json(stage.warmup()) : Json(nullptr)}};
}

struct Device {
  const v1::NodeDevices* node;
  int32_t index;
};

// By their places in the placement.
std::vector<Device> DevicesOf(const v1::Plan& plan) {
  std::vector<Device> devices;
  for (const v1::NodeDevices& part : plan.placement().nodes()) {
    for (int32_t index : part.devices()) devices.push_back({&part, index});
  }
  return devices;
}

Json RanksJson(const v1::Plan& plan, const std::vector<Device>& devices) {
  Json ranks = Json::array();
  for (int32_t rank = 0; rank < plan.world(); ++rank) {
    Json modules = Json::array();
    for (const v1::Plan::Place& place : plan.ranks(rank).places()) {
      modules.push_back(PlaceJson(plan, place));
    }
    const Device& device = devices[static_cast<size_t>(rank)];
    Json entry = {{"rank", rank}, {"node", device.node->node()}};
    if (!device.node->domain().empty()) entry["domain"] = device.node->domain();
    entry["device"] = device.index;
    entry["modules"] = std::move(modules);
    ranks.push_back(std::move(entry));
  }
  return ranks;
}

Json IdleDevicesJson(const v1::Plan& plan, const std::vector<Device>& devices) {
  Json idle = Json::array();
  for (int32_t place : plan.idle()) {
    const Device& device = devices[static_cast<size_t>(place)];
    idle.push_back({{"node", device.node->node()}, {"device", device.index}});
  }
  return idle;
}

// ---- Schedule ----

Json ToJson(const v1::Plan::Schedule& schedule) {
  return {{"name", schedule.name()},     {"microbatches", schedule.microbatches()},
          {"bubble", schedule.bubble()}, {"lower_bound", schedule.lower_bound()},
          {"chunks", schedule.chunks()}, {"encoder_chunks", schedule.encoder_chunks()}};
}

Json ToJson(const v1::Plan::Candidate& candidate) {
  const Json null(nullptr);
  return {{"name", candidate.name()},
          {"chunks", candidate.chunks()},
          {"encoder_chunks", candidate.encoder_chunks()},
          {"step", candidate.has_step() ? Json(candidate.step()) : null},
          {"bubble", candidate.has_bubble() ? Json(candidate.bubble()) : null},
          {"memory", candidate.has_memory() ? Json(candidate.memory()) : null},
          {"chosen", candidate.chosen()},
          {"left_out", candidate.left_out().empty() ? null : Json(candidate.left_out())}};
}

Json ToJson(const v1::Plan::MemoryParts& parts) {
  const auto measured = [](bool has, int64_t bytes) { return has ? Json(bytes) : Json(nullptr); };
  return {{"rank", parts.rank()},
          {"parameters", parts.parameters()},
          {"gradients", parts.gradients()},
          {"optimizer", parts.optimizer()},
          {"activations", parts.activations()},
          {"tried", parts.tried()},
          {"to_take_over", parts.to_take_over()},
          {"context", measured(parts.has_context(), parts.context())},
          {"communicators", measured(parts.has_communicators(), parts.communicators())},
          {"standby", measured(parts.has_standby(), parts.standby())},
          {"unestimated", parts.unestimated()}};
}

Json ToJson(const v1::Plan::Prediction& prediction) {
  return {{"device_kind", prediction.device_kind()},
          {"items", prediction.items()},
          {"step", prediction.step()},
          {"memory", prediction.memory()},
          {"memory_parts",
           prediction.has_memory_parts() ? ToJson(prediction.memory_parts()) : Json(nullptr)},
          {"bubble", prediction.bubble()},
          {"clock_mhz", prediction.has_clock_mhz() ? Json(prediction.clock_mhz()) : Json(nullptr)},
          {"parts",
           {{"compute", prediction.compute()},
            {"recompute", prediction.recompute()},
            {"tensor", prediction.tensor()},
            {"waiting", prediction.waiting()},
            {"update", prediction.update()}}}};
}

// ---- Replicas, segments, memory ----

Json ToJson(const v1::Plan::Units& units) {
  return {{"attention", ToJson(units.attention())},
          {"mlp", ToJson(units.mlp())},
          {"vocabulary", ToJson(units.vocabulary())}};
}

Json ReplicaJson(const v1::Plan& plan, const v1::Plan::Replica& replica) {
  return {{"module", ModuleName(plan, replica.module())},
          {"dp", replica.dp()},
          {"pp", replica.pp()},
          {"width", replica.ranks_size()},
          {"ranks", ToJson(replica.ranks())},
          {"samples", replica.samples()},
          {"units", replica.has_units() ? ToJson(replica.units()) : Json(nullptr)}};
}

const char* FamilyText(v1::Plan::Segment::Kind kind) {
  switch (kind) {
    case v1::Plan::Segment::KIND_ATTENTION:
      return "attention";
    case v1::Plan::Segment::KIND_KV:
      return "kv";
    case v1::Plan::Segment::KIND_MLP:
      return "mlp";
    case v1::Plan::Segment::KIND_VOCABULARY:
      return "vocabulary";
    case v1::Plan::Segment::KIND_REPLICATED:
      return "replicated";
    default:
      return "";
  }
}

Json SegmentJson(const v1::Plan& plan, const v1::Plan::Segment& segment) {
  Json json = {{"module", ModuleName(plan, segment.module())},
               {"pp", segment.pp()},
               {"family", FamilyText(segment.kind())},
               {"first", segment.units().first()},
               {"count", segment.units().count()},
               {"holders", ToJson(segment.holders())}};
  if (segment.has_projector()) json["projector"] = ModuleName(plan, segment.projector());
  return json;
}

Json HomesJson(const RepeatedField<int32_t>& ranks, bool host) {
  Json homes = ToJson(ranks);
  if (host) homes.push_back("host");
  return homes;
}

Json ShareJson(const v1::Plan& plan, const v1::Plan::Share& share) {
  return {{"module", ModuleName(plan, share.module())},
          {"pp", share.pp()},
          {"chunk", share.chunk()},
          {"segment", share.segment()},
          {"bucket", share.bucket()},
          {"first", share.elements().first()},
          {"count", share.elements().count()},
          {"homes", HomesJson(share.homes(), share.host())}};
}

Json MoveJson(const v1::Plan& plan, const v1::Plan::Move& move) {
  Json from = move.source() == v1::Plan::Move::SOURCE_RANK   ? Json(move.from())
              : move.source() == v1::Plan::Move::SOURCE_HOST ? Json("host")
                                                             : Json("checkpoint");
  Json json = {{"module", ModuleName(plan, move.module())},
               {"family", FamilyText(move.kind())},
               {"chunk", move.chunk()},
               {"bucket", move.bucket()},
               {"first", move.elements().first()},
               {"count", move.elements().count()},
               {"from", std::move(from)},
               {"from_pp", move.from_pp()},
               {"to", move.to()},
               {"to_pp", move.pp()}};
  if (move.has_projector()) json["projector"] = ModuleName(plan, move.projector());
  return json;
}

Json StateHomesJson(const v1::Plan& plan, const v1::Plan::StateHomes& state) {
  Json homes = Json::array();
  for (const v1::Plan::Ranks& ranks : state.homes()) {
    homes.push_back(HomesJson(ranks.ranks(), state.host()));
  }
  return {{"module", ModuleName(plan, state.module())},
          {"pp", state.pp()},
          {"tp", state.tp()},
          {"homes", std::move(homes)}};
}

Json MemoryJson(const v1::Plan& plan) {
  Json memory = Json::array();
  for (int32_t rank = 0; rank < plan.memory_size(); ++rank) {
    const v1::Plan::Memory& bytes = plan.memory(rank);
    memory.push_back({{"rank", rank},
                      {"parameters", bytes.parameters()},
                      {"gradients", bytes.gradients()},
                      {"optimizer", bytes.optimizer()},
                      {"activations", bytes.activations()},
                      {"total", bytes.parameters() + bytes.gradients() + bytes.optimizer() +
                                    bytes.activations()}});
  }
  return memory;
}

template <typename T>
Json ToJson(const RepeatedPtrField<T>& elements) {
  Json json = Json::array();
  for (const T& element : elements) json.push_back(ToJson(element));
  return json;
}

// Elements that name modules of the plan.
template <typename T>
Json ListJson(const v1::Plan& plan, const RepeatedPtrField<T>& elements,
              Json (*to_json)(const v1::Plan&, const T&)) {
  Json json = Json::array();
  for (const T& element : elements) json.push_back(to_json(plan, element));
  return json;
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

std::string PlanJson(const v1::Plan& plan) {
  const std::vector<Device> devices = DevicesOf(plan);
  Json json;
  json["apiVersion"] = "phalanx/v1";
  json["kind"] = "Plan";
  json["digest"] = plan.digest();
  json["world"] = plan.world();
  json["epoch"] = plan.epoch();
  json["modules"] = ToJson(plan.modules());
  json["edges"] = ListJson(plan, plan.edges(), EdgeJson);
  json["ranks"] = RanksJson(plan, devices);
  if (plan.lost_size() > 0) json["lost"] = ToJson(plan.lost());
  for (const std::string& note : plan.notes()) json["notes"].push_back(note);
  json["idle"] = ToJson(plan.idle());
  json["idle_devices"] = IdleDevicesJson(plan, devices);
  json["stages"] = plan.stages();
  json["schedule"] = ToJson(plan.schedule());
  if (plan.candidates_size() > 0) json["candidates"] = ToJson(plan.candidates());
  json["replicas"] = ListJson(plan, plan.replicas(), ReplicaJson);
  json["segments"] = ListJson(plan, plan.segments(), SegmentJson);
  json["shares"] = ListJson(plan, plan.shares(), ShareJson);
  json["shares_left_out"] = plan.shares_left_out();
  json["state_homes"] = ListJson(plan, plan.state_homes(), StateHomesJson);
  json["memory"] = MemoryJson(plan);
  if (plan.has_step_ratio()) {
    json["moves"] = ListJson(plan, plan.moves(), MoveJson);
    json["moves_left_out"] = plan.moves_left_out();
    json["bytes_moved"] = plan.bytes_moved();
    json["steps_lost"] = plan.steps_lost();
    json["safe_again_steps"] = plan.safe_again_steps();
    json["step_ratio"] = plan.step_ratio();
  }
  if (plan.has_prediction()) json["prediction"] = ToJson(plan.prediction());
  return Print(json);
}

}  // namespace phalanx::wire

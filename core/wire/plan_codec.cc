#include "core/wire/plan_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/plan/memory_estimate.h"
#include "core/plan/samples.h"
#include "core/plan/segments.h"
#include "core/plan/units.h"
#include "core/wire/layout_codec.h"

namespace phalanx::wire {
namespace {

using plan::Axis;
using plan::ModulePlan;
using plan::RankList;
using plan::UnitRange;

google::protobuf::RepeatedField<int32_t> Numbers(const RankList& ranks) {
  google::protobuf::RepeatedField<int32_t> numbers;
  numbers.Reserve(static_cast<int>(ranks.size()));
  for (Rank rank : ranks) numbers.Add(rank.value);
  return numbers;
}

void Fill(const RankList& ranks, v1::Plan::Ranks* out) { *out->mutable_ranks() = Numbers(ranks); }

void Fill(UnitRange range, v1::Plan::Run* out) {
  out->set_first(range.first);
  out->set_count(range.count);
}

// ---- Modules ----

void AddGroups(const std::string& name, const std::vector<RankList>& groups,
               v1::Plan::Module* out) {
  v1::Plan::Groups* to = out->add_groups();
  to->set_name(name);
  for (const RankList& group : groups) Fill(group, to->add_groups());
}

void AddGroups(const plan::Grid& grid, const std::vector<std::vector<Axis>>& requests,
               v1::Plan::Module* out) {
  for (const std::vector<Axis>& axes : requests) {
    const auto found = grid.Groups(axes);
    if (found.ok()) AddGroups(grid.GroupName(axes), *found, out);
  }
}

// {first, last part} and {first part} of each pipeline line.
void AddEmbeddingGroups(const ModulePlan& layout, v1::Plan::Module* out) {
  const std::vector<Axis> axes = {Axis::kPipeline};
  const auto lines = layout.grid.Groups(axes);
  if (!lines.ok()) return;
  // Places on a line of the healthy grid; under a V-shaped placement the same one.
  plan::PartOrder order = layout.order;
  order.pp = layout.grid.AxisLength(Axis::kPipeline);
  const auto first = static_cast<size_t>(order.StageAt(0));
  const auto last = static_cast<size_t>(order.StageAt(order.count() - 1));
  std::vector<RankList> embedding, position;
  for (const RankList& line : *lines) {
    embedding.push_back(first == last ? RankList{line[first]} : RankList{line[first], line[last]});
    position.push_back({line[first]});
  }
  AddGroups("embedding", embedding, out);
  AddGroups("position_embedding", position, out);
}

void FillStage(const plan::Plan& plan, const ModulePlan& layout, int32_t stage,
               v1::Plan::Stage* out) {
  for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
    const plan::LayerRange layers = layout.layers(stage, chunk);
    v1::Plan::Part* part = out->add_parts();
    Fill({layers.first, layers.count}, part->mutable_layers());
    part->set_graph_stage(layout.GraphStage(stage, chunk));
  }
  out->set_first(HoldsFirst(layout, stage));
  out->set_last(HoldsLast(layout, stage));
  if (plan.spec.schedule.name == job::ScheduleName::k1F1B) {
    out->set_warmup(plan.stages - layout.GraphStage(stage) - 1);
  }
}

void FillModule(const plan::Plan& plan, const ModulePlan& layout, v1::Plan::Module* out) {
  const job::Parallel& parallel = plan.parallel(layout.index);
  out->set_name(plan.module_spec(layout.index).name);
  out->set_offset(layout.grid.offset());
  out->set_ranks(layout.grid.size());
  out->set_tp(layout.grid.AxisLength(Axis::kTensor));
  out->set_cp(layout.grid.AxisLength(Axis::kContext));
  out->set_dp(layout.grid.AxisLength(Axis::kData));
  out->set_pp(layout.grid.AxisLength(Axis::kPipeline));
  out->set_expt_tp(parallel.expt_tp);
  out->set_ep(parallel.ep);
  out->set_expt_dp(parallel.expt_dp);
  out->set_language(layout.index == plan.spec.language);
  if (const auto& lowered = plan.layout.modules[static_cast<size_t>(layout.index)].lowered) {
    v1::Plan::Restart& restart = *out->mutable_restart();
    restart.set_tp(lowered->tp);
    restart.set_dp(lowered->dp);
    restart.set_pp(lowered->pp);
    for (Rank rank : lowered->ranks) restart.add_ranks(rank.value);
    std::sort(restart.mutable_ranks()->begin(), restart.mutable_ranks()->end());
  }
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    FillStage(plan, layout, stage, out->add_stages());
  }
  AddGroups(layout.grid,
            {{Axis::kTensor},
             {Axis::kContext},
             {Axis::kData},
             {Axis::kPipeline},
             {Axis::kContext, Axis::kData},
             {Axis::kTensor, Axis::kContext},
             {Axis::kTensor, Axis::kData},
             {Axis::kTensor, Axis::kPipeline},
             {Axis::kTensor, Axis::kContext, Axis::kData},
             {Axis::kTensor, Axis::kContext, Axis::kData, Axis::kPipeline}},
            out);
  AddGroups(layout.expert_grid,
            {{Axis::kExpertTensor},
             {Axis::kExpert},
             {Axis::kExpertData},
             {Axis::kExpertTensor, Axis::kExpert},
             {Axis::kExpertTensor, Axis::kExpert, Axis::kPipeline}},
            out);
  if (layout.index == plan.spec.language) AddEmbeddingGroups(layout, out);
}

// ---- Edges ----

// Ranks of one stage that work on each lane; none on the lane of an absent replica.
void FillLanes(const plan::Plan& plan, int32_t module, int32_t stage,
               google::protobuf::RepeatedPtrField<v1::Plan::Ranks>* out) {
  const plan::ReplicaTable& replicas = plan.replicas(module);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    RankList ranks;
    for (int32_t cp = 0; replicas.Present(dp) && cp < replicas.cp(); ++cp) {
      const RankList group = plan.TensorGroup(module, dp, stage, cp);
      ranks.insert(ranks.end(), group.begin(), group.end());
    }
    std::sort(ranks.begin(), ranks.end());
    Fill(ranks, out->Add());
  }
}

void FillEdge(const plan::Plan& plan, int32_t link, const plan::MicrobatchSamples& samples,
              v1::Plan::Edge* out) {
  const plan::Link& which = plan.links[static_cast<size_t>(link)];
  out->set_from(which.from.module);
  out->set_to(which.to.module);
  out->set_colocated(AreColocated(plan, which));
  FillLanes(plan, which.from.module, which.from.stage, out->mutable_from_lanes());
  FillLanes(plan, which.to.module, which.to.stage, out->mutable_to_lanes());
  for (const plan::LinkMessage& message : plan::LinkMessages(plan, link, samples)) {
    if (message.from_slice != 0 || message.to_slice != 0) continue;
    v1::Plan::Link* to = out->add_links();
    to->set_from_lane(plan.PlaceOf(message.from, which.from.module)->dp);
    to->set_to_lane(plan.PlaceOf(message.to, which.to.module)->dp);
    Fill({message.first, message.count}, to->mutable_samples());
  }
}

void FillEdges(const plan::Plan& plan, v1::Plan* out) {
  const plan::MicrobatchSamples samples = plan::SamplesOfMicrobatch(plan, 0);
  for (size_t link = 0; link < plan.links.size(); ++link) {
    if (plan.links[link].edge < 0) continue;
    FillEdge(plan, static_cast<int32_t>(link), samples, out->add_edges());
  }
}

// ---- Ranks ----

void FillRanks(const plan::Plan& plan, v1::Plan* out) {
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    v1::Plan::Places* places = out->add_ranks();
    for (const plan::Place& place : plan.PlacesOf(Rank{rank})) {
      v1::Plan::Place* to = places->add_places();
      to->set_module(place.module);
      to->set_tp(place.tp);
      to->set_cp(place.cp);
      to->set_dp(place.dp);
      to->set_pp(place.pp);
    }
  }
}

// ---- Replicas, segments, memory ----

void FillUnits(const job::Architecture& architecture, int32_t width, bool vocabulary,
               v1::Plan::Units* out) {
  for (int32_t tp = 0; tp < width; ++tp) {
    const plan::TensorUnits units = plan::TensorUnitsOf(architecture, width, tp);
    Fill(units.query_heads, out->add_attention());
    Fill(units.mlp_blocks, out->add_mlp());
    if (vocabulary) Fill(units.vocabulary_blocks, out->add_vocabulary());
  }
}

void FillReplicas(const plan::Plan& plan, v1::Plan* out) {
  for (const ModulePlan& layout : plan.modules) {
    const job::Architecture& architecture = plan.module_spec(layout.index).architecture;
    const std::vector<int64_t> samples = plan::LaneSamplesOfStep(plan, layout.index);
    for (int32_t dp = 0; dp < layout.replicas.replicas(); ++dp) {
      if (!layout.replicas.Present(dp)) continue;
      for (int32_t pp = 0; pp < layout.pp(); ++pp) {
        v1::Plan::Replica* to = out->add_replicas();
        to->set_module(layout.index);
        to->set_dp(dp);
        to->set_pp(pp);
        *to->mutable_ranks() = Numbers(plan.TensorGroup(layout.index, dp, pp));
        to->set_samples(samples[static_cast<size_t>(dp)]);
        if (!job::TraitsOf(architecture).known()) continue;
        const bool ends = HoldsFirst(layout, pp) || HoldsLast(layout, pp);
        FillUnits(architecture, layout.replicas.Width(dp, pp), ends && architecture.vocabulary > 0,
                  to->mutable_units());
      }
    }
  }
}

v1::Plan::Segment::Kind KindOf(plan::UnitKind kind) {
  switch (kind) {
    case plan::UnitKind::kAttention:
      return v1::Plan::Segment::KIND_ATTENTION;
    case plan::UnitKind::kKv:
      return v1::Plan::Segment::KIND_KV;
    case plan::UnitKind::kMlp:
      return v1::Plan::Segment::KIND_MLP;
    case plan::UnitKind::kVocabulary:
      return v1::Plan::Segment::KIND_VOCABULARY;
    case plan::UnitKind::kReplicated:
      return v1::Plan::Segment::KIND_REPLICATED;
  }
  return v1::Plan::Segment::KIND_UNSPECIFIED;
}

void FillSegments(const plan::Plan& plan, v1::Plan* out) {
  for (const plan::Segment& segment : plan::Segments(plan)) {
    v1::Plan::Segment* to = out->add_segments();
    to->set_module(segment.module);
    to->set_pp(segment.pp);
    to->set_kind(KindOf(segment.family.kind));
    Fill(segment.units, to->mutable_units());
    for (const RankList& holders : segment.holders) Fill(holders, to->add_holders());
    if (segment.family.edge >= 0) {
      to->set_projector(plan.spec.edges[static_cast<size_t>(segment.family.edge)].to);
    }
  }
}

void FillShares(const plan::Plan& plan, v1::Plan* out) {
  const std::optional<std::vector<plan::Share>> shares = plan::Shares(plan);
  out->set_shares_left_out(!shares.has_value());
  for (const plan::StateHomes& state : plan::HomesOfState(plan)) {
    v1::Plan::StateHomes* to = out->add_state_homes();
    to->set_module(state.module);
    to->set_pp(state.pp);
    to->set_tp(state.tp);
    for (const RankList& homes : state.homes) Fill(homes, to->add_homes());
    to->set_host(state.host);
  }
  if (!shares.has_value()) return;
  for (const plan::Share& share : *shares) {
    v1::Plan::Share* to = out->add_shares();
    to->set_module(share.module);
    to->set_pp(share.pp);
    to->set_chunk(share.chunk);
    to->set_segment(share.segment);
    to->set_bucket(share.bucket);
    Fill(share.elements, to->mutable_elements());
    *to->mutable_homes() = Numbers(share.homes);
    to->set_host(share.host);
  }
}

// Nothing where some module's parameters are not known: a sum that leaves out a module misleads.
void FillMemory(const plan::Plan& plan, v1::Plan* out) {
  if (!MemoryIsKnown(plan)) return;
  for (const plan::MemoryEstimate& estimate : plan::EstimateMemory(plan)) {
    v1::Plan::Memory* to = out->add_memory();
    to->set_parameters(estimate.parameters);
    to->set_gradients(estimate.gradients);
    to->set_optimizer(estimate.optimizer);
    to->set_activations(estimate.activations);
  }
}

constexpr size_t kMovesMax = 4096;

v1::Plan::Move::Source SourceOf(plan::Move::Source source) {
  switch (source) {
    case plan::Move::Source::kRank:
      return v1::Plan::Move::SOURCE_RANK;
    case plan::Move::Source::kHost:
      return v1::Plan::Move::SOURCE_HOST;
    case plan::Move::Source::kCheckpoint:
      return v1::Plan::Move::SOURCE_CHECKPOINT;
  }
  return v1::Plan::Move::SOURCE_UNSPECIFIED;
}

void FillLoss(const plan::Plan& plan, const schedule::Preview::Loss& loss, v1::Plan* out) {
  out->set_bytes_moved(loss.moves.bytes);
  out->set_steps_lost(loss.moves.steps_lost);
  out->set_step_ratio(loss.step_ratio);
  out->set_safe_again_steps(loss.moves.safe_again_steps);
  out->set_moves_left_out(loss.moves.moves.size() > kMovesMax);
  if (out->moves_left_out()) return;
  for (const plan::Move& move : loss.moves.moves) {
    v1::Plan::Move* to = out->add_moves();
    to->set_module(move.part.module);
    to->set_pp(move.part.stage);
    to->set_chunk(move.part.chunk);
    to->set_bucket(move.bucket);
    to->set_kind(KindOf(move.family.kind));
    if (move.family.edge >= 0) {
      to->set_projector(plan.spec.edges[static_cast<size_t>(move.family.edge)].to);
    }
    Fill(move.elements, to->mutable_elements());
    to->set_source(SourceOf(move.source));
    if (move.source != plan::Move::Source::kCheckpoint) to->set_from(move.from.value);
    to->set_to(move.to.value);
    to->set_from_pp(move.from_stage);
  }
}

void Fill(const schedule::ProcessMemory& memory, v1::Plan::MemoryParts* out) {
  const plan::MemoryEstimate& step = memory.peak.step;
  out->set_rank(memory.rank.value);
  out->set_parameters(step.parameters);
  out->set_gradients(step.gradients);
  out->set_optimizer(step.optimizer);
  out->set_activations(step.activations);
  out->set_tried(memory.peak.tried_beyond());
  out->set_to_take_over(memory.peak.to_take_over);
  if (memory.context.has_value()) out->set_context(*memory.context);
  if (memory.communicators.has_value()) out->set_communicators(*memory.communicators);
  if (memory.standby.has_value()) out->set_standby(*memory.standby);
  out->set_unestimated(memory.unestimated);
}

void Fill(const schedule::Prediction& prediction, v1::Plan::Prediction* out) {
  out->set_device_kind(prediction.device_kind);
  out->set_items(prediction.items);
  out->set_step(prediction.step);
  out->set_bubble(prediction.bubble);
  if (prediction.clock_mhz > 0) out->set_clock_mhz(prediction.clock_mhz);
  out->set_memory(prediction.memory.total());
  Fill(prediction.memory, out->mutable_memory_parts());
  const schedule::StepParts& parts = prediction.parts;
  out->set_compute(parts.compute);
  out->set_recompute(parts.recompute);
  out->set_tensor(parts.tensor);
  out->set_waiting(parts.waiting);
  out->set_update(parts.update);
}

// ---- Schedule ----

void FillSchedule(const plan::Plan& plan, const PlanFigures& figures, v1::Plan::Schedule* out) {
  const job::Schedule& schedule = plan.spec.schedule;
  out->set_name(NameOf(schedule.name));
  out->set_chunks(schedule.chunks);
  out->set_encoder_chunks(schedule.encoder_chunks);
  out->set_microbatches(plan.microbatches);
  out->set_bubble(figures.bubble);
  out->set_lower_bound(figures.lower_bound);
}

void FillCandidates(const plan::Plan& plan, v1::Plan* out) {
  const bool known = MemoryIsKnown(plan);
  for (const plan::ScheduleCandidate& candidate : plan.candidates) {
    v1::Plan::Candidate* to = out->add_candidates();
    to->set_name(NameOf(candidate.schedule.name));
    to->set_chunks(candidate.schedule.chunks);
    to->set_encoder_chunks(candidate.schedule.encoder_chunks);
    to->set_chosen(candidate.schedule == plan.spec.schedule);
    to->set_left_out(candidate.left_out);
    if (!candidate.left_out.empty()) continue;
    to->set_step(candidate.step);
    to->set_bubble(candidate.bubble);
    if (known) to->set_memory(candidate.memory);
  }
}

}  // namespace

v1::Plan ToProto(const plan::Plan& plan, const PlanFigures& figures) {
  v1::Plan out;
  out.set_digest(plan.digest);
  out.set_world(plan.world);
  out.set_epoch(plan.epoch().value);
  for (const ModulePlan& layout : plan.modules) FillModule(plan, layout, out.add_modules());
  FillEdges(plan, &out);
  FillRanks(plan, &out);
  ToProto(plan.layout.nodes, out.mutable_placement());
  *out.mutable_idle() = Numbers(plan.layout.idle);
  *out.mutable_lost() = Numbers(plan.layout.lost);
  *out.mutable_notes() = {plan.notes.begin(), plan.notes.end()};
  out.set_stages(plan.stages);
  FillSchedule(plan, figures, out.mutable_schedule());
  FillCandidates(plan, &out);
  FillReplicas(plan, &out);
  FillSegments(plan, &out);
  FillShares(plan, &out);
  FillMemory(plan, &out);
  if (figures.loss.has_value()) FillLoss(plan, *figures.loss, &out);
  if (figures.prediction.has_value()) Fill(*figures.prediction, out.mutable_prediction());
  return out;
}

}  // namespace phalanx::wire

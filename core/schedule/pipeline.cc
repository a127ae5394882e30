#include "core/schedule/pipeline.h"

#include <algorithm>
#include <utility>

namespace phalanx::schedule {
namespace {

bool ModulesShareRanks(const plan::Plan& plan) {
  std::vector<std::pair<int32_t, int32_t>> spans;
  for (const plan::ModulePlan& module : plan.modules) {
    spans.emplace_back(module.grid.offset(), module.grid.offset() + module.grid.size());
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second) return true;
  }
  return false;
}

void AddParts(const plan::Plan& plan, Pipeline& pipeline) {
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    const plan::ModulePlan& module = plan.modules[m];
    pipeline.first_part.push_back(static_cast<int32_t>(pipeline.parts.size()));
    pipeline.chunks.push_back(module.chunks);
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks; ++chunk) {
        pipeline.parts.push_back({.module = static_cast<int32_t>(m),
                                  .stage = stage,
                                  .chunk = chunk,
                                  .graph_stage = module.GraphStage(stage, chunk)});
      }
    }
  }
}

void AddOnce(int32_t part, std::vector<int32_t>& parts) {
  if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
}

void AddLinks(const plan::Plan& plan, Pipeline& pipeline) {
  for (size_t i = 0; i < plan.links.size(); ++i) {
    const plan::Link& link = plan.links[i];
    const LinkParts ends = {
        .from = pipeline.PartAt(link.from_module, link.from_stage, link.from_chunk),
        .to = pipeline.PartAt(link.to_module, link.to_stage, link.to_chunk)};
    pipeline.links.push_back(ends);
    Part& from = pipeline.parts[static_cast<size_t>(ends.from)];
    Part& to = pipeline.parts[static_cast<size_t>(ends.to)];
    from.links_out.push_back(static_cast<int32_t>(i));
    AddOnce(ends.to, from.downstream);
    to.links_in.push_back(static_cast<int32_t>(i));
    AddOnce(ends.from, to.upstream);
  }
}

RankClass& ClassOfParts(const std::vector<int32_t>& parts, Rank rank, Pipeline& pipeline) {
  const auto [entry, added] =
      pipeline.class_of_parts.try_emplace(parts, static_cast<int32_t>(pipeline.classes.size()));
  if (added) {
    pipeline.classes.push_back({.parts = parts, .first = rank});
    for (int32_t part : parts) {
      pipeline.parts[static_cast<size_t>(part)].classes.push_back(entry->second);
    }
  }
  return pipeline.classes[static_cast<size_t>(entry->second)];
}

void AddClasses(const plan::Plan& plan, Pipeline& pipeline) {
  if (ModulesShareRanks(plan)) {
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      const std::vector<int32_t> parts = PartsOf(pipeline, plan, Rank{rank});
      if (!parts.empty()) ++ClassOfParts(parts, Rank{rank}, pipeline).ranks;
    }
    return;
  }
  // Chunks of one stage share their ranks even where modules do not.
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    const plan::ModulePlan& module = plan.modules[m];
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      std::vector<int32_t> parts;
      for (int32_t chunk = 0; chunk < module.chunks; ++chunk) {
        parts.push_back(pipeline.PartAt(static_cast<int32_t>(m), stage, chunk));
      }
      const auto index = static_cast<int32_t>(m);
      const Rank first = plan.RankOf({.module = index, .pp = stage});
      ClassOfParts(parts, first, pipeline).ranks = module.grid.size() / module.pp();
    }
  }
}

}  // namespace

std::vector<int32_t> PartsOf(const Pipeline& pipeline, const plan::Plan& plan, Rank rank) {
  std::vector<int32_t> parts;
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    for (int32_t chunk = 0; chunk < pipeline.chunks[static_cast<size_t>(place.module)]; ++chunk) {
      parts.push_back(pipeline.PartAt(place.module, place.pp, chunk));
    }
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

int32_t ClassOf(const Pipeline& pipeline, const plan::Plan& plan, Rank rank) {
  const auto found = pipeline.class_of_parts.find(PartsOf(pipeline, plan, rank));
  return found == pipeline.class_of_parts.end() ? -1 : found->second;
}

Pipeline MakePipeline(const plan::Plan& plan) {
  Pipeline pipeline;
  pipeline.stages = plan.stages;
  pipeline.microbatches = static_cast<int32_t>(plan.microbatches);
  AddParts(plan, pipeline);
  AddLinks(plan, pipeline);
  AddClasses(plan, pipeline);
  return pipeline;
}

}  // namespace phalanx::schedule

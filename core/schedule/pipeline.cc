#include "core/schedule/pipeline.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace phalanx::schedule {
namespace {

bool ModulesShareRanks(const plan::Plan& plan) {
  return std::any_of(plan.modules.begin(), plan.modules.end(),
                     [](const plan::ModulePlan& module) { return module.shares_ranks; });
}

void AddParts(const plan::Plan& plan, Pipeline& pipeline) {
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    const plan::ModulePlan& module = plan.modules[m];
    pipeline.first_part.push_back(static_cast<int32_t>(pipeline.parts.size()));
    pipeline.chunks.push_back(module.chunks());
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        pipeline.parts.push_back({.module = static_cast<int32_t>(m),
                                  .stage = stage,
                                  .chunk = chunk,
                                  .graph_stage = module.GraphStage(stage, chunk),
                                  .trains = module.TrainsOf(stage, chunk)});
      }
    }
  }
}

void TieEnds(const plan::Plan& plan, Pipeline& pipeline) {
  for (const plan::ModulePlan& module : plan.modules) {
    const int32_t last = static_cast<int32_t>(module.stage_layers.size()) - 1;  // in flow
    if (!plan.module_spec(module.index).architecture.tied_head || last == 0) continue;
    const int32_t a = pipeline.PartAt(module.index, module.StageAt(0), 0);
    const int32_t b = pipeline.PartAt(module.index, module.StageAt(last), module.ChunkAt(last));
    Part& head = pipeline.parts[static_cast<size_t>(a)];
    Part& tail = pipeline.parts[static_cast<size_t>(b)];
    if (!head.trains.weights || !tail.trains.weights) continue;
    head.tied = b;
    head.leads = true;
    tail.tied = a;
  }
}

void AddOnce(int32_t part, std::vector<int32_t>& parts) {
  if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
}

void AddLinks(const plan::Plan& plan, Pipeline& pipeline) {
  for (size_t i = 0; i < plan.links.size(); ++i) {
    const plan::Link& link = plan.links[i];
    LinkParts ends = {.from = pipeline.PartAt(link.from.module, link.from.stage, link.from.chunk),
                      .to = pipeline.PartAt(link.to.module, link.to.stage, link.to.chunk)};
    ends.gradients = pipeline.parts[static_cast<size_t>(ends.from)].trains.any();
    pipeline.links.push_back(ends);
    Part& from = pipeline.parts[static_cast<size_t>(ends.from)];
    Part& to = pipeline.parts[static_cast<size_t>(ends.to)];
    from.links_out.push_back(static_cast<int32_t>(i));
    AddOnce(ends.to, from.downstream);
    to.links_in.push_back(static_cast<int32_t>(i));
    AddOnce(ends.from, to.upstream);
  }
}

// Index of the class that holds these parts, added if it is new.
int32_t ClassOfParts(const std::vector<int32_t>& parts, Rank rank, Pipeline& pipeline) {
  const auto [entry, added] =
      pipeline.class_of_parts.try_emplace(parts, static_cast<int32_t>(pipeline.classes.size()));
  if (added) {
    pipeline.classes.push_back({.parts = parts, .first = rank});
    for (int32_t part : parts) {
      pipeline.parts[static_cast<size_t>(part)].classes.push_back(entry->second);
    }
  }
  return entry->second;
}

// Sets of rank classes that grow together.
class Unions {
 public:
  explicit Unions(size_t count) : root_(count) { std::iota(root_.begin(), root_.end(), 0); }
  int32_t RootOf(int32_t x) {
    while (root_[static_cast<size_t>(x)] != x) x = root_[static_cast<size_t>(x)];
    return x;
  }
  // The smaller root stays.
  void Join(int32_t a, int32_t b) {
    const auto [low, high] = std::minmax({RootOf(a), RootOf(b)});
    root_[static_cast<size_t>(high)] = low;
  }

 private:
  std::vector<int32_t> root_;
};

// The classes of one stage that its tensor groups join.
Unions JoinedClasses(const plan::ReplicaTable& replicas, int32_t pp,
                     const std::vector<int32_t>& class_of_rank, size_t classes) {
  Unions joined(classes);
  for (int32_t dp = 0; dp < replicas.replicas(); ++dp) {
    if (!replicas.Present(dp)) continue;
    for (int32_t cp = 0; cp < replicas.cp(); ++cp) {
      const auto class_at = [&](int32_t tp) {
        return class_of_rank[static_cast<size_t>(replicas.At(dp, pp, cp, tp).value)];
      };
      for (int32_t tp = 1; tp < replicas.Width(dp, pp); ++tp) {
        joined.Join(class_at(0), class_at(tp));
      }
    }
  }
  return joined;
}

// `class_of_rank`: of every rank where modules share ranks, else empty: every class is a crew then.
void AddCrewsOfModule(const plan::Plan& plan, int32_t module,
                      const std::vector<int32_t>& class_of_rank, Pipeline& pipeline) {
  const plan::ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  const bool may_join = !class_of_rank.empty();
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    Unions joined =
        may_join ? JoinedClasses(layout.replicas, stage, class_of_rank, pipeline.classes.size())
                 : Unions(0);
    std::map<int32_t, int32_t> crew_of_root;
    const Part& first = pipeline.parts[static_cast<size_t>(pipeline.PartAt(module, stage, 0))];
    for (int32_t c : first.classes) {
      const int32_t root = may_join ? joined.RootOf(c) : c;
      const auto [crew, added] =
          crew_of_root.try_emplace(root, static_cast<int32_t>(pipeline.crews.size()));
      if (added) pipeline.crews.push_back({.module = module, .stage = stage});
      pipeline.crews[static_cast<size_t>(crew->second)].classes.push_back(c);
    }
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      Part& part = pipeline.parts[static_cast<size_t>(pipeline.PartAt(module, stage, chunk))];
      for (const auto& [root, crew] : crew_of_root) part.crews.push_back(crew);
    }
  }
}

void AddCrews(const plan::Plan& plan, const std::vector<int32_t>& class_of_rank,
              Pipeline& pipeline) {
  for (const plan::ModulePlan& module : plan.modules) {
    AddCrewsOfModule(plan, module.index, class_of_rank, pipeline);
  }
  for (RankClass& ranks : pipeline.classes) ranks.crews.resize(ranks.parts.size());
  for (size_t k = 0; k < pipeline.crews.size(); ++k) {
    const Crew& crew = pipeline.crews[k];
    for (int32_t c : crew.classes) {
      RankClass& ranks = pipeline.classes[static_cast<size_t>(c)];
      for (size_t i = 0; i < ranks.parts.size(); ++i) {
        const Part& part = pipeline.parts[static_cast<size_t>(ranks.parts[i])];
        if (part.module != crew.module || part.stage != crew.stage) continue;
        ranks.crews[i] = static_cast<int32_t>(k);
      }
    }
  }
}

// Class of every rank, -1 for idle ones, where modules share ranks; else empty.
std::vector<int32_t> AddClasses(const plan::Plan& plan, Pipeline& pipeline) {
  std::vector<int32_t> class_of_rank;
  if (ModulesShareRanks(plan)) {
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      const std::vector<int32_t> parts = PartsOf(pipeline, plan, Rank{rank});
      class_of_rank.push_back(parts.empty() ? -1 : ClassOfParts(parts, Rank{rank}, pipeline));
      if (!parts.empty()) ++pipeline.classes[static_cast<size_t>(class_of_rank.back())].ranks;
    }
    return class_of_rank;
  }
  // Chunks of one stage share their ranks even where modules do not.
  for (size_t m = 0; m < plan.modules.size(); ++m) {
    const plan::ModulePlan& module = plan.modules[m];
    for (int32_t stage = 0; stage < module.pp(); ++stage) {
      std::vector<int32_t> parts;
      for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
        parts.push_back(pipeline.PartAt(static_cast<int32_t>(m), stage, chunk));
      }
      const Rank first = module.replicas.At(module.replicas.FirstPresent(), stage, 0, 0);
      const int32_t added = ClassOfParts(parts, first, pipeline);
      pipeline.classes[static_cast<size_t>(added)].ranks = module.replicas.RanksOfStage(stage);
    }
  }
  return class_of_rank;
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
  TieEnds(plan, pipeline);
  AddLinks(plan, pipeline);
  AddCrews(plan, AddClasses(plan, pipeline), pipeline);
  return pipeline;
}

}  // namespace phalanx::schedule

#include "core/job/graph.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace phalanx::job {
namespace {

// Ranks that one or several modules have in common.
struct SharedSpan {
  int64_t parts = 0;                           // that each rank holds
  std::set<std::pair<int64_t, int32_t>> cuts;  // ranks from stage to stage, and stages
};

int64_t StageStride(const Parallel& parallel) {
  int64_t stride = 1;
  for (const MeshAxis axis : parallel.order) {
    if (axis == MeshAxis::kPipeline) break;
    stride *= axis == MeshAxis::kTensor    ? parallel.tp
              : axis == MeshAxis::kContext ? parallel.cp
                                           : parallel.dp;
  }
  return stride;
}

// Ranks of one kind are on the same stage of each module: no more kinds than there are ways to
// combine stages, nor than there are runs of ranks on which no stage changes.
int64_t KindsOfRank(const SharedSpan& span, int64_t ranks) {
  if (span.cuts.empty()) return 1;
  int64_t combinations = 1, runs = 0, stride_before = 0;
  for (const auto& [stride, stages] : span.cuts) {
    combinations = std::min(ranks, combinations * stages);
    if (stride != stride_before) runs += ranks / stride;
    stride_before = stride;
  }
  return std::min(combinations, runs);
}

}  // namespace

std::set<int32_t> ReachedFrom(const JobSpec& spec, int32_t from) {
  std::set<int32_t> reached;
  std::vector<int32_t> next = {from};
  while (!next.empty()) {
    const int32_t module = next.back();
    next.pop_back();
    for (const Edge& edge : spec.edges) {
      if (edge.from == module && reached.insert(edge.to).second) next.push_back(edge.to);
    }
  }
  return reached;
}

std::vector<int32_t> DataFlowOrder(size_t modules, const std::vector<Edge>& edges) {
  std::vector<int32_t> order;
  std::vector<bool> placed(modules, false);
  const auto ready = [&](size_t module) {
    return !placed[module] && std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
      return static_cast<size_t>(edge.to) != module || placed[static_cast<size_t>(edge.from)];
    });
  };
  for (size_t module = 0; module < modules;) {
    if (!ready(module)) {
      ++module;
      continue;
    }
    placed[module] = true;
    order.push_back(static_cast<int32_t>(module));
    module = 0;
  }
  return order;
}

int32_t ChunksOf(const JobSpec& spec, const Schedule& schedule, int32_t module) {
  if (module != spec.language) return 1;
  return schedule.name == ScheduleName::kZeroBubbleV ? kChunksOfVee : std::max(1, schedule.chunks);
}

int64_t MicrobatchesOf(const JobSpec& spec) {
  const int64_t lanes = spec.modules[static_cast<size_t>(spec.language)].parallel.dp;
  const int64_t samples = (spec.batch.global + lanes - 1) / lanes;
  return (samples + spec.batch.micro - 1) / spec.batch.micro;
}

int64_t PlanningLoad(const JobSpec& spec) {
  std::map<std::pair<int32_t, int32_t>, SharedSpan> spans;  // by offset and ranks
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    const Module& module = spec.modules[i];
    SharedSpan& span = spans[{module.offset, module.parallel.ranks}];
    span.parts += ChunksOf(spec, static_cast<int32_t>(i));
    if (module.parallel.pp > 1) {
      span.cuts.insert({StageStride(module.parallel), module.parallel.pp});
    }
  }
  int64_t load = 0;
  for (const auto& [place, span] : spans) {
    load += KindsOfRank(span, place.second) * span.parts * span.parts;
  }
  return load;
}

bool HasPhases(const JobSpec& spec, int32_t module) {
  const Module& language = spec.modules[static_cast<size_t>(spec.language)];
  const Module& other = spec.modules[static_cast<size_t>(module)];
  return module != spec.language && other.offset == language.offset &&
         other.parallel.ranks == language.parallel.ranks &&
         ReachedFrom(spec, module).count(spec.language) > 0;
}

}  // namespace phalanx::job

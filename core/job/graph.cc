#include "core/job/graph.h"

#include <algorithm>
#include <cstddef>

namespace phalanx::job {

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

int64_t PartsOf(const JobSpec& spec) {
  int64_t parts = 0;
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    parts += int64_t{spec.modules[i].parallel.pp} * ChunksOf(spec, static_cast<int32_t>(i));
  }
  return parts;
}

bool HasPhases(const JobSpec& spec, int32_t module) {
  const Module& language = spec.modules[static_cast<size_t>(spec.language)];
  const Module& other = spec.modules[static_cast<size_t>(module)];
  return module != spec.language && other.offset == language.offset &&
         other.parallel.ranks == language.parallel.ranks &&
         ReachedFrom(spec, module).count(spec.language) > 0;
}

}  // namespace phalanx::job

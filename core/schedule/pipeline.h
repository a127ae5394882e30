// core/schedule/pipeline.h: the pipeline parts of a plan as a graph.
//
// A *part* is one chunk of one stage of one module. All replicas and all tensor ranks of a part do
// the same work, so schedules are made for parts and then handed to ranks. Ranks that hold the same
// parts form a *rank class* and have the same program; while modules share no ranks, all ranks of a
// stage are one class.
//
// Where modules share ranks a stage can have several classes. A pass of a part of tensor width
// above 1 has collectives among each tensor group, so all members of a group run it together:
// classes that a tensor group joins form a *crew*, which runs each pass of the stage at one time.
// Different crews of a stage have nothing to do with each other and may run the same pass at
// different times.
//
// Pure. Plain values; safe to read from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/plan/plan.h"

namespace phalanx::schedule {

struct Part {
  int32_t module = 0, stage = 0, chunk = 0;   // stage: pp coordinate
  int32_t graph_stage = 0;                    // counted over the module graph
  plan::Trains trains;                        // which backward passes it has
  std::vector<int32_t> links_in, links_out;   // in the order of plan.links
  std::vector<int32_t> upstream, downstream;  // the parts at the other ends, each once
  std::vector<int32_t> classes;               // rank classes that hold this part
  std::vector<int32_t> crews;                 // the same classes by crews
  int32_t tied = -1;   // the part at the other end of an embedding that is tied and trains
  bool leads = false;  // of the two it is the one with the embedding, which leads (plan/copies.h)
};

struct LinkParts {
  int32_t from = 0, to = 0;
  bool gradients = true;  // flow back: the part at `from` has a backward pass
};

struct Crew {
  int32_t module = 0, stage = 0;
  std::vector<int32_t> classes;  // ascending
};

struct RankClass {
  std::vector<int32_t> parts;  // ascending
  std::vector<int32_t> crews;  // of each of those parts
  Rank first;                  // stands for all of them
  int64_t ranks = 0;
};

struct Pipeline {
  std::vector<Part> parts;       // by module, then stage, then chunk
  std::vector<LinkParts> links;  // of each link of the plan
  std::vector<RankClass> classes;
  std::vector<Crew> crews;
  std::vector<int32_t> first_part;  // of each module
  std::vector<int32_t> chunks;      // of each module
  std::map<std::vector<int32_t>, int32_t> class_of_parts;
  int32_t stages = 0;
  int32_t microbatches = 0;

  int32_t PartAt(int32_t module, int32_t stage, int32_t chunk) const {
    const auto m = static_cast<size_t>(module);
    return first_part[m] + stage * chunks[m] + chunk;
  }
};

Pipeline MakePipeline(const plan::Plan& plan);

// Parts of a rank, ascending; empty for an idle one.
std::vector<int32_t> PartsOf(const Pipeline& pipeline, const plan::Plan& plan, Rank rank);
// The class of a rank, or -1 for an idle one.
int32_t ClassOf(const Pipeline& pipeline, const plan::Plan& plan, Rank rank);

}  // namespace phalanx::schedule

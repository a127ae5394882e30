// core/plan/plan.h: a job laid out on devices.
//
// A plan is small: the spec, where each rank runs, the layers of each stage, and (later) the
// replicas whose width differs. Everything about a rank is computed from it by this code, which
// coordinator, workers and client all link, so nothing per-rank crosses the wire; the digest proves
// that all agree.
//
// Words: *replica* one data-parallel copy of a module (dp coordinate; with cp, cp ranks share it);
// *stage* one pipeline part (pp coordinate); *lane* a replica seen from an edge: the ranks of its
// last (as source) or first (as destination) stage. *Width*: tensor ranks of a (module, dp, pp).
//
// Pure. A Plan is a plain value; safe to read from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/job/job_spec.h"
#include "core/plan/grid.h"

namespace phalanx::plan {

// The devices that a plan may use, in the order in which ranks are laid on them.
struct Device {
  NodeName node;
  int32_t index = 0;  // on its node
  friend bool operator==(const Device&, const Device&) = default;
};
struct Cluster {
  std::vector<Device> devices;
};
// `nodes` x `devices_per_node` devices named node-0, node-1, ...: what `phalanx plan --nodes` uses.
Cluster MakeCluster(int32_t nodes, int32_t devices_per_node);

// [first, first + count) of a module's layers.
struct LayerRange {
  int32_t first = 0, count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// What a backward pass of a pipeline part has to compute.
struct Trains {
  bool weights = false;  // the part has parameters that train: its layers, or a projector
  bool inputs = false;   // something before it in the module graph trains
  bool any() const { return weights || inputs; }  // else it has no backward pass
  friend bool operator==(const Trains&, const Trains&) = default;
};

// Which pipeline ranks hold consecutive parts of a module with several chunks.
enum class Placement : uint8_t {
  kLoop,  // chunk 0 of stages 0, 1, ..., then chunk 1 of stages 0, 1, ...: the last rank's part is
          // followed by one of the first
  kVee,   // two chunks: chunk 0 of stages 0, 1, ..., then chunk 1 of stages ..., 1, 0: rank d of p
          // holds parts d and 2p - 1 - d, and the first one both ends
};

struct ModulePlan {
  int32_t index = 0;  // into spec.modules
  Grid grid;          // axes tp, cp, dp, pp in the user's order
  // Axes expt_tp, ep, expt_dp over the ranks of each stage in ascending order, and pp shared.
  Grid expert_grid;
  // Pieces of layers a stage: for the language module those of the schedule, else 1.
  int32_t chunks = 1;
  Placement placement = Placement::kLoop;
  // Of chunk c of stage p at p * chunks + c. With one chunk simply [pp]. Covers all layers.
  std::vector<LayerRange> stage_layers;
  int32_t first_stage = 0;     // of the module graph: longest path of pipeline parts before it
  std::vector<Trains> trains;  // parallel to stage_layers

  int32_t pp() const { return static_cast<int32_t>(stage_layers.size()) / chunks; }
  const LayerRange& layers(int32_t stage, int32_t chunk = 0) const {
    return stage_layers[static_cast<size_t>(stage * chunks + chunk)];
  }
  const Trains& TrainsOf(int32_t stage, int32_t chunk = 0) const {
    return trains[static_cast<size_t>(stage * chunks + chunk)];
  }
  // Place of a part in the order in which data passes them, in [0, pp * chunks), and back.
  int32_t FlowOf(int32_t stage, int32_t chunk = 0) const {
    const bool turned = placement == Placement::kVee && chunk == 1;
    return chunk * pp() + (turned ? pp() - 1 - stage : stage);
  }
  int32_t StageAt(int32_t flow) const {
    const int32_t stage = flow % pp();
    return placement == Placement::kVee && ChunkAt(flow) == 1 ? pp() - 1 - stage : stage;
  }
  int32_t ChunkAt(int32_t flow) const { return flow / pp(); }
  int32_t LastStage() const { return StageAt(pp() * chunks - 1); }  // that of the last part
  // Of a part, counted over the module graph.
  int32_t GraphStage(int32_t stage, int32_t chunk = 0) const {
    return first_stage + FlowOf(stage, chunk);
  }
  bool IsFirst(int32_t stage, int32_t chunk = 0) const { return FlowOf(stage, chunk) == 0; }
  bool IsLast(int32_t stage, int32_t chunk = 0) const {
    return FlowOf(stage, chunk) == pp() * chunks - 1;
  }
};

// A directed step of activations from one pipeline part to the next, within a module or along an
// edge. Gradients flow back over the same link.
struct Link {
  int32_t from_module = 0, from_stage = 0;  // pp coordinate (and chunk, when there are several)
  int32_t to_module = 0, to_stage = 0;
  int32_t from_chunk = 0, to_chunk = 0;
  int32_t edge = -1;  // index into spec.edges; -1: inside a module
  friend bool operator==(const Link&, const Link&) = default;
};

// Where a rank stands in one of its modules.
struct Place {
  int32_t module = 0;
  int32_t tp = 0, cp = 0, dp = 0, pp = 0;
  int32_t width = 1;  // tensor ranks of its replica's stage
  friend bool operator==(const Place&, const Place&) = default;
};

// A schedule that was tried for a job which leaves it open (core/schedule/choice.h).
struct ScheduleCandidate {
  job::Schedule schedule;
  double step = 0;       // simulated seconds of all passes, under costs from shapes
  double bubble = 0;     // simulated, fraction of devices x step
  int64_t memory = 0;    // estimated bytes of the rank that needs most
  std::string left_out;  // why the job cannot have it, then nothing of the above; else empty
};

struct Plan {
  job::JobSpec spec;
  Epoch epoch{1};
  int32_t world = 0;
  std::vector<ModulePlan> modules;
  std::vector<Link> links;      // within modules first, in order; then one an edge
  std::vector<Device> devices;  // of each rank, [world]
  // Devices of the cluster that no module uses: those of ranks in no module, then those beyond the
  // world, in cluster order.
  std::vector<Device> idle;
  int32_t stages = 0;        // of the module graph: longest path
  int64_t microbatches = 1;  // M of rules: max over language replicas of ceil(samples / micro)
  // What was tried before the spec's schedule was chosen, that one included; empty if the job named
  // its schedule, or has too large a graph to try any.
  std::vector<ScheduleCandidate> candidates;
  // Of everything above but `idle` and `candidates`, and of the spec what ranks act on: not labels,
  // priority and other matters of the queue. Equal digests mean that two processes would do the
  // same.
  std::string digest;

  const job::Module& module_spec(int32_t module) const {
    return spec.modules[static_cast<size_t>(module)];
  }
  const job::Parallel& parallel(int32_t module) const { return module_spec(module).parallel; }

  // Tensor ranks of one stage of one replica, in unit order. The one place that knows widths.
  RankList TensorGroup(int32_t module, int32_t dp, int32_t pp, int32_t cp = 0) const;
  int32_t Width(int32_t module, int32_t dp, int32_t pp) const;
  // Ranks with the same stage and tensor coordinate, over dp (then cp): the data group.
  RankList DataGroup(int32_t module, int32_t pp, int32_t tp) const;
  // The rank at a place; its `width` does not matter. A place outside the plan is a caller's bug.
  Rank RankOf(const Place& place) const;
  // In spec order; empty for an idle rank.
  std::vector<Place> PlacesOf(Rank rank) const;
  std::optional<Place> PlaceOf(Rank rank, int32_t module) const;
  // Links into and out of a pipeline part, in the order of `links`.
  std::vector<int32_t> LinksInto(int32_t module, int32_t stage, int32_t chunk = 0) const;
  std::vector<int32_t> LinksOutOf(int32_t module, int32_t stage, int32_t chunk = 0) const;
  bool IsSink(int32_t module) const;  // no outgoing edge
  // The language module (cross-entropy) and every module that predicts and is a sink (squared
  // error). The last part of such a module computes the loss.
  bool HasLoss(int32_t module) const {
    return module == spec.language ||
           (job::TraitsOf(module_spec(module).architecture).predicts() && IsSink(module));
  }
  // The rank that writes metrics: the first one of replica 0 of the language module that holds its
  // last part.
  Rank Reporter() const;
};

// Lays the job on the first devices of `cluster` (rank r on device r). A job that needs more
// devices than there are is refused. A schedule left open becomes 1f1b, with chunks interleaved:
// whoever plans a user's job calls schedule::PlanJob, which chooses. A plan never says `auto`.
// Errors: InvalidArgument with violations (layers that do not cover stages, widths beyond units,
// spans that overlap in part, edges that do not join, ...); ResourceExhausted for too few devices.
absl::StatusOr<Plan> MakePlan(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch);

// Every communicator of the plan in canonical order, the same on every rank.
struct CommunicatorSpec {
  enum class Use : uint8_t { kControl, kForward, kBackward, kTensor, kData } use = Use::kControl;
  std::string name;     // "control", "forward", "language.tp[3]", ...
  int32_t module = -1;  // kTensor, kData
  RankList ranks;       // canonical order: communicator rank = position
};
// Order: control (every rank that is in a module), forward and backward (every rank that can be an
// end of a link's message), tensor groups by (module, dp, pp), data groups by (module, pp, tp).
// Equal groups are shared: the second module that would make a tensor or data group of the same
// ranks for the same use uses the first one's. Groups of one rank are left out.
std::vector<CommunicatorSpec> Communicators(const Plan& plan);
// Index of the communicator of this use and these ranks, -1 where there is none (one rank).
int32_t FindCommunicator(const std::vector<CommunicatorSpec>& communicators,
                         CommunicatorSpec::Use use, const RankList& ranks);

}  // namespace phalanx::plan

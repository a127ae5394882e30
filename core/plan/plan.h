// core/plan/plan.h: a job laid out on devices.
//
// A plan is what a document and a layout (layout.h) come to. It is never stored or sent: everything
// about a rank is computed from those two by this code, which coordinator, workers and client all
// link, so nothing per-rank crosses the wire; the digest proves that all agree.
//
// Words: *replica* one data-parallel copy of a module (dp coordinate; with cp, cp ranks share it);
// *stage* what one pp coordinate holds: a part, or several chunks; *lane* a replica seen from an
// edge: the ranks of its last (as source) or first (as destination) stage. *Width*: tensor ranks of
// a (module, dp, pp); widths may differ (replica_table.h).
//
// Pure. A Plan is a plain value; safe to read from any thread.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/job/job_spec.h"
#include "core/plan/grid.h"
#include "core/plan/layout.h"
#include "core/plan/replica_table.h"

namespace phalanx::plan {

// [first, first + count) of a module's layers.
struct LayerRange {
  int32_t first = 0, count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// A pipeline part: one chunk of one stage (pp coordinate) of a module.
struct PartId {
  int32_t module = 0, stage = 0, chunk = 0;
  friend auto operator<=>(const PartId&, const PartId&) = default;
};

// What a backward pass of a pipeline part has to compute.
struct Trains {
  bool weights = false;  // the part has parameters that train: its layers, or a projector
  bool inputs = false;   // something before it in the module graph trains
  bool any() const { return weights || inputs; }  // else it has no backward pass
  friend bool operator==(const Trains&, const Trains&) = default;
};

struct ModulePlan {
  int32_t index = 0;  // into spec.modules
  Grid grid;          // the healthy layout: axes tp, cp, dp, pp in the user's order
  // Axes expt_tp, ep, expt_dp over the ranks of each stage in ascending order, and pp shared.
  Grid expert_grid;
  ReplicaTable replicas;  // who holds what now
  // Of each replica; 0: absent, or it takes no samples. Empty: all alike, so none is absent.
  std::vector<int64_t> speeds;
  PartOrder order;
  std::vector<LayerRange> stage_layers;  // of chunk c of stage p at order.IndexOf(p, c)
  int32_t first_stage = 0;     // of the module graph: longest path of pipeline parts before it
  std::vector<Trains> trains;  // parallel to stage_layers
  bool shares_ranks = false;   // another module has some of its ranks
  // It feeds the language module, at first or second hand, and has some of its ranks.
  bool has_phases = false;
  // The document's, with the degrees and ranks that are in force where the layout lowers them
  // (LoweredGrid), and then without layers.
  job::Parallel parallel = {};

  bool lowered() const { return !replicas.IsOfGrid(); }
  int64_t SpeedOf(int32_t dp) const { return speeds.empty() ? 1 : speeds[static_cast<size_t>(dp)]; }
  int32_t pp() const { return order.pp; }
  int32_t chunks() const { return order.chunks; }
  const LayerRange& layers(int32_t stage, int32_t chunk = 0) const {
    return stage_layers[order.IndexOf(stage, chunk)];
  }
  const Trains& TrainsOf(int32_t stage, int32_t chunk = 0) const {
    return trains[order.IndexOf(stage, chunk)];
  }
  // Whether any part has weights that train.
  bool TrainsWeights() const {
    return std::any_of(trains.begin(), trains.end(),
                       [](const Trains& part) { return part.weights; });
  }
  // Place of a part in the order in which data passes them, in [0, pp * chunks), and back.
  int32_t FlowOf(int32_t stage, int32_t chunk = 0) const { return order.FlowOf(stage, chunk); }
  int32_t StageAt(int32_t flow) const { return order.StageAt(flow); }
  int32_t ChunkAt(int32_t flow) const { return order.ChunkAt(flow); }
  PartId PartAt(int32_t flow) const { return {index, StageAt(flow), ChunkAt(flow)}; }
  int32_t LastStage() const { return StageAt(order.count() - 1); }  // that of the last part
  // Of a part, counted over the module graph.
  int32_t GraphStage(int32_t stage, int32_t chunk = 0) const {
    return first_stage + FlowOf(stage, chunk);
  }
  bool IsFirst(int32_t stage, int32_t chunk = 0) const { return FlowOf(stage, chunk) == 0; }
  bool IsLast(int32_t stage, int32_t chunk = 0) const {
    return FlowOf(stage, chunk) == order.count() - 1;
  }
};

// A directed step of activations from one pipeline part to the next, within a module or along an
// edge. Gradients flow back over the same link.
struct Link {
  PartId from, to;
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
  job::JobSpec spec;  // the document, with the layout's schedule
  Layout layout;
  int32_t world = 0;
  std::vector<ModulePlan> modules;
  std::vector<Link> links;  // within modules first, in order; then one an edge
  // Of each place of the layout (the ranks, then devices beyond them) which of layout.nodes has its
  // device.
  std::vector<int32_t> node_of;
  int32_t stages = 0;        // of the module graph: longest path
  int64_t microbatches = 1;  // M of rules: max over language replicas of ceil(samples / micro)
  // Of each language replica where its run of the step's batch begins, and the end.
  std::vector<int64_t> sample_runs;
  // What was tried before the spec's schedule was chosen, that one included; empty if the job named
  // its schedule, or has too large a graph to try any.
  std::vector<ScheduleCandidate> candidates;
  // Sentences of whoever planned it (schedule::AdmitJob): first what was lowered, as many as
  // `lowering_notes` (at most all), which go on to what is left of it; then what cannot be lost.
  std::vector<std::string> notes;
  size_t lowering_notes = 0;
  // Of the layout but for its epoch and its data_digest, which stand beside it, and of the spec
  // what ranks act on: not labels, priority and other matters of the queue. Equal digests mean that
  // two processes would do the same.
  std::string digest;

  const job::Module& module_spec(int32_t module) const {
    return spec.modules[static_cast<size_t>(module)];
  }
  // What is in force; the document's is in module_spec.
  const job::Parallel& parallel(int32_t module) const {
    return modules[static_cast<size_t>(module)].parallel;
  }

  Epoch epoch() const { return layout.epoch; }
  // The run of places of one node that it is in.
  const NodeDevices& EntryOf(Rank place) const {
    return layout.nodes[static_cast<size_t>(node_of[static_cast<size_t>(place.value)])];
  }
  const NodeName& NodeOf(Rank place) const { return EntryOf(place).node; }
  // Whether two places are on one node, or on nodes of one failure domain.
  bool FailTogether(Rank a, Rank b) const;
  Device DeviceOf(Rank place) const;
  const ReplicaTable& replicas(int32_t module) const {
    return modules[static_cast<size_t>(module)].replicas;
  }

  // Tensor ranks of one stage of one replica, in unit order; none where it has nobody.
  RankList TensorGroup(int32_t module, int32_t dp, int32_t pp, int32_t cp = 0) const {
    return replicas(module).Ranks(dp, pp, cp);
  }
  int32_t Width(int32_t module, int32_t dp, int32_t pp) const {
    return replicas(module).Width(dp, pp);
  }
  // The data groups of a stage: where all replicas have one width, the ranks of each tensor
  // coordinate over the replicas in their order (ReplicaTable::order; cp inside); where widths
  // differ, all ranks of the stage by (replica, cp, tp).
  std::vector<RankList> DataGroups(int32_t module, int32_t pp) const;
  // The one that a place is in: that of its tensor coordinate, or the only one.
  RankList DataGroupOf(const Place& place) const;
  int32_t DataCoordinate(const Place& place) const {
    return replicas(place.module).EqualWidths(place.pp) ? place.tp : 0;
  }
  // The rank at a place; its `width` does not matter. A place outside the plan is a caller's bug.
  Rank RankOf(const Place& place) const;
  // In spec order; empty for an idle rank.
  std::vector<Place> PlacesOf(Rank rank) const;
  std::optional<Place> PlaceOf(Rank rank, int32_t module) const;
  // Links into and out of a pipeline part, in the order of `links`.
  std::vector<int32_t> LinksInto(const PartId& part) const;
  std::vector<int32_t> LinksOutOf(const PartId& part) const;
  // Whether each rank at its ends has a slice of the rows that it carries (rows.h), not all:
  // between stages under sequence parallelism. Along an edge all have all.
  bool IsSliced(const Link& link) const {
    return link.edge < 0 && parallel(link.from.module).sequence;
  }
  bool IsSink(int32_t module) const;  // no outgoing edge
  // Whether three_phase runs the module's forwards before the language model's and its backwards
  // after them.
  bool RunsInPhases(int32_t module) const;
  // Such a module, or one that feeds it: it forwards all microbatches before it may get a gradient.
  bool RunsAhead(int32_t module) const;
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

// The plan of a document under a layout: the only derivation.
// Errors: InvalidArgument with violations of the document (CheckLayout), or for a layout that does
// not fit it ("layout: ..."), which can only come from elsewhere: no layout that DecideLayout or
// schedule::PlanJob made for this document fails.
absl::StatusOr<Plan> Expand(const job::JobSpec& spec, Layout layout);

// DecideLayout and Expand in one. Errors: as both.
absl::StatusOr<Plan> MakePlan(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch,
                              Fields fields = Fields::kUnknown);

// Every communicator of the plan in canonical order, the same on every rank.
struct CommunicatorSpec {
  enum class Use : uint8_t { kControl, kForward, kBackward, kTensor, kData } use = Use::kControl;
  std::string name;     // "control", "forward", "language.tp[3]", ...
  int32_t module = -1;  // kTensor, kData
  RankList ranks;       // canonical order: communicator rank = position
};
// Order: control (every rank that has work), forward and backward (every rank that can be an
// end of a link's message), tensor groups by (module, dp, pp), data groups
// (Plan::DataGroups) by (module, pp, tp).
// Equal groups are shared: the second module that would make a tensor or data group of the same
// ranks for the same use uses the first one's. Groups of one rank are left out.
std::vector<CommunicatorSpec> Communicators(const Plan& plan);
// What the members of a communicator do together.
enum class CommunicatorOperation : uint8_t { kAllReduce, kReduceScatter, kAllGather, kExchange };
// "all-reduce", "reduce-scatter", "all-gather", "exchange".
const char* OperationName(CommunicatorOperation operation);
// Index of the communicator of this use and these ranks, -1 where there is none (one rank).
int32_t FindCommunicator(const std::vector<CommunicatorSpec>& communicators,
                         CommunicatorSpec::Use use, const RankList& ranks);

}  // namespace phalanx::plan

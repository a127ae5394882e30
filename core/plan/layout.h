// core/plan/layout.h: what is decided about an epoch of a job, once.
//
// Whoever plans a job writes a layout; the coordinator stores it with the epoch and every
// assignment carries it. Expand (plan.h) turns document and layout into the plan, by the same code
// on coordinator, daemon and rank; nobody simulates, balances or searches again. So a coordinator
// that would decide otherwise today goes on with what was decided then.
//
// A layout is small: ranks follow from the document's grids but for the slots that a loss has
// changed, and devices are listed by node.
//
// Pure. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/job/job_spec.h"
#include "core/plan/replica_table.h"

namespace phalanx::plan {

struct Device {
  NodeName node;
  int32_t index = 0;  // on its node
  // What the node fails together with; empty: it fails alone.
  std::string domain = {};
  // The same device, whatever is said of its node.
  friend bool operator==(const Device& a, const Device& b) {
    return a.node == b.node && a.index == b.index;
  }
};
// The devices that a plan may use, in the order in which ranks are laid on them.
struct Cluster {
  std::vector<Device> devices;
};
// `nodes` x `devices_per_node` devices named node-0, node-1, ...: what `phalanx plan --nodes` uses.
Cluster MakeCluster(int32_t nodes, int32_t devices_per_node);

// Devices of one node, in rank order. A node may come more than once.
struct NodeDevices {
  NodeName node;
  std::vector<int32_t> devices;
  std::string domain = {};  // as Device::domain, the same wherever the node comes
  friend bool operator==(const NodeDevices&, const NodeDevices&) = default;
};
// Rank r is on the r-th device of the nodes taken in order.
using Placement = std::vector<NodeDevices>;

Cluster ClusterOf(const Placement& placement);
Placement PlacementOf(const Cluster& cluster);

// Which pipeline ranks hold consecutive parts of a module with several chunks.
enum class ChunkPath : uint8_t {
  kLoop,  // chunk 0 of stages 0, 1, ..., then chunk 1 of stages 0, 1, ...: the last rank's part is
          // followed by one of the first
  kVee,   // two chunks: chunk 0 of stages 0, 1, ..., then chunk 1 of stages ..., 1, 0: rank d of p
          // holds parts d and 2p - 1 - d, and the first one both ends
};

// The pipeline parts of a module, in the order in which data passes them: their *flow*, in
// [0, pp * chunks).
struct PartOrder {
  int32_t pp = 1;
  // Pieces of layers a stage: for the language module those of the schedule, else 1.
  int32_t chunks = 1;
  ChunkPath path = ChunkPath::kLoop;

  int32_t count() const { return pp * chunks; }
  int32_t FlowOf(int32_t stage, int32_t chunk) const {
    const bool turned = path == ChunkPath::kVee && chunk == 1;
    return chunk * pp + (turned ? pp - 1 - stage : stage);
  }
  int32_t ChunkAt(int32_t flow) const { return flow / pp; }
  int32_t StageAt(int32_t flow) const {
    const int32_t stage = flow % pp;
    return path == ChunkPath::kVee && ChunkAt(flow) == 1 ? pp - 1 - stage : stage;
  }
  // Of a part in lists by stage, then chunk.
  size_t IndexOf(int32_t stage, int32_t chunk) const {
    return static_cast<size_t>(stage * chunks + chunk);
  }
  friend bool operator==(const PartOrder&, const PartOrder&) = default;
};
// Of a module under the spec's schedule.
PartOrder PartOrderOf(const job::JobSpec& spec, int32_t module);

// Where the optimizer state of a module lives, and at how many homes in all.
struct HomeChoice {
  job::StateHome home = job::StateHome::kMirror;
  int32_t copies = 1;
  friend bool operator==(const HomeChoice&, const HomeChoice&) = default;
};

// A module that goes on with lower degrees than the document's, on some of its ranks (the rung
// `restart`, loss.h). Context parallelism stays as it is, and so do chunks.
struct LoweredGrid {
  int32_t tp = 1, dp = 1, pp = 1;
  std::vector<int32_t> layers;  // instead of ModuleLayout::layers, in that form
  RankList ranks;               // by pp, dp, cp, tp, tp fastest; each once
  friend bool operator==(const LoweredGrid&, const LoweredGrid&) = default;
};

struct ModuleLayout {
  // Of chunk c of stage p at p * chunks + c: how many layers. Covers all layers of the module.
  std::vector<int32_t> layers;
  // Slots whose ranks are not the healthy grid's, by (dp, pp).
  std::vector<SlotChange> changes;
  // What each replica can do, relative to the others, in [0, kSpeedMax]; 0: it takes no samples.
  // Empty: all present replicas alike.
  std::vector<int64_t> speeds;
  // Where the module's optimizer state lives: kMirror or kHost, never kAuto, and at how many homes
  // in all. kMirror: in that many replicas. kHost: at one replica and in its node's host memory.
  job::StateHome state_home = job::StateHome::kMirror;
  int32_t state_copies = 1;
  // Instead of the document's; nullopt: as it says.
  std::optional<job::Recompute> recompute = std::nullopt;
  // The present replicas in the order in which shares are theirs (ReplicaTable::order), so that a
  // loss moves little. Empty: ascending.
  std::vector<int32_t> order;
  // The homes that it was admitted with, where it has others since: it gets them again with its
  // replicas. Ranks do not act on it. nullopt: those that it has.
  std::optional<HomeChoice> admitted_homes = std::nullopt;
  // Instead of the document's grid and `layers`, which are those of its healthy form; then there
  // are no changes. nullopt: the healthy grid with its changes.
  std::optional<LoweredGrid> lowered = std::nullopt;
  friend bool operator==(const ModuleLayout&, const ModuleLayout&) = default;
};

// Where the state of a module with so many replicas lives: as the job asks, within what there is.
void DecideHomes(const job::Recovery& recovery, int32_t replicas, ModuleLayout* layout);
// The same of a module that was admitted with some homes and has so many replicas now: those, as
// far as that allows. Mirrors of the last replica become host memory unless the job asks for
// mirrors.
void FitHomes(const job::Recovery& recovery, int32_t replicas, ModuleLayout* layout);
// Other homes than it has; what it was admitted with is kept in mind.
void SetHomes(const HomeChoice& homes, ModuleLayout* layout);

inline constexpr int64_t kSpeedMax = 1 << 30;

// A place whose device takes longer than others for the same work, by which speeds are decided.
inline constexpr int64_t kPaceOfOthers = int64_t{1} << 20;
struct SlowPlace {
  Rank place;
  int64_t pace = 0;  // work in a time, of which others do kPaceOfOthers; in [1, kPaceOfOthers)
  friend bool operator==(const SlowPlace&, const SlowPlace&) = default;
};
using SlowPlaces = std::vector<SlowPlace>;  // ascending, each place once

struct Layout {
  Epoch epoch{1};
  // kDerivation (derivation.h) of who planned the job; 0: from before there was one. Ranks refuse
  // what they do not carry out. Coordinators do not derive programs: they pass on what was decided.
  int32_t derivation = 0;
  job::Schedule schedule;  // never kAuto
  // Samples of a microbatch of one language replica, instead of the document's; 0: as it says.
  int64_t micro = 0;
  std::vector<ModuleLayout> modules;
  // Devices of all ranks, then those that the job holds beyond its ranks.
  Placement nodes;
  std::vector<Rank> lost;  // whose devices are gone, ascending
  // Places in `nodes` without work: ranks in no module, ranks that are healthy but left out,
  // devices beyond the ranks. Ascending; none of `lost`.
  std::vector<Rank> idle;
  // Of the indexes of training and validation shards; empty until the nodes have built them. It
  // stands beside the plan's digest and is checked for itself.
  std::string data_digest;
  // The table of algorithms of products that ranks take (schedule::ReferenceOf); empty: none, and
  // libraries choose. Ranks that do not have it refuse the layout.
  std::string products;
  // Whose replicas are dealt fewer samples. Ranks act on `speeds` alone, so it is not in the
  // digest.
  SlowPlaces slow = {};
  friend bool operator==(const Layout&, const Layout&) = default;
};

bool IsSlow(const Layout& layout, Rank place);

// What is known of the fields of a spec. Those of a sound one are not looked at again, only what
// they come to together.
enum class Fields : uint8_t { kUnknown, kSound };

// The layout of a healthy job on the first devices of `cluster` (rank r on device r). A schedule
// left open becomes 1f1b, with chunks interleaved: whoever plans a user's job calls
// schedule::PlanJob, which chooses.
// Errors: InvalidArgument with violations (CheckLayout), ResourceExhausted for too few devices.
absl::StatusOr<Layout> DecideLayout(const job::JobSpec& spec, const Cluster& cluster, Epoch epoch,
                                    Fields fields = Fields::kUnknown);

}  // namespace phalanx::plan

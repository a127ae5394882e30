// core/schedule/cost_model.h: how long the passes of a plan take. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "core/plan/cost.h"
#include "core/plan/parameters.h"
#include "core/plan/plan.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

// What of a part's reduction, update and gather belongs to layers that passes come to together.
struct UpdateSlice {
  double share = 1;     // of all of it
  double complete = 1;  // of its last backward pass behind which the gradients are complete
  double needed = 0;    // of its first forward pass before which nothing needs the weights
};
// Seconds on one rank of the part.
struct PartCost {
  double forward = 1, backward_input = 1, backward_weight = 1;  // of one microbatch
  double reduce = 0, update = 0, gather = 0;                    // of the step
  // Of the step too, on the stream of passes: the norm of what is reduced, before the record, and
  // weights made ready for their products, in the first forward pass.
  double norm = 0, prepare = 0;
  // In the order of a backward pass; a forward pass comes to them the other way round, and so does
  // the update. Empty: replicas do not gather by collectives, and passes wait for the update.
  std::vector<UpdateSlice> slices = {};
};
// Of one instruction; 0 for those that are neither a pass nor an update of the parameters, of which
// it is all slices together.
double SecondsOf(const PartCost& cost, Op op);

// Replicas of a module that have the same widths and as many samples.
struct ReplicaKind {
  std::vector<PartCost> parts;  // [pp * chunks + chunk]
  int64_t ranks = 0;            // of all of them
};
// Of a module whose replicas are not all alike.
struct ReplicaKinds {
  std::vector<ReplicaKind> kinds;
  std::vector<int32_t> kind_of;  // [dp]; -1: absent
};

// Replicas of a module that have the same widths and as many samples, as they are in a plan.
struct ReplicaShape {
  std::vector<int32_t> widths;  // [stage]
  int64_t samples = 0;          // of a step, on each of them
  int64_t ranks = 0;            // of all of them
};
struct ReplicaShapes {
  std::vector<ReplicaShape> kinds;
  std::vector<int32_t> kind_of;  // [dp]; -1: absent
};
// Nothing where all replicas are alike.
ReplicaShapes ShapesOfReplicas(const plan::Plan& plan, const plan::ModulePlan& module);

struct CostModel {
  // [module][pp * chunks + chunk]; of the replica that takes longest. What programs are made by.
  std::vector<std::vector<PartCost>> parts;
  double message = 0;  // seconds a message
  // The same of each link of the plan; empty: all take `message`.
  std::vector<double> link_messages = {};
  // What passes take on each replica, for the simulator: [module]; without kinds, or of modules
  // past its end: all replicas take what `parts` says.
  std::vector<ReplicaKinds> replicas;
};
// What an update of each part moves, [module][pp * chunks + chunk]: the same under all costs.
using Updates = std::vector<std::vector<plan::UpdateBytes>>;
// Of parts of any plans of one job, worked out once for all that are alike. Not thread-safe.
class KnownUpdates {
 public:
  const plan::UpdateBytes& Of(const plan::Plan& plan, const plan::PartId& part);

 private:
  // Module, width, whether widths are equal, replicas, homes that are mirrors or primaries, whether
  // all replicas are, whether rows are cut.
  using Key = std::tuple<plan::PartKind, int32_t, int32_t, bool, int32_t, int32_t, bool, bool>;
  std::map<Key, plan::UpdateBytes> known_;
};
Updates UpdatesOf(const plan::Plan& plan, KnownUpdates& known);
Updates UpdatesOf(const plan::Plan& plan);

// Of a part whose layers take `layers` of its `whole` passes, in equal parts.
struct PassTimes {
  double forward = 0, backward = 0;
};
std::vector<UpdateSlice> SlicesOf(const plan::Plan& plan, const plan::PartId& part,
                                  const std::vector<plan::UpdateShare>& shares,
                                  const PassTimes& whole, const PassTimes& layers);

// From shapes: FLOPs over a nominal rate, bytes over nominal rates of links and memory; what
// matters is the ratio between parts. Every sample is taken to be a full context and to have one
// item, and where replicas differ, the samples of each to be spread evenly over its microbatches.
// If the shape of a module is not known, a part costs as much as it has layers (1 if those are not
// known either), and its backward twice its forward: divided in halves under the zero-bubble
// schedules, undivided under the others.
CostModel CostFromShapes(const plan::Plan& plan);

}  // namespace phalanx::schedule

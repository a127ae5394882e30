// coordinator/machine/job_nodes.h: what there is of a job's devices on the nodes as they are now:
// who serves, who is away, who may come back.
//
// Pure functions over the table of nodes and a job; they decide nothing. The job has a run, but for
// TeamOutOfReach and MayTakeCopies, which ask whether it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "coordinator/machine/live_job.h"
#include "coordinator/machine/node_table.h"

namespace phalanx::coordinator {

// The rank was lost so often on its way back to this process of the node that it stays out.
bool IsKeptOut(const LiveJob& job, int32_t rank, const Node& node);
// Whether the device of the rank is there, and has not failed, and its node carries the job's
// layout out.
bool MayServe(const NodeTable& nodes, const LiveJob& job, int32_t rank);
// The device of the place does not serve, and it is not to be expected that it does in a moment.
bool IsGone(const NodeTable& nodes, const LiveJob& job, int32_t place);

// Each with the node of its device: its own, or the one that is lent to it.
std::map<Rank, NodeName> RanksThatMayReturn(const NodeTable& nodes, const LiveJob& job);
// Devices beyond its ranks that may serve, in place of which it needs no others.
size_t SparesThatServe(const NodeTable& nodes, const LiveJob& job);
// Devices that idle and may not take over now: their nodes are away, or do not carry the layout
// out, or they have failed.
plan::RankList UnfitSpares(const NodeTable& nodes, const LiveJob& job);
// Lost places beyond the job's ranks whose devices are there again: they take over next time, and
// nobody stops for them.
plan::RankList SparesThatAreBack(const NodeTable& nodes, const LiveJob& job);
// Of those where ranks that were lost have devices in the layout one that may not serve any more,
// or whose device is not held any more for the place that it was `lent` to: it was fit when the
// plan was ordered. Empty: there is none.
NodeName UnfitNode(const NodeTable& nodes, const LiveJob& job, const plan::Layout& next,
                   const std::map<Rank, plan::Device>& lent);

// Nodes that have ranks of the job, had a session with this coordinator and have none.
std::set<NodeName> BrokenNodes(const NodeTable& nodes, const LiveJob& job);
// A node with ranks of the job that may be what the accusations are about and has not come back
// since this coordinator started, nor is lost: nobody knows yet whether its daemon lives.
// nullptr: there is none.
const Node* AwaitedNode(const NodeTable& nodes, const LiveJob& job);
// Of a job that has ended: ranks that may be there, on a node that is away. nullptr: there are
// none.
const Team* TeamOutOfReach(const NodeTable& nodes, const LiveJob& job);

// Why it cannot be deleted then, before the node is back or forgotten.
absl::Status MayHaveRanksOn(JobId job, const NodeName& away, absl::Duration forget_delay);

// Whether state that is lost may be in memory of the job's daemons, or is being looked for there.
bool MayTakeCopies(const NodeTable& nodes, const LiveJob& job);
// Whether an epoch may begin with them before anybody says that other state is lost: all that are
// lost in this recovery are gone for good, and were of the epoch in whose layout the state lies;
// and the job's budget does not turn on what those who are left know.
bool MayTakeCopiesAtOnce(const NodeTable& nodes, const LiveJob& job);
// Whether all of its ranks take copies that another node gives, or may: their workers are of a
// release that does, or have not come back to this coordinator.
bool TakersKnowKeepers(const NodeTable& nodes, const LiveJob& job);
// Places of its layout, one of each node that has no work in it and had some in an epoch whose
// copies count, where the node's worker gives such copies to others, who take them; also of nodes
// that have not come back to this coordinator, which may.
std::set<int32_t> KeepersOfCopies(const NodeTable& nodes, const LiveJob& job);
// The processes that keep copies of its state from now on, since all ranks are ready.
std::map<NodeName, Incarnation> DaemonsOf(const NodeTable& nodes, const LiveJob& job);

// "rank 3 (node b, not connected) has not reported its part": whether it is written nobody knows.
std::string MissingParts(const NodeTable& nodes, const Run& run, const WrittenParts& written);
// Their ranks.
std::vector<int32_t> RanksMissing(const Run& run, const WrittenParts& written);

}  // namespace phalanx::coordinator

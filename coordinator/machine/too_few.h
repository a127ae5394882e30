// coordinator/machine/too_few.h: why no node, or too few of them, will ever do for a job, in words.
//
// Pure.
#pragma once

#include <string>

#include "coordinator/machine/node_table.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// Of a job that asks for more devices than CapacityFor() gives it:
// "no connected node has gpu devices"
// "no connected node with gpu devices has the label rack=7; there are rack=1, rack=2"
// "no connected node with gpu devices has both rack=7, zone=b"
// "of the connected nodes that match none takes jobs"
// "all nodes that match have fewer: 6 in all, 4 on the largest"
// The same for all jobs of one kind of device and the same labels. Looks at every node.
std::string WhyTooFew(const NodeTable& nodes, const JobRequest& request);

}  // namespace phalanx::coordinator

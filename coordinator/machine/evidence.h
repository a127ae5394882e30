// coordinator/machine/evidence.h: what ranks say about their peers, and whom it convicts.
//
// Evidence has four ranks: (1) a process's end as its daemon saw it, a failed session of a node;
// (2) a rank's report about itself; (3) a rank's report about a peer; (4) silence. What is of ranks
// 1, 2 and 4 names a cause by itself. Accusations, rank 3, wait for such a cause; this file says
// what they amount to when none comes. A broken connection to a node and a broken session of its
// daemon are conclusive together. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

struct Run;
struct Team;

struct Accusation {
  int32_t reporter = 0;
  int32_t accused = -1;  // -1: it cannot say whom
  std::string message;
};

// "rank 0 on node a lost its connection to rank 2 on node b: closed by the peer".
std::string Sentence(const Run& run, const Accusation& accusation);

// The team of a node whose session is `broken` and whose ranks are accused from another node;
// nullptr: there is none. `broken`: nodes with ranks that are left alone, as who was left out of
// the layout, or is known to be lost, has taken nobody with it.
const Team* ConvictedNode(const Run& run, const std::set<NodeName>& broken);

// What the accusations of `run`, at least one, amount to when nothing better comes. Without a time.
FailureCause VerdictOf(const Run& run, const std::set<NodeName>& broken);

}  // namespace phalanx::coordinator

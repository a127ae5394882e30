// core/schedule/wiring.h: who exchanges what with whom when programs run together.
//
// *Members* run one program each: the ranks of a plan, or its rank classes, one standing for all
// ranks that do the same. Which members exchange a message depends on the samples of the
// microbatch; microbatches with the same lane sizes share a *pattern*, so there are few.
//
// Pure. Plain values; safe to read from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/plan.h"
#include "core/schedule/pipeline.h"

namespace phalanx::schedule {

// Peers of each member at one end of a link, as positions in the members of the other end:
// peers[offsets[i] .. offsets[i + 1]) are those of the i-th member.
struct PeerLists {
  std::vector<int32_t> offsets;
  std::vector<int32_t> peers;
};

struct LinkEnd {
  std::vector<int32_t> members;       // that hold the part at this end, ascending
  std::vector<PeerLists> of_pattern;  // parallel to `members`
};

struct Wiring {
  int32_t members = 0;
  int32_t microbatches = 0;
  std::vector<std::vector<int32_t>> parts_of;  // [member], ascending
  // The group in which a member reduces and gathers a part: [member], parallel to parts_of.
  std::vector<std::vector<int32_t>> groups_of;
  std::vector<int32_t> group_sizes;
  // The crew that runs passes of a part together, its collectives being among them: [member],
  // parallel to parts_of, -1 for a member that runs them alone. Of ranks it is the tensor group.
  std::vector<std::vector<int32_t>> crews_of;
  std::vector<std::vector<int32_t>> crews;  // members of each, ascending
  // Other members that hold vocabulary rows of a tied embedding which the member holds at the other
  // end: [member]. Not between rank classes, which stand for ranks that exchange within pairs.
  struct Tie {
    int32_t module = 0, member = 0;
  };
  std::vector<std::vector<Tie>> ties_of;
  std::vector<LinkEnd> from, to;    // of each link
  std::vector<int32_t> pattern_of;  // of each microbatch

  // Microbatches past the plan's (validation) are taken as full.
  int32_t PatternOf(int32_t microbatch) const {
    return static_cast<size_t>(microbatch) < pattern_of.size()
               ? pattern_of[static_cast<size_t>(microbatch)]
               : 0;
  }
};

// Members are the ranks of the plan, with the exact messages of plan::LinkMessages.
Wiring WireRanks(const plan::Plan& plan, const Pipeline& pipeline);
// Members are the rank classes; a message joins all classes of both parts.
Wiring WireClasses(const Pipeline& pipeline);

}  // namespace phalanx::schedule

// core/schedule/execution.h: runs the programs of a step together: how long, or what blocks.
//
// Three models of the same programs.
//   kStreams   a device: each member has a compute queue and one queue for each of the two message
//              communicators. The host enqueues in program order without waiting. A pass waits for
//              the receives it needs, a send for its pass. Queues are FIFO, messages and
//              collectives are a rendezvous: an operation starts when it is at the head of its
//              queue at every end, and holds its queue until it is complete. A send and a receive
//              of one member with the same ticket are one operation, which starts at none of its
//              ends before every sender of what this member receives has come to its send. Passes
//              of a tensor group are collectives too: they start together.
//   kPaced     the same, but the host waits for each pass before it enqueues what stands behind it:
//              the least that a host may run ahead (worker/train/run_ahead.h). Meanwhile it goes on
//              with messages, those of each communicator in order: sends of which the pass is
//              enqueued, and one receive at a time, until it has come.
//   kBlocking  a host without streams: one instruction after the other. A send is posted and never
//              waits, a receive waits for the sends of all its peers, a collective or a pass of a
//              tensor group for its group.
// With a queue for them, a reduction whose part has slices (PartCost) goes slice by slice, each
// from where the part's last backward pass is through with it, if no other reduction of the member
// stands between that pass and this one; it is then said to begin as late as if it ran without a
// pause. The norm of what is reduced comes before the record. How updates and gathers lie beside
// the passes of the next step is the simulator's. In all a fold or a spread of a tied embedding
// waits until the members that hold the same rows at the other end have come to theirs. What is
// blocked in a model does not depend on times.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule/cost_model.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {

enum class ExecutionModel : uint8_t { kStreams, kPaced, kBlocking };

// Of each member, parallel to Wiring::parts_of. Members that run something together take alike.
using MemberCosts = std::vector<std::vector<PartCost>>;

struct Execution {
  std::vector<size_t> first;       // number of each member's first instruction; one more at the end
  std::vector<double> begin, end;  // seconds, of each instruction, by that number
  // Empty if every program ran to its end; else who waits for what, a sentence each, at most
  // kStallsMax of them.
  std::vector<std::string> stalls;
};
inline constexpr size_t kStallsMax = 8;

// `programs` of each member: modules, chunks, links and microbatches must be ones that the member
// has a part in; apart from that they may be wrong in any way. `message_seconds`: of each link of
// the plan; empty: none takes any.
Execution Execute(ExecutionModel model, const Pipeline& pipeline, const Wiring& wiring,
                  const std::vector<const Program*>& programs, const MemberCosts& seconds,
                  const std::vector<double>& message_seconds);

}  // namespace phalanx::schedule

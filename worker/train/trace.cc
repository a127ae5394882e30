#include "worker/train/trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace phalanx::train {
namespace {

using schedule::Instruction;
using schedule::Op;

// The pass that needs the message: its direction, module, chunk and microbatch.
using PassKey = std::tuple<bool, int32_t, int32_t, int32_t>;

PassKey PassOf(const plan::Plan& plan, const Instruction& receive) {
  const plan::Link& link = plan.links[static_cast<size_t>(receive.link)];
  if (receive.op == Op::kReceiveForward)
    return {true, link.to.module, link.to.chunk, receive.microbatch};
  return {false, link.from.module, link.from.chunk, receive.microbatch};
}

}  // namespace

void MoveWaitsToReceives(const plan::Plan& plan, const schedule::Program& program,
                         std::vector<InstructionTime>& times) {
  std::map<PassKey, std::pair<double, double>> waits;
  for (InstructionTime& time : times) {
    const Instruction& pass = program[static_cast<size_t>(time.instruction)];
    if (pass.op != Op::kForward && pass.op != Op::kBackwardInput) continue;
    const double begin = time.begin + time.gathered;
    time.begin = begin + time.waited;
    time.gathered = time.waited = 0;
    waits[{pass.op == Op::kForward, pass.module, pass.chunk, pass.microbatch}] = {begin,
                                                                                  time.begin};
  }
  for (InstructionTime& time : times) {
    const Instruction& receive = program[static_cast<size_t>(time.instruction)];
    if (!schedule::IsMessage(receive.op) || schedule::IsSend(receive.op)) continue;
    const auto wait = waits.find(PassOf(plan, receive));
    if (wait != waits.end()) std::tie(time.begin, time.end) = wait->second;
  }
}

void AlignAtRecord(std::vector<schedule::TimedInstruction>& timeline,
                   std::vector<schedule::TimedOperation>& operations) {
  std::map<Rank, double> shifts;
  for (const schedule::TimedInstruction& timed : timeline) {
    if (timed.instruction.op == Op::kRecord) shifts[timed.rank] = -timed.end;
  }
  double first = std::numeric_limits<double>::infinity();
  for (schedule::TimedInstruction& timed : timeline) {
    const double shift = shifts[timed.rank];
    timed.begin += shift;
    timed.end += shift;
    first = std::min(first, timed.begin);
  }
  for (schedule::TimedInstruction& timed : timeline) {
    timed.begin -= first;
    timed.end -= first;
  }
  if (timeline.empty()) first = 0;
  for (schedule::TimedOperation& timed : operations) {
    const double shift = shifts[timed.rank] - first;
    timed.begin += shift;
    timed.end += shift;
  }
}

}  // namespace phalanx::train

#include "absl/strings/str_cat.h"
#include "core/schedule/program.h"

namespace phalanx::schedule {

absl::string_view OpName(Op op) {
  switch (op) {
    case Op::kReceiveForward:
      return "ReceiveForward";
    case Op::kForward:
      return "Forward";
    case Op::kSendForward:
      return "SendForward";
    case Op::kReceiveBackward:
      return "ReceiveBackward";
    case Op::kBackwardInput:
      return "BackwardInput";
    case Op::kBackwardWeight:
      return "BackwardWeight";
    case Op::kSendBackward:
      return "SendBackward";
    case Op::kFold:
      return "Fold";
    case Op::kReduce:
      return "Reduce";
    case Op::kRecord:
      return "Record";
    case Op::kDecide:
      return "Decide";
    case Op::kOptimize:
      return "Optimize";
    case Op::kGather:
      return "Gather";
    case Op::kSpread:
      return "Spread";
  }
  return "Unknown";
}

std::string ToString(const Instruction& instruction) {
  const absl::string_view name = OpName(instruction.op);
  if (IsMessage(instruction.op)) {
    return absl::StrCat(name, "(link ", instruction.link, ", microbatch ", instruction.microbatch,
                        ")");
  }
  if (IsPass(instruction.op)) {
    return absl::StrCat(name, "(module ", instruction.module, ", chunk ", instruction.chunk,
                        ", microbatch ", instruction.microbatch, ")");
  }
  if (IsTie(instruction.op)) return absl::StrCat(name, "(module ", instruction.module, ")");
  if (instruction.op == Op::kRecord || instruction.op == Op::kDecide) return std::string(name);
  return absl::StrCat(name, "(module ", instruction.module, ", chunk ", instruction.chunk, ")");
}

}  // namespace phalanx::schedule

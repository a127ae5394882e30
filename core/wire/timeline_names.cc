#include "core/wire/timeline_names.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::wire {
namespace {

using schedule::Op;

std::string PartTitle(const plan::Plan& plan, const plan::PartId& part) {
  const auto [module, stage, chunk] = part;
  std::string title = absl::StrCat(plan.module_spec(module).name, " stage ", stage);
  if (plan.modules[static_cast<size_t>(module)].chunks() > 1) {
    absl::StrAppend(&title, " chunk ", chunk);
  }
  return title;
}

const char* Verb(Op op) {
  switch (op) {
    case Op::kForward:
      return "F";
    case Op::kBackwardInput:
      return "B";
    case Op::kBackwardWeight:
      return "W";
    case Op::kSendForward:
    case Op::kSendBackward:
      return "send";
    case Op::kReceiveForward:
    case Op::kReceiveBackward:
      return "receive";
    case Op::kFold:
      return "fold";
    case Op::kReduce:
      return "reduce";
    case Op::kRecord:
      return "record";
    case Op::kDecide:
      return "decide";
    case Op::kOptimize:
      return "optimize";
    case Op::kGather:
      return "gather";
    case Op::kSpread:
      return "spread";
  }
  return "";
}

}  // namespace

std::string PlacesTitle(const plan::Plan& plan, Rank rank) {
  std::vector<std::string> titles;
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    titles.push_back(absl::StrCat(plan.module_spec(place.module).name, " stage ", place.pp));
  }
  return titles.empty() ? "idle" : absl::StrJoin(titles, ", ");
}

std::string LinkTitle(const plan::Plan& plan, int32_t link) {
  const plan::Link& ends = plan.links[static_cast<size_t>(link)];
  return absl::StrCat(PartTitle(plan, ends.from), " -> ", PartTitle(plan, ends.to));
}

std::string InstructionTitle(const plan::Plan& plan, const schedule::Instruction& instruction) {
  std::string title = Verb(instruction.op);
  if (instruction.link >= 0) absl::StrAppend(&title, " ", LinkTitle(plan, instruction.link));
  if (instruction.module >= 0) {
    absl::StrAppend(&title, " ", plan.module_spec(instruction.module).name, " ", instruction.chunk);
  }
  if (instruction.microbatch >= 0) absl::StrAppend(&title, " m", instruction.microbatch);
  return title;
}

}  // namespace phalanx::wire

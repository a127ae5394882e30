#include "core/schedule/checker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/schedule/checker_rules.h"
#include "core/schedule/execution.h"
#include "core/schedule/pipeline.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {
namespace {

std::vector<const Program*> Pointers(const std::vector<Program>& programs) {
  std::vector<const Program*> pointers;
  for (const Program& program : programs) pointers.push_back(&program);
  return pointers;
}

absl::Status CheckCount(const plan::Plan& plan, const std::vector<Program>& programs) {
  if (programs.size() == static_cast<size_t>(plan.world)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(programs.size(), " programs for the ", plan.world, " ranks of the plan"));
}

absl::string_view NameOf(ExecutionModel model) {
  switch (model) {
    case ExecutionModel::kStreams:
      return "unbuffered sends";
    case ExecutionModel::kPaced:
      return "a host that waits for each pass";
    case ExecutionModel::kBlocking:
      return "blocking receives";
  }
  return "";
}

absl::Status CheckRuns(const Pipeline& pipeline, const Wiring& wiring,
                       const std::vector<const Program*>& programs) {
  using enum ExecutionModel;
  MemberCosts no_time;
  for (const std::vector<int32_t>& parts : wiring.parts_of) {
    no_time.emplace_back(parts.size(), PartCost{0, 0, 0});
  }
  for (const ExecutionModel model : {kStreams, kPaced, kBlocking}) {
    const Execution execution = Execute(model, pipeline, wiring, programs, no_time, {});
    if (execution.stalls.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("deadlock with ", NameOf(model), ": ", absl::StrJoin(execution.stalls, "; ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckReport> CheckStep(const plan::Plan& plan,
                                      const std::vector<Program>& programs) {
  RETURN_IF_ERROR(CheckCount(plan, programs));
  const Pipeline pipeline = MakePipeline(plan);
  const Wiring wiring = WireRanks(plan, pipeline);
  const std::vector<const Program*> pointers = Pointers(programs);
  RuleReport rules = CheckRules(pipeline, wiring, pointers);
  std::string problems = absl::StrJoin(rules.problems, "; ");
  if (rules.runnable) {
    const absl::Status runs = CheckRuns(pipeline, wiring, pointers);
    if (!runs.ok()) absl::StrAppend(&problems, problems.empty() ? "" : "; ", runs.message());
  }
  if (!problems.empty()) return absl::FailedPreconditionError(problems);
  return CheckReport{.live_activations_max = std::move(rules.live_activations_max)};
}

absl::Status CheckEvaluation(const plan::Plan& plan, const std::vector<Program>& programs,
                             int64_t microbatches) {
  RETURN_IF_ERROR(CheckCount(plan, programs));
  const Pipeline pipeline = MakePipeline(plan);
  Wiring wiring = WireRanks(plan, pipeline);
  wiring.microbatches = static_cast<int32_t>(microbatches);
  return CheckRuns(pipeline, wiring, Pointers(programs));
}

}  // namespace phalanx::schedule

// core/schedule/checker_rules.h: what must hold in the text of the programs, before they are run.
//
// Internal to the checker. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/schedule/pipeline.h"
#include "core/schedule/program.h"
#include "core/schedule/wiring.h"

namespace phalanx::schedule {

inline constexpr size_t kProblemsMax = 8;

struct RuleReport {
  std::vector<std::string> problems;  // a sentence each, the first kProblemsMax
  // False if an instruction names a module, link or microbatch that its rank has no part in: such
  // programs cannot be run together.
  bool runnable = true;
  std::vector<int32_t> live_activations_max;  // of each rank
};

RuleReport CheckRules(const Pipeline& pipeline, const Wiring& wiring,
                      const std::vector<const Program*>& programs);

}  // namespace phalanx::schedule

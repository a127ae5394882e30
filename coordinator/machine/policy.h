// coordinator/machine/policy.h: what becomes of a job that has lost a node.
//
// Its rungs are those that this release can climb: let the job fail, and wait for what is missing.
// Whatever else a job loses lets it fail.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/machine/node_table.h"
#include "coordinator/machine/run.h"

namespace phalanx::coordinator {

enum class Rung : uint8_t { kFail, kWait };

struct Decision {
  Rung rung = Rung::kFail;
  std::string reason;  // one sentence
  friend bool operator==(const Decision&, const Decision&) = default;
};

// `part`: what the job had on `node`, whose process is gone or is taken for gone.
Decision DecideNodeLoss(const Part& part, const Node& node);

}  // namespace phalanx::coordinator

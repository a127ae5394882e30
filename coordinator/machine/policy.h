// coordinator/machine/policy.h: what becomes of a job that has lost something.
//
// One pure function over the closed list of failures. Its rungs are those that this release can
// climb: let the job fail, and wait for what is missing.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "coordinator/machine/node_table.h"
#include "coordinator/machine/run.h"
#include "core/job/failure.h"

namespace phalanx::coordinator {

// From the job: how far recovery may go.
struct Policy {
  bool may_wait = true;
};

// One thing that was lost. `node` is empty where the failure has none.
struct Loss {
  job::FailureKind kind;
  NodeName node;
};

enum class Rung : uint8_t { kFail, kWait };

struct Decision {
  Rung rung = Rung::kFail;
  std::string reason;  // one sentence
  friend bool operator==(const Decision&, const Decision&) = default;
};

// `losses`: at least one, in the order in which they were found.
Decision Decide(const Policy& policy, const Run& run, absl::Span<const Loss> losses,
                const NodeTable& cluster);

}  // namespace phalanx::coordinator

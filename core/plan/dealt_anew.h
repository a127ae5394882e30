// core/plan/dealt_anew.h: how many samples replicas have since places of them are slow, or are not
// any more.
//
// Pure. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Of one replica of a module, in a step.
struct DealtAnewTo {
  std::string module;
  int32_t replica = 0;
  int64_t before = 0, now = 0, of = 0;  // samples; of so many
  friend bool operator==(const DealtAnewTo&, const DealtAnewTo&) = default;
};

// Of replicas with a place that is slow in one of the plans, those that have other samples than
// before; by module, then replica. Both plans are of one document and have the same replicas.
std::vector<DealtAnewTo> DealtAnew(const Plan& before, const Plan& now);

// "replica 1 of language has 3 of 8 samples a step, not 4"; past eight how many more there are.
std::vector<std::string> ToWords(absl::Span<const DealtAnewTo> dealt);

}  // namespace phalanx::plan

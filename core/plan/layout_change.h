// core/plan/layout_change.h: how one layout of a job differs from another, in a few words.
//
// "vision dp 4 -> 3, language tp 2 -> 1 in replica 1": replicas of each module, and how wide those
// are that both layouts have. Changes of an incident that takes several layouts are joined into one
// from the first to the last.
//
// One that takes part no more, or again, is there to be joined and is in no phrase.
//
// Pure. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// Of one module.
struct LayoutChange {
  std::string module;
  // The replica whose narrowest stage has another number of tensor ranks, 0 where it takes no part;
  // -1: the number of replicas that take part; -2: the number of stages.
  int32_t replica = -1;
  int32_t from = 0, to = 0;
  friend bool operator==(const LayoutChange&, const LayoutChange&) = default;
};

// In the order of modules: the number of replicas, that of stages, then widths. Both plans are of
// one document.
std::vector<LayoutChange> ChangesBetween(const Plan& before, const Plan& after);

// What `first` and then `next` come to; what is as it was in the end is left out.
std::vector<LayoutChange> Joined(absl::Span<const LayoutChange> first,
                                 absl::Span<const LayoutChange> next);

// One phrase a change; replicas of a module that changed alike share one.
std::vector<std::string> ToWords(absl::Span<const LayoutChange> changes);

}  // namespace phalanx::plan

// core/base/ids.h: identifiers that cannot be mistaken for one another.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace phalanx {

// A number with a meaning: two kinds of it do not convert into each other.
template <typename Tag, typename T>
struct StrongId {
  T value{};
  friend auto operator<=>(const StrongId&, const StrongId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value);
  }
};

// A job of one coordinator's store, counted from 1 in order of submission. Shown as "job-7".
using JobId = StrongId<struct JobTag, int64_t>;
// One numbered attempt to run a job's plan, counted from 1; it only grows. 0: none yet.
using Epoch = StrongId<struct EpochTag, int64_t>;
// Drawn at random once per start of a process, so that a restart is never mistaken for its past.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;
// A place in a plan, in [0, world). Neither a device index nor a node.
using Rank = StrongId<struct RankTag, int32_t>;
// A node as its worker daemon names itself; unique among the connected ones.
using NodeName = std::string;

inline std::string ToString(JobId id) { return absl::StrCat("job-", id.value); }

}  // namespace phalanx

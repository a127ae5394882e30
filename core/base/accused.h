// core/base/accused.h: which rank an error accuses.
//
// A rank that finds its peer gone reports what it saw of that peer, never itself as the cause: so
// an error that a peer brought about carries the peer's number in the world. Annotate keeps it.
// Pure.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"

namespace phalanx {

inline constexpr char kAccusedUrl[] = "phalanx/accused-rank";

inline absl::Status Accusing(Rank peer, absl::Status status) {
  status.SetPayload(kAccusedUrl, absl::Cord(absl::StrCat(peer.value)));
  return status;
}

inline std::optional<Rank> AccusedIn(const absl::Status& status) {
  const auto payload = status.GetPayload(kAccusedUrl);
  int32_t rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return Rank{rank};
}

}  // namespace phalanx

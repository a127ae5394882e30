// worker/train/parcels.h: what the messages of a relayout carry.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <set>
#include <vector>

#include "core/base/ids.h"

namespace phalanx::train {

// The peers of transfers with `self` at one end, each once, ascending.
template <typename Transfer>
std::set<Rank> PeersOf(const std::vector<Transfer>& transfers, Rank Transfer::*self,
                       Rank Transfer::*peer, Rank rank) {
  std::set<Rank> peers;
  for (const Transfer& transfer : transfers) {
    if (transfer.*self == rank) peers.insert(transfer.*peer);
  }
  return peers;
}

// [count] of what a parcel has from byte `at` on.
inline at::Tensor ValuesAt(const at::Tensor& bytes, int64_t at, int64_t count,
                           at::ScalarType type) {
  return bytes.narrow(0, at, count * static_cast<int64_t>(c10::elementSize(type))).view(type);
}

}  // namespace phalanx::train

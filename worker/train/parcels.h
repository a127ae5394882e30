// worker/train/parcels.h: what the messages of a relayout carry.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "worker/train/loose_state.h"
#include "worker/train/part_state.h"
#include "worker/train/transfers.h"
#include "worker/train/verified_exchange.h"

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

// A message of state has of each transfer from its sender to its receiver, one behind the other,
// the masters, then both moments. Calls visit(transfer, byte at which it begins) for them.
template <typename Visit>
void ForTransfers(const BucketTransfers& bucket, Rank from, Rank to, at::ScalarType type,
                  Visit visit) {
  int64_t at = 0;
  for (const StateTransfer& transfer : bucket.transfers) {
    if (transfer.from != from || transfer.to != to) continue;
    visit(transfer, at);
    at += kStateArrays * transfer.elements.count * static_cast<int64_t>(c10::elementSize(type));
  }
}
// The byte at which an element of one of the arrays stands, of a transfer that begins at `at`.
inline int64_t ByteOf(const StateTransfer& transfer, int64_t at, size_t array, int64_t element,
                      at::ScalarType type) {
  const int64_t before =
      static_cast<int64_t>(array) * transfer.elements.count + element - transfer.elements.first;
  return at + before * static_cast<int64_t>(c10::elementSize(type));
}
// Memory for the message, and for its hash.
inline at::Tensor StateParcel(const BucketTransfers& bucket, Rank from, Rank to,
                              const BufferOptions& options) {
  const at::ScalarType type = GradientType(options.compute);
  int64_t bytes = kHashBytes;
  ForTransfers(bucket, from, to, type, [&](const StateTransfer& transfer, int64_t at) {
    bytes = ByteOf(transfer, at, kStateArrays, transfer.elements.first, type) + kHashBytes;
  });
  return at::empty({bytes}, at::TensorOptions().device(options.device).dtype(at::kByte));
}

// Calls visit(elements, offset in the block) for what a block with those runs has of a transfer.
template <typename Visit>
void ForElements(const std::vector<RulerRun>& runs, const StateTransfer& transfer, Visit visit) {
  for (const RulerRun& run : runs) {
    const int64_t first = std::max(run.elements.first, transfer.elements.first);
    const int64_t count = std::min(run.elements.end(), transfer.elements.end()) - first;
    if (run.family != transfer.family || count <= 0) continue;
    visit(plan::UnitRange{first, count}, run.state_offset + first - run.elements.first);
  }
}

// [count] of what a parcel has from byte `at` on.
inline at::Tensor ValuesAt(const at::Tensor& bytes, int64_t at, int64_t count,
                           at::ScalarType type) {
  return bytes.narrow(0, at, count * static_cast<int64_t>(c10::elementSize(type))).view(type);
}

}  // namespace phalanx::train

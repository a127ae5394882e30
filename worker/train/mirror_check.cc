#include "worker/train/mirror_check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/derivation.h"
#include "core/plan/reduction.h"
#include "worker/train/share_exchange.h"

namespace phalanx::train {
namespace {

// Of what one bucket has of a home.
constexpr std::array<const char*, 5> kWhat = {"masters", "first moments", "second moments",
                                              "the last applied step", "the number of updates"};
using Sums = std::array<int64_t, kWhat.size()>;
// By rank, of each bucket that it has something of, in the order of parts and buckets.
using SumsByRank = std::map<Rank, std::vector<Sums>>;

uint64_t BitSum(const at::Tensor& flat, int64_t first, int64_t count) {
  const at::Tensor part = flat.narrow(0, first, count);
  return static_cast<uint64_t>(part.view(BitsOf(part)).sum(at::kLong).item<int64_t>());
}

// Of those elements of a block that stand in `runs` of the flat buffers.
Sums SumsOf(TrainingState& state, PartState& part, const StateBlock& block,
            const std::vector<plan::UnitRange>& runs) {
  std::array<uint64_t, 3> bits = {};
  for (const StateRun& run : block.runs) {
    for (const plan::UnitRange& wanted : runs) {
      const int64_t first = std::max(run.gradient_offset, wanted.first);
      const int64_t count = std::min(run.gradient_offset + run.count, wanted.end()) - first;
      if (count <= 0) continue;
      const int64_t at = run.state_offset + first - run.gradient_offset;
      bits[0] += block.master.defined() ? BitSum(block.master, at, count)
                                        : BitSum(part.weights(), first, count);
      bits[1] += BitSum(block.first_moment, at, count);
      bits[2] += BitSum(block.second_moment, at, count);
    }
  }
  return {static_cast<int64_t>(bits[0]), static_cast<int64_t>(bits[1]),
          static_cast<int64_t>(bits[2]), state.kernels().applied(block.home),
          state.counts().updates};
}

// Calls visit(part, block, peer, runs) for each bucket of each home that this rank mirrors, or,
// with `mirrors` false, for each mirror of a bucket of its own.
template <typename Visit>
void ForMirrored(const plan::Plan& plan, TrainingState& state, bool mirrors, Visit visit) {
  for (const auto& part : state.parts()) {
    if (!part->trains()) continue;
    const plan::Reduction reduction =
        plan::ReductionOf(plan, part->place(), part->chunk(), part->parameters());
    for (const StateBlock& block : part->blocks()) {
      if (block.mirrors != mirrors) continue;
      const plan::ReducedBucket& bucket = reduction.buckets[static_cast<size_t>(block.bucket)];
      for (const plan::MirrorPeer& peer : mirrors ? bucket.from_primaries : bucket.to_mirrors) {
        const Rank rank = reduction.group[static_cast<size_t>(peer.peer)];
        if (!mirrors || rank == block.primary) visit(*part, block, rank, peer.runs);
      }
    }
  }
}

absl::Status Exchange(const BulkGroup& group, const SumsByRank& given, SumsByRank& taken) {
  std::map<Rank, int32_t> positions;
  for (const Rank rank : group.ranks)
    positions.try_emplace(rank, static_cast<int32_t>(positions.size()));
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (const auto& [rank, sums] : given) {
    sends.push_back(
        {positions.at(rank), sums.data(), static_cast<int64_t>(sums.size() * sizeof(Sums))});
  }
  for (auto& [rank, sums] : taken) {
    receives.push_back(
        {positions.at(rank), sums.data(), static_cast<int64_t>(sums.size() * sizeof(Sums))});
  }
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(group.communicator->Exchange(sends, receives));
  return group.communicator->Flush();
}

}  // namespace

absl::Status CheckMirrors(const plan::Plan& plan, TrainingState& state,
                          comm::Communicator* control) {
  BulkGroup group{.communicator = control};
  for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
    if (!plan.PlacesOf(rank).empty()) group.ranks.push_back(rank);
  }
  return CheckMirrors(plan, state, group);
}

absl::Status CheckMirrors(const plan::Plan& plan, TrainingState& state, const BulkGroup& group) {
  const bool all_say = plan.layout.derivation >= plan::kDerivationOfComparedMirrors;
  if (group.communicator == nullptr || !all_say || state.options().device.is_cuda())
    return absl::OkStatus();
  state.AwaitUpdates();
  SumsByRank given, taken;
  using Runs = std::vector<plan::UnitRange>;
  ForMirrored(plan, state, /*mirrors=*/false,
              [&](PartState& part, const StateBlock& block, Rank rank, const Runs& runs) {
                given[rank].push_back(SumsOf(state, part, block, runs));
              });
  ForMirrored(
      plan, state, /*mirrors=*/true,
      [&](PartState&, const StateBlock&, Rank rank, const Runs&) { taken[rank].emplace_back(); });
  RETURN_IF_ERROR(Exchange(group, given, taken));
  absl::Status status;
  std::map<Rank, size_t> next;  // of what each has told
  ForMirrored(plan, state, /*mirrors=*/true,
              [&](PartState& part, const StateBlock& block, Rank rank, const Runs& runs) {
                const Sums& told = taken.at(rank)[next[rank]++];
                if (!block.lacking.empty() || !status.ok()) return;
                const Sums held = SumsOf(state, part, block, runs);
                const auto differs = std::mismatch(told.begin(), told.end(), held.begin()).first;
                if (differs == told.end()) return;
                status = absl::InternalError(
                    absl::StrCat("of bucket ", block.bucket, " of pipeline part ", part.place().pp,
                                 " chunk ", part.chunk(), " of module ", part.place().module, ", ",
                                 kWhat[static_cast<size_t>(differs - told.begin())],
                                 " are not those of rank ", rank.value, ", which they mirror"));
              });
  return status;
}

}  // namespace phalanx::train

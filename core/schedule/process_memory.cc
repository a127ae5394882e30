#include "core/schedule/process_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/derivation.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/message_peers.h"
#include "core/plan/preparation.h"

namespace phalanx::schedule {
namespace {

using Use = plan::CommunicatorSpec::Use;

const CommunicatorBytes& BytesOf(const plan::Plan& plan, Use use, const CommunicatorsBytes& bytes) {
  switch (use) {
    case Use::kForward:
    case Use::kBackward:
      return bytes.messages;
    case Use::kData:
      return bytes.wide;
    case Use::kTensor:
      return plan.layout.derivation >= plan::kDerivationOfConnectedState ? bytes.wide
                                                                         : bytes.control;
    case Use::kControl:
      break;
  }
  return bytes.control;
}

// A set of standby communicators.
struct StandbySet {
  int64_t bytes = 0;
  int64_t more = 0;  // that the layout behind the loss takes beyond this one
};

// Of those that the rank makes, in the order in which they are made.
std::vector<StandbySet> StandbyOf(const plan::Plan& plan, Rank rank,
                                  const CommunicatorsBytes& bytes) {
  std::vector<StandbySet> sets;
  if (plan.world > plan::kPreparedDevicesMax) return sets;
  const int64_t now = plan::EstimateMemory(plan, rank).total();
  for (Rank lost{0}; lost.value < plan.world; ++lost.value) {
    if (lost == rank || plan.PlacesOf(lost).empty()) continue;
    const absl::StatusOr<plan::Plan> next = plan::PlanBehindLoss(plan, lost);
    if (!next.ok() || next->PlacesOf(rank).empty() || !plan::HasStandby(plan, lost, *next))
      continue;
    sets.push_back({.bytes = BytesOfCommunicators(*next, rank, bytes),
                    .more = std::max<int64_t>(0, plan::EstimateMemory(*next, rank).total() - now)});
  }
  return sets;
}

// Leaves out what a device of so many bytes has no room for.
void LeaveOut(int64_t device_memory, const std::vector<StandbySet>& sets, ProcessMemory& memory) {
  if (device_memory == 0) return;
  const int64_t beside =
      memory.context.value_or(0) + memory.communicators.value_or(0) + memory.unestimated;
  MemoryPeak& peak = memory.peak;
  std::erase_if(peak.each_tried, [&](int64_t tried) { return beside + tried > device_memory; });
  int64_t left = device_memory - beside - std::max(peak.step.total(), peak.tried());
  if (memory.standby.has_value()) {
    memory.standby = 0;
    for (const StandbySet& set : sets) {
      if (left < set.more + plan::kPreparedRoom) continue;
      *memory.standby += set.bytes;
      left -= set.bytes;
    }
  }
  if (left < peak.to_take_over + plan::kPreparedRoom) peak.to_take_over = 0;
}

// Of each rank, with the library's.
std::vector<int64_t> BytesOfAllCommunicators(const plan::Plan& plan,
                                             const CommunicatorsBytes& bytes,
                                             plan::PartSizes& sizes) {
  std::vector<int64_t> all(static_cast<size_t>(plan.world));
  for (const plan::CommunicatorSpec& spec : plan::Communicators(plan)) {
    const CommunicatorBytes& one = BytesOf(plan, spec.use, bytes);
    for (const Rank rank : spec.ranks) all[static_cast<size_t>(rank.value)] += one.made;
  }
  const std::vector<plan::PeerCounts> peers = plan::CountPeers(plan, sizes);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == 0) continue;
    const auto connected = [&](Use use, int32_t count) {
      return count * BytesOf(plan, use, bytes).each_peer;
    };
    all[rank] += bytes.library + connected(Use::kForward, peers[rank].links) +
                 connected(Use::kBackward, peers[rank].links) +
                 connected(Use::kControl, peers[rank].control) +
                 connected(Use::kTensor, peers[rank].tensor) +
                 connected(Use::kData, peers[rank].data);
  }
  return all;
}

// Without communicators.
ProcessMemory TensorsOfRank(size_t rank, const MemoryPeak& peak, const DeviceProfile& profile) {
  ProcessMemory memory{.rank = Rank{static_cast<int32_t>(rank)}, .peak = peak};
  if (profile.process.has_value()) {
    memory.context = profile.process->context;
  } else {
    memory.unestimated = profile.unestimated_bytes;
  }
  return memory;
}

// The rank that takes most, but for standby communicators.
size_t LargestOf(const plan::Plan& plan, const std::vector<MemoryPeak>& peaks,
                 const DeviceProfile& profile, int64_t device_memory) {
  plan::PartSizes sizes;
  const std::vector<int64_t> beside = BesideOfRanks(plan, BesideOf(profile), sizes);
  size_t largest = 0;
  int64_t most = -1;
  for (size_t rank = 0; rank < peaks.size(); ++rank) {
    ProcessMemory memory{.peak = peaks[rank], .unestimated = beside[rank]};
    LeaveOut(device_memory, {}, memory);
    if (memory.total() <= most) continue;
    most = memory.total();
    largest = rank;
  }
  return largest;
}

ProcessMemory MemoryOfRank(const plan::Plan& plan, size_t at, const MemoryPeak& peak,
                           const DeviceProfile& profile, int64_t device_memory) {
  ProcessMemory memory = TensorsOfRank(at, peak, profile);
  const Rank rank = memory.rank;
  std::vector<StandbySet> sets;
  if (profile.process.has_value()) {
    const std::optional<CommunicatorsBytes>& bytes = profile.process->communicators;
    if (bytes.has_value() && plan.world <= kCommunicatorsCountedMax) {
      memory.communicators = BytesOfCommunicators(plan, rank, *bytes);
      if (*memory.communicators > 0) *memory.communicators += bytes->library;
      sets = StandbyOf(plan, rank, *bytes);
      memory.standby = 0;
      for (const StandbySet& set : sets) *memory.standby += set.bytes;
    }
  }
  LeaveOut(device_memory, sets, memory);
  return memory;
}

}  // namespace

int64_t BytesOfCommunicators(const plan::Plan& plan, Rank rank, const CommunicatorsBytes& bytes) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  const std::vector<std::vector<int32_t>> peers = plan::MessagePeers(plan, rank, specs);
  int64_t sum = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const plan::RankList& ranks = specs[i].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const CommunicatorBytes& one = BytesOf(plan, specs[i].use, bytes);
    sum += one.made + one.each_peer * static_cast<int64_t>(peers[i].size());
  }
  return sum;
}

BytesBeside BesideOf(const DeviceProfile& profile) {
  return {.least = profile.unestimated_bytes, .process = profile.process};
}

std::vector<int64_t> BesideOfRanks(const plan::Plan& plan, const BytesBeside& beside,
                                   plan::PartSizes& sizes) {
  std::vector<int64_t> all(static_cast<size_t>(plan.world), beside.least);
  if (!beside.process.has_value()) return all;
  std::vector<int64_t> communicators(all.size());
  if (beside.process->communicators.has_value() && plan.world <= kCommunicatorsCountedMax)
    communicators = BytesOfAllCommunicators(plan, *beside.process->communicators, sizes);
  for (size_t rank = 0; rank < all.size(); ++rank)
    all[rank] = std::max(all[rank], beside.process->context + communicators[rank]);
  return all;
}

ProcessMemory MostMemory(const plan::Plan& plan, const DeviceProfile& profile,
                         const plan::SampleShape& samples, int64_t device_memory) {
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan, samples);
  // Of larger jobs what is beside tensors is looked at on one rank.
  size_t first = 0, end = peaks.size();
  if (plan.world > plan::kPreparedDevicesMax) {
    first = LargestOf(plan, peaks, profile, device_memory);
    end = first + 1;
  }
  ProcessMemory most;
  for (size_t rank = first; rank < end; ++rank) {
    const ProcessMemory memory = MemoryOfRank(plan, rank, peaks[rank], profile, device_memory);
    if (rank == first || memory.total() > most.total()) most = memory;
  }
  return most;
}

}  // namespace phalanx::schedule

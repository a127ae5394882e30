#include "core/schedule/process_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/derivation.h"
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

// Of each set of standby communicators that the rank makes, in the order in which they are made.
std::vector<int64_t> StandbyOf(const plan::Plan& plan, Rank rank, const CommunicatorsBytes& bytes) {
  std::vector<int64_t> sets;
  if (plan.world > plan::kPreparedDevicesMax) return sets;
  for (Rank lost{0}; lost.value < plan.world; ++lost.value) {
    if (lost == rank || plan.PlacesOf(lost).empty()) continue;
    const absl::StatusOr<plan::Plan> next = plan::PlanBehindLoss(plan, lost);
    if (next.ok() && !next->PlacesOf(rank).empty() && plan::HasStandby(plan, lost, *next))
      sets.push_back(BytesOfCommunicators(*next, rank, bytes));
  }
  return sets;
}

// Leaves out what a device of so many bytes has no room for.
void LeaveOut(int64_t device_memory, const std::vector<int64_t>& sets, ProcessMemory& memory) {
  if (device_memory == 0) return;
  const int64_t beside =
      memory.context.value_or(0) + memory.communicators.value_or(0) + memory.unestimated;
  MemoryPeak& peak = memory.peak;
  if (beside + peak.tried > device_memory) peak.tried = 0;
  int64_t left = device_memory - beside - std::max(peak.step.total(), peak.tried);
  if (memory.standby.has_value()) {
    memory.standby = 0;
    for (const int64_t set : sets) {
      if (left < plan::kPreparedRoom) break;
      *memory.standby += set;
      left -= set;
    }
  }
  if (left < peak.to_take_over + plan::kPreparedRoom) peak.to_take_over = 0;
}

ProcessMemory MemoryOfRank(const plan::Plan& plan, Rank rank, const MemoryPeak& peak,
                           const DeviceProfile& profile, int64_t device_memory) {
  ProcessMemory memory{.rank = rank, .peak = peak};
  std::vector<int64_t> sets;
  if (!profile.process.has_value()) {
    memory.unestimated = profile.unestimated_bytes;
  } else {
    memory.context = profile.process->context;
    const std::optional<CommunicatorsBytes>& bytes = profile.process->communicators;
    if (bytes.has_value() && plan.world <= kCommunicatorsCountedMax) {
      memory.communicators = BytesOfCommunicators(plan, rank, *bytes);
      if (*memory.communicators > 0) *memory.communicators += bytes->library;
      sets = StandbyOf(plan, rank, *bytes);
      memory.standby = 0;
      for (const int64_t set : sets) *memory.standby += set;
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

ProcessMemory MostMemory(const plan::Plan& plan, const DeviceProfile& profile,
                         const plan::SampleShape& samples, int64_t device_memory) {
  const std::vector<MemoryPeak> peaks = EstimatePeaks(plan, samples);
  // Of larger jobs what is beside tensors is looked at on one rank.
  size_t first = 0, end = peaks.size();
  if (plan.world > plan::kPreparedDevicesMax) {
    first = static_cast<size_t>(
        std::max_element(peaks.begin(), peaks.end(),
                         [](const auto& a, const auto& b) { return a.total() < b.total(); }) -
        peaks.begin());
    end = first + 1;
  }
  ProcessMemory most;
  for (size_t rank = first; rank < end; ++rank) {
    const ProcessMemory memory =
        MemoryOfRank(plan, Rank{static_cast<int32_t>(rank)}, peaks[rank], profile, device_memory);
    if (rank == first || memory.total() > most.total()) most = memory;
  }
  return most;
}

}  // namespace phalanx::schedule

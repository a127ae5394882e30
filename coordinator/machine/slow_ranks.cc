#include "coordinator/machine/slow_ranks.h"

#include <algorithm>
#include <cmath>

namespace phalanx::coordinator {
namespace {

// Of the sorted values but for one that is equal to `own`, of two and more.
double MedianOfOthers(const std::vector<double>& sorted, double own) {
  const auto at =
      static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), own) - sorted.begin());
  const size_t count = sorted.size() - 1;
  const auto other = [&](size_t i) { return sorted[i < at ? i : i + 1]; };
  return (other((count - 1) / 2) + other(count / 2)) / 2;
}

}  // namespace

std::vector<SlowRanks::Change> SlowRanks::Add(const WorkSample& sample) {
  const auto [known, added] = group_of_.emplace(sample.rank, sample.equal);
  // Within an epoch the work of a rank stays what it is: whoever says otherwise is not compared.
  if (!added && known->second != sample.equal) return {};
  Group& group = groups_[sample.equal];
  Member& member = group.members[sample.rank];
  member.seconds = sample.seconds;
  member.per_gflop = sample.per_gflop;
  member.step = std::max(member.step, sample.step);
  // While others may still be to speak for the first time nobody is judged.
  group.fresh = added ? 0 : group.fresh + 1;
  if (group.fresh < group.members.size()) return {};
  group.fresh = 0;
  return Judge(group);
}

SlowRanks::Verdict SlowRanks::Find(const Sorted& sorted, int32_t rank, const Member& member) const {
  double ratio = member.seconds / MedianOfOthers(sorted.seconds, member.seconds);
  if (sorted.per_gflop.front() > 0) {
    const double per_gflop = member.per_gflop / MedianOfOthers(sorted.per_gflop, member.per_gflop);
    ratio = presumed_.contains(rank) ? per_gflop : std::min(ratio, per_gflop);
  }
  return {.slow = slow_.contains(rank) || presumed_.contains(rank),
          .seconds = member.seconds,
          .others_seconds = member.seconds / ratio,
          .others = static_cast<int32_t>(sorted.seconds.size() - 1)};
}

bool SlowRanks::LooksOtherwise(int32_t rank, const Verdict& verdict) const {
  const double excess = verdict.seconds - verdict.others_seconds;
  if (!verdict.slow) return verdict.ratio() >= kRatioSlow && excess >= kExcessMin;
  const auto presumed = presumed_.find(rank);
  if (presumed == presumed_.end()) return verdict.ratio() < kRatioOver || excess < kExcessMin;
  const double over = std::max(kRatioOver, std::sqrt(presumed->second));
  return verdict.ratio() < over || excess < kExcessMin / (2 * presumed->second);
}

std::vector<SlowRanks::Change> SlowRanks::Judge(Group& group) {
  if (group.members.size() < 2) return {};
  Sorted sorted;
  for (const auto& [rank, member] : group.members) {
    sorted.seconds.push_back(member.seconds);
    sorted.per_gflop.push_back(member.per_gflop);
  }
  std::sort(sorted.seconds.begin(), sorted.seconds.end());
  std::sort(sorted.per_gflop.begin(), sorted.per_gflop.end());
  std::vector<Change> changes;
  for (auto& [rank, member] : group.members) {
    Verdict now = Find(sorted, rank, member);
    const bool turns = Turns(member, LooksOtherwise(rank, now));
    now.slow = now.slow != turns;
    if (turns) changes.push_back({rank, now});
    if (now.slow) {
      slow_.insert_or_assign(rank, now);
    } else {
      slow_.erase(rank);
      presumed_.erase(rank);
    }
  }
  return changes;
}

bool SlowRanks::Turns(Member& member, bool otherwise) {
  if (!otherwise) {
    member.since = -1;
    return false;
  }
  if (member.since < 0) {
    member.since = member.step;
    member.rounds = 0;
  }
  if (++member.rounds < kRounds || member.step - member.since < kSteps) return false;
  member.since = -1;
  return true;
}

}  // namespace phalanx::coordinator

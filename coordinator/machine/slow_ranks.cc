#include "coordinator/machine/slow_ranks.h"

#include <algorithm>

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
  member.step = std::max(member.step, sample.step);
  // While others may still be to speak for the first time nobody is judged.
  group.fresh = added ? 0 : group.fresh + 1;
  if (group.fresh < group.members.size()) return {};
  group.fresh = 0;
  return Judge(group);
}

std::vector<SlowRanks::Change> SlowRanks::Judge(Group& group) {
  if (group.members.size() < 2) return {};
  std::vector<double> sorted;
  for (const auto& [rank, member] : group.members) sorted.push_back(member.seconds);
  std::sort(sorted.begin(), sorted.end());
  std::vector<Change> changes;
  for (auto& [rank, member] : group.members) {
    Verdict now{.slow = slow_.contains(rank),
                .seconds = member.seconds,
                .others_seconds = MedianOfOthers(sorted, member.seconds),
                .others = static_cast<int32_t>(sorted.size() - 1)};
    const bool exceeds = now.seconds - now.others_seconds >= kExcessMin;
    const bool turns = Turns(member, now.slow ? now.ratio() < kRatioOver || !exceeds
                                              : now.ratio() >= kRatioSlow && exceeds);
    now.slow = now.slow != turns;
    if (turns) changes.push_back({rank, now});
    if (now.slow) {
      slow_.insert_or_assign(rank, now);
    } else {
      slow_.erase(rank);
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

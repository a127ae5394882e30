#include "coordinator/machine/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {

std::string Team::PreparingName() const {
  return behind == JobId{} ? node : absl::StrCat(node, " (behind ", ToString(behind), ")");
}

int32_t Team::DeviceOf(int32_t rank) const {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return devices[static_cast<size_t>(at - ranks.begin())];
}

Instant Run::NextDeadline() const {
  Instant next = std::min({prepare_deadline, start_deadline, reattach_deadline, rendezvous_deadline,
                           settle_deadline, fail_deadline, quiet_deadline, hold_deadline,
                           publish_deadline, standby_deadline, end_deadline});
  for (const Team& team : teams) next = std::min(next, team.missing_deadline);
  return next;
}

int32_t Run::FirstRank(const Team& team) const {
  const auto used = [this](int32_t rank) { return ranks[static_cast<size_t>(rank)].used; };
  const auto first = std::find_if(team.ranks.begin(), team.ranks.end(), used);
  return first == team.ranks.end() ? team.ranks.front() : *first;
}

void Run::EndJudging() {
  accusations.clear();
  accuser_killed.reset();
  settle_deadline = absl::InfiniteFuture();
}

void Run::EndAll() {
  EndJudging();
  EndRecovering();
  failing.reset();
  fail_deadline = prepare_deadline = reattach_deadline = rendezvous_deadline = hold_deadline =
      publish_deadline = standby_deadline = end_deadline = absl::InfiniteFuture();
  for (Team& team : teams) team.missing_deadline = absl::InfiniteFuture();
}

void Run::KeepStartsAgain(const Run& before) {
  for (const Team& team : before.teams) {
    if (!team.starts_again) continue;
    if (Team* const now = TeamOf(team.node)) now->starts_again = true;
  }
}

const Team* Run::TeamOf(const NodeName& node) const {
  const auto found =
      std::find_if(teams.begin(), teams.end(), [&node](const Team& p) { return p.node == node; });
  return found == teams.end() ? nullptr : &*found;
}

Team* Run::TeamOf(const NodeName& node) {
  return const_cast<Team*>(std::as_const(*this).TeamOf(node));
}

const Team* Run::TeamOfRank(int32_t rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= ranks.size()) return nullptr;
  return &teams[static_cast<size_t>(ranks[static_cast<size_t>(rank)].team)];
}

Team* Run::TeamOfRank(int32_t rank) {
  return const_cast<Team*>(std::as_const(*this).TeamOfRank(rank));
}

void Run::MoveDeadlines(absl::Duration by) {
  for (Instant* deadline : {&prepare_deadline, &start_deadline, &reattach_deadline,
                            &rendezvous_deadline, &settle_deadline, &fail_deadline, &quiet_deadline,
                            &hold_deadline, &publish_deadline, &standby_deadline}) {
    *deadline += by;
  }
  for (Team& team : teams) team.missing_deadline += by;
  stepped_at += by;
  waits.clear();
}

Run MakeRun(const plan::Layout& layout) {
  Run run;
  std::map<NodeName, size_t> team_of;
  for (const NodeDevices& entry : layout.nodes) {
    const auto [found, is_new] = team_of.try_emplace(entry.node, run.teams.size());
    if (is_new) run.teams.push_back({.node = entry.node});
    Team& team = run.teams[found->second];
    for (const int32_t device : entry.devices) {
      team.devices.push_back(device);
      team.ranks.push_back(static_cast<int32_t>(run.ranks.size()));
      run.ranks.push_back({.team = static_cast<int32_t>(found->second)});
    }
  }
  const auto world = static_cast<int32_t>(run.ranks.size());
  for (const plan::RankList* without_work : {&layout.lost, &layout.idle}) {
    for (Rank idle : *without_work) {
      if (idle.value < 0 || idle.value >= world) continue;
      run.ranks[static_cast<size_t>(idle.value)].used = false;
    }
  }
  return run;
}

std::set<int32_t> WorkingRanks(const plan::Layout& layout) {
  const Run run = MakeRun(layout);
  std::set<int32_t> ranks;
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    if (run.ranks[rank].used) ranks.insert(static_cast<int32_t>(rank));
  }
  return ranks;
}

}  // namespace phalanx::coordinator

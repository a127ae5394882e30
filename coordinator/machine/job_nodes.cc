#include "coordinator/machine/job_nodes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kMissingNamedMax = 8;

// It has not come back to this coordinator, and it is too early to say that it does not.
bool IsAwaited(const Node& node) {
  return node.incarnation == Incarnation{} && !node.connected() && !node.lost;
}

// Whether a lost rank may get the device now in that layout. One of a node that is awaited is
// counted on: the order waits for it, and where it does not come in time it is lost like any other.
bool MayTakeOver(const Node& node, int32_t device, const plan::Layout& layout) {
  const bool there =
      (node.Schedulable() && CarriesOut(node, layout)) || (IsAwaited(node) && !node.TakesNothing());
  return there && !node.HasFailed(device);
}

}  // namespace

bool IsKeptOut(const LiveJob& job, int32_t rank, const Node& node) {
  const auto lost = job.lost_again.find({rank, node.name});
  return lost != job.lost_again.end() && lost->second.of == node.incarnation &&
         lost->second.times >= LiveJob::LostAgain::kTimesMax;
}

bool MayServe(const NodeTable& nodes, const LiveJob& job, int32_t rank) {
  const Team* team = job.run->TeamOfRank(rank);
  const auto node = team == nullptr ? nodes.end() : nodes.find(team->node);
  return node != nodes.end() && node->second.Schedulable() &&
         !node->second.HasFailed(team->DeviceOf(rank)) && !IsKeptOut(job, rank, node->second) &&
         CarriesOut(node->second, *job.state.layout);
}

bool IsGone(const NodeTable& nodes, const LiveJob& job, int32_t place) {
  const Team* team = job.run->TeamOfRank(place);
  const auto node = team == nullptr ? nodes.end() : nodes.find(team->node);
  if (node == nodes.end()) return true;
  return node->second.lost || node->second.mark.has_value() ||
         node->second.HasFailed(team->DeviceOf(place)) || IsKeptOut(job, place, node->second) ||
         (node->second.connected() && !CarriesOut(node->second, *job.state.layout));
}

std::map<Rank, NodeName> RanksThatMayReturn(const NodeTable& nodes, const LiveJob& job) {
  const bool waits = job.recovery.has_value() && job.recovery->stage == Recovery::Stage::kWaiting;
  std::set<int32_t> away;
  for (const Rank rank : job.state.layout->lost) away.insert(rank.value);
  if (job.recovery.has_value()) away.insert(job.recovery->lost.begin(), job.recovery->lost.end());
  std::map<Rank, NodeName> ranks;
  for (const int32_t rank : away) {
    if (Contains(job.state.request->lost, Rank{rank})) continue;
    // Nobody stops for a spare that is back.
    if (rank >= job.state.request->world && !waits) continue;
    const auto loan = job.loans.find(rank);
    if (loan != job.loans.end()) {
      ranks.emplace(Rank{rank}, loan->second.node);
    } else if (MayServe(nodes, job, rank)) {
      ranks.emplace(Rank{rank}, job.run->TeamOfRank(rank)->node);
    }
  }
  return ranks;
}

size_t SparesThatServe(const NodeTable& nodes, const LiveJob& job) {
  size_t spares = 0;
  const auto places = static_cast<int32_t>(job.run->ranks.size());
  for (int32_t place = job.state.request->world; place < places; ++place) {
    if (!Contains(job.state.request->lost, Rank{place}) && MayServe(nodes, job, place)) ++spares;
  }
  return spares;
}

plan::RankList UnfitSpares(const NodeTable& nodes, const LiveJob& job) {
  plan::RankList unfit;
  for (size_t rank = 0; rank < job.run->ranks.size(); ++rank) {
    const auto number = static_cast<int32_t>(rank);
    if (job.run->ranks[rank].used) continue;
    const Team* team = job.run->TeamOfRank(number);
    const auto node = team == nullptr ? nodes.end() : nodes.find(team->node);
    if (node == nodes.end() ||
        !MayTakeOver(node->second, team->DeviceOf(number), *job.state.layout) ||
        IsKeptOut(job, number, node->second)) {
      unfit.push_back(Rank{number});
    }
  }
  return unfit;
}

plan::RankList SparesThatAreBack(const NodeTable& nodes, const LiveJob& job) {
  plan::RankList back;
  for (const Rank place : job.state.layout->lost) {
    const JobRequest& request = *job.state.request;
    if (place.value >= request.world && !Contains(request.lost, place) &&
        MayServe(nodes, job, place.value)) {
      back.push_back(place);
    }
  }
  return back;
}

NodeName UnfitNode(const NodeTable& nodes, const LiveJob& job, const plan::Layout& next,
                   const std::map<Rank, plan::Device>& lent) {
  for (const auto& [place, device] : lent) {
    const auto loan = job.loans.find(place.value);
    if (loan == job.loans.end() || !(loan->second == device)) return device.node;
  }
  plan::RankList anew = job.state.layout->lost;
  if (job.recovery.has_value()) {
    for (const int32_t rank : job.recovery->lost) anew.push_back(Rank{rank});
  }
  std::erase_if(anew, [&next](Rank rank) { return Contains(next.lost, rank); });
  if (anew.empty()) return {};
  const Run run = MakeRun(next);
  for (const Rank rank : anew) {
    const Team* team = run.TeamOfRank(rank.value);
    if (team == nullptr) continue;
    const auto node = nodes.find(team->node);
    if (node == nodes.end() || !MayTakeOver(node->second, team->DeviceOf(rank.value), next))
      return team->node;
  }
  return {};
}

std::set<NodeName> BrokenNodes(const NodeTable& nodes, const LiveJob& job) {
  std::set<NodeName> broken;
  for (const Team& team : job.run->teams) {
    const auto node = nodes.find(team.node);
    const bool had_one = node != nodes.end() && node->second.incarnation != Incarnation{};
    if (had_one && !node->second.connected() && HasRanks(job, team)) broken.insert(team.node);
  }
  return broken;
}

const Node* AwaitedNode(const NodeTable& nodes, const LiveJob& job) {
  const Run& run = *job.run;
  for (const Team& team : run.teams) {
    const auto node = nodes.find(team.node);
    if (node == nodes.end() || node->second.lost || node->second.connected() ||
        node->second.incarnation != Incarnation{} || !HasRanks(job, team)) {
      continue;
    }
    const bool concerned =
        std::any_of(run.accusations.begin(), run.accusations.end(),
                    [&team](const Accusation& a) { return a.accused < 0 || team.Has(a.accused); });
    if (concerned) return &node->second;
  }
  return nullptr;
}

const Team* TeamOutOfReach(const NodeTable& nodes, const LiveJob& job) {
  if (!job.run.has_value() || !job.state.IsTerminal()) return nullptr;
  for (const Team& team : job.run->teams) {
    const auto node = nodes.find(team.node);
    if (!team.released && node != nodes.end() && !node->second.connected()) return &team;
  }
  return nullptr;
}

absl::Status MayHaveRanksOn(JobId job, const NodeName& away, absl::Duration forget_delay) {
  return absl::FailedPreconditionError(
      absl::StrCat(ToString(job), " may still have ranks on node ", away,
                   ", which is away; delete it when the node is back, or has been away for ",
                   absl::FormatDuration(forget_delay), " and is forgotten"));
}

bool MayTakeCopies(const NodeTable& nodes, const LiveJob& job) {
  if (!job.state.request->recovers || job.state.phase != job::JobPhase::kRunning) return false;
  if (!job.run.has_value() || job.state.ending.has_value()) return false;
  if (job.recovery.has_value() && job.recovery->goes_back) {
    // What others say of the state that was left; later it is the copies that have failed.
    return job.recovery->from_copies && (job.recovery->stage == Recovery::Stage::kPlanning ||
                                         job.recovery->stage == Recovery::Stage::kWaiting);
  }
  // Nor are there copies of the beginning, which is made anew.
  const bool nothing_decided =
      job.state.start.has_value() && job.state.start->step() == 0 && !job.last_step.has_value();
  if (job.state.copied.all().empty() || nothing_decided) return false;
  return std::all_of(job.copies_with.begin(), job.copies_with.end(), [&nodes](const auto& entry) {
    const auto node = nodes.find(entry.first);
    return node != nodes.end() && node->second.connected() &&
           node->second.incarnation == entry.second;
  });
}

bool MayTakeCopiesAtOnce(const NodeTable& nodes, const LiveJob& job) {
  const Recovery& recovery = *job.recovery;
  // Until all have entered an epoch they have the state in the layout of the one before.
  const bool lies_here = recovery.from == job.state.epoch && !recovery.entered;
  const bool stalls = !job.decided.has_value() || !Progresses(job.state, *job.decided);
  return lies_here && recovery.back.empty() && recovery.silent.empty() && !recovery.beside &&
         !job.state.ending.has_value() &&
         !(stalls && job.state.without_progress >= job.state.request->budget.without_progress) &&
         MayTakeCopies(nodes, job);
}

bool TakersKnowKeepers(const NodeTable& nodes, const LiveJob& job) {
  return std::all_of(job.run->teams.begin(), job.run->teams.end(), [&](const Team& team) {
    if (!job.run->HasWork(team)) return true;
    const auto node = nodes.find(team.node);
    return node != nodes.end() && (node->second.gives_copies || IsAwaited(node->second));
  });
}

std::set<int32_t> KeepersOfCopies(const NodeTable& nodes, const LiveJob& job) {
  if (!TakersKnowKeepers(nodes, job)) return {};
  std::set<NodeName> had_work;
  for (const CopiedEpoch& copied : job.state.copied.all()) {
    const Run run = MakeRun(*copied.layout);
    for (const Team& team : run.teams) {
      if (run.HasWork(team)) had_work.insert(team.node);
    }
  }
  std::set<int32_t> keepers;
  for (const Team& team : job.run->teams) {
    const auto node = nodes.find(team.node);
    if (node == nodes.end() || job.run->HasWork(team) || !had_work.contains(team.node)) continue;
    const bool gives =
        node->second.connected() && node->second.gives_copies && !node->second.draining;
    if (gives || IsAwaited(node->second)) keepers.insert(team.ranks.front());
  }
  return keepers;
}

std::map<NodeName, Incarnation> DaemonsOf(const NodeTable& nodes, const LiveJob& job) {
  std::map<NodeName, Incarnation> daemons;
  for (const Team& team : job.run->teams) {
    const auto node = nodes.find(team.node);
    const bool known = node != nodes.end() && node->second.incarnation != Incarnation{};
    if (known && job.run->HasWork(team)) daemons[team.node] = node->second.incarnation;
  }
  return daemons;
}

std::vector<int32_t> RanksMissing(const Run& run, const WrittenParts& written) {
  std::vector<int32_t> missing;
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    const auto rank = static_cast<int32_t>(i);
    if (run.ranks[i].used && !written.parts.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::string MissingParts(const NodeTable& nodes, const Run& run, const WrittenParts& written) {
  const std::vector<int32_t> ranks = RanksMissing(run, written);
  const size_t missing = ranks.size();
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(missing, kMissingNamedMax); ++i) {
    const NodeName& name = run.TeamOfRank(ranks[i])->node;
    const auto node = nodes.find(name);
    const bool connected = node != nodes.end() && node->second.connected();
    const bool exited = run.ranks[static_cast<size_t>(ranks[i])].exited;
    named.push_back(absl::StrCat(ranks[i], " (node ", name, connected ? "" : ", not connected",
                                 exited ? ", exited)" : ")"));
  }
  if (missing == 0) return "its turn to be published has not come";
  return absl::StrCat(
      missing == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      missing > named.size() ? absl::StrCat(" and ", missing - named.size(), " more") : "",
      missing == 1 ? " has not reported its part" : " have not reported their parts");
}

}  // namespace phalanx::coordinator

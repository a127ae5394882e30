#include "coordinator/machine/evidence.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/run.h"

namespace phalanx::coordinator {
namespace {

std::string Described(const Run& run, int32_t rank) {
  const Team* team = run.TeamOfRank(rank);
  return absl::StrCat("rank ", rank, team == nullptr ? "" : absl::StrCat(" on node ", team->node));
}

// The team that is accused, by a rank of another one.
const Team* AccusedFromOutside(const Run& run, const Accusation& accusation) {
  const Team* accused = run.TeamOfRank(accusation.accused);
  return accused == run.TeamOfRank(accusation.reporter) ? nullptr : accused;
}

FailureCause NodeLostCause(const Run& run, const Team& team) {
  std::string message =
      absl::StrCat("node ", team.node, " is lost: the session of its daemon broke");
  for (const Accusation& accusation : run.accusations) {
    const bool fits = accusation.accused < 0 || AccusedFromOutside(run, accusation) == &team;
    if (!fits) continue;
    absl::StrAppend(&message, ", and ", Sentence(run, accusation));
    break;
  }
  return {.kind = job::FailureKind::kNodeLost,
          .rank = run.FirstRank(team),
          .node = team.node,
          .message = std::move(message)};
}

bool AccusesAnybody(const Run& run, int32_t rank) {
  return std::any_of(run.accusations.begin(), run.accusations.end(),
                     [rank](const Accusation& a) { return a.reporter == rank; });
}

// Whether the rank went after another that accuses nobody: who accuses it saw that follow. Ranks
// that accuse each other are cut off from each other, and neither followed.
bool FollowedAnother(const Run& run, int32_t rank) {
  return std::any_of(run.accusations.begin(), run.accusations.end(), [&](const Accusation& a) {
    return a.reporter == rank && a.accused >= 0 && !AccusesAnybody(run, a.accused);
  });
}

// The team that the ranks of other nodes accuse, at least two of them, or nullptr.
const Team* AccusedBySeveral(const Run& run) {
  std::map<const Team*, std::set<int32_t>> reporters;
  for (const Accusation& accusation : run.accusations) {
    if (FollowedAnother(run, accusation.accused)) continue;
    if (const Team* team = AccusedFromOutside(run, accusation)) {
      reporters[team].insert(accusation.reporter);
    }
  }
  const Team* most = nullptr;
  size_t count = 1;
  for (const Team& team : run.teams) {  // in a fixed order
    const auto found = reporters.find(&team);
    if (found == reporters.end() || found->second.size() <= count) continue;
    most = &team;
    count = found->second.size();
  }
  return most;
}

}  // namespace

std::string Sentence(const Run& run, const Accusation& accusation) {
  std::string text = Described(run, accusation.reporter);
  if (accusation.accused >= 0) {
    absl::StrAppend(&text, " lost its connection to ", Described(run, accusation.accused));
  } else {
    absl::StrAppend(&text, " lost a peer");
  }
  return absl::StrCat(text, ": ", accusation.message);
}

const Team* ConvictedNode(const Run& run, const std::set<NodeName>& broken) {
  for (const Accusation& accusation : run.accusations) {
    const Team* team = AccusedFromOutside(run, accusation);
    if (team != nullptr && broken.contains(team->node)) return team;
  }
  return nullptr;
}

FailureCause VerdictOf(const Run& run, const std::set<NodeName>& broken) {
  if (const Team* team = ConvictedNode(run, broken)) return NodeLostCause(run, *team);
  const std::vector<Accusation>& all = run.accusations;
  const bool nobody_named =
      std::all_of(all.begin(), all.end(), [](const Accusation& a) { return a.accused < 0; });
  // Ranks whose daemon died leave as those do that are told to. Who accuses lives on, and so does
  // its node.
  const auto is_gone = [&](const Team& team) {
    return broken.contains(team.node) &&
           std::none_of(all.begin(), all.end(),
                        [&team](const Accusation& a) { return team.Has(a.reporter); });
  };
  const auto gone = std::find_if(run.teams.begin(), run.teams.end(), is_gone);
  if (nobody_named && gone != run.teams.end()) return NodeLostCause(run, *gone);
  // Who accuses others went after them, so the first of those who accuse nobody is where it began.
  auto root = std::find_if(all.begin(), all.end(), [&](const Accusation& a) {
    return a.accused >= 0 && !AccusesAnybody(run, a.accused);
  });
  if (root == all.end()) {
    root = std::find_if(all.begin(), all.end(), [](const Accusation& a) { return a.accused >= 0; });
  }
  if (root == all.end()) root = all.begin();
  if (const Team* team = AccusedBySeveral(run)) {
    return {.kind = job::FailureKind::kNodeUnreachable,
            .rank = run.FirstRank(*team),
            .node = team->node,
            .message =
                absl::StrCat("several ranks lost node ", team->node, ": ", Sentence(run, *root))};
  }
  const Team* team = run.TeamOfRank(root->accused);
  return {.kind = job::FailureKind::kPeerLost,
          .rank = root->accused,
          .node = team == nullptr ? NodeName() : team->node,
          .message = Sentence(run, *root)};
}

}  // namespace phalanx::coordinator

#include "coordinator/machine/evidence.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/run.h"

namespace phalanx::coordinator {
namespace {

std::string Described(const Run& run, int32_t rank) {
  const Part* part = run.PartOfRank(rank);
  return absl::StrCat("rank ", rank, part == nullptr ? "" : absl::StrCat(" on node ", part->node));
}

std::string Sentence(const Run& run, const Accusation& accusation) {
  std::string text = Described(run, accusation.reporter);
  if (accusation.accused >= 0) {
    absl::StrAppend(&text, " lost its connection to ", Described(run, accusation.accused));
  } else {
    absl::StrAppend(&text, " lost a peer");
  }
  return absl::StrCat(text, ": ", accusation.message);
}

// The part that is accused, by a rank of another one.
const Part* AccusedFromOutside(const Run& run, const Accusation& accusation) {
  const Part* accused = run.PartOfRank(accusation.accused);
  return accused == run.PartOfRank(accusation.reporter) ? nullptr : accused;
}

FailureCause NodeLostCause(const Run& run, const Part& part) {
  std::string message =
      absl::StrCat("node ", part.node, " is lost: the session of its daemon broke");
  for (const Accusation& accusation : run.accusations) {
    const bool fits = accusation.accused < 0 || AccusedFromOutside(run, accusation) == &part;
    if (!fits) continue;
    absl::StrAppend(&message, ", and ", Sentence(run, accusation));
    break;
  }
  return {.kind = job::FailureKind::kNodeLost,
          .rank = part.first_rank,
          .node = part.node,
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

// The part that the ranks of other nodes accuse, at least two of them, or nullptr.
const Part* AccusedBySeveral(const Run& run) {
  std::map<const Part*, std::set<int32_t>> reporters;
  for (const Accusation& accusation : run.accusations) {
    if (FollowedAnother(run, accusation.accused)) continue;
    if (const Part* part = AccusedFromOutside(run, accusation)) {
      reporters[part].insert(accusation.reporter);
    }
  }
  const Part* most = nullptr;
  size_t count = 1;
  for (const Part& part : run.parts) {  // in a fixed order
    const auto found = reporters.find(&part);
    if (found == reporters.end() || found->second.size() <= count) continue;
    most = &part;
    count = found->second.size();
  }
  return most;
}

}  // namespace

const Part* ConvictedNode(const Run& run, const std::set<NodeName>& broken) {
  for (const Accusation& accusation : run.accusations) {
    const Part* part = AccusedFromOutside(run, accusation);
    if (part != nullptr && broken.contains(part->node)) return part;
  }
  return nullptr;
}

FailureCause VerdictOf(const Run& run, const std::set<NodeName>& broken) {
  if (const Part* part = ConvictedNode(run, broken)) return NodeLostCause(run, *part);
  const std::vector<Accusation>& all = run.accusations;
  const bool nobody_named =
      std::all_of(all.begin(), all.end(), [](const Accusation& a) { return a.accused < 0; });
  const auto is_broken = [&](const Part& part) { return broken.contains(part.node); };
  if (nobody_named && std::count_if(run.parts.begin(), run.parts.end(), is_broken) == 1) {
    return NodeLostCause(run, *std::find_if(run.parts.begin(), run.parts.end(), is_broken));
  }
  // Who accuses others went after them, so the first of those who accuse nobody is where it began.
  auto root = std::find_if(all.begin(), all.end(), [&](const Accusation& a) {
    return a.accused >= 0 && !AccusesAnybody(run, a.accused);
  });
  if (root == all.end()) {
    root = std::find_if(all.begin(), all.end(), [](const Accusation& a) { return a.accused >= 0; });
  }
  if (root == all.end()) root = all.begin();
  if (const Part* part = AccusedBySeveral(run)) {
    return {.kind = job::FailureKind::kNodeUnreachable,
            .rank = part->first_rank,
            .node = part->node,
            .message =
                absl::StrCat("several ranks lost node ", part->node, ": ", Sentence(run, *root))};
  }
  const Part* part = run.PartOfRank(root->accused);
  return {.kind = job::FailureKind::kPeerLost,
          .rank = root->accused,
          .node = part == nullptr ? NodeName() : part->node,
          .message = Sentence(run, *root)};
}

}  // namespace phalanx::coordinator

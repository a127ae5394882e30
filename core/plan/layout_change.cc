#include "core/plan/layout_change.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::plan {
namespace {

// Replicas that a phrase names; past it how many more there are.
constexpr size_t kReplicasNamedMax = 8;
// LayoutChange::replica.
constexpr int32_t kReplicas = -1, kStages = -2;

// 0: it takes no part.
int32_t NarrowestOf(const ReplicaTable& table, int32_t replica) {
  if (!table.Present(replica)) return 0;
  int32_t narrowest = table.Width(replica, 0);
  for (int32_t stage = 1; stage < table.stages(); ++stage)
    narrowest = std::min(narrowest, table.Width(replica, stage));
  return narrowest;
}

bool SameSubject(const LayoutChange& a, const LayoutChange& b) {
  return a.module == b.module && a.replica == b.replica;
}

std::string ReplicasText(const std::vector<int32_t>& replicas) {
  const size_t named = std::min(replicas.size(), kReplicasNamedMax);
  return absl::StrCat(
      replicas.size() == 1 ? " in replica " : " in replicas ",
      absl::StrJoin(replicas.begin(), replicas.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      named < replicas.size() ? absl::StrCat(" and ", replicas.size() - named, " others") : "");
}

}  // namespace

std::vector<LayoutChange> ChangesBetween(const Plan& before, const Plan& after) {
  std::vector<LayoutChange> changes;
  const size_t modules = std::min(before.modules.size(), after.modules.size());
  for (size_t m = 0; m < modules; ++m) {
    const ReplicaTable& old = before.modules[m].replicas;
    const ReplicaTable& now = after.modules[m].replicas;
    const std::string& name = after.spec.modules[m].name;
    if (old.present_replicas() != now.present_replicas())
      changes.push_back({name, kReplicas, old.present_replicas(), now.present_replicas()});
    if (old.stages() != now.stages())
      changes.push_back({name, kStages, old.stages(), now.stages()});
    for (int32_t dp = 0; dp < std::min(old.replicas(), now.replicas()); ++dp) {
      const int32_t from = NarrowestOf(old, dp), to = NarrowestOf(now, dp);
      if (from != to) changes.push_back({name, dp, from, to});
    }
  }
  return changes;
}

std::vector<LayoutChange> Joined(absl::Span<const LayoutChange> first,
                                 absl::Span<const LayoutChange> next) {
  std::vector<LayoutChange> all(first.begin(), first.end());
  for (const LayoutChange& change : next) {
    const auto known = std::find_if(all.begin(), all.end(), [&](const LayoutChange& other) {
      return SameSubject(other, change);
    });
    if (known == all.end()) {
      all.push_back(change);
    } else {
      known->to = change.to;
    }
  }
  std::erase_if(all, [](const LayoutChange& change) { return change.from == change.to; });
  return all;
}

std::vector<std::string> ToWords(absl::Span<const LayoutChange> changes) {
  std::vector<std::string> words;
  for (size_t i = 0; i < changes.size(); ++i) {
    const LayoutChange& change = changes[i];
    const auto alike = [&](const LayoutChange& other) {
      return other.replica >= 0 && other.module == change.module && other.from == change.from &&
             other.to == change.to;
    };
    if (change.replica < 0) {
      words.push_back(absl::StrCat(change.module, change.replica == kStages ? " pp " : " dp ",
                                   change.from, " -> ", change.to));
      continue;
    }
    if (std::any_of(changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(i), alike))
      continue;                                        // named with the first of them
    if (change.from == 0 || change.to == 0) continue;  // the number of replicas says it
    std::vector<int32_t> replicas;
    for (const LayoutChange& other : changes) {
      if (alike(other)) replicas.push_back(other.replica);
    }
    std::sort(replicas.begin(), replicas.end());
    words.push_back(absl::StrCat(change.module, " tp ", change.from, " -> ", change.to,
                                 ReplicasText(replicas)));
  }
  return words;
}

}  // namespace phalanx::plan

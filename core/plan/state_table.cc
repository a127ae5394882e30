#include "core/plan/state_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/shares.h"

namespace phalanx::plan {
namespace {

using RunsOfRulers = std::map<std::pair<int32_t, UnitFamily>, std::vector<HomedRun>>;

// Sorts runs and joins neighbours with the same homes.
StateTable TableOf(std::vector<RankList> homes, RunsOfRulers all) {
  StateTable table{.homes = std::move(homes)};
  for (auto& [key, runs] : all) {
    std::sort(runs.begin(), runs.end(), [](const HomedRun& a, const HomedRun& b) {
      return a.elements.first < b.elements.first;
    });
    HomedRuler& ruler = table.rulers.emplace_back();
    ruler.bucket = key.first;
    ruler.family = key.second;
    for (const HomedRun& run : runs) {
      if (!ruler.runs.empty() && ruler.runs.back().homes == run.homes) {
        ruler.runs.back().elements.count += run.elements.count;
      } else {
        ruler.runs.push_back(run);
      }
    }
  }
  return table;
}

// Shares are equal parts of the buckets of each tensor coordinate.
StateTable EvenTable(const Plan& plan, const PartId& part) {
  const int32_t width = plan.replicas(part.module).WidestOf(part.stage);
  std::vector<RankList> homes;  // by tensor coordinate, then replica
  for (const RankList& group : plan.DataGroups(part.module, part.stage)) {
    for (RankList& list : HomesOf(plan, part.module, group)) homes.push_back(std::move(list));
  }
  const auto replicas = static_cast<int32_t>(homes.size()) / width;
  RunsOfRulers runs;
  int32_t bucket = 0;
  for (const std::vector<EvenRun>& shares : CutEvenly(plan, part, width)) {
    for (const EvenRun& run : shares)
      runs[{bucket, run.family}].push_back({run.elements, run.tp * replicas + run.replica});
    ++bucket;
  }
  return TableOf(std::move(homes), std::move(runs));
}

// Shares are intervals of rulers.
StateTable UnevenTable(const Plan& plan, const PartId& part) {
  const std::vector<BucketRulers> rulers = RulersOf(plan, part);
  const std::vector<std::vector<RulerShare>> shares = CutShares(plan, part);
  std::vector<RankList> homes;
  RunsOfRulers runs;
  GroupsOfLeaders groups(plan, part);
  std::map<const std::vector<RankList>*, int32_t> first_home_of;
  for (size_t b = 0; b < shares.size(); ++b) {
    for (const RulerShare& share : shares[b]) {
      const int64_t unit = share.elements.first / rulers[b].Find(share.family)->unit_elements;
      const std::vector<RankList>& lists = groups.HomesAt(share.family, unit);
      const auto [entry, is_new] =
          first_home_of.try_emplace(&lists, static_cast<int32_t>(homes.size()));
      if (is_new) homes.insert(homes.end(), lists.begin(), lists.end());
      runs[{static_cast<int32_t>(b), share.family}].push_back(
          {share.elements, entry->second + share.replica});
    }
  }
  return TableOf(std::move(homes), std::move(runs));
}

}  // namespace

StateTable StateTableOf(const Plan& plan, const PartId& part) {
  return plan.replicas(part.module).EqualWidths(part.stage) ? EvenTable(plan, part)
                                                            : UnevenTable(plan, part);
}

}  // namespace phalanx::plan

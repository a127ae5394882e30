#include "core/plan/state_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/ruler_map.h"
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

std::map<PartId, StateTable> StateTablesOn(const Plan& rulers, const Plan& plan, int32_t module) {
  const RulerMap map(plan, rulers, module);
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  std::vector<RankList> homes;
  std::map<PartId, RunsOfRulers> runs;
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      if (!layout.TrainsOf(stage, chunk).weights) continue;
      const PartId part{module, stage, chunk};
      const StateTable table = StateTableOf(plan, part);
      const auto first = static_cast<int32_t>(homes.size());
      homes.insert(homes.end(), table.homes.begin(), table.homes.end());
      for (const HomedRuler& ruler : table.rulers) {
        for (const HomedRun& run : ruler.runs) {
          for (const RulerMap::Piece& piece :
               map.Of({part, ruler.bucket, ruler.family}, run.elements)) {
            runs[piece.ruler.part][{piece.ruler.bucket, piece.ruler.family}].push_back(
                {piece.elements, first + run.homes});
          }
        }
      }
    }
  }
  std::map<PartId, StateTable> tables;
  for (auto& [part, of_part] : runs) tables[part] = TableOf(homes, std::move(of_part));
  return tables;
}

StateTable StateTableOf(const Plan& plan, const PartId& part) {
  return plan.replicas(part.module).EqualWidths(part.stage) ? EvenTable(plan, part)
                                                            : UnevenTable(plan, part);
}

}  // namespace phalanx::plan

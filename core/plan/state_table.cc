#include "core/plan/state_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/plan/parameters.h"
#include "core/plan/reduction.h"
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
  const ReplicaTable& table = plan.replicas(part.module);
  std::vector<RankList> homes;
  RunsOfRulers runs;
  Place place{.module = part.module,
              .dp = table.FirstPresent(),
              .pp = part.stage,
              .width = table.WidestOf(part.stage)};
  for (; place.tp < place.width; ++place.tp) {
    const auto first_home = static_cast<int32_t>(homes.size());
    for (RankList& list : HomesOf(plan, part.module, plan.DataGroupOf(place))) {
      homes.push_back(std::move(list));
    }
    const StageParameters parameters = ParametersOf(plan, place, part.chunk);
    const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const UnitRange bucket{parameters.buckets[b].offset, parameters.buckets[b].elements};
      const int64_t share = EvenShare(bucket, parameters.replicas, 0).count;
      std::map<UnitFamily, int64_t> before;  // elements of a unit in earlier matrices
      for (const LedSlabs& slabs : buckets[b].slabs) {
        const int64_t begin =
            std::exchange(before[slabs.family], before[slabs.family] + slabs.elements);
        const int64_t unit_elements = buckets[b].Find(slabs.family)->unit_elements;
        std::vector<HomedRun>& list = runs[{static_cast<int32_t>(b), slabs.family}];
        for (int64_t i = 0; i < slabs.units.count; ++i) {
          const int64_t slab = slabs.offset + i * slabs.elements;
          // What is behind an offset on the ruler is as far behind it in the buffer.
          const int64_t ahead = (slabs.units.first + i) * unit_elements + begin - slab;
          for (int64_t at = slab; at < slab + slabs.elements;) {
            const int64_t replica = (at - bucket.first) / share;
            const int64_t end =
                std::min(slab + slabs.elements, bucket.first + (replica + 1) * share);
            list.push_back({{at + ahead, end - at}, first_home + static_cast<int32_t>(replica)});
            at = end;
          }
        }
      }
    }
  }
  return TableOf(std::move(homes), std::move(runs));
}

// Shares are intervals of rulers.
StateTable UnevenTable(const Plan& plan, const PartId& part) {
  const ReplicaTable& table = plan.replicas(part.module);
  const Place first{.module = part.module,
                    .dp = table.FirstPresent(),
                    .pp = part.stage,
                    .width = table.Width(table.FirstPresent(), part.stage)};
  const std::vector<BucketRulers> rulers =
      RulersOf(plan, first, ParametersOf(plan, first, part.chunk));
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

#include "tests/sim/cluster/transfers.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/plan/ruler_map.h"

namespace phalanx::sim {

void AddRange(plan::UnitRange range, Ranges* ranges) {
  if (range.count <= 0) return;
  ranges->push_back(range);
  std::sort(ranges->begin(), ranges->end(),
            [](const plan::UnitRange& a, const plan::UnitRange& b) { return a.first < b.first; });
  Ranges joined;
  for (const plan::UnitRange& next : *ranges) {
    if (!joined.empty() && next.first <= joined.back().end()) {
      joined.back().count = std::max(joined.back().end(), next.end()) - joined.back().first;
    } else {
      joined.push_back(next);
    }
  }
  *ranges = std::move(joined);
}

Ranges Intersection(const Ranges& a, const Ranges& b) {
  Ranges both;
  for (const plan::UnitRange& x : a) {
    for (const plan::UnitRange& y : b) {
      const int64_t first = std::max(x.first, y.first), end = std::min(x.end(), y.end());
      if (first < end) AddRange({first, end - first}, &both);
    }
  }
  return both;
}

Ranges Difference(const Ranges& a, const Ranges& b) {
  Ranges left;
  for (plan::UnitRange x : a) {
    for (const plan::UnitRange& y : b) {
      if (y.end() <= x.first || y.first >= x.end()) continue;
      if (y.first > x.first) AddRange({x.first, y.first - x.first}, &left);
      const int64_t end = x.end();
      x.first = std::min(y.end(), end);
      x.count = end - x.first;
    }
    AddRange(x, &left);
  }
  return left;
}

uint64_t HashOf(const Holdings& holdings) {
  uint64_t hash = holdings.size();
  for (const auto& [name, ranges] : holdings) {
    for (const int64_t number :
         {int64_t{name.bucket.part.module}, int64_t{name.bucket.part.stage},
          int64_t{name.bucket.part.chunk}, int64_t{name.bucket.bucket},
          static_cast<int64_t>(name.family.kind), int64_t{name.family.edge}}) {
      hash = Mix64(hash ^ static_cast<uint64_t>(number));
    }
    for (const plan::UnitRange& range : ranges)
      hash = Mix64(Mix64(hash ^ static_cast<uint64_t>(range.first)) ^
                   static_cast<uint64_t>(range.count));
  }
  return hash;
}

Holdings Renamed(const Holdings& holdings, const plan::Plan& from, const plan::Plan& to) {
  Holdings renamed;
  for (const plan::ModulePlan& module : to.modules) {
    const bool same = plan::SameRulers(from, to, module.index);
    std::optional<plan::RulerMap> map;
    if (!same) map.emplace(from, to, module.index);
    for (const auto& [name, ranges] : holdings) {
      if (name.bucket.part.module != module.index) continue;
      if (same) renamed[name] = ranges;
      for (const plan::UnitRange& range : same ? Ranges() : ranges) {
        for (const plan::RulerMap::Piece& piece :
             map->Of({name.bucket.part, name.bucket.bucket, name.family}, range)) {
          const RulerName ruler{{piece.ruler.part, piece.ruler.bucket}, piece.ruler.family};
          AddRange(piece.elements, &renamed[ruler]);
        }
      }
    }
  }
  return renamed;
}

absl::StatusOr<std::vector<TransferRound>> PlanTransfers(
    const std::map<int32_t, Holdings>& needs, const std::map<int32_t, Holdings>& holdings) {
  std::map<BucketName, TransferRound> rounds;
  for (const auto& [taker, needed] : needs) {
    for (const auto& [ruler, ranges] : needed) {
      TransferRound& round = rounds[ruler.bucket];
      round.bucket = ruler.bucket;
      const auto held = [&, ruler = ruler](int32_t rank) {
        const auto of_rank = holdings.find(rank);
        if (of_rank == holdings.end()) return Ranges();
        const auto found = of_rank->second.find(ruler);
        return found == of_rank->second.end() ? Ranges() : found->second;
      };
      Ranges missing = Difference(ranges, held(taker));
      for (const auto& [giver, unused] : holdings) {
        if (missing.empty()) break;
        const Ranges given = Intersection(missing, held(giver));
        if (given.empty()) continue;
        round.messages[{giver, taker}][ruler] = given;
        missing = Difference(missing, given);
      }
      if (missing.empty()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("nobody holds ", missing[0].count, " elements of bucket ",
                       ruler.bucket.bucket, " of stage ", ruler.bucket.part.stage, " of module ",
                       ruler.bucket.part.module, " that rank ", taker, " needs"));
    }
  }
  std::vector<TransferRound> list;
  for (auto& [bucket, round] : rounds) list.push_back(std::move(round));
  return list;
}

}  // namespace phalanx::sim

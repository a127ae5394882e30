#include "worker/train/transfers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/plan/derivation.h"
#include "core/plan/parameters.h"
#include "core/plan/state_table.h"

namespace phalanx::train {
namespace {

// The range that begins at or before `at` and ends behind it.
const plan::UnitRange* RangeAt(const std::vector<plan::UnitRange>& ranges, int64_t at) {
  const auto found = std::upper_bound(
      ranges.begin(), ranges.end(), at,
      [](int64_t value, const plan::UnitRange& range) { return value < range.end(); });
  return found != ranges.end() && found->first <= at ? &*found : nullptr;
}

// Where the first range behind `at` begins, `end` at most.
int64_t NextBegin(const std::vector<plan::UnitRange>& ranges, int64_t at, int64_t end) {
  for (const plan::UnitRange& range : ranges) {
    if (range.first > at) return std::min(range.first, end);
  }
  return end;
}

// Of one line of elements or rows who has what, ascending by rank.
using Holders = std::vector<std::pair<Rank, const std::vector<plan::UnitRange>*>>;

// Calls give(range, from) for what `to` lacks of `needed`; false if nobody has some of it. Of those
// who have it the first gives for whom distance(rank) is least.
template <typename Distance, typename Give>
bool Fill(const plan::UnitRange& needed, Rank to, const Holders& holders, Distance distance,
          Give give) {
  const auto own = std::find_if(holders.begin(), holders.end(),
                                [to](const auto& holder) { return holder.first == to; });
  for (int64_t at = needed.first; at < needed.end();) {
    int64_t end = needed.end();
    if (own != holders.end()) {
      if (const plan::UnitRange* have = RangeAt(*own->second, at); have != nullptr) {
        at = have->end();
        continue;
      }
      end = NextBegin(*own->second, at, end);
    }
    const plan::UnitRange* found = nullptr;
    Rank from;
    int32_t least = 0;
    for (const auto& [rank, ranges] : holders) {
      const plan::UnitRange* have = RangeAt(*ranges, at);
      if (have == nullptr) continue;
      const int32_t away = distance(rank);
      if (found != nullptr && away >= least) continue;
      found = have;
      from = rank;
      least = away;
      if (least == 0) break;
    }
    if (found == nullptr) return false;
    end = std::min(end, found->end());
    for (const auto& [rank, ranges] : holders) {
      if (least == 0) break;
      if (distance(rank) < least) end = NextBegin(*ranges, at, end);  // from there on it is nearer
    }
    give(plan::UnitRange{at, end - at}, from);
    at = end;
  }
  return true;
}

class Planner {
 public:
  // `follow`: mirrors get what they lack behind the primaries.
  Planner(const plan::Plan& after, const std::map<Rank, Holdings>& holdings, bool follow)
      : after_(after), holdings_(holdings), follow_(follow) {}

  absl::StatusOr<Transfers> Run() {
    for (const plan::ModulePlan& module : after_.modules) {
      if (!job::TraitsOf(after_.module_spec(module.index).architecture).known()) continue;
      for (int32_t stage = 0; stage < module.pp(); ++stage) {
        for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
          const plan::PartId part{module.index, stage, chunk};
          RETURN_IF_ERROR(AddWeights(part));
          if (module.TrainsOf(stage, chunk).weights) RETURN_IF_ERROR(AddState(part));
        }
      }
    }
    return std::move(result_);
  }

 private:
  absl::Status AddState(const plan::PartId& part) {
    const plan::StateTable table = plan::StateTableOf(after_, part);
    for (const plan::HomedRuler& ruler : table.rulers) {
      Holders holders;
      for (const auto& [rank, held] : holdings_) {
        const auto found = held.state.find({part, ruler.bucket, ruler.family});
        if (found != held.state.end()) holders.emplace_back(rank, &found->second);
      }
      for (const plan::HomedRun& run : ruler.runs) {
        const plan::RankList& homes = table.homes[static_cast<size_t>(run.homes)];
        plan::RankList gave;  // of those who are to hold it no longer
        for (const Rank to : homes) {
          const auto distance = [&](Rank from) { return Distance(from, to, homes, gave); };
          const bool mirrors = follow_ && to != homes.front();
          const auto give = [&](const plan::UnitRange& elements, Rank from) {
            if (!mirrors && !Has(homes, from)) gave.push_back(from);
            Append(mirrors ? result_.mirrors : result_.buckets, part, ruler.bucket,
                   {.family = ruler.family,
                    .elements = elements,
                    .from = mirrors ? homes.front() : from,
                    .to = to});
          };
          if (!Fill(run.elements, to, holders, distance, give))
            return Missing(part, "optimizer state");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddWeights(const plan::PartId& part) {
    std::map<Rank, const Rows*> of_rank;
    for (const auto& [rank, held] : holdings_) {
      // One is enough for whoever is asked: ranks between layouts are few.
      const auto found =
          std::find_if(held.frozen.begin(), held.frozen.end(),
                       [&part](const FrozenName& name) { return name.part == part; });
      if (found != held.frozen.end()) of_rank[rank] = &RowsOf(*found);
    }
    PartWeightTransfers transfers{.part = part};
    const plan::ReplicaTable& table = after_.replicas(part.module);
    for (const int32_t dp : table.order()) {
      const int32_t width = table.Width(dp, part.stage);
      for (int32_t cp = 0; cp < table.cp(); ++cp) {
        for (int32_t tp = 0; tp < width; ++tp) {
          const Rank to = table.At(dp, part.stage, cp, tp);
          for (const auto& [tensor, needed] : RowsOf({part, width, tp})) {
            Holders holders;
            for (const auto& [rank, rows] : of_rank) {
              const auto found = rows->find(tensor);
              if (found != rows->end()) holders.emplace_back(rank, &found->second);
            }
            for (const plan::UnitRange& rows : needed) {
              const auto give = [&](const plan::UnitRange& range, Rank from) {
                transfers.transfers.push_back({tensor, range, from, to});
              };
              if (!Fill(
                      rows, to, holders, [](Rank) { return 0; }, give))
                return Missing(part, "weights that do not train");
            }
          }
        }
      }
    }
    if (!transfers.transfers.empty()) result_.weights.push_back(std::move(transfers));
    return absl::OkStatus();
  }

  static bool Has(const plan::RankList& ranks, Rank rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  // From `to`, a home of `homes`, to one who holds what it lacks.
  int32_t Distance(Rank from, Rank to, const plan::RankList& homes,
                   const plan::RankList& gave) const {
    if (after_.layout.derivation < plan::kDerivationOfLeavingGivers) return 0;
    const bool leaves = !Has(homes, from), near = after_.FailTogether(from, to);
    if (leaves && near) return 0;
    if (leaves && !Has(gave, from)) return 1;
    return near ? 2 : leaves ? 3 : 4;
  }

  using Rows = std::map<std::string, std::vector<plan::UnitRange>>;

  void Append(std::vector<BucketTransfers>& buckets, const plan::PartId& part, int32_t bucket,
              const StateTransfer& transfer) {
    if (buckets.empty() || buckets.back().part != part || buckets.back().bucket != bucket)
      buckets.push_back({.part = part, .bucket = bucket});
    std::vector<StateTransfer>& all = buckets.back().transfers;
    result_.state_elements += transfer.elements.count;
    // To each home in turn, so neighbours are not next to each other.
    for (auto last = all.rbegin(); last != all.rend() && last - all.rbegin() < kLookBack; ++last) {
      if (last->family == transfer.family && last->from == transfer.from &&
          last->to == transfer.to && last->elements.end() == transfer.elements.first) {
        last->elements.count += transfer.elements.count;
        return;
      }
    }
    all.push_back(transfer);
  }

  const Rows& RowsOf(const FrozenName& name) {
    const auto [entry, first] = rows_.try_emplace(name);
    if (!first) return entry->second;
    const plan::Place place{.module = name.part.module,
                            .tp = name.tp,
                            .dp = after_.replicas(name.part.module).FirstPresent(),
                            .pp = name.part.stage,
                            .width = name.width};
    for (const auto& [tensor, pieces] :
         FrozenRowsOf(plan::ParametersOf(after_, place, name.part.chunk))) {
      std::vector<plan::UnitRange>& rows = entry->second[tensor];
      for (const FrozenPiece& piece : pieces) rows.push_back(piece.rows);
      SortAndJoin(&rows);
    }
    return entry->second;
  }

  absl::Status Missing(const plan::PartId& part, absl::string_view what) const {
    return absl::FailedPreconditionError(absl::StrCat(
        "no rank holds some ", what, " of module ", after_.module_spec(part.module).name,
        ", stage ", part.stage, ", chunk ", part.chunk, ": it is to come from a checkpoint"));
  }

  static constexpr int32_t kLookBack = 8;

  const plan::Plan& after_;
  const std::map<Rank, Holdings>& holdings_;
  const bool follow_;
  std::map<FrozenName, Rows> rows_;
  Transfers result_;
};

}  // namespace

absl::StatusOr<Transfers> TransfersInto(const plan::Plan& after,
                                        const std::map<Rank, Holdings>& holdings,
                                        int64_t at_once_max) {
  std::optional<int64_t> step;
  for (const auto& [rank, held] : holdings) {
    if (held.state.empty() && held.frozen.empty()) continue;
    if (step.value_or(held.step) != held.step) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank.value, " holds state of step ",
                                                     held.step, ", another one of step ", *step));
    }
    step = held.step;
  }
  absl::StatusOr<Transfers> transfers = Planner(after, holdings, /*follow=*/true).Run();
  if (!transfers.ok() || transfers->mirrors.empty()) return transfers;
  int64_t lacking = 0;
  for (const BucketTransfers& bucket : transfers->mirrors) {
    for (const StateTransfer& transfer : bucket.transfers) lacking += transfer.elements.count;
  }
  if (lacking > at_once_max) return transfers;
  return Planner(after, holdings, /*follow=*/false).Run();
}

}  // namespace phalanx::train

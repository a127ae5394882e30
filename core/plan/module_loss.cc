#include "core/plan/module_loss.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::plan {
namespace {

using job::Rung;

bool Has(const std::vector<Rung>& ladder, Rung rung) {
  return std::find(ladder.begin(), ladder.end(), rung) != ladder.end();
}

ReplicaTable HealthyTable(const Plan& plan, int32_t module) {
  return *ReplicaTable::Create(plan.modules[static_cast<size_t>(module)].grid, {});
}

}  // namespace

ModuleLoss::ModuleLoss(const Plan& plan, int32_t module, const std::set<Rank>& lost, bool restart)
    : plan_(plan),
      module_(module),
      restart_(restart && Has(plan.spec.recovery.ladder, Rung::kRestart)),
      healthy_(HealthyTable(plan, module)),
      left_(healthy_) {
  std::map<int32_t, LostOfStages> hit;  // by dp
  for (Rank rank : lost) {
    const std::optional<ReplicaTable::Position> position = healthy_.PositionOf(rank);
    if (position.has_value()) hit[position->dp][position->pp].insert(rank);
  }
  for (const auto& [dp, stages] : hit) TakeRung(dp, stages);
  if (plan_.spec.recovery.widths == job::Widths::kParity) EvenOut();
  left_ =
      *ReplicaTable::Create(plan_.modules[static_cast<size_t>(module)].grid, ModuleLoss::changes());
}

std::vector<SlotRanks> ModuleLoss::SlotsOf(int32_t dp, const std::set<Rank>& lost) const {
  std::vector<SlotRanks> slots;
  for (int32_t pp = 0; pp < healthy_.stages(); ++pp) {
    for (int32_t cp = 0; cp < healthy_.cp(); ++cp) {
      SlotRanks& slot = slots.emplace_back();
      slot.pp = pp;
      for (Rank rank : healthy_.Ranks(dp, pp, cp))
        (lost.contains(rank) ? slot.lost : slot.left).push_back(rank);
    }
  }
  return slots;
}

void ModuleLoss::Release(int32_t dp, int32_t pp) {
  for (int32_t cp = 0; cp < healthy_.cp(); ++cp) {
    for (Rank rank : healthy_.Ranks(dp, pp, cp)) released_.insert(rank);
  }
}

void ModuleLoss::Narrow(Slot slot, const std::vector<RankList>& by_cp, size_t width) {
  Release(slot.first, slot.second);
  RankList ranks;
  for (const RankList& list : by_cp) {
    ranks.insert(ranks.end(), list.begin(), list.begin() + static_cast<std::ptrdiff_t>(width));
  }
  changes_[slot] = std::move(ranks);
}

void ModuleLoss::Drop(int32_t dp, const LostOfStages& stages) {
  for (int32_t pp = 0; pp < healthy_.stages(); ++pp) Release(dp, pp);
  for (const auto& [pp, lost] : stages) changes_[{dp, pp}].clear();
}

void ModuleLoss::TakeRung(int32_t dp, const LostOfStages& stages) {
  std::map<int32_t, std::vector<RankList>> left;  // by pp, then cp
  Hit& hit = hits_[dp];
  for (const auto& [pp, lost] : stages) {
    for (int32_t cp = 0; cp < healthy_.cp(); ++cp) {
      RankList ranks = healthy_.Ranks(dp, pp, cp);
      std::erase_if(ranks, [&lost = lost](Rank rank) { return lost.contains(rank); });
      left[pp].push_back(std::move(ranks));
    }
    if (std::any_of(left[pp].begin(), left[pp].end(), [](const RankList& l) { return l.empty(); }))
      hit.empty.push_back(pp);
  }
  for (const Rung rung : plan_.spec.recovery.ladder) {
    hit.sooner_spare |= rung == Rung::kSpare;
    const bool can = rung == Rung::kDropReplica || (rung == Rung::kShrink && hit.empty.empty()) ||
                     (rung == Rung::kRestart && restart_);
    if (!can) continue;
    hit.rung = rung;
    hit.allowed = true;
    break;
  }
  if (hit.rung != Rung::kShrink) return Drop(dp, stages);
  for (const auto& [pp, by_cp] : left) {
    size_t width = by_cp.front().size();
    for (const RankList& ranks : by_cp) width = std::min(width, ranks.size());
    Narrow({dp, pp}, by_cp, width);
  }
}

void ModuleLoss::EvenOut() {
  const auto width_of = [this](const RankList& ranks) {
    return ranks.size() / static_cast<size_t>(healthy_.cp());
  };
  const auto is_left_out = [this](int32_t dp) { return hits_.at(dp).rung != Rung::kShrink; };
  size_t narrowest = static_cast<size_t>(plan_.module_spec(module_).parallel.tp);
  for (const auto& [slot, ranks] : changes_) {
    if (!is_left_out(slot.first)) narrowest = std::min(narrowest, width_of(ranks));
  }
  for (auto& [slot, ranks] : changes_) {
    const size_t width = width_of(ranks);
    if (is_left_out(slot.first) || width <= narrowest) continue;
    std::vector<RankList> by_cp;
    for (auto first = ranks.begin(); first != ranks.end();
         first += static_cast<std::ptrdiff_t>(width)) {
      by_cp.emplace_back(first, first + static_cast<std::ptrdiff_t>(width));
    }
    Narrow(slot, by_cp, narrowest);
  }
}

std::vector<SlotChange> ModuleLoss::changes() const {
  std::vector<SlotChange> list;
  for (const auto& [slot, ranks] : changes_) list.push_back({slot.first, slot.second, ranks});
  return list;
}

bool ModuleLoss::MustRestart() const {
  if (!MayRestart()) return false;
  return left_.present_replicas() == 0 ||
         std::any_of(hits_.begin(), hits_.end(),
                     [](const auto& hit) { return hit.second.rung == Rung::kRestart; });
}

absl::Status ModuleLoss::status() const {
  const std::string& name = plan_.module_spec(module_).name;
  for (const auto& [dp, hit] : hits_) {
    if (hit.allowed) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("recovery.ladder allows no rung for module ", name, ", replica ", dp,
                     hit.empty.empty() ? "" : ", a stage of which has no rank left",
                     hit.sooner_spare ? "; no idle device can take over" : ""));
  }
  if (left_.present_replicas() > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("no replica of module ", name, " is left without these ranks"));
}

std::string ModuleLoss::WhyOf(int32_t dp) const {
  const Hit& hit = hits_.at(dp);
  std::string why;
  if (hit.rung == Rung::kDropReplica) {
    if (hit.empty.empty()) return "recovery.ladder has no shrink before drop-replica";
    if (hit.empty.size() == 1) return absl::StrCat("stage ", hit.empty[0], " has no rank left");
    return absl::StrCat("stages ", absl::StrJoin(hit.empty, ", "), " have no rank left");
  }
  constexpr int kShown = 8;
  int stages = 0;
  for (const auto& [slot, ranks] : changes_) {
    if (slot.first != dp || ++stages > kShown) continue;
    absl::StrAppend(&why, stages == 1 ? "" : ", ", "stage ", slot.second,
                    stages == 1 ? " goes on with " : " with ", left_.Width(dp, slot.second));
    if (stages == 1)
      absl::StrAppend(&why, " of ", plan_.module_spec(module_).parallel.tp, " tensor ranks");
  }
  if (stages > kShown) absl::StrAppend(&why, ", and ", stages - kShown, " other stages with fewer");
  return why;
}

}  // namespace phalanx::plan

// core/plan/module_loss.h: what is left of one module without some of its ranks: which rung each
// hit replica takes, and what becomes of its stages; or that the whole module restarts on what is
// left (lowered.h). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"

namespace phalanx::plan {

// The ranks of one stage of a replica with one cp coordinate, in unit order.
struct SlotRanks {
  int32_t pp = 0;
  RankList left, lost;
};

// Always of the healthy module: a rank that an earlier loss left idle may have work again once a
// later one is known, or once ranks are back.
class ModuleLoss {
 public:
  // `lost`: of the whole job, ascending. `plan` outlives it. Without `restart` the ladder is as if
  // it did not have that rung.
  ModuleLoss(const Plan& plan, int32_t module, const std::set<Rank>& lost, bool restart);

  // FailedPrecondition where the ladder has no rung for some replica, or none is left.
  absl::Status status() const;
  // Whether the ladder has `restart` and the module is hit, and whether it has nothing else. Then
  // hit replicas are left out of what follows here.
  bool MayRestart() const { return restart_ && !hits_.empty(); }
  bool MustRestart() const;
  const ReplicaTable& healthy() const { return healthy_; }
  const ReplicaTable& left() const { return left_; }
  std::vector<SlotChange> changes() const;
  // Ranks that have work in the healthy module and may have none now.
  const std::set<Rank>& released() const { return released_; }

  // The replicas that are hit, ascending, and the rungs that they take: kShrink, kDropReplica or
  // kRestart.
  struct Hit {
    job::Rung rung = job::Rung::kDropReplica;
    bool allowed = false;        // the ladder has the rung
    bool sooner_spare = false;   // the ladder has `spare` before it
    std::vector<int32_t> empty;  // stages that have no rank left
  };
  const std::map<int32_t, Hit>& hits() const { return hits_; }
  // Why a hit replica took its rung: "stage 1 goes on with 3 of 4 tensor ranks", "stage 0 has no
  // rank left".
  std::string WhyOf(int32_t dp) const;
  // Stage by stage, then by cp coordinate.
  std::vector<SlotRanks> SlotsOf(int32_t dp, const std::set<Rank>& lost) const;

 private:
  using Slot = std::pair<int32_t, int32_t>;                // dp, pp
  using LostOfStages = std::map<int32_t, std::set<Rank>>;  // by pp

  void TakeRung(int32_t dp, const LostOfStages& stages);
  // Leaves a slot the first `width` ranks of each cp coordinate.
  void Narrow(Slot slot, const std::vector<RankList>& by_cp, size_t width);
  void Drop(int32_t dp, const LostOfStages& stages);
  // Every narrowed slot of a replica that is there becomes as narrow as the narrowest.
  void EvenOut();
  void Release(int32_t dp, int32_t pp);

  const Plan& plan_;
  const int32_t module_;
  const bool restart_;
  const ReplicaTable healthy_;
  ReplicaTable left_;
  std::map<int32_t, Hit> hits_;  // by dp
  std::map<Slot, RankList> changes_;
  std::set<Rank> released_;
};

}  // namespace phalanx::plan

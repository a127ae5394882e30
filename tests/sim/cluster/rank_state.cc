#include "tests/sim/cluster/rank_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/ledger.h"

namespace phalanx::sim {

using coordinator::EpochStart;
using coordinator::StepDecision;

EpochStart After(const EpochStart& before, const StepDecision& decision) {
  EpochStart after = before;
  after.decision = decision;
  if (decision.verdict == StepDecision::Verdict::kCommitted) ++after.updates;
  if (decision.verdict != StepDecision::Verdict::kEmpty) {
    const bool skipped = decision.verdict == StepDecision::Verdict::kSkipped;
    after.skipped_in_a_row = skipped ? before.skipped_in_a_row + 1 : 0;
  }
  return after;
}

RankState RankState::Initial(int32_t rank, JobPlanPtr layout) {
  RankState state;
  state.rank = rank;
  state.Enter(std::move(layout));
  return state;
}

bool RankState::AllApplied(int64_t step) const {
  return std::all_of(homes.begin(), homes.end(),
                     [step](const Home& home) { return home.applied == step; });
}

std::string RankState::CheckStart(const EpochStart& start) const {
  if (!HoldsState()) return "";
  const int64_t step = start.step();
  if (step < decided.step() || step > decided.step() + 1)
    return absl::StrCat("it knows step ", decided.step(), " and is to go on behind ", step);
  if (step == decided.step() && !(start == decided))
    return absl::StrCat("step ", step, " was decided otherwise on it");
  if (step > decided.step() && !(After(decided, *start.decision) == start))
    return absl::StrCat("its counts are others up to step ", step);
  for (const Home& home : homes) {
    if (home.applied == step || (home.applied == step - 1 && reduced == step)) continue;
    return absl::StrCat("a home has applied step ", home.applied, " and has gradients of ", reduced,
                        ", and is to go on behind ", step);
  }
  return "";
}

bool RankState::MayGoOn(const EpochStart& start) const {
  if (layout == nullptr) return loose.empty() || decided.step() == start.step();
  return CheckStart(start).empty();
}

std::string RankState::GoOn(const EpochStart& start) {
  if (std::string wrong = CheckStart(start); !wrong.empty()) return wrong;
  decided = start;
  for (size_t home = 0; home < homes.size(); ++home) {
    if (homes[home].applied >= start.step()) continue;
    if (std::string wrong = Apply(home, *start.decision); !wrong.empty()) return wrong;
  }
  reduced = 0;
  return "";
}

std::string RankState::Apply(size_t index, const StepDecision& decision) {
  Home& home = homes[index];
  if (home.applied != decision.step - 1)
    return absl::StrCat("step ", decision.step, " is applied behind ", home.applied);
  if (reduced != decision.step)
    return absl::StrCat("step ", decision.step, " is applied with gradients of ", reduced);
  home.applied = decision.step;
  home.bits = BitsAfter(home.bits, decision);
  return "";
}

void RankState::Leave() {
  if (layout == nullptr) return;
  const auto held = layout->holdings.find(rank);
  if (held != layout->holdings.end()) loose = held->second;
  if (!homes.empty()) bits = homes[0].bits;
  homes.clear();
  named_as = std::exchange(layout, nullptr);
  reduced = 0;
}

void RankState::NameAs(const JobPlanPtr& plan) {
  if (named_as != nullptr) loose = Renamed(loose, named_as->plan, plan->plan);
  named_as = plan;
}

void RankState::Enter(JobPlanPtr after) {
  layout = std::move(after);
  loose.clear();
  named_as = nullptr;
  homes.clear();
  const auto specs = layout->homes.find(rank);
  if (specs == layout->homes.end()) return;
  for (const HomeSpec& spec : specs->second) homes.push_back({spec, decided.step(), bits});
}

coordinator::RankQuiet RankState::Standing(bool context_ok) const {
  coordinator::RankQuiet quiet{.context_ok = context_ok, .layout_epoch = epoch};
  if (HoldsState()) quiet.known = decided;
  for (const Home& home : homes) {
    quiet.homes.push_back({.module = home.spec.part.module,
                           .chunk = home.spec.part.chunk,
                           .primary = home.spec.primary,
                           .applied = home.applied});
  }
  return quiet;
}

}  // namespace phalanx::sim

#include "coordinator/machine/copies.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "coordinator/machine/recovery.h"

namespace phalanx::coordinator {
namespace {

uint64_t FirstBits(const std::string& plan_digest) {
  uint64_t bits = 0;
  return absl::SimpleHexAtoi(plan_digest.substr(0, 16), &bits) ? bits : 0;
}

// By step: those that all pairs of the epoch have, with the same start.
std::map<int64_t, EpochStart> CommonSteps(const CopiedEpoch& epoch,
                                          const std::map<int32_t, RankCopies>& found) {
  const uint64_t plan = FirstBits(epoch.plan_digest);
  std::optional<std::map<int64_t, EpochStart>> common;
  for (const auto& [rank, report] : found) {
    for (const RankCopies::Pair& pair : report.pairs) {
      if (pair.epoch != epoch.epoch) continue;
      std::map<int64_t, EpochStart> steps;
      for (const RankCopies::Copy& copy : pair.copies) {
        if (copy.plan != plan || copy.start.step() > epoch.last_step) continue;
        if (common.has_value()) {
          const auto others = common->find(copy.start.step());
          if (others == common->end() || !SameStart(others->second, copy.start)) continue;
        }
        steps[copy.start.step()] = copy.start;
      }
      common = std::move(steps);
    }
  }
  return common.value_or(std::map<int64_t, EpochStart>());
}

}  // namespace

bool KeepsCopies(const plan::Layout& layout) {
  return std::any_of(layout.modules.begin(), layout.modules.end(), [](const auto& module) {
    return module.state_home == job::StateHome::kHost && module.state_copies > 1;
  });
}

void CopiedEpochs::Planned(const EpochPlanned& planned, bool goes_back) {
  const Epoch epoch = planned.layout->epoch;
  if (goes_back) all_.clear();
  int64_t last_step = planned.state_epoch == Epoch{0} ? std::numeric_limits<int64_t>::max() : -1;
  if (!all_.empty() && all_.back().epoch == epoch) {
    last_step = all_.back().last_step;
    all_.pop_back();
  }
  // One that began no earlier than where those before it end, and that ends there, too, has no
  // copies of use, nor has one that did not begin. However many follow each other, they do not push
  // out one that has.
  int64_t before = -1;
  std::erase_if(all_, [&before](const CopiedEpoch& one) {
    const bool ended = one.last_step != std::numeric_limits<int64_t>::max();
    const bool useless = ended && one.last_step <= before;
    before = std::max(before, one.last_step);
    return useless;
  });
  if (!KeepsCopies(*planned.layout)) return;
  all_.push_back({.epoch = epoch,
                  .layout = planned.layout,
                  .plan_digest = planned.plan_digest,
                  .last_step = last_step});
  if (all_.size() > kEpochsMax) all_.erase(all_.begin());
}

void CopiedEpochs::Began(Epoch epoch, int64_t step) {
  for (CopiedEpoch& before : all_) {
    if (before.epoch == epoch) before.last_step = std::numeric_limits<int64_t>::max();
    if (before.epoch < epoch) before.last_step = std::min(before.last_step, step);
  }
}

const CopiedEpoch* CopiedEpochs::Find(Epoch epoch) const {
  for (const CopiedEpoch& one : all_) {
    if (one.epoch == epoch) return &one;
  }
  return nullptr;
}

std::optional<ChosenCopies> ChooseCopies(const CopiedEpochs& epochs,
                                         const std::map<int32_t, RankCopies>& found) {
  for (auto epoch = epochs.all().rbegin(); epoch != epochs.all().rend(); ++epoch) {
    const std::map<int64_t, EpochStart> steps = CommonSteps(*epoch, found);
    if (!steps.empty()) return ChosenCopies{epoch->epoch, steps.rbegin()->second};
  }
  return std::nullopt;
}

}  // namespace phalanx::coordinator

#include "worker/model/prepared.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace phalanx::model {
namespace {

std::array<std::atomic<int64_t>, 3> counts{};

std::atomic<int64_t>& CountOf(Preparation preparation) {
  return counts[static_cast<size_t>(preparation)];
}

}  // namespace

void CountPreparation(Preparation preparation) {
  CountOf(preparation).fetch_add(1, std::memory_order_relaxed);
}

PreparationCounts CountPreparations() {
  return {.attention_trials = CountOf(Preparation::kAttentionTrial),
          .attention_plans = CountOf(Preparation::kAttentionPlan),
          .fp8_products = CountOf(Preparation::kFp8Product)};
}

}  // namespace phalanx::model

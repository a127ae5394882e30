// worker/model/prepared.h: how often this process has prepared what libraries compute by shape.
//
// What is prepared is kept for as long as the thread lives that did it, so the counts stand still
// once all shapes have been met.
//
// Thread-safe.
#pragma once

#include <cstdint>

namespace phalanx::model {

enum class Preparation : uint8_t {
  kAttentionTrial,  // of a shape of attention on cuDNN, both passes
  kAttentionPlan,   // cuDNN's, of one pass of a shape
  // The description of a product by cuBLASLt, in FP8 or by a table, with its algorithm.
  kFp8Product
};
void CountPreparation(Preparation preparation);

// Since the process began.
struct PreparationCounts {
  int64_t attention_trials = 0, attention_plans = 0, fp8_products = 0;
  friend bool operator==(const PreparationCounts&, const PreparationCounts&) = default;
};
PreparationCounts CountPreparations();

}  // namespace phalanx::model

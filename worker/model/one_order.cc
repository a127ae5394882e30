#include "worker/model/one_order.h"

#include <ATen/Context.h>

namespace phalanx::model {

OneOrder::OneOrder(bool wanted) : wanted_(wanted) {
  if (!wanted_) return;
  at::Context& context = at::globalContext();
  // Else tensors that are about to be written whole would be filled first.
  fills_ = context.deterministicFillUninitializedMemory();
  context.setDeterministicFillUninitializedMemory(false);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

OneOrder::~OneOrder() {
  if (!wanted_) return;
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(fills_);
}

}  // namespace phalanx::model

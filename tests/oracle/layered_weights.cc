#include "tests/oracle/layered_weights.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <utility>

namespace phalanx::oracle {
namespace {

// Whether it is read before the first layer; else what has no layer is read behind the last one.
bool IsBeforeLayers(plan::MatrixRole role) {
  using Role = plan::MatrixRole;
  static constexpr Role kBefore[] = {Role::kEmbedding,   Role::kPatch,    Role::kPatchBias,
                                     Role::kClass,       Role::kPosition, Role::kPreNorm,
                                     Role::kPreNormBias, Role::kConv1,    Role::kConv1Bias,
                                     Role::kConv2,       Role::kConv2Bias};
  for (const Role before : kBefore) {
    if (role == before) return true;
  }
  return false;
}

}  // namespace

LayeredWeights::LayeredWeights(const plan::StageParameters& parameters, at::Tensor weights)
    : parameters_(parameters), weights_(std::move(weights)) {
  std::set<int32_t> layers;
  for (const plan::LocalMatrix& matrix : parameters_.matrices) {
    if (matrix.layer >= 0) layers.insert(matrix.layer);
  }
  layers_ = static_cast<int32_t>(layers.size());
  if (layers_ > 0) first_ = *layers.begin();
}

int32_t LayeredWeights::LayerOf(const plan::LocalMatrix& matrix) const {
  if (matrix.layer >= 0) return matrix.layer - first_;
  return IsBeforeLayers(matrix.role) ? 0 : layers_ - 1;
}

void LayeredWeights::Show(int32_t layer) {
  for (const plan::LocalMatrix& matrix : parameters_.matrices) {
    if (LayerOf(matrix) != layer) continue;
    const int64_t elements = matrix.rows * matrix.cols;
    weights_.narrow(0, matrix.offset, elements).copy_(whole_.narrow(0, matrix.offset, elements));
  }
}

void LayeredWeights::Hide() {
  begun_ = 0;
  if (layers_ < 2) return;
  whole_ = weights_.clone();
  weights_.fill_(std::numeric_limits<double>::quiet_NaN());
  Show(0);
}

void LayeredWeights::LayerBegins() {
  ++begun_;
  if (whole_.defined()) Show(begun_);
}

void LayeredWeights::Show() {
  EXPECT_TRUE(begun_ == 0 || begun_ == layers_ - 1)
      << "of " << layers_ << " layers the last that has begun is " << begun_;
  if (whole_.defined()) weights_.copy_(std::exchange(whole_, {}));
}

}  // namespace phalanx::oracle

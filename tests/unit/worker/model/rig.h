// tests/unit/worker/model/rig.h: what layers and ends of a module are made with in tests.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/plan/plan.h"
#include "worker/model/layer.h"
#include "worker/model/vocabulary.h"

namespace phalanx::model {

// Parameters of one module on one rank, with random values.
class Rig {
 public:
  // `place`: of a module that a rank has whole, or its part, of which others' are zero.
  Rig(const job::JobSpec& spec, int32_t module) : Rig(spec, plan::Place{.module = module}) {}
  Rig(const job::JobSpec& spec, const plan::Place& place)
      : plan_(*plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1})),
        parameters_(plan::ParametersOf(plan_, place)) {
    const int32_t module = place.module;
    at::manual_seed(11);
    weights_ = at::randn({parameters_.elements}, at::kDouble).mul_(0.3);
    gradients_ = at::zeros_like(weights_);
    const job::Architecture& a = plan_.module_spec(module).architecture;
    context_.architecture = a;
    const plan::TensorUnits units = plan::TensorUnitsOf(a, place.width, place.tp);
    context_.heads = MakeHeadMap(units, a.heads / plan::KvHeads(a), plan::HeadSize(a), at::kCPU);
    const at::Tensor angles = at::randn({32, plan::HeadSize(a) / 2}, at::kDouble);
    context_.cos = angles.cos();
    context_.sin = angles.sin();
    rows_ = RowsOf(units, a);
  }

  ParameterTable table() const { return {parameters_, weights_, gradients_}; }
  const LayerContext& context() const { return context_; }
  VocabularyRows rows() const { return rows_; }
  at::Tensor& gradients() { return gradients_; }

  // `forward` maps an input to an output under the present weights; `backward` fills the gradient
  // buffer and returns the input's gradient, undefined where there is none.
  void ExpectGradients(at::Tensor input,
                       const std::function<at::Tensor(const at::Tensor&)>& forward,
                       const std::function<at::Tensor(const at::Tensor& upstream)>& backward) {
    constexpr double kStep = 1e-5;
    const at::Tensor upstream = at::randn_like(forward(input));
    const at::Tensor input_gradient = backward(upstream);
    const auto value = [&](const at::Tensor& x) {
      return (forward(x) * upstream).sum().item<double>();
    };
    if (input_gradient.defined()) {
      const at::Tensor direction = at::randn_like(input);
      const double difference = value(input + direction * kStep) - value(input - direction * kStep);
      ExpectNear(difference / (2 * kStep), (input_gradient * direction).sum().item<double>(),
                 "input");
    }
    for (const plan::LocalMatrix& matrix : parameters_.matrices) {
      const auto part = [&](const at::Tensor& buffer) {
        return buffer.narrow(0, matrix.offset, matrix.rows * matrix.cols);
      };
      const at::Tensor direction = at::randn_like(part(weights_)), weights = part(weights_).clone();
      part(weights_).copy_(weights + direction * kStep);
      const double above = value(input);
      part(weights_).copy_(weights - direction * kStep);
      const double below = value(input);
      part(weights_).copy_(weights);
      ExpectNear((above - below) / (2 * kStep), (part(gradients_) * direction).sum().item<double>(),
                 std::string(plan::RoleName(matrix.role)));
    }
  }

 private:
  static void ExpectNear(double difference, double gradient, const std::string& what) {
    EXPECT_NEAR(difference, gradient, 1e-6 * (1 + std::abs(gradient))) << what;
  }

  plan::Plan plan_;
  plan::StageParameters parameters_;
  at::Tensor weights_, gradients_;
  LayerContext context_;
  VocabularyRows rows_;
};

}  // namespace phalanx::model

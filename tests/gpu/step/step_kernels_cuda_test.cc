// The optimizer's kernels on CUDA: equal to those on CPU, and to themselves wherever a run stands.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "worker/train/step_kernels.h"
#include "worker/train/step_kernels_args.h"

namespace phalanx::train {
namespace {

constexpr AdamWStep kStep{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .update = 3};

class StepKernelsCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::manual_seed(5);
  }
};

// A state of runs of odd lengths, `shift` elements further in the flat buffers, more than a launch
// takes, some of which are cut into several tiles.
struct Held {
  Held(const at::Tensor& values, at::ScalarType compute, int64_t shift, at::Device device) {
    const auto there = [&](int row, at::ScalarType type) {
      return values[row].to(device, type, /*non_blocking=*/false, /*copy=*/true);
    };
    const auto flat = [&](const at::Tensor& rows) {
      const at::Tensor buffer = at::zeros({rows.numel() + shift}, rows.options());
      buffer.narrow(0, shift, rows.numel()).copy_(rows);
      return buffer;
    };
    gradients = flat(there(0, at::kFloat));
    weights = flat(there(1, compute));
    block.elements = values.size(1);
    block.first_moment = there(2, at::kFloat);
    block.second_moment = there(3, at::kFloat).square();
    if (compute == at::kBFloat16) block.master = there(1, at::kFloat);
    for (int64_t at = 0, i = 0; at < block.elements; ++i) {
      const int64_t count = std::min(block.elements - at, i % 40 == 7 ? int64_t{9000} : 3 * i + 1);
      block.runs.push_back(
          {.gradient_offset = at + shift, .state_offset = at, .count = count, .decay = i % 3 > 0});
      at += count;
    }
  }
  // The weights as they are, on CPU.
  at::Tensor Own(int64_t shift) const { return weights.narrow(0, shift, block.elements).cpu(); }
  // All else that an update changes, on CPU.
  at::Tensor Result(int64_t shift) const {
    const at::Tensor master = block.master.defined() ? block.master.cpu() : Own(shift);
    return at::stack({master, block.first_moment.cpu(), block.second_moment.cpu()});
  }
  at::Tensor gradients, weights;
  StateBlock block;
};

TEST_F(StepKernelsCudaTest, AdamW_EqualsCpu_WhereverRunsStand) {
  const at::Tensor values = at::randn({4, 120000});
  for (const at::ScalarType compute : {at::kBFloat16, at::kFloat}) {
    std::vector<at::Tensor> results;
    for (const auto& [shift, device] : {std::pair{0, at::kCPU}, {0, at::kCUDA}, {3, at::kCUDA}}) {
      Held held(values, compute, shift, device);
      ASSERT_GT(held.block.runs.size(), size_t{2} * kRunsAtOnce);
      const std::unique_ptr<StepKernels> kernels =
          device == at::kCPU ? MakeCpuStepKernels(1) : MakeCudaStepKernels(1);
      kernels->SetDecision({.step = 5, .verdict = Verdict::kCommitted, .gradient_scale = 0.5});
      kernels->AdamW(held.gradients, held.block, &held.weights, kStep, 5);
      results.push_back(held.Result(shift));
      EXPECT_TRUE(at::equal(held.Own(shift), results.back()[0].to(compute))) << compute << device;
    }
    EXPECT_TRUE(at::allclose(results[0], results[1], 1e-6, 1e-7)) << compute;
    EXPECT_TRUE(at::equal(results[1], results[2])) << compute;
  }
}

TEST_F(StepKernelsCudaTest, AdamW_OfAStepThatIsNotCommitted_ChangesNothing) {
  Held held(at::randn({4, 5000}), at::kFloat, 0, at::kCUDA);
  const at::Tensor before = held.Result(0);
  const std::unique_ptr<StepKernels> kernels = MakeCudaStepKernels(1);
  kernels->SetDecision({.step = 5, .verdict = Verdict::kCommitted, .gradient_scale = 1});
  kernels->AdamW(held.gradients, held.block, &held.weights, kStep, 6);
  EXPECT_TRUE(at::equal(held.Result(0), before));
}

TEST_F(StepKernelsCudaTest, SquaredNorm_EqualsDefinition_Again) {
  const at::Tensor values = at::randn({4, 3000000});
  const double expected = values[0].to(at::kDouble).square().sum().item<double>();
  for (const int64_t shift : {0, 3}) {
    const Held held(values, at::kFloat, shift, at::kCUDA);
    const std::unique_ptr<StepKernels> kernels = MakeCudaStepKernels(1);
    at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
    for (int64_t i = 0; i < 2; ++i) {
      at::Tensor sum = sums.narrow(0, i, 1);
      kernels->AddSquaredNorm(held.gradients, held.block, sum);
    }
    EXPECT_NEAR(sums[0].item<double>() / expected, 1, 1e-12);
    EXPECT_TRUE(at::equal(sums[0], sums[1]));
  }
}

}  // namespace
}  // namespace phalanx::train

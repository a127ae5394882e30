// Weight gradients on CUDA: products of bf16 operands are added to fp32 where they lie.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <tuple>

#include "worker/model/weight_work.h"

namespace phalanx::model {
namespace {

class WeightWorkCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::manual_seed(3);
  }
  static at::Tensor Bf16(at::IntArrayRef shape) {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  }
  static void Add(const at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x) {
    WeightWork work;
    work.Matrix({at::empty_like(gradient, at::kBFloat16), gradient}, dy, x);
    work.Run();
  }
};

TEST_F(WeightWorkCudaTest, Bf16Products_AddToFp32InAnyOrientation) {
  for (const auto& [rows, outputs, inputs] :
       {std::tuple{int64_t{1000}, int64_t{384}, int64_t{256}}, {37, 130, 66}, {1, 8, 24}}) {
    SCOPED_TRACE(testing::Message() << rows << " rows, " << outputs << " x " << inputs);
    const at::Tensor dy = Bf16({rows, outputs}), x = Bf16({rows, inputs});
    const at::Tensor before = at::randn({outputs, inputs}, at::TensorOptions(at::kCUDA));
    const at::Tensor exact =
        before.to(at::kDouble) + at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble));
    const at::Tensor wider = at::zeros({outputs + 3, inputs}, before.options());
    const at::Tensor narrow = wider.narrow(0, 2, outputs);
    narrow.copy_(before);
    for (const at::Tensor& gradient :
         {before.clone(), before.t().contiguous().t(), narrow, before.clone()}) {
      Add(gradient, dy, x);
      EXPECT_LT(((gradient.to(at::kDouble) - exact).norm() / exact.norm()).item<double>(), 1e-6);
    }
    EXPECT_EQ(wider.narrow(0, 0, 2).abs().sum().item<double>(), 0) << "rows of others";
    EXPECT_EQ(wider[outputs + 2].abs().sum().item<double>(), 0) << "rows of others";
  }
}

TEST_F(WeightWorkCudaTest, Bf16Product_TakesNoMemoryOfItsSize) {
  const at::Tensor dy = Bf16({64, 4096}), x = Bf16({64, 4096});
  const at::Tensor gradient = at::zeros({4096, 4096}, at::TensorOptions(at::kCUDA));
  const auto add = [&] {
    WeightWork work;
    work.Matrix({gradient, gradient}, dy, x);
    work.Run();
  };
  add();  // cuBLAS has its workspace
  const c10::DeviceIndex device = c10::cuda::current_device();
  c10::cuda::CUDACachingAllocator::resetPeakStats(device);
  add();
  const auto bytes =
      c10::cuda::CUDACachingAllocator::getDeviceStats(device)
          .allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  EXPECT_LT(bytes.peak - bytes.current, 4 * gradient.numel() / 4);
}

}  // namespace
}  // namespace phalanx::model

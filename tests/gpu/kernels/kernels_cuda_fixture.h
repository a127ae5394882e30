// tests/gpu/kernels/kernels_cuda_fixture.h: the kernels behind kernels.h on CUDA: equal to their
// definitions in fp64, whatever the size, and to themselves, bit for bit. Results are NaN before a
// kernel writes them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "worker/model/kernels.h"

namespace phalanx::model {

using Tensors = std::vector<at::Tensor>;

// On bf16 and fp32, of each file by a name of its own.
class KernelsCudaTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    // Fills what at::empty returns with NaN.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::manual_seed(11);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  static at::Tensor Random(at::IntArrayRef shape, at::ScalarType type = GetParam()) {
    return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kFloat)).to(type);
  }
  static at::Tensor Indices(int64_t below, int64_t count) {
    return at::randint(below, {count}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  }
  static at::Tensor Wide(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

  // bf16 rounds to 2^-8 of a value at worst; what is kept in fp32 to 2^-24, and sums lose some
  // more.
  static double Tolerance(const at::Tensor& actual) {
    return actual.scalar_type() == at::kBFloat16 ? 4e-3 : 2e-6;
  }
  static void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, const char* what,
                          double tolerance = 0) {
    ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
    if (actual.numel() == 0) return;
    const double error = (Wide(actual) - expected).norm().item<double>();
    EXPECT_LE(error, (tolerance > 0 ? tolerance : Tolerance(actual)) *
                         std::max(1e-9, expected.norm().item<double>()))
        << what;
  }
  // Runs `body` twice; both times the same bits.
  static Tensors Twice(const std::function<Tensors()>& body) {
    Tensors first = body();
    const Tensors second = body();
    for (size_t i = 0; i < first.size(); ++i) {
      if (!first[i].defined()) continue;
      EXPECT_TRUE(at::equal(first[i], second[i])) << "result " << i << " is not the same again";
    }
    return first;
  }
};

// Rows of one access, of some, of more than a group takes at once; odd ones; and so many rows that
// blocks take several, fewer than blocks, and none.
struct Shape {
  int64_t rows, features;
};
inline const std::vector<Shape> kShapes = {{0, 64},      {1, 8},     {3, 5},      {7, 37},
                                           {300, 64},    {19, 250},  {533, 1000}, {40, 1024},
                                           {1100, 1152}, {5, 1536},  {31, 1501},  {70, 2500},
                                           {600, 4096},  {33, 4091}, {21, 8192}};
inline constexpr Shape kTooLong = {2, 40001}, kTooLongAndOdd = {3, 8001};
// Norms of the longest rows that the kernels take, and longer ones: by ATen.
inline std::vector<Shape> NormShapes(at::ScalarType type) {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({9, type == at::kBFloat16 ? 16000 : 8000});
  shapes.push_back(kTooLongAndOdd);
  shapes.push_back(kTooLong);
  return shapes;
}

inline std::string TypeName(const testing::TestParamInfo<at::ScalarType>& info) {
  return info.param == at::kFloat ? "fp32" : "bf16";
}

}  // namespace phalanx::model

// The kernels of worker/train of small and odd sizes, each as on CPU: what scripts/gpu/kernels runs
// under compute-sanitizer beside those of worker/model.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/plan/reduction.h"
#include "core/plan/units.h"
#include "worker/train/commit.h"
#include "worker/train/copy_list.h"
#include "worker/train/packed_runs.h"
#include "worker/train/state_block.h"
#include "worker/train/step_kernels.h"
#include "worker/train/step_kernels_args.h"
#include "worker/train/word_hash.cuh"

namespace phalanx::train {
namespace {

class SmallKernelsCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU here";
    at::globalContext().lazyInitDevice(at::kCUDA);
    at::manual_seed(9);
  }
};

// The last run ends where the buffers do.
TEST_F(SmallKernelsCudaTest, Small_Runs_ArePackedAndUnpacked) {
  for (const int64_t unit : {1, 2, 4, 8, 16}) {
    const std::vector<plan::UnitRange> list = {
        {0, unit}, {3 * unit, 5 * unit}, {20 * unit, 77 * unit}};
    const PackedRuns on_cpu(list, at::kCPU), on_cuda(list, at::kCUDA);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const at::Tensor flat = at::randn({97 * unit}).to(type);
      at::Tensor packed = at::empty({on_cpu.elements()}, flat.options());
      const at::Tensor packed_on_cuda =
          at::empty(packed.sizes(), packed.options().device(at::kCUDA));
      on_cpu.Pack(flat, packed);
      on_cuda.Pack(flat.to(at::kCUDA), packed_on_cuda);
      EXPECT_TRUE(at::equal(packed_on_cuda.cpu(), packed)) << unit << type;
      at::Tensor back = at::zeros_like(flat), back_on_cuda = back.to(at::kCUDA);
      on_cpu.Unpack(packed, back);
      on_cuda.Unpack(packed_on_cuda, back_on_cuda);
      EXPECT_TRUE(at::equal(back_on_cuda.cpu(), back)) << unit << type;
    }
  }
}

TEST_F(SmallKernelsCudaTest, Small_Runs_AreSummedInTheOrderOfReplicas) {
  const std::vector<plan::SummedRun> sums = {{.elements = {5, 70}, .sources = {0, -1, 100}},
                                             {.elements = {97, 3}, .sources = {-1, 70, 170}}};
  const at::Tensor taken = at::randn({173}), flat = at::randn({100});
  at::Tensor expected = flat.clone(), actual = flat.to(at::kCUDA), again = actual.clone();
  SummedRuns(sums, 3, at::kCPU).Sum(taken, expected);
  const SummedRuns on_cuda(sums, 3, at::kCUDA);
  on_cuda.Sum(taken.to(at::kCUDA), actual);
  on_cuda.Sum(taken.to(at::kCUDA), again);
  EXPECT_TRUE(at::equal(actual.cpu(), expected));
  EXPECT_TRUE(at::equal(again, actual));
}

TEST_F(SmallKernelsCudaTest, Small_Copies_OfEveryAlignment) {
  const at::Tensor from = at::arange(2000).remainder(251).to(at::kByte);
  const at::Tensor from_on_cuda = from.to(at::kCUDA);
  for (const int64_t unit : {1, 4, 16}) {
    at::Tensor to = at::zeros_like(from), to_on_cuda = to.to(at::kCUDA);
    CopyList on_cpu, on_cuda;
    const auto add = [&](int64_t first, int64_t source, int64_t count) {
      on_cpu.Add(to, first, from.narrow(0, source, count));
      on_cuda.Add(to_on_cuda, first, from_on_cuda.narrow(0, source, count));
    };
    add(3 * unit, 5 * unit, unit);
    add(5 * unit, 17 * unit, 33 * unit);
    add(2000 - 9 * unit, 2000 - 11 * unit, 9 * unit);
    on_cpu.Run();
    on_cuda.Run();
    EXPECT_TRUE(at::equal(to_on_cuda.cpu(), to)) << unit;
  }
}

// As word_hash.cuh defines it.
int64_t HashOf(const at::Tensor& bytes) {
  const auto scramble = [](uint64_t value, uint64_t place) {
    uint64_t mixed = value + (place + 1) * 0x1E3779B97F4A7C15;
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9;
    return mixed ^ (mixed >> 32);
  };
  const auto* data = bytes.const_data_ptr<uint8_t>();
  const auto size = static_cast<size_t>(bytes.numel());
  uint64_t sum = 0;
  for (size_t i = 0; i < size / 8; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, data + 8 * i, sizeof word);
    sum += scramble(word, i);
  }
  for (size_t i = size / 8 * 8; i < size; ++i) sum += scramble(data[i], i % 8);
  return static_cast<int64_t>(sum);
}

TEST_F(SmallKernelsCudaTest, Small_Hashes_AreThoseOfTheHost) {
  for (const int64_t size : {1, 7, 8, 9, 255, 4096, 4101}) {
    const at::Tensor bytes = at::randint(256, {size}).to(at::kByte), there = bytes.to(at::kCUDA);
    const at::Tensor sum = at::zeros({1}, there.options().dtype(at::kLong));
    LaunchWordHash(there.const_data_ptr(), size, sum.mutable_data_ptr<int64_t>(), nullptr);
    EXPECT_EQ(sum.item<int64_t>(), HashOf(bytes)) << size;
  }
}

// Runs below, at and above a tile, without a gap behind the last; more than a launch takes.
StateBlock BlockOfRuns() {
  StateBlock block;
  for (int64_t i = 0; i < kRunsAtOnce + 5; ++i) {
    const int64_t count = i == 3 ? kTile + 1 : i == 4 ? kTile : i % 7 + 1;
    block.runs.push_back({.gradient_offset = block.elements,
                          .state_offset = block.elements,
                          .count = count,
                          .decay = i % 2 > 0});
    block.elements += count;
  }
  return block;
}

TEST_F(SmallKernelsCudaTest, Small_AdamW_IsThatOfTheCpu) {
  const StateBlock shape = BlockOfRuns();
  const at::Tensor values = at::randn({4, shape.elements});
  for (const at::ScalarType compute : {at::kBFloat16, at::kFloat}) {
    std::vector<at::Tensor> results;
    for (const at::DeviceType device : {at::kCPU, at::kCUDA, at::kCUDA}) {
      const auto there = [&](int row, at::ScalarType type) {
        return values[row].to(device, type, /*non_blocking=*/false, /*copy=*/true);
      };
      StateBlock block = shape;
      at::Tensor weights = there(1, compute);
      block.first_moment = there(2, at::kFloat);
      block.second_moment = there(3, at::kFloat).square();
      if (compute == at::kBFloat16) block.master = there(1, at::kFloat);
      const std::unique_ptr<StepKernels> kernels =
          device == at::kCPU ? MakeCpuStepKernels(1) : MakeCudaStepKernels(1);
      kernels->SetDecision({.step = 5, .verdict = Verdict::kCommitted, .gradient_scale = 0.5});
      kernels->AdamW(there(0, at::kFloat), block, &weights,
                     {.learning_rate = 0.01,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .weight_decay = 0.1,
                      .update = 3},
                     5);
      results.push_back(
          at::stack({weights.to(at::kFloat), block.first_moment, block.second_moment}).cpu());
    }
    EXPECT_TRUE(at::allclose(results[0], results[1], compute == at::kFloat ? 1e-6 : 1e-2, 1e-7))
        << compute;
    EXPECT_TRUE(at::equal(results[1], results[2])) << compute;
  }
}

TEST_F(SmallKernelsCudaTest, Small_SquaredNorm_EqualsItsDefinition) {
  const StateBlock block = BlockOfRuns();
  const at::Tensor gradients = at::randn({block.elements});
  const std::unique_ptr<StepKernels> kernels = MakeCudaStepKernels(1);
  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
  for (int64_t i = 0; i < 2; ++i) {
    at::Tensor sum = sums.narrow(0, i, 1);
    kernels->AddSquaredNorm(gradients.to(at::kCUDA), block, sum);
  }
  EXPECT_NEAR(sums[0].item<double>() / gradients.to(at::kDouble).square().sum().item<double>(), 1,
              1e-12);
  EXPECT_TRUE(at::equal(sums[0], sums[1]));
}

// Records are written, a decision is made of them and found, and what is behind it is marked.
TEST_F(SmallKernelsCudaTest, Small_Commit_OfTwoRanks) {
  const std::unique_ptr<StepKernels> kernels = MakeCudaStepKernels(2);
  kernels->SetHomes(2, 6);
  at::Tensor records = at::full({2 * static_cast<int64_t>(sizeof(Record))}, 0xFF,
                                at::TensorOptions(at::kCUDA).dtype(at::kByte));
  const at::Tensor sums =
      at::tensor({4.0, 6.0, 2.0, 1.0}, at::TensorOptions().dtype(at::kDouble)).to(at::kCUDA);
  for (const int32_t rank : {0, 1}) {
    kernels->WriteRecord(records, rank, {.epoch = 3, .step = 7, .plan_digest = 11, .applied = 6},
                         sums);
  }
  kernels->MakeDecision(records, 2, {.epoch = 3, .step = 7, .plan_digest = 11, .clip_norm = 0});
  kernels->MarkApplied(1, 7);
  kernels->MarkProgress(5);
  c10::cuda::device_synchronize();
  Decision decision;
  ASSERT_TRUE(kernels->ReadDecision(7, &decision));
  EXPECT_EQ(decision.verdict, Verdict::kCommitted);
  EXPECT_EQ(decision.counted_tokens, 4);
  EXPECT_EQ(decision.loss, 3);
  EXPECT_EQ(kernels->applied(0), 6);
  EXPECT_EQ(kernels->applied(1), 7);
  EXPECT_EQ(kernels->progress(), 5);
}

}  // namespace
}  // namespace phalanx::train

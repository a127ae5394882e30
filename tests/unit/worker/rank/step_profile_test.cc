// Where the time of a step goes, from the kernels that ran.
#include "worker/rank/step_profile.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/rank/part_of.h"

namespace phalanx::rank {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;

constexpr char kProduct[] = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN";
constexpr char kNorm[] =
    "void phalanx::model::cuda::(anonymous namespace)::NormKernel<4>(NormArguments)";
constexpr char kReduce[] = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage)";

TEST(PartOfKernelTest, KernelsOfLibrariesAndOurs_AreKnownByName) {
  EXPECT_EQ(PartOfKernel(kProduct), WorkPart::kProducts);
  EXPECT_EQ(PartOfKernel(kNorm), WorkPart::kOurs);
  EXPECT_EQ(PartOfKernel(kReduce), WorkPart::kCommunication);
  EXPECT_EQ(PartOfKernel("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7"),
            WorkPart::kAttention);
  EXPECT_EQ(PartOfKernel("Memcpy DtoD (Device -> Device)"), WorkPart::kCopies);
  EXPECT_EQ(PartOfKernel("void at::native::vectorized_elementwise_kernel<4, "
                         "at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)"),
            WorkPart::kCopies);
  EXPECT_EQ(PartOfKernel("void at::native::reduce_kernel<512, 1>(int)"), WorkPart::kOther);
}

TEST(PartOfKernelTest, OperatorsOfAten_AreKnownByName) {
  EXPECT_EQ(PartOfKernel("aten::_scaled_dot_product_flash_attention_for_cpu"),
            WorkPart::kAttention);
  EXPECT_EQ(PartOfKernel("aten::mm"), WorkPart::kProducts);
  EXPECT_EQ(PartOfKernel("aten::copy_"), WorkPart::kCopies);
  EXPECT_EQ(PartOfKernel("aten::mul"), WorkPart::kOther);
}

// A reduction that runs beside products is hidden as long as they run.
TEST(BreakDownTest, EachInstant_CountsForOnePart) {
  const StepProfile profile =
      BreakDown(7, {{kProduct, 1, 3}, {kReduce, 2, 6}, {kNorm, 5, 5.5}}, 0, 8);
  EXPECT_EQ(profile.step, 7);
  EXPECT_THAT(profile.seconds, DoubleEq(8));
  EXPECT_THAT(PartOf(profile, WorkPart::kProducts).share, DoubleNear(2, 1e-12));
  EXPECT_THAT(PartOf(profile, WorkPart::kOurs).share, DoubleNear(0.5, 1e-12));
  EXPECT_THAT(PartOf(profile, WorkPart::kCommunication).seconds, DoubleNear(4, 1e-12));
  EXPECT_THAT(PartOf(profile, WorkPart::kCommunication).share, DoubleNear(2.5, 1e-12));
  EXPECT_THAT(profile.waiting, DoubleNear(3, 1e-12));
}

TEST(BreakDownTest, KernelsOverTheEdges_AreCutThere) {
  const StepProfile profile =
      BreakDown(1, {{kProduct, -1, 1}, {kNorm, 3, 9}, {kNorm, 9, 10}}, 0, 4);
  EXPECT_THAT(PartOf(profile, WorkPart::kProducts).seconds, DoubleEq(1));
  EXPECT_EQ(PartOf(profile, WorkPart::kOurs).kernels, 1);
  EXPECT_THAT(PartOf(profile, WorkPart::kOurs).share, DoubleEq(1));
  EXPECT_THAT(profile.waiting, DoubleEq(2));
}

TEST(BreakDownTest, SharesAndWaiting_AreTheStep) {
  std::vector<KernelTime> kernels;
  const char* names[] = {kProduct, kNorm, kReduce, "Memset (Device)", "other"};
  for (int i = 0; i < 200; ++i) {
    const double begin = 0.37 * (i * 7 % 31);
    kernels.push_back({names[i % 5], begin, begin + 0.01 * (i % 13)});
  }
  const StepProfile profile = BreakDown(1, kernels, 0.5, 11);
  double sum = profile.waiting;
  for (const StepProfile::Part& part : profile.parts) {
    EXPECT_LE(part.share, part.seconds + 1e-12);
    sum += part.share;
  }
  EXPECT_THAT(sum, DoubleNear(10.5, 1e-9));
  EXPECT_GT(profile.waiting, 0);
}

TEST(BreakDownTest, SpansInWhichNothingComputes_AreNamed_LongestFirst) {
  const StepProfile profile = BreakDown(
      1,
      {{kNorm, 7, 8}, {kReduce, 2, 6}, {kReduce, 2.5, 3.5}, {kProduct, 1, 3}, {kProduct, 2, 2.5}},
      0, 10);
  ASSERT_EQ(profile.gaps.size(), 3u);
  EXPECT_THAT(profile.gaps[0].at, DoubleEq(3));
  EXPECT_THAT(profile.gaps[0].seconds, DoubleEq(4));
  EXPECT_THAT(profile.gaps[0].communication, DoubleEq(3));
  EXPECT_EQ(profile.gaps[0].after, kProduct);
  EXPECT_EQ(profile.gaps[0].before, kNorm);
  EXPECT_THAT(profile.gaps[1].at, DoubleEq(8));
  EXPECT_EQ(profile.gaps[1].before, "");
  EXPECT_THAT(profile.gaps[2].seconds, DoubleEq(1));
  EXPECT_EQ(profile.gaps[2].after, "");
}

TEST(BreakDownTest, KernelsOfOneName_AreOneLine_LongestFirst) {
  const StepProfile profile = BreakDown(1, {{kNorm, 0, 1}, {kProduct, 1, 4}, {kNorm, 4, 5}}, 0, 5);
  ASSERT_EQ(profile.kernels.size(), 2u);
  EXPECT_EQ(profile.kernels[0].name, kProduct);
  EXPECT_EQ(profile.kernels[1].name, kNorm);
  EXPECT_EQ(profile.kernels[1].count, 2);
  EXPECT_EQ(profile.kernels[1].part, WorkPart::kOurs);
  EXPECT_THAT(profile.kernels[1].seconds, DoubleEq(2));
}

TEST(BreakDownTest, StepWithoutKernels_WaitsAllOfIt) {
  EXPECT_THAT(BreakDown(1, {}, 0, 2).waiting, DoubleEq(2));
}

}  // namespace
}  // namespace phalanx::rank

// The computations of a step on CPU, and the words in which host and device tell each other how far
// they are.
#include "worker/train/step_kernels.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

constexpr AdamWStep kStep{.learning_rate = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8,
                          .weight_decay = 0.1,
                          .update = 3};

Decision Committed(int64_t step, double scale = 1.0) {
  return {.step = step, .verdict = Verdict::kCommitted, .gradient_scale = scale};
}

// Buffers of 64 elements, and a state of the whole of them.
struct Buffers {
  explicit Buffers(at::ScalarType compute, int64_t elements = 64)
      : gradients(at::empty({elements}, compute == at::kDouble ? at::kDouble : at::kFloat)),
        weights(at::empty({elements}, compute)) {
    optimizer.runs = {{.gradient_offset = 0, .state_offset = 0, .count = elements, .decay = true}};
    optimizer.elements = elements;
    optimizer.first_moment = at::zeros({elements}, gradients.options());
    optimizer.second_moment = at::zeros({elements}, gradients.options());
    for (int64_t i = 0; i < elements; ++i) {
      gradients[i] = std::sin(static_cast<double>(i) * 1.7 + 0.3);
      weights[i] = std::cos(static_cast<double>(i) * 0.9);
    }
    if (compute == at::kBFloat16) optimizer.master = weights.to(at::kFloat);
  }
  at::Tensor gradients, weights;
  StateBlock optimizer;
};

class StepKernelsTest : public testing::Test {
 protected:
  std::unique_ptr<StepKernels> kernels_ = MakeCpuStepKernels(2);
};

TEST_F(StepKernelsTest, AdamW_IsTheTextbooksUpdate) {
  Buffers buffers(at::kDouble);
  const at::Tensor before = buffers.weights.clone();
  kernels_->SetDecision(Committed(5, 0.5));
  kernels_->AdamW(buffers.gradients, buffers.optimizer, &buffers.weights, kStep, 5);
  const at::Tensor g = buffers.gradients * 0.5;
  const at::Tensor m = 0.1 * g / (1 - std::pow(0.9, 3));
  const at::Tensor v = 0.05 * g * g / (1 - std::pow(0.95, 3));
  const at::Tensor expected = before - 0.01 * (m / (v.sqrt() + 1e-8) + 0.1 * before);
  EXPECT_LE((buffers.weights - expected).abs().max().item<double>(), 1e-15);
}

TEST_F(StepKernelsTest, AdamW_OfAnotherStepsDecision_ChangesNothing) {
  Buffers buffers(at::kFloat);
  const at::Tensor before = buffers.weights.clone();
  kernels_->SetDecision(Committed(5));
  for (const int64_t step : {3, 4, 6, 7})
    kernels_->AdamW(buffers.gradients, buffers.optimizer, &buffers.weights, kStep, step);
  EXPECT_TRUE(at::equal(buffers.weights, before));
  EXPECT_TRUE(at::equal(buffers.optimizer.first_moment, at::zeros({64})));
}

TEST_F(StepKernelsTest, AdamW_OfAStepThatIsNotCommitted_ChangesNothing) {
  for (const Verdict verdict : {Verdict::kInvalid, Verdict::kSkipped, Verdict::kEmpty}) {
    Buffers buffers(at::kFloat);
    const at::Tensor before = buffers.weights.clone();
    Decision decision = Committed(5);
    decision.verdict = verdict;
    kernels_->SetDecision(decision);
    kernels_->AdamW(buffers.gradients, buffers.optimizer, &buffers.weights, kStep, 5);
    EXPECT_TRUE(at::equal(buffers.weights, before)) << static_cast<int>(verdict);
  }
}

// Three replicas hold the same 40 elements at other places of other buffers, cut into other runs,
// over several updates.
TEST_F(StepKernelsTest, AdamW_CopiesAtDifferentOffsets_StayEqualToTheBit) {
  constexpr int64_t kCount = 40;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Buffers whole(type, 97);
    struct Copy {
      int64_t offset, cut;  // of the buffer; where the run is cut in two
    };
    std::vector<at::Tensor> weights, firsts, seconds;
    for (const Copy& copy : {Copy{0, 40}, Copy{13, 7}, Copy{57, 33}}) {
      Buffers held(type, 97);
      held.gradients.narrow(0, copy.offset, kCount).copy_(whole.gradients.narrow(0, 0, kCount));
      held.weights.narrow(0, copy.offset, kCount).copy_(whole.weights.narrow(0, 0, kCount));
      const int64_t base = copy.offset % 5;  // in the state, too
      held.optimizer.runs = {
          {.gradient_offset = copy.offset, .state_offset = base, .count = copy.cut, .decay = true},
          {.gradient_offset = copy.offset + copy.cut,
           .state_offset = base + copy.cut,
           .count = kCount - copy.cut,
           .decay = true}};
      if (held.optimizer.master.defined())
        held.optimizer.master.narrow(0, base, kCount)
            .copy_(whole.optimizer.master.narrow(0, 0, kCount));
      for (int64_t step = 1; step <= 5; ++step) {
        AdamWStep update = kStep;
        update.update = step;
        kernels_->SetDecision(Committed(step, 1.0 / 3));
        kernels_->AdamW(held.gradients, held.optimizer, &held.weights, update, step);
      }
      weights.push_back(held.weights.narrow(0, copy.offset, kCount));
      firsts.push_back(held.optimizer.first_moment.narrow(0, base, kCount));
      seconds.push_back(held.optimizer.second_moment.narrow(0, base, kCount));
    }
    for (size_t i = 1; i < weights.size(); ++i) {
      EXPECT_TRUE(at::equal(weights[i], weights[0])) << type << ", copy " << i;
      EXPECT_TRUE(at::equal(firsts[i], firsts[0])) << type << ", copy " << i;
      EXPECT_TRUE(at::equal(seconds[i], seconds[0])) << type << ", copy " << i;
    }
  }
}

TEST_F(StepKernelsTest, SquaredNorm_LeavesOutWhatIsNotHeld) {
  Buffers buffers(at::kDouble);
  buffers.optimizer.runs = {{.gradient_offset = 0, .state_offset = 0, .count = 10},
                            {.gradient_offset = 30, .state_offset = 10, .count = 34}};
  at::Tensor sum = at::ones({1}, at::kDouble);
  kernels_->AddSquaredNorm(buffers.gradients, buffers.optimizer, sum);
  const at::Tensor squares = buffers.gradients * buffers.gradients;
  const double expected = 1 + squares.narrow(0, 0, 10).sum().item<double>() +
                          squares.narrow(0, 30, 34).sum().item<double>();
  EXPECT_NEAR(sum.item<double>(), expected, 1e-12);
}

// A world of two ranks whose records this test writes.
class RecordsTest : public StepKernelsTest {
 protected:
  RecordsTest() {
    double* sums = sums_.mutable_data_ptr<double>();
    sums[0] = 4, sums[1] = 10, sums[2] = 5, sums[3] = 0;
  }
  void Write(int32_t rank, int64_t step) {
    kernels_->WriteRecord(records_, rank,
                          {.epoch = 2, .step = step, .plan_digest = 9, .applied = step - 1}, sums_);
  }
  Decision Decided(int64_t step) {
    kernels_->MakeDecision(records_, 2, {.epoch = 2, .step = step, .plan_digest = 9});
    Decision decision;
    EXPECT_TRUE(kernels_->ReadDecision(step, &decision));
    return decision;
  }
  at::Tensor sums_ = at::zeros({4}, at::kDouble);
  at::Tensor records_ = at::full({2 * static_cast<int64_t>(sizeof(Record))}, 0xFF, at::kByte);
};

TEST_F(RecordsTest, BothRecords_DecideTheStep) {
  Write(0, 1);
  Write(1, 1);
  const Decision decision = Decided(1);
  EXPECT_EQ(decision.verdict, Verdict::kCommitted);
  EXPECT_EQ(decision.loss, 2);
}

TEST_F(RecordsTest, AMissingRecord_DoesNot) {
  Write(0, 1);
  EXPECT_EQ(Decided(1).invalid_rank, 1);
}

TEST_F(RecordsTest, HomeThatLagsBehind_IsSaidInTheRecord) {
  kernels_->SetDecision(Committed(1));
  kernels_->MarkApplied(0, 1);
  Write(0, 2);
  Write(1, 2);
  EXPECT_EQ(Decided(2).verdict, Verdict::kInvalid);  // home 1 has not applied step 1

  kernels_->SetDecision(Committed(1));
  kernels_->MarkApplied(1, 1);
  Write(0, 2);
  Write(1, 2);
  EXPECT_EQ(Decided(2).verdict, Verdict::kCommitted);
}

TEST_F(RecordsTest, StopBeforeTheRecord_IsSaidInIt) {
  kernels_->SetStop(true);
  Write(0, 1);
  kernels_->SetStop(false);  // as on a rank that was not told
  Write(1, 1);
  const Decision decision = Decided(1);
  EXPECT_EQ(decision.verdict, Verdict::kInvalid);
  EXPECT_EQ(decision.invalid_rank, 0);
}

TEST_F(RecordsTest, StopBehindTheRecords_DecidesNothingHere) {
  Write(0, 1);
  Write(1, 1);
  kernels_->SetStop(true);
  const Decision decision = Decided(1);
  EXPECT_EQ(decision.verdict, Verdict::kInvalid);
  EXPECT_EQ(decision.invalid_rank, -1);
}

TEST_F(StepKernelsTest, MarkApplied_WithoutADecision_MarksNothing) {
  Decision invalid{.step = 4};
  kernels_->SetDecision(invalid);
  kernels_->MarkApplied(0, 4);
  kernels_->MarkApplied(1, 5);
  EXPECT_EQ(kernels_->applied(0), 0);
  EXPECT_EQ(kernels_->applied(1), 0);
}

TEST_F(StepKernelsTest, MarkApplied_OfASkippedStep_MarksIt) {
  Decision skipped{.step = 4, .verdict = Verdict::kSkipped};
  kernels_->SetDecision(skipped);
  kernels_->MarkApplied(0, 4);
  EXPECT_EQ(kernels_->applied(0), 4);
  EXPECT_EQ(kernels_->applied(1), 0);
}

TEST_F(StepKernelsTest, SetDecision_ForgetsTheOtherSlot) {
  kernels_->SetDecision(Committed(6));
  kernels_->SetDecision(Committed(5));
  Decision decision;
  EXPECT_FALSE(kernels_->ReadDecision(6, &decision));
  EXPECT_TRUE(kernels_->ReadDecision(5, &decision));
  EXPECT_FALSE(kernels_->ReadDecision(3, &decision));
}

}  // namespace
}  // namespace phalanx::train

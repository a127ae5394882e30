#include "worker/checkpoint/host_copy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

using testing::AnyOf;
using testing::Eq;

plan::Plan APlan(int64_t every) {
  support::AJob job =
      support::AJob().Module("language", support::Llama({.layers = 1})).Batch(2, 1).Steps(20);
  job.spec().recovery.state_every = every;
  return *plan::MakePlan(job, plan::MakeCluster(1, 1), Epoch{1});
}

// A state with one module of one replica, whose second home is host memory, and that memory as
// another process sees it.
class HostCopyTest : public testing::Test {
 protected:
  void Make(int64_t every) {
    plan_ = APlan(every);
    state_ = *train::TrainingState::Create(plan_, Rank{0}, {});
    bytes_ = HostCopy::BytesNeeded(plan_, *state_);
    ASSERT_GT(bytes_, kHostCopyPage);
    std::array<UniqueFd, 2> given;
    for (size_t i = 0; i < 2; ++i) {
      fds_[i] = UniqueFd(memfd_create("test", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(fds_[i].get(), bytes_), 0);
      given[i] = UniqueFd(dup(fds_[i].get()));
      void* seen =
          mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, fds_[i].get(), 0);
      ASSERT_NE(seen, MAP_FAILED);
      seen_[i] = {static_cast<const std::byte*>(seen), static_cast<size_t>(bytes_)};
    }
    auto copy =
        HostCopy::Create(plan_, *state_, {.store = 5, .job = 7, .rank = Rank{0}}, std::move(given));
    ASSERT_TRUE(copy.ok()) << copy.status();
    copy_ = *std::move(copy);
    copy_->Use();
  }
  void TearDown() override {
    copy_ = nullptr;
    for (const auto& seen : seen_) munmap(const_cast<std::byte*>(seen.data()), seen.size());
  }

  // Trains `step`; everybody had copies of `copied` when its records were written.
  void Run(int64_t step, int64_t copied) {
    Train(step, copied);
    ASSERT_TRUE(copy_->AfterStep(Epoch{3}).ok());
  }
  void Train(int64_t step, int64_t copied) {
    train::PartState& part = *state_->parts()[0];
    part.gradients().fill_(0.01 * static_cast<double>(step));
    const train::Decision decision{.step = step,
                                   .verdict = train::Verdict::kCommitted,
                                   .gradient_scale = 0.25,
                                   .copied = copied};
    state_->kernels().SetDecision(decision);
    ASSERT_TRUE(
        state_->Optimize(plan_, part, step, {}).ok());  // waits for a copy that is under way
    state_->Account(decision);
  }
  // Of each buffer the step of its whole copy; 0: none.
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    for (const auto& seen : seen_) {
      const auto header = ReadHostCopyHeader(seen);
      steps.push_back(header.ok() ? header->step : 0);
    }
    return steps;
  }
  at::Tensor MomentsNow() { return state_->parts()[0]->blocks()[0].first_moment.clone(); }
  // Masters come first, and they are the weights.
  at::Tensor MomentsIn(size_t buffer) {
    const auto sections = SectionsInHostMemory(plan_, *state_);
    int64_t offset = kHostCopyPage;
    for (const Section& section : sections) {
      if (section.kind == Kind::kFirstMoment) {
        at::Tensor moments = at::empty({section.elements});
        std::memcpy(moments.mutable_data_ptr(), seen_[buffer].data() + offset,
                    static_cast<size_t>(section.bytes()));
        return moments;
      }
      offset += (section.bytes() + 63) / 64 * 64;
    }
    return {};
  }

  plan::Plan plan_;
  std::unique_ptr<train::TrainingState> state_;
  int64_t bytes_ = 0;
  std::array<UniqueFd, 2> fds_;
  std::array<absl::Span<const std::byte>, 2> seen_;
  std::unique_ptr<HostCopy> copy_;
};

TEST_F(HostCopyTest, EachStep_IsCopiedIntoTheOlderBuffer) {
  Make(1);
  EXPECT_EQ(state_->copied(), 0);
  std::vector<at::Tensor> moments = {{}};
  for (int64_t step = 1; step <= 6; ++step) {
    Run(step, step - 1);
    moments.push_back(MomentsNow());
    // Changing the state waits for the copy, so it is whole by now.
    if (step == 1) continue;
    EXPECT_THAT(Steps(), testing::Contains(step - 1));
  }
  EXPECT_THAT(state_->copied(), AnyOf(Eq(5), Eq(6)));
  const std::vector<int64_t> steps = Steps();
  for (size_t buffer = 0; buffer < 2; ++buffer) {
    if (steps[buffer] == 0) continue;  // under way
    EXPECT_TRUE(MomentsIn(buffer).equal(moments[static_cast<size_t>(steps[buffer])]))
        << "step " << steps[buffer];
  }
  const auto header = ReadHostCopyHeader(seen_[steps[0] > steps[1] ? 0 : 1]);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->store, 5u);
  EXPECT_EQ(header->job, 7);
  EXPECT_EQ(header->epoch, 3);
  EXPECT_EQ(header->bytes, bytes_ - kHostCopyPage);
}

TEST_F(HostCopyTest, StepThatOthersStillNeed_IsNotOverwritten) {
  Make(1);
  Run(1, 0);
  Run(2, 1);  // into the other buffer
  for (int64_t step = 3; step <= 6; ++step) {
    Run(step, 1);  // somebody has no copy of step 2 yet
    EXPECT_THAT(Steps(), testing::UnorderedElementsAre(1, 2));
  }
  Run(7, 2);
  Run(8, 2);
  EXPECT_THAT(Steps(), testing::UnorderedElementsAre(2, 7));
}

// Ranks whose buffers are made while they train begin together, so that they copy the same steps.
TEST_F(HostCopyTest, UntilAllRanksHaveTheirBuffers_NothingIsCopied) {
  Make(1);
  Run(1, train::kCopiesNotYet);
  Run(2, train::kCopiesNotYet);
  EXPECT_THAT(Steps(), testing::ElementsAre(0, 0));
  Run(3, 0);
  Run(4, 0);
  EXPECT_THAT(Steps(), testing::UnorderedElementsAre(0, 3));
}

TEST_F(HostCopyTest, EveryThirdStep_IsCopied) {
  Make(3);
  for (int64_t step = 1; step <= 8; ++step) {
    Run(step, step - 1);
    EXPECT_EQ(state_->copied() % 3, 0);
  }
  EXPECT_THAT(Steps(), testing::UnorderedElementsAre(3, 6));
  EXPECT_EQ(state_->copied(), 6);
}

TEST_F(HostCopyTest, CopyThatFails_IsNoneAndIsSaid) {
  Make(1);
  Run(1, 0);
  Train(2, 1);
  train::StateBlock& block = state_->parts()[0]->blocks()[0];
  const at::Tensor moment = std::exchange(block.first_moment, at::Tensor());
  absl::Status said;  // once the copy is no longer under way
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  while (said.ok() && absl::Now() < patience) said = copy_->AfterStep(Epoch{3});
  EXPECT_FALSE(said.ok());
  block.first_moment = moment;
  EXPECT_EQ(state_->copied(), 1);
  EXPECT_THAT(Steps(), testing::UnorderedElementsAre(0, 1));
  Run(3, 1);
  Train(4, 1);
  EXPECT_EQ(state_->copied(), 3);
}

TEST_F(HostCopyTest, WhatWasNotWrittenWhole_IsNoCopy) {
  Make(1);
  EXPECT_EQ(ReadHostCopyHeader(seen_[0]).status().code(), absl::StatusCode::kNotFound);
  Run(1, 0);
  Run(2, 1);
  std::vector<std::byte> torn(seen_[0].begin(), seen_[0].end());
  if (!ReadHostCopyHeader(torn).ok()) torn.assign(seen_[1].begin(), seen_[1].end());
  ASSERT_TRUE(ReadHostCopyHeader(torn).ok());
  for (size_t byte = 0; byte < sizeof(HostCopyHeader); ++byte) {
    torn[byte] ^= std::byte{1};
    EXPECT_FALSE(ReadHostCopyHeader(torn).ok()) << byte;
    torn[byte] ^= std::byte{1};
  }
  EXPECT_FALSE(ReadHostCopyHeader({torn.data(), 100}).ok());
  EXPECT_FALSE(ReadHostCopyHeader({torn.data(), torn.size() - 1}).ok());
}

// Who goes back to a copy takes everyone with it.
TEST(HostCopyOfMirrorsTest, IsKeptBesideAModuleWithoutMirrors) {
  support::AJob job = support::AJob()
                          .Module("vision", support::ClipVision())
                          .Module("language", support::Llama(), {.dp = 2})
                          .Edge("vision", "language")
                          .Batch(2, 1);
  const auto plan = *plan::MakePlan(job, plan::MakeCluster(1, 3), Epoch{1});
  const auto state = *train::TrainingState::Create(plan, Rank{1}, {});
  EXPECT_GT(HostCopy::BytesNeeded(plan, *state), 0) << "a share of language alone";
}

TEST(HostCopyOfMirrorsTest, NothingIsKept) {
  support::AJob job = support::AJob().Module("language", support::Llama(), {.dp = 2}).Batch(2, 1);
  const auto plan = *plan::MakePlan(job, plan::MakeCluster(1, 2), Epoch{1});
  const auto state = *train::TrainingState::Create(plan, Rank{0}, {});
  EXPECT_EQ(HostCopy::BytesNeeded(plan, *state), 0);
  EXPECT_EQ(state->copied(), train::kKeepsNoCopies);
}

}  // namespace
}  // namespace phalanx::checkpoint

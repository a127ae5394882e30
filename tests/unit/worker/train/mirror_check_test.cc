// Mirrors that hold something else than their homes are found, by one bit of one element.
#include "worker/train/mirror_check.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/plan/loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/train/training_state.h"

namespace phalanx::train {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t kWorld = 4;
constexpr int64_t kHeldStep = 7, kUpdates = 6;

// Two replicas of two tensor ranks, or, of several widths, without the last rank.
plan::Plan MirroredPlan(bool even) {
  support::AJob job;
  job.Module("language", support::Llama(), {.tp = 2, .dp = 2}).Batch(4, 1);
  job.spec().recovery.state_copies = 2;
  const auto healthy = plan::MakePlan(job, plan::MakeCluster(1, kWorld), Epoch{1});
  EXPECT_TRUE(healthy.ok()) << healthy.status();
  if (even) return *healthy;
  const auto narrowed = plan::PlanWithout(*healthy, {Rank{3}});
  EXPECT_TRUE(narrowed.ok()) << narrowed.status();
  return *narrowed;
}

struct Held {
  std::unique_ptr<TrainingState> state;
};

// What ranks say whose state is alike but for what `plant` does to some of them, "" where all is
// well.
std::vector<std::string> Said(const plan::Plan& plan, at::ScalarType compute,
                              const std::function<void(Rank, Held&)>& plant) {
  const std::vector<plan::CommunicatorSpec> specs = plan::Communicators(plan);
  comm::InProcessWorld world(kWorld);
  std::vector<Held> held(kWorld);
  for (Rank rank{0}; rank.value < kWorld; ++rank.value) {
    if (plan.PlacesOf(rank).empty()) continue;
    Held& mine = held[static_cast<size_t>(rank.value)];
    auto state = TrainingState::CreateEmpty(plan, rank, BufferOptions{.compute = compute});
    EXPECT_TRUE(state.ok()) << state.status();
    mine.state = *std::move(state);
    mine.state->Adopt({.decision = {.step = kHeldStep}, .counts = {.updates = kUpdates}});
    for (const auto& part : mine.state->parts()) {
      part->weights().fill_(0.25);
      for (StateBlock& block : part->blocks()) {
        if (block.master.defined()) block.master.fill_(0.25);
        block.first_moment.fill_(0.5);
        block.second_moment.fill_(0.125);
      }
    }
    plant(rank, mine);
  }
  std::vector<std::string> said(kWorld);
  std::vector<std::thread> ranks;
  for (Rank rank{0}; rank.value < kWorld; ++rank.value) {
    if (held[static_cast<size_t>(rank.value)].state == nullptr) continue;
    ranks.emplace_back([&, rank] {
      comm::Communicators communicators = world.Connect(specs, rank);
      comm::Communicator* control = nullptr;
      for (size_t i = 0; i < specs.size(); ++i) {
        if (specs[i].use == plan::CommunicatorSpec::Use::kControl) control = communicators[i].get();
      }
      const auto place = static_cast<size_t>(rank.value);
      said[place] = std::string(CheckMirrors(plan, *held[place].state, control).message());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return said;
}

// The first block of a rank that mirrors one, or that is mirrored: the first of the rank's own.
StateBlock* FirstBlock(Held& held, bool mirrors) {
  for (StateBlock& block : held.state->parts().at(0)->blocks()) {
    if (block.mirrors == mirrors && !block.runs.empty()) return &block;
  }
  return nullptr;
}

// The last element of a tensor of fp32, in its last bit.
void Flip(at::Tensor& values) {
  at::Tensor last = values.view(at::kInt).narrow(0, values.numel() - 1, 1);
  last.bitwise_xor_(1);
}

size_t Found(const std::vector<std::string>& said) {
  size_t found = 0;
  for (const std::string& text : said) found += text.empty() ? 0 : 1;
  return found;
}

class MirrorCheckTest : public testing::TestWithParam<bool> {};

TEST_P(MirrorCheckTest, StateThatIsAlike_IsFine) {
  const plan::Plan plan = MirroredPlan(GetParam());
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16})
    EXPECT_THAT(Said(plan, compute, [](Rank, Held&) {}), Each(IsEmpty()));
}

TEST_P(MirrorCheckTest, OneBitOfAMirror_IsFound) {
  const plan::Plan plan = MirroredPlan(GetParam());
  const struct {
    at::Tensor StateBlock::*array;
    const char* name;
  } arrays[] = {{&StateBlock::master, "masters"},
                {&StateBlock::first_moment, "first moments"},
                {&StateBlock::second_moment, "second moments"}};
  for (const auto& array : arrays) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(array.name);
      bool done = false;
      const std::vector<std::string> said = Said(plan, compute, [&](Rank, Held& held) {
        StateBlock* const block = FirstBlock(held, /*mirrors=*/true);
        if (done || block == nullptr) return;
        Flip(block->*array.array);
        done = true;
      });
      EXPECT_EQ(Found(said), 1u) << "by the rank that mirrors";
      EXPECT_THAT(said, testing::Contains(HasSubstr(array.name)));
    }
  }
}

TEST_P(MirrorCheckTest, OneBitOfAHome_IsFoundByItsMirror) {
  const plan::Plan plan = MirroredPlan(GetParam());
  bool done = false;
  const std::vector<std::string> said = Said(plan, at::kFloat, [&](Rank, Held& held) {
    StateBlock* const block = FirstBlock(held, /*mirrors=*/false);
    if (done || block == nullptr) return;
    // All of it: who mirrors which part of it is the plan's matter.
    block->second_moment.view(at::kInt).bitwise_xor_(1);
    done = true;
  });
  EXPECT_GE(Found(said), 1u);
  EXPECT_THAT(said, testing::Contains(HasSubstr("second moments are not those of rank 0")));
}

TEST_P(MirrorCheckTest, AnotherStepOrUpdate_IsFound) {
  const plan::Plan plan = MirroredPlan(GetParam());
  for (const bool of_update : {false, true}) {
    const std::vector<std::string> said = Said(plan, at::kFloat, [&](Rank rank, Held& held) {
      if (rank.value != 0) return;
      Start start{.decision = {.step = kHeldStep}, .counts = {.updates = kUpdates}};
      ++(of_update ? start.counts.updates : start.decision.step);
      held.state->Adopt(start);
    });
    EXPECT_GE(Found(said), 1u);
    EXPECT_THAT(said, testing::Contains(HasSubstr(of_update ? "the number of updates"
                                                            : "the last applied step")));
  }
}

// It is given that between steps.
TEST_P(MirrorCheckTest, WhatAMirrorLacks_IsNotLookedAt) {
  const plan::Plan plan = MirroredPlan(GetParam());
  EXPECT_THAT(Said(plan, at::kFloat,
                   [](Rank, Held& held) {
                     StateBlock* const block = FirstBlock(held, /*mirrors=*/true);
                     if (block == nullptr) return;
                     Flip(block->first_moment);
                     block->lacking = {{0, block->elements}};
                   }),
              Each(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(Widths, MirrorCheckTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "One" : "Several");
});

}  // namespace
}  // namespace phalanx::train

#include "worker/checkpoint/host_load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/plan/loss.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/checkpoint/host_copy.h"
#include "worker/train/transfers.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr Epoch kEpoch{3};
constexpr uint64_t kStore = 5;
constexpr int64_t kJob = 7;

plan::Plan PlanOf(support::AJob job, int32_t world) {
  return *plan::MakePlan(job, plan::MakeCluster(1, world), kEpoch);
}

train::Decision DecisionOf(int64_t step) {
  return {.step = step,
          .verdict = train::Verdict::kCommitted,
          .loss = 1.0 / 3,
          .gradient_norm = 0.1,
          .gradient_scale = 0.7,
          .counted_tokens = 11,
          .volume = {.tokens = 13, .images = 2, .sounds = 1}};
}

at::Tensor MasterOf(train::PartState& part, const train::StateBlock& block) {
  if (block.master.defined()) return block.master;
  at::Tensor master = at::empty_like(block.first_moment);
  for (const train::StateRun& run : block.runs) {
    master.narrow(0, run.state_offset, run.count)
        .copy_(part.weights().narrow(0, run.gradient_offset, run.count));
  }
  return master;
}

// Initial values, which no layout changes, and moments made of them.
std::unique_ptr<train::TrainingState> StateOf(const plan::Plan& plan, Rank rank) {
  auto state = *train::TrainingState::Create(plan, rank, {});
  for (const auto& part : state->parts()) {
    for (train::StateBlock& block : part->blocks()) {
      const at::Tensor master = MasterOf(*part, block);
      block.first_moment.copy_(master * 0.3);
      block.second_moment.copy_(master * master);
    }
  }
  return state;
}

// What a rank leaves when it has copied its state of `step`.
HostCopyPair CopyOf(const plan::Plan& plan, Rank rank, int64_t step) {
  auto state = StateOf(plan, rank);
  const int64_t bytes = HostCopy::BytesNeeded(plan, *state);
  std::array<UniqueFd, 2> kept, given;
  for (size_t i = 0; i < 2; ++i) {
    kept[i] = UniqueFd(memfd_create("test", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(kept[i].get(), bytes), 0);
    given[i] = UniqueFd(dup(kept[i].get()));
  }
  state->Adopt({.decision = DecisionOf(step), .counts = {.updates = step - 1}});
  auto copy = *HostCopy::Create(plan, *state, {.store = kStore, .job = kJob, .rank = rank},
                                std::move(given));
  EXPECT_TRUE(copy->AfterStep(kEpoch).ok());
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  while (copy->copied() != step && absl::Now() < patience) {
  }
  EXPECT_EQ(copy->copied(), step);
  return *HostCopyPair::Map({.store = kStore, .job = kJob, .epoch = kEpoch, .rank = rank}, bytes,
                            std::move(kept));
}

train::Start StartIn(const HostCopyPair& pair) { return *StartOf(pair.Whole().at(0)); }

// The state of rank `rank` in `after`, all of it taken from copies that lie in `before`.
std::unique_ptr<train::TrainingState> Taken(const plan::Plan& before, const plan::Plan& after,
                                            Rank rank, const std::vector<Rank>& of) {
  auto state = train::TrainingState::CreateNowhere(rank, {});
  train::Start start;
  for (const Rank copied : of) {
    const HostCopyPair pair = CopyOf(before, copied, 4);
    start = StartIn(pair);
    const absl::Status added = AddCopy(pair, 4, before, "", *state, {});
    EXPECT_TRUE(added.ok()) << added;
  }
  state->Adopt(start);
  const auto transfers = train::TransfersInto(after, {{rank, state->HoldingsNow()}});
  EXPECT_TRUE(transfers.ok()) << transfers.status();
  const absl::StatusOr<train::Moved> entered = state->Enter(after, *transfers, {.ranks = {rank}});
  EXPECT_TRUE(entered.ok()) << entered.status();
  return state;
}

void ExpectSameState(const train::TrainingState& state, const train::TrainingState& expected) {
  ASSERT_EQ(state.parts().size(), expected.parts().size());
  for (size_t i = 0; i < state.parts().size(); ++i) {
    train::PartState &part = *state.parts()[i], &other = *expected.parts()[i];
    ASSERT_EQ(part.blocks().size(), other.blocks().size());
    for (size_t k = 0; k < part.blocks().size(); ++k) {
      EXPECT_TRUE(part.blocks()[k].first_moment.equal(other.blocks()[k].first_moment));
      EXPECT_TRUE(part.blocks()[k].second_moment.equal(other.blocks()[k].second_moment));
      EXPECT_TRUE(MasterOf(part, part.blocks()[k]).equal(MasterOf(other, other.blocks()[k])));
    }
    EXPECT_TRUE(part.weights().equal(other.weights())) << "part " << i;
  }
}

TEST(HostLoadTest, CopyOfARank_IsItsStateToTheBit) {
  for (const job::Precision compute :
       {job::Precision::kFp32, job::Precision::kFp64, job::Precision::kBf16}) {
    const plan::Plan plan = PlanOf(support::AJob()
                                       .Module("language", support::Llama({.layers = 2}))
                                       .Compute(compute)
                                       .Batch(2, 1),
                                   1);
    const auto taken = Taken(plan, plan, Rank{0}, {Rank{0}});
    ExpectSameState(*taken, *StateOf(plan, Rank{0}));
    EXPECT_EQ(taken->decided().step, 4);
    EXPECT_EQ(taken->decided().loss, 1.0 / 3);
    EXPECT_EQ(taken->decided().gradient_scale, 0.7);
    EXPECT_EQ(taken->decided().volume.images, 2);
    EXPECT_EQ(taken->counts().updates, 3);
    EXPECT_EQ(taken->told(), 4);
  }
}

// Pages that are pinned already are not mapped anew.
TEST(HostLoadTest, CopyThatTheProcessHasMapped_IsReadThere) {
  const plan::Plan plan =
      PlanOf(support::AJob().Module("language", support::Llama({.layers = 1})).Batch(2, 1), 1);
  const HostCopyPair pair = CopyOf(plan, Rank{0}, 4);
  const HostCopyPair::Buffer buffer = *pair.BufferOf(4);
  const auto zeros = *PinnedMapping::Map(-1, buffer.bytes, {});
  auto state = train::TrainingState::CreateNowhere(Rank{0}, {});
  const absl::Status added = AddCopy(
      pair, 4, plan, "", *state, {}, {}, [&](int fd, int64_t bytes) -> const PinnedMapping* {
        return fd == buffer.fd && bytes == buffer.bytes ? zeros.get() : nullptr;
      });
  ASSERT_TRUE(added.ok()) << added;
  state->Adopt(StartIn(pair));
  const auto transfers = train::TransfersInto(plan, {{Rank{0}, state->HoldingsNow()}});
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  ASSERT_TRUE(state->Enter(plan, *transfers, {.ranks = {Rank{0}}}).ok());
  for (const train::StateBlock& block : state->parts()[0]->blocks())
    EXPECT_EQ(block.second_moment.count_nonzero().item<int64_t>(), 0);
}

TEST(HostLoadTest, CopiesOfTwoRanks_AreTheStateOfTheOneThatIsLeft) {
  const plan::Plan before = PlanOf(
      support::AJob().Module("language", support::Llama({.layers = 2}), {.tp = 2}).Batch(2, 1), 2);
  for (const Rank lost : {Rank{0}, Rank{1}}) {
    const Rank left{1 - lost.value};
    auto next = plan::LayoutAfter(before, {.lost = {lost}, .spares = false});
    ASSERT_TRUE(next.ok()) << next.status();
    const plan::Plan after = *plan::Expand(before.spec, std::move(next->layout));
    ExpectSameState(*Taken(before, after, left, {left, lost}), *StateOf(after, left));
    // With its own alone it lacks the other's.
    auto state = train::TrainingState::CreateNowhere(left, {});
    ASSERT_TRUE(AddCopy(CopyOf(before, left, 4), 4, before, "", *state, {}).ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(
        train::TransfersInto(after, {{left, state->HoldingsNow()}}).status()));
  }
}

// A mirror's state is not in its copy, so it is the primary's that counts.
TEST(HostLoadTest, CopiesOfAllRanks_HoldAllState_OfMirroredAndFrozenModulesToo) {
  const plan::Plan plan = PlanOf(support::AJob()
                                     .Module("vision", support::ClipVision(), {.frozen = true})
                                     .Module("audio", support::Whisper())
                                     .Module("language", support::Llama(), {.dp = 2})
                                     .Edge("vision", "language")
                                     .Edge("audio", "language")
                                     .Batch(2, 1),
                                 4);
  std::map<Rank, train::Holdings> holdings;
  for (int32_t rank = 0; rank < 4; ++rank) {
    auto state = train::TrainingState::CreateNowhere(Rank{rank}, {});
    const auto original = StateOf(plan, Rank{rank});
    if (HostCopy::BytesNeeded(plan, *original) == 0) {
      ASSERT_TRUE(AddUntrained(plan, Rank{rank}, "", *state, {}).ok());
    } else {
      const HostCopyPair pair = CopyOf(plan, Rank{rank}, 4);
      ASSERT_TRUE(AddCopy(pair, 4, plan, "", *state, {}).ok());
    }
    state->Adopt({.decision = DecisionOf(4), .counts = {.updates = 3}});
    holdings[Rank{rank}] = state->HoldingsNow();
  }
  EXPECT_THAT(holdings, Not(IsEmpty()));
  const auto transfers = train::TransfersInto(plan, holdings);
  ASSERT_TRUE(transfers.ok()) << transfers.status();
  EXPECT_GT(transfers->state_elements, 0) << "mirrors are to be given theirs";
}

TEST(HostLoadTest, CopyThatIsNotWhatItShouldBe_IsRefused) {
  const plan::Plan plan =
      PlanOf(support::AJob().Module("language", support::Llama({.layers = 1})).Batch(2, 1), 1);
  const plan::Plan other =
      PlanOf(support::AJob().Module("language", support::Llama({.layers = 2})).Batch(2, 1), 1);
  const HostCopyPair pair = CopyOf(plan, Rank{0}, 4);
  ASSERT_THAT(pair.Whole(), SizeIs(1));
  auto state = train::TrainingState::CreateNowhere(Rank{0}, {});
  const absl::Status missing = AddCopy(pair, 3, plan, "", *state, {});
  EXPECT_TRUE(absl::IsDataLoss(missing));
  EXPECT_THAT(missing.message(), HasSubstr("no whole copy of the state of rank 0 of step 3"));
  const absl::Status foreign = AddCopy(pair, 4, other, "", *state, {});
  EXPECT_TRUE(absl::IsDataLoss(foreign));
  EXPECT_THAT(foreign.message(), HasSubstr("is of another plan"));
  EXPECT_THAT(state->HoldingsNow().state, IsEmpty());
}

// Of another store, job, epoch or rank.
TEST(HostLoadTest, CopyOfSomebodyElse_IsNone) {
  HostCopyHeader header{.store = kStore, .job = kJob, .epoch = kEpoch.value, .rank = 2};
  SetStart({.decision = DecisionOf(4)}, &header);
  const auto pair_of = [&](const HostCopyPair::Identity& identity) {
    std::array<UniqueFd, 2> buffers;
    for (UniqueFd& fd : buffers) {
      fd = UniqueFd(memfd_create("test", MFD_CLOEXEC));
      EXPECT_EQ(ftruncate(fd.get(), kHostCopyPage), 0);
    }
    HostCopyHeader written = header;
    std::memcpy(written.magic, kHostCopyMagic, sizeof written.magic);
    written.checksum = ChecksumOf(written);
    EXPECT_EQ(pwrite(buffers[1].get(), &written, sizeof written, 0), sizeof written);
    return HostCopyPair::Map(identity, kHostCopyPage, std::move(buffers))->Whole().size();
  };
  const HostCopyPair::Identity mine{.store = kStore, .job = kJob, .epoch = kEpoch, .rank = Rank{2}};
  EXPECT_EQ(pair_of(mine), 1u);
  for (int which = 0; which < 4; ++which) {
    HostCopyPair::Identity foreign = mine;
    if (which == 0) foreign.store = 6;
    if (which == 1) foreign.job = 8;
    if (which == 2) foreign.epoch = Epoch{2};
    if (which == 3) foreign.rank = Rank{1};
    EXPECT_EQ(pair_of(foreign), 0u) << which;
  }
  header.verdict = 0;
  EXPECT_EQ(pair_of(mine), 0u) << "of a step that was not decided";
}

TEST(HostLoadTest, BuffersThatAreShorterThanTheyShouldBe_AreNotMapped) {
  std::array<UniqueFd, 2> buffers;
  for (UniqueFd& fd : buffers) fd = UniqueFd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsResourceExhausted(
      HostCopyPair::Map({.rank = Rank{2}}, kHostCopyPage, std::move(buffers)).status()));
}

}  // namespace
}  // namespace phalanx::checkpoint

// What a copy of a rank's state has, the first time and later ones.
#include "worker/checkpoint/snapshot.h"

#include <cstring>
#include <memory>
#include <stop_token>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

class SnapshotTest : public testing::Test {
 protected:
  // Of a section of the copy: how many of its elements are those of the state.
  int64_t Equal(const Section& section, const std::byte* at) const {
    const at::Tensor copied =
        at::from_blob(const_cast<std::byte*>(at), {section.elements}, ScalarTypeOf(section.dtype));
    at::Tensor now = at::empty_like(copied);
    CopyOut(section, now, static_cast<const std::byte*>(now.const_data_ptr()));
    return at::eq(now, copied).sum().item<int64_t>();
  }

  const plan::Plan plan_ =
      *plan::MakePlan(support::AJob()
                          .Module("vision", support::ClipVision(), {.offset = 0, .frozen = true})
                          .Module("language", support::Llama({.layers = 1}), {.offset = 0})
                          .Edge("vision", "language", {.projector = 8, .frozen = true})
                          .Batch(2, 1),
                      plan::MakeCluster(1, 1), Epoch{1});
  const std::unique_ptr<train::TrainingState> state_ =
      *train::TrainingState::Create(plan_, Rank{0}, {});
};

TEST_F(SnapshotTest, WhatTrains_IsCopiedEachTime_WhatDoesNot_Once) {
  const std::vector<Section> sections = SectionsToWrite(plan_, *state_);
  const auto memory = *PinnedMapping::Map(-1, Snapshot::BytesOf(sections), {});
  const auto snapshot = Snapshot::Into(*memory, 0, *state_, sections);
  for (const bool first : {true, false}) {
    for (const auto& part : state_->parts()) {
      for (train::StateBlock& block : part->blocks()) block.first_moment.fill_(first ? 2 : 3);
      part->weights().add_(1);
    }
    std::memset(memory->data(), 0, static_cast<size_t>(memory->bytes()));
    // The second of them right behind the first.
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(snapshot->Begin().ok());
    ASSERT_TRUE(snapshot->Await(std::stop_token()).ok());
    int64_t offset = 0, trained = 0, frozen = 0;
    for (const Section& section : sections) {
      const bool trains = section.block != nullptr;
      const int64_t equal = Equal(section, memory->data() + offset);
      EXPECT_EQ(equal, trains || first ? section.elements : 0) << first;
      ++(trains ? trained : frozen);
      offset += Snapshot::BytesOf({section});
    }
    EXPECT_GT(trained, 0);
    EXPECT_GT(frozen, 0);
  }
}

}  // namespace
}  // namespace phalanx::checkpoint

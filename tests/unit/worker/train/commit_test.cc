// What a record must say, and what follows from all of them.
#include "worker/train/commit.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace phalanx::train {
namespace {

constexpr Expectation kExpected{.epoch = 3, .step = 7, .plan_digest = 0xABCD, .clip_norm = 0};

// Of rank `rank` of three: norms 1, 2, 3 squared and so on.
Record RecordOf(int32_t rank) {
  const double sums[] = {static_cast<double>((rank + 1) * (rank + 1)), 10.0 * (rank + 1),
                         4.0 * (rank + 1), static_cast<double>(rank)};
  return CompleteRecord({.epoch = 3,
                         .step = 7,
                         .plan_digest = 0xABCD,
                         .applied = 6,
                         .volume = {.tokens = 5 * rank, .images = rank, .sounds = 2 * rank}},
                        sums);
}

std::vector<Record> ThreeRecords() { return {RecordOf(0), RecordOf(1), RecordOf(2)}; }

Decision DecideOn(const std::vector<Record>& records, const Expectation& expected = kExpected,
                  bool stop = false) {
  return Decide(records.data(), static_cast<int32_t>(records.size()), expected, stop);
}

TEST(DecideTest, WholeRecords_CommitTheMeanOfTheirSums) {
  const Decision decision = DecideOn(ThreeRecords());
  EXPECT_EQ(decision.step, 7);
  EXPECT_EQ(decision.verdict, Verdict::kCommitted);
  EXPECT_EQ(decision.counted_tokens, 24);
  EXPECT_EQ(decision.corrupt_samples, 3);
  EXPECT_EQ(decision.volume.tokens, 15);
  EXPECT_EQ(decision.volume.images, 3);
  EXPECT_EQ(decision.volume.sounds, 6);
  EXPECT_EQ(decision.loss, 60.0 / 24);
  EXPECT_EQ(decision.gradient_norm, std::sqrt(14.0) / 24);
  EXPECT_EQ(decision.gradient_scale, 1.0 / 24);
}

TEST(DecideTest, GradientAboveTheClipNorm_IsScaledToIt) {
  Expectation expected = kExpected;
  expected.clip_norm = 0.01;
  const Decision decision = DecideOn(ThreeRecords(), expected);
  EXPECT_NEAR(decision.gradient_scale * std::sqrt(14.0), 0.01, 1e-15);
}

// Fields with a checksum that fits them: refused for what they say.
TEST(DecideTest, ForeignRecord_IsRefusedWhateverFieldIsForeign) {
  const std::vector<std::function<void(Record&)>> changes = {
      [](Record& r) { r.epoch = 2; },   [](Record& r) { r.epoch = 4; },
      [](Record& r) { r.step = 6; },    [](Record& r) { r.step = 8; },
      [](Record& r) { r.applied = 5; }, [](Record& r) { r.applied = 7; },
      [](Record& r) { r.stop = 1; },    [](Record& r) { r.plan_digest ^= 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (int32_t rank = 0; rank < 3; ++rank) {
      std::vector<Record> records = ThreeRecords();
      changes[i](records[static_cast<size_t>(rank)]);
      records[static_cast<size_t>(rank)].checksum = ChecksumOf(records[static_cast<size_t>(rank)]);
      const Decision decision = DecideOn(records);
      EXPECT_EQ(decision.verdict, Verdict::kInvalid) << "change " << i << " at rank " << rank;
      EXPECT_EQ(decision.invalid_rank, rank) << "change " << i;
      EXPECT_EQ(decision.gradient_scale, 0);
    }
  }
}

TEST(DecideTest, TornRecord_IsRefusedWhateverByteIsTorn) {
  for (size_t byte = 0; byte < sizeof(Record); ++byte) {
    std::vector<Record> records = ThreeRecords();
    reinterpret_cast<unsigned char*>(&records[1])[byte] ^= 0x10;
    const Decision decision = DecideOn(records);
    EXPECT_EQ(decision.verdict, Verdict::kInvalid) << "byte " << byte;
    EXPECT_EQ(decision.invalid_rank, 1) << "byte " << byte;
  }
}

TEST(DecideTest, RecordThatNeverCame_IsRefused) {
  for (const int fill : {0xFF, 0}) {
    std::vector<Record> records = ThreeRecords();
    std::memset(static_cast<void*>(&records[2]), fill, sizeof(Record));
    EXPECT_EQ(DecideOn(records).invalid_rank, 2) << "filled with " << fill;
  }
}

TEST(DecideTest, HalfOfAnotherStepsRecord_IsRefused) {
  const double sums[] = {5, 5, 5, 0};
  const Record before =
      CompleteRecord({.epoch = 3, .step = 6, .plan_digest = 0xABCD, .applied = 5}, sums);
  for (size_t bytes = 16; bytes < sizeof(Record); bytes += 8) {
    std::vector<Record> records = ThreeRecords();
    std::memcpy(static_cast<void*>(&records[0]), &before, bytes);
    EXPECT_EQ(DecideOn(records).invalid_rank, 0) << bytes << " bytes of the step before";
  }
}

TEST(DecideTest, StopAtThisRank_DecidesNothingAndBlamesNobody) {
  const Decision decision = DecideOn(ThreeRecords(), kExpected, /*stop=*/true);
  EXPECT_EQ(decision.verdict, Verdict::kInvalid);
  EXPECT_EQ(decision.invalid_rank, -1);
}

TEST(DecideTest, NonFiniteNumberOfAnyKind_SkipsTheStepOnAllRanks) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    for (size_t which = 0; which < 4; ++which) {
      std::vector<Record> records = ThreeRecords();
      double sums[] = {1, 2, 3, 0};
      sums[which] = bad;
      records[1] =
          CompleteRecord({.epoch = 3, .step = 7, .plan_digest = 0xABCD, .applied = 6}, sums);
      EXPECT_EQ(records[1].finite, 0);
      const Decision decision = DecideOn(records);
      EXPECT_EQ(decision.verdict, Verdict::kSkipped) << bad << " in number " << which;
      EXPECT_EQ(decision.gradient_scale, 0);
    }
  }
}

TEST(DecideTest, SumsThatOverflow_SkipTheStep) {
  std::vector<Record> records = ThreeRecords();
  const double sums[] = {1.5e308, 2, 3, 0};
  for (size_t rank : {0u, 1u}) {
    records[rank] =
        CompleteRecord({.epoch = 3, .step = 7, .plan_digest = 0xABCD, .applied = 6}, sums);
  }
  EXPECT_EQ(DecideOn(records).verdict, Verdict::kSkipped);
}

TEST(DecideTest, NoCountedToken_IsAnEmptyStepAndNoFailure) {
  const double sums[] = {0, 0, 0, 2};
  const Record none =
      CompleteRecord({.epoch = 3, .step = 7, .plan_digest = 0xABCD, .applied = 6}, sums);
  const Decision decision = DecideOn({none, none});
  EXPECT_EQ(decision.verdict, Verdict::kEmpty);
  EXPECT_EQ(decision.gradient_scale, 0);
  EXPECT_EQ(decision.corrupt_samples, 4);
}

TEST(DecideTest, WishOfOneRank_IsOneOfAllWhateverTheVerdict) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double sums[][4] = {{1, 2, 3, 0}, {nan, 2, 3, 0}, {0, 0, 0, 0}};
  const Verdict verdicts[] = {Verdict::kCommitted, Verdict::kSkipped, Verdict::kEmpty};
  for (size_t i = 0; i < 3; ++i) {
    const Record header{.epoch = 3, .step = 7, .plan_digest = 0xABCD, .applied = 6};
    std::vector<Record> records(3, CompleteRecord(header, sums[i]));
    EXPECT_EQ(DecideOn(records).wish, kNoWish);
    EXPECT_EQ(DecideOn(records).writing, 0);
    for (size_t rank = 0; rank < 3; ++rank) {
      std::vector<Record> wished = records;
      wished[rank].wish = kWishEnd;
      wished[rank].writing = 1;
      wished[rank].checksum = ChecksumOf(wished[rank]);
      const Decision decision = DecideOn(wished);
      EXPECT_EQ(decision.verdict, verdicts[i]) << rank;
      EXPECT_EQ(decision.wish, kWishEnd) << rank;
      EXPECT_EQ(decision.writing, 1) << rank;
    }
  }
}

TEST(DecideTest, WishToLeave_StandsBeforeOneToEnd) {
  for (const auto& [first, last] : {std::pair(kWishEnd, kWishLeave), {kWishLeave, kWishEnd}}) {
    std::vector<Record> records = ThreeRecords();
    records.front().wish = first;
    records.back().wish = last;
    for (Record& record : records) record.checksum = ChecksumOf(record);
    EXPECT_EQ(DecideOn(records).wish, kWishLeave);
  }
}

// Ranks of the release before send and read as many bytes. One that has more is a matter of
// core/plan/derivation.h.
static_assert(sizeof(Record) == 136);

}  // namespace
}  // namespace phalanx::train

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"
#include "worker/comm/dtype.h"

namespace phalanx::comm {
namespace {

constexpr DType kSummed[] = {DType::kInt64, DType::kBf16, DType::kFp32, DType::kFp64};

// Element i of rank r: values whose sum depends on the order of addition in floating point.
double ValueOf(int32_t rank, int64_t i) {
  const double sign = (rank + i) % 3 == 0 ? -1.0 : 1.0;
  return sign * (1.0 + 0.37 * rank + 0.011 * static_cast<double>(i % 97)) *
         ((rank + i) % 5 == 0 ? 1e4 : 1.0);
}

std::vector<char> Values(DType dtype, int32_t rank, int64_t first, int64_t count) {
  std::vector<char> bytes(static_cast<size_t>(count * SizeOf(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const double value = ValueOf(rank, first + i);
    char* at = bytes.data() + i * SizeOf(dtype);
    if (dtype == DType::kInt64) {
      const int64_t v = static_cast<int64_t>(value * 1000);
      std::memcpy(at, &v, sizeof(v));
    } else if (dtype == DType::kFp64) {
      std::memcpy(at, &value, sizeof(value));
    } else if (dtype == DType::kFp32) {
      const float v = static_cast<float>(value);
      std::memcpy(at, &v, sizeof(v));
    } else if (dtype == DType::kBf16) {
      const uint16_t v = FloatToBf16(static_cast<float>(value));
      std::memcpy(at, &v, sizeof(v));
    } else {
      *at = static_cast<char>(rank * 31 + first + i);
    }
  }
  return bytes;
}

// The sum in rank order that every transport must give, bit for bit.
std::vector<char> Expected(DType dtype, int32_t world, int64_t first, int64_t count) {
  std::vector<char> out(static_cast<size_t>(count * SizeOf(dtype)));
  Accumulator sum;
  sum.Reset(dtype, count);
  for (int32_t rank = 0; rank < world; ++rank) sum.Add(Values(dtype, rank, first, count).data());
  sum.Store(out.data());
  return out;
}

class CollectivesTest : public testing::TestWithParam<std::tuple<Kind, int>> {
 protected:
  Kind kind() const { return std::get<0>(GetParam()); }
  int32_t world() const { return std::get<1>(GetParam()); }
};

// What it was told, in order: operations, and "end".
class Noted final : public Observer {
 public:
  void Begins(plan::CommunicatorOperation operation, void* stream) override {
    told.push_back(stream == nullptr ? plan::OperationName(operation) : "a stream");
  }
  void Ends(void*) override { told.push_back("end"); }
  std::vector<std::string> told;
};

TEST_P(CollectivesTest, Observer_IsToldOfWhatMovesSomething) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    const auto size = static_cast<size_t>(world());
    std::vector<double> values(size, 1.0), own(1, 1.0);
    Noted noted;
    me.all().Observe(&noted);
    EXPECT_TRUE(me.all().AllReduceSum(values.data(), 1, DType::kFp64).ok());
    EXPECT_TRUE(me.all().AllReduceSum(values.data(), 0, DType::kFp64).ok());
    EXPECT_TRUE(me.all().ReduceScatterSum(values.data(), own.data(), 1, DType::kFp64).ok());
    EXPECT_TRUE(me.all().AllGather(own.data(), values.data(), 1, DType::kFp64).ok());
    EXPECT_TRUE(me.all().Exchange({}, {}).ok());
    me.all().Observe(nullptr);
    EXPECT_TRUE(me.all().AllGather(own.data(), values.data(), 1, DType::kFp64).ok());
    const std::vector<std::string> all = {"all-reduce", "end",        "reduce-scatter",
                                          "end",        "all-gather", "end"};
    EXPECT_EQ(noted.told, world() > 1 ? all : std::vector<std::string>());
  });
}

TEST_P(CollectivesTest, AllReduceSum_OfOddCounts_IsTheSumInRankOrderOnEveryRank) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    for (const DType dtype : kSummed) {
      for (const int64_t count : {1, 2, 3, 7, 1023, 2048, 20011}) {  // both algorithms
        std::vector<char> data = Values(dtype, me.rank, 0, count);
        ASSERT_TRUE(me.all().AllReduceSum(data.data(), count, dtype).ok());
        ASSERT_EQ(data, Expected(dtype, world(), 0, count)) << count;
      }
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterSum_GivesEachRankItsBlock) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    for (const DType dtype : kSummed) {
      for (const int64_t count : {1, 5, 4099}) {
        std::vector<char> in = Values(dtype, me.rank, 0, count * world());
        std::vector<char> out(static_cast<size_t>(count * SizeOf(dtype)));
        ASSERT_TRUE(me.all().ReduceScatterSum(in.data(), out.data(), count, dtype).ok());
        ASSERT_EQ(out, Expected(dtype, world(), me.rank * count, count));
        // In place: the output is this rank's block of the input, and no other block changes.
        std::vector<char> in_place = in;
        char* block = in_place.data() + me.rank * count * SizeOf(dtype);
        ASSERT_TRUE(me.all().ReduceScatterSum(in_place.data(), block, count, dtype).ok());
        std::memcpy(in.data() + me.rank * count * SizeOf(dtype), out.data(), out.size());
        ASSERT_EQ(in_place, in);
      }
    }
  });
}

TEST_P(CollectivesTest, AllGather_OfEveryType_InPlaceOrNot) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    for (const DType dtype :
         {DType::kByte, DType::kInt64, DType::kBf16, DType::kFp32, DType::kFp64}) {
      for (const int64_t count : {1, 3, 1000, 70001}) {
        const size_t bytes = static_cast<size_t>(count * SizeOf(dtype));
        std::vector<char> expected;
        for (int32_t rank = 0; rank < world(); ++rank) {
          const std::vector<char> part = Values(dtype, rank, 0, count);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const std::vector<char> in = Values(dtype, me.rank, 0, count);
        std::vector<char> out(expected.size());
        ASSERT_TRUE(me.all().AllGather(in.data(), out.data(), count, dtype).ok());
        ASSERT_EQ(out, expected);
        std::vector<char> in_place(expected.size());
        char* mine = in_place.data() + static_cast<size_t>(me.rank) * bytes;
        std::memcpy(mine, in.data(), bytes);
        ASSERT_TRUE(me.all().AllGather(mine, in_place.data(), count, dtype).ok());
        ASSERT_EQ(in_place, expected);
      }
    }
  });
}

TEST_P(CollectivesTest, NoElements_AreNoOperation) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    EXPECT_TRUE(me.all().AllReduceSum(nullptr, 0, DType::kFp32).ok());
    EXPECT_TRUE(me.all().ReduceScatterSum(nullptr, nullptr, 0, DType::kFp32).ok());
    EXPECT_TRUE(me.all().AllGather(nullptr, nullptr, 0, DType::kByte).ok());
    EXPECT_TRUE(me.all().Exchange({}, {}).ok());
    EXPECT_TRUE(me.all().Flush().ok());
    EXPECT_TRUE(me.all().Join().ok());
  });
}

TEST_P(CollectivesTest, ASumOfBytesOrANegativeCount_IsRefusedAndHarmless) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    char byte = 0;
    EXPECT_EQ(me.all().AllReduceSum(&byte, 1, DType::kByte).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(me.all().AllGather(&byte, &byte, -1, DType::kByte).code(),
              absl::StatusCode::kInvalidArgument);
    float one = 1;
    EXPECT_TRUE(me.all().AllReduceSum(&one, 1, DType::kFp32).ok());
    EXPECT_EQ(one, static_cast<float>(world()));
  });
}

TEST_P(CollectivesTest, ManySmallCallsInARow_WithAFastAndASlowRank_StayApart) {
  RunWorld(kind(), world(), Everyone(world()), [&](Member& me) {
    for (int64_t i = 0; i < 60; ++i) {
      volatile int64_t work = 0;  // rank 0 runs ahead of the others
      for (int64_t j = 0; j < me.rank * 2000; ++j) work = work + j;
      int64_t value = i * (me.rank + 1);
      ASSERT_TRUE(me.all().AllReduceSum(&value, 1, DType::kInt64).ok());
      ASSERT_EQ(value, i * world() * (world() + 1) / 2);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CollectivesTest,
                         testing::Combine(testing::Values(Kind::kInProcess, Kind::kGlooTcp,
                                                          Kind::kGlooSharedMemory),
                                          testing::Range(1, 6)),
                         [](const auto& info) {
                           return NameOf(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace phalanx::comm

#include "worker/train/holdings_exchange.h"

#include <thread>
#include <vector>

#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/specs.h"
#include "worker/comm/communicator.h"

namespace phalanx::train {
namespace {

using support::AJob;
using support::Layout;
using support::Llama;

plan::Plan PlanOfLayout(const Layout& layout) {
  const job::JobSpec spec =
      AJob().Module("language", Llama({.layers = 2}), layout).Batch(8, 1).Build();
  auto plan = plan::MakePlan(spec, plan::MakeCluster(1, spec.World()), Epoch{1});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::map<Rank, Holdings> HoldingsOf(const plan::Plan& plan, int64_t step) {
  std::map<Rank, Holdings> holdings;
  for (int32_t rank = 0; rank < plan.world; ++rank) holdings[Rank{rank}];
  FillHoldings(plan, step, &holdings);
  return holdings;
}

bool Same(const Holdings& a, const Holdings& b) {
  return a.step == b.step && a.state == b.state && a.frozen == b.frozen;
}

// What each rank is told, from what each says.
std::vector<std::map<Rank, Holdings>> Exchange(const plan::Plan& plan,
                                               const std::vector<OwnHoldings>& own) {
  comm::InProcessWorld world(plan.world);
  BulkGroup group;
  for (int32_t rank = 0; rank < plan.world; ++rank) group.ranks.push_back(Rank{rank});
  const plan::CommunicatorSpec spec{.ranks = group.ranks};
  std::vector<std::map<Rank, Holdings>> told(own.size());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    threads.emplace_back([&, rank] {
      comm::Communicators communicators = world.Connect({&spec, 1}, Rank{rank});
      const BulkGroup mine{.communicator = communicators[0].get(), .ranks = group.ranks};
      auto all = ExchangeHoldings(own[static_cast<size_t>(rank)], mine, Rank{rank}, at::kCPU,
                                  [] { return false; });
      EXPECT_TRUE(all.ok()) << all.status();
      if (all.ok()) told[static_cast<size_t>(rank)] = *std::move(all);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

TEST(HoldingsExchangeTest, NumbersOfHoldings_AreReadAsTheyWereWritten) {
  const plan::Plan plan = PlanOfLayout({.tp = 2, .dp = 2});
  for (const auto& [rank, holdings] : HoldingsOf(plan, 7)) {
    ASSERT_FALSE(holdings.state.empty());
    const std::vector<int64_t> numbers = EncodeHoldings(holdings);
    const auto read = DecodeHoldings(numbers);
    ASSERT_TRUE(read.has_value());
    EXPECT_TRUE(Same(*read, holdings)) << "rank " << rank.value;
    for (size_t cut = 0; cut < numbers.size(); ++cut)
      EXPECT_FALSE(DecodeHoldings(absl::MakeConstSpan(numbers).first(cut)).has_value()) << cut;
  }
}

TEST(HoldingsExchangeTest, RanksOfOneLayout_KnowWhatItGivesToEach) {
  const plan::Plan plan = PlanOfLayout({.tp = 2, .dp = 2});
  const std::map<Rank, Holdings> expected = HoldingsOf(plan, 7);
  const std::vector<OwnHoldings> own(expected.size(), {.holdings = {.step = 7}, .whole = &plan});
  for (const auto& told : Exchange(plan, own)) {
    ASSERT_EQ(told.size(), expected.size());
    for (const auto& [rank, holdings] : told) EXPECT_TRUE(Same(holdings, expected.at(rank)));
  }
}

// One of them lay between two layouts, and one is new.
TEST(HoldingsExchangeTest, RanksApart_SayWhatTheyHaveOneByOne) {
  const plan::Plan plan = PlanOfLayout({.tp = 2, .dp = 2});
  std::map<Rank, Holdings> expected = HoldingsOf(plan, 7);
  expected[Rank{1}].state.erase(expected[Rank{1}].state.begin());
  std::vector<OwnHoldings> own;
  for (const auto& [rank, holdings] : expected)
    own.push_back({.holdings = holdings, .whole = &plan});
  own[1].whole = nullptr;
  own[3] = {};
  expected.erase(Rank{3});
  for (const auto& told : Exchange(plan, own)) {
    ASSERT_EQ(told.size(), expected.size());
    for (const auto& [rank, holdings] : told) EXPECT_TRUE(Same(holdings, expected.at(rank)));
  }
}

}  // namespace
}  // namespace phalanx::train

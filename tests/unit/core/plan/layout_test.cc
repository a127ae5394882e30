#include "core/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "core/job/graph.h"
#include "core/plan/activations.h"
#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "core/plan/segments.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/damaged.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

job::JobSpec TwoModules() {
  return AJob()
      .Module("vision", ClipVision(), {.dp = 4})
      .Module("language", Llama(), {.tp = 4, .dp = 3, .pp = 2})
      .Edge("vision", "language", {.projector = 32})
      .Batch(24, 2);
}

plan::Layout LayoutOf(const job::JobSpec& spec) {
  return *DecideLayout(spec, MakeCluster(2, 32), Epoch{1});
}

TEST(LayoutTest, DecidedLayout_ExpandsToTheWholePlan) {
  const job::JobSpec spec = TwoModules();
  const plan::Layout layout = LayoutOf(spec);
  EXPECT_EQ(layout.schedule.name, job::ScheduleName::k1F1B);
  EXPECT_THAT(layout.modules[1].layers, ElementsAre(2, 2));
  const Plan plan = *Expand(spec, layout);
  EXPECT_EQ(plan.layout, layout);
  EXPECT_EQ(plan.world, 28);
  EXPECT_EQ(plan.layout.idle.size(), 36u);
  EXPECT_EQ(plan.node_of.size(), 64u);
  EXPECT_EQ(plan.DeviceOf(Rank{27}), (Device{"node-0", 27}));
  EXPECT_EQ(plan.DeviceOf(Rank{32}), (Device{"node-1", 0}));
  EXPECT_EQ(plan.NodeOf(Rank{63}), "node-1");
}

TEST(LayoutTest, LayersOfAnotherPlanner_AreObeyed) {
  const job::JobSpec spec = TwoModules();
  plan::Layout layout = LayoutOf(spec);
  layout.modules[1].layers = {1, 3};
  layout.schedule = {.name = job::ScheduleName::kZeroBubbleH1};
  const Plan plan = *Expand(spec, layout);
  EXPECT_EQ(plan.modules[1].layers(1), (LayerRange{1, 3}));
  EXPECT_EQ(plan.spec.schedule.name, job::ScheduleName::kZeroBubbleH1);
}

TEST(LayoutTest, Digest_CoversWhatRanksActOnButNotTheEpoch) {
  const job::JobSpec spec = TwoModules();
  const plan::Layout layout = LayoutOf(spec);
  const std::string digest = Expand(spec, layout)->digest;
  const auto changed = [&](const std::function<void(plan::Layout&)>& change) {
    plan::Layout other = layout;
    change(other);
    const absl::StatusOr<Plan> plan = Expand(spec, other);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() && plan->digest != digest;
  };
  EXPECT_FALSE(changed([](plan::Layout& l) { l.epoch = Epoch{7}; }));
  EXPECT_FALSE(changed([](plan::Layout& l) { l.data_digest = "data"; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.products = "h200-cublaslt-130100@0123"; }));
  EXPECT_FALSE(changed([](plan::Layout& l) { l.slow = {{Rank{1}, kPaceOfOthers / 2}}; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { ++l.derivation; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.modules[1].layers = {3, 1}; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.modules[0].speeds = {1, 1, 1, 2}; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.modules[0].state_copies = 3; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.modules[0].order = {1, 0, 2, 3}; }));
  EXPECT_TRUE(changed([](plan::Layout& l) { l.nodes[0].devices[0] = 77; }));
  // A device beyond the ranks: they do not act on it.
  EXPECT_FALSE(changed([](plan::Layout& l) {
    std::erase(l.idle, Rank{30});
    l.lost = {Rank{30}};
  }));
  EXPECT_TRUE(changed([](plan::Layout& l) {
    l.modules[1].changes = {{.dp = 0, .pp = 0, .ranks = {Rank{4}, Rank{5}, Rank{6}}}};
  }));
}

TEST(LayoutTest, LayoutThatDoesNotFitItsDocument_IsRefusedByName) {
  const job::JobSpec spec = TwoModules();
  const auto error = [&](const std::function<void(plan::Layout&)>& change) {
    plan::Layout layout = LayoutOf(spec);
    change(layout);
    return std::string(Expand(spec, layout).status().message());
  };
  EXPECT_THAT(error([](plan::Layout& l) { l.modules.pop_back(); }),
              HasSubstr("layout: it has 1 modules; the document has 2"));
  EXPECT_THAT(error([](plan::Layout& l) { l.schedule.name = job::ScheduleName::kAuto; }),
              HasSubstr("layout: its schedule was never chosen"));
  EXPECT_THAT(error([](plan::Layout& l) { l.modules[1].layers = {4}; }),
              HasSubstr("layout: module language has layers of 1 parts; its schedule has 2"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[1].layers = {2, 1};
              }),
              HasSubstr("has 3 of 4 layers"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[1].layers = {-1, 5};
              }),
              HasSubstr("has -1 layers"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.slow = {{Rank{1}, 0}};
              }),
              HasSubstr("place 1 has pace 0"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.slow = {{Rank{1000}, 7}};
              }),
              HasSubstr("place 1000 has pace 7"));
  EXPECT_THAT(error([](plan::Layout& l) { l.modules[0].speeds = {1}; }),
              HasSubstr("has speeds of 1 replicas; there are 4"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[0].speeds = {0, 0, 0, 0};
              }),
              HasSubstr("no replica of module vision has work"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[0].speeds = {1, -1, 1, 1};
              }),
              HasSubstr("has speed -1"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[1].order = {0, 1, 1};
              }),
              HasSubstr("layout: module language: its order has replica 1 twice"));
  EXPECT_THAT(error([](plan::Layout& l) { l.nodes.clear(); }), HasSubstr("0 devices for 28 ranks"));
  EXPECT_THAT(error([](plan::Layout& l) { l.idle = {Rank{64}}; }), HasSubstr("place 64 is lost"));
  EXPECT_THAT(error([](plan::Layout& l) { l.idle = {Rank{3}}; }),
              HasSubstr("rank 3 is lost or idle and has work in module vision"));
  EXPECT_THAT(error([](plan::Layout& l) { l.lost = {Rank{27}}; }),
              HasSubstr("rank 27 is lost or idle and has work in module language"));
  EXPECT_THAT(error([](plan::Layout& l) {
                l.modules[1].changes = {{.dp = 2, .pp = 1, .ranks = {}}, {.dp = 2, .pp = 0}};
              }),
              HasSubstr("module language has its changes out of order"));
  EXPECT_THAT(error([](plan::Layout& l) { l.modules[1].changes = {{.dp = 3, .pp = 0}}; }),
              HasSubstr("layout: module language: its module does not have the slot"));
}

TEST(LayoutTest, Samples_GoByTheDealingRule) {
  // Each next sample to the smallest (n + 1) / speed, ties to the lower replica.
  ModulePlan module = MustPlan(AJob().Module("language", Llama(), {.dp = 3})).modules[0];
  for (const std::vector<int64_t>& speeds :
       std::vector<std::vector<int64_t>>{{4, 3, 4}, {1, 1, 1}, {8, 0, 5}, {1, 1'000'000, 7}}) {
    module.speeds = speeds;
    std::vector<int64_t> dealt(3, 0);
    for (int64_t count = 0; count <= 60; ++count) {
      std::vector<int64_t> starts = {0, dealt[0], dealt[0] + dealt[1], count};
      ASSERT_EQ(LaneStarts(module, count), starts) << count;
      size_t next = 3;
      for (size_t i = 0; i < 3; ++i) {
        if (speeds[i] == 0) continue;
        if (next == 3 || (dealt[i] + 1) * speeds[next] < (dealt[next] + 1) * speeds[i]) next = i;
      }
      ++dealt[next];
    }
  }
}

// What the document puts on the same ranks may have none in common after a loss.
TEST(LayoutTest, PhasesAndSharedRanks_AreThoseOfTheTables) {
  const job::JobSpec spec = AJob()
                                .Module("vision", ClipVision(), {.dp = 2})
                                .Module("language", Llama(), {.dp = 2, .offset = 0})
                                .Edge("vision", "language", {.projector = 32})
                                .Batch(8, 1)
                                .Schedule(job::ScheduleName::kThreePhase);
  const Plan healthy = MustPlan(spec);
  EXPECT_TRUE(healthy.modules[0].shares_ranks);
  EXPECT_TRUE(healthy.RunsInPhases(0));
  EXPECT_FALSE(healthy.RunsInPhases(1));
  EXPECT_EQ(ActivationsKeptMax(healthy, 0, 0, healthy.microbatches), 4);

  plan::Layout layout = healthy.layout;
  layout.modules[0].changes = {{.dp = 0, .pp = 0, .ranks = {}}};
  const Plan narrower = *Expand(spec, layout);
  EXPECT_TRUE(narrower.RunsInPhases(0)) << "rank 1 has both";
  layout.modules[1].changes = {{.dp = 1, .pp = 0, .ranks = {}}};
  const Plan apart = *Expand(spec, layout);
  for (const ModulePlan& module : apart.modules) EXPECT_FALSE(module.shares_ranks);
  EXPECT_FALSE(apart.RunsAhead(0));
  EXPECT_EQ(apart.microbatches, 8);
  EXPECT_EQ(ActivationsKeptMax(apart, 0, 0, apart.microbatches), 2);
}

// The document is checked for equal replicas.
TEST(LayoutTest, MoreMicrobatchesThanAStepTakes_AreRefused) {
  const job::JobSpec spec = AJob()
                                .Module("language", support::NoArchitecture(), {.dp = 2})
                                .Batch(2 * job::kPlanningLoadMax, 1);
  plan::Layout layout = LayoutOf(spec);
  ASSERT_TRUE(Expand(spec, layout).ok());
  layout.modules[0].changes = {{.dp = 1, .pp = 0, .ranks = {}}};
  EXPECT_THAT(
      Expand(spec, layout).status().message(),
      HasSubstr("layout: its replicas make 2097152 microbatches with a planning load of 1 each"));
  layout.modules[0].changes.clear();
  layout.modules[0].speeds = {1, 2};
  EXPECT_THAT(Expand(spec, layout).status().message(),
              HasSubstr("microbatches with a planning load of 1"));
}

// How often each row of some samples comes to a rank, and how often their validity does.
struct Came {
  UnitRange slice;  // of the rows: what it asks for
  std::vector<int64_t> rows;
  int64_t flags = 0;
};
using CameTo = std::map<std::pair<int64_t, Rank>, Came>;  // first sample, rank

// Of pairs of lanes that have `rows` rows each, whatever their samples.
void Deliver(const LinkMessage& message, int64_t rows, bool forward, CameTo* to) {
  Came& came = (*to)[{message.first, forward ? message.to : message.from}];
  came.rows.resize(static_cast<size_t>(rows), 0);
  came.slice = forward ? SliceOf(rows, message.to_slices, message.to_slice)
                       : SliceOf(rows, message.from_slices, message.from_slice);
  const UnitRange carried = RowsOfMessage(message, rows);
  for (int64_t row = carried.first; row < carried.end(); ++row)
    ++came.rows[static_cast<size_t>(row)];
  came.flags += message.flags;
}

void ExpectEachRowOnce(const CameTo& all, int64_t rows) {
  for (const auto& [key, came] : all) {
    for (int64_t row = 0; row < rows; ++row) {
      const bool asked = row >= came.slice.first && row < came.slice.end();
      EXPECT_EQ(came.rows[static_cast<size_t>(row)], asked ? 1 : 0)
          << "row " << row << " of " << rows << " at rank " << key.second.value;
    }
  }
}

// Of all pairs of lanes.
int64_t SamplesAt(const std::vector<LinkMessage>& messages) {
  std::map<int64_t, int64_t> pairs;  // by first sample
  for (const LinkMessage& message : messages) pairs[message.first] = message.count;
  int64_t samples = 0;
  for (const auto& [first, count] : pairs) samples += count;
  return samples;
}

TEST(LayoutTest, LinksOfDamagedTables_BringEveryRowOnceThereAndItsGradientOnceBack) {
  ForEachDamaged(TwoModules(), [](const Plan& plan) {
    const MicrobatchSamples samples = SamplesOfMicrobatch(plan, 0);
    for (int32_t link = 0; link < static_cast<int32_t>(plan.links.size()); ++link) {
      const Link& which = plan.links[static_cast<size_t>(link)];
      const std::vector<LinkMessage> messages = LinkMessages(plan, link, samples);
      for (const int64_t rows : {1, 8, 23, 64, 100}) {
        CameTo there, back;
        for (const LinkMessage& message : messages) {
          Deliver(message, rows, /*forward=*/true, &there);
          Deliver(message, rows, /*forward=*/false, &back);
        }
        ExpectEachRowOnce(there, rows);
        ExpectEachRowOnce(back, rows);
        for (const auto& [key, came] : there) EXPECT_EQ(came.flags, 1);
        EXPECT_EQ(SamplesAt(messages), static_cast<int64_t>(samples.samples.size()));
        // All ranks of both ends take part, so that those that gather meet.
        for (const LinkMessage& message : messages) {
          const auto from = plan.PlaceOf(message.from, which.from.module);
          const auto to = plan.PlaceOf(message.to, which.to.module);
          ASSERT_TRUE(from.has_value() && to.has_value());
          EXPECT_TRUE(message.from_slices == 1 || message.from_slices == from->width);
          EXPECT_TRUE(message.to_slices == 1 || message.to_slices == to->width);
          for (Rank rank : plan.TensorGroup(which.from.module, from->dp, which.from.stage))
            EXPECT_TRUE(back.contains({message.first, rank}));
          for (Rank rank : plan.TensorGroup(which.to.module, to->dp, which.to.stage))
            EXPECT_TRUE(there.contains({message.first, rank}));
        }
      }
    }
  });
}

TEST(LayoutTest, TablesWithHolesAndUnequalWidths_LeaveNothingOutAndNothingTwice) {
  ForEachDamaged(TwoModules(), [](const Plan& plan) {
    std::vector<int64_t> seen(24, 0);
    for (int64_t m = 0; m < plan.microbatches; ++m) {
      const MicrobatchSamples samples = SamplesOfMicrobatch(plan, m);
      for (int64_t sample : samples.samples) ++seen[static_cast<size_t>(sample)];
      EXPECT_EQ(static_cast<int64_t>(samples.samples.size()), CountOfMicrobatch(plan, m));
    }
    EXPECT_EQ(seen, std::vector<int64_t>(24, 1));

    for (const Segment& segment : Segments(plan)) {
      EXPECT_EQ(static_cast<int32_t>(segment.holders.size()),
                plan.replicas(segment.module).present_replicas());
      for (const RankList& holders : segment.holders) EXPECT_FALSE(holders.empty());
    }
    for (const CommunicatorSpec& communicator : Communicators(plan)) {
      std::set<Rank> members(communicator.ranks.begin(), communicator.ranks.end());
      EXPECT_EQ(members.size(), communicator.ranks.size());
      for (Rank rank : members) EXPECT_FALSE(plan.PlacesOf(rank).empty());
    }
    // Every rank with work finds its tensor and data groups.
    const std::vector<CommunicatorSpec> communicators = Communicators(plan);
    for (int32_t rank = 0; rank < plan.world; ++rank) {
      for (const Place& place : plan.PlacesOf(Rank{rank})) {
        EXPECT_EQ(plan.RankOf(place), Rank{rank});
        const RankList tensor = plan.TensorGroup(place.module, place.dp, place.pp);
        EXPECT_EQ(FindCommunicator(communicators, CommunicatorSpec::Use::kTensor, tensor) >= 0,
                  tensor.size() > 1);
        const RankList data = plan.DataGroupOf(place);
        EXPECT_EQ(FindCommunicator(communicators, CommunicatorSpec::Use::kData, data) >= 0,
                  data.size() > 1);
      }
    }
  });
}

}  // namespace
}  // namespace phalanx::plan

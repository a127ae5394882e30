#include "worker/train/bound_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/plan.h"
#include "core/schedule/overlap.h"
#include "core/schedule/pipeline.h"
#include "tests/support/specs.h"
#include "tests/unit/worker/train/plan_of.h"

namespace phalanx::train {
namespace {

using schedule::Op;
using support::AJob;

// Lanes and widths that differ on both sides, and stages.
plan::Plan WidePlan() {
  return PlanOf(AJob()
                    .Module("vision", support::ClipVision(), {.tp = 2, .dp = 3})
                    .Module("language", support::Llama(), {.tp = 4, .dp = 2, .pp = 2})
                    .Edge("vision", "language", {.projector = 16})
                    .Batch(14, 4));
}
// Both modules on one rank.
plan::Plan NarrowPlan() {
  return PlanOf(AJob()
                    .Module("vision", support::ClipVision(), {.offset = 0})
                    .Module("language", support::Llama(), {.offset = 0})
                    .Edge("vision", "language")
                    .Batch(4, 2));
}

std::vector<plan::MicrobatchSamples> MicrobatchesOf(const plan::Plan& plan) {
  std::vector<plan::MicrobatchSamples> microbatches;
  for (int64_t m = 0; m < plan.microbatches; ++m)
    microbatches.push_back(plan::SamplesOfMicrobatch(plan, m));
  return microbatches;
}

// Peers are world ranks.
BoundProgram BoundOf(const plan::Plan& plan, Rank rank) {
  BindingTables tables;
  for (const plan::Place& place : plan.PlacesOf(rank)) {
    for (int32_t chunk = 0; chunk < plan.modules[static_cast<size_t>(place.module)].chunks();
         ++chunk) {
      tables.part_of[{place.module, chunk}] = static_cast<int32_t>(tables.places.size());
      tables.places.push_back(place);
    }
  }
  for (int32_t other = 0; other < plan.world; ++other)
    tables.forward_peers[Rank{other}] = tables.backward_peers[Rank{other}] = other;
  return Bind(plan, rank, *schedule::BuildStepOf(plan, rank), tables, MicrobatchesOf(plan));
}

// Link, forward, microbatch, place in the list.
using Name = std::tuple<int32_t, bool, int32_t, int64_t>;
struct End {
  int32_t rank, peer;
  BoundMessage message;
};

TEST(BoundProgramTest, EveryMessage_StandsBehindThePassThatItNeeds) {
  const plan::Plan plan = WidePlan();
  int64_t needs = 0;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const std::vector<BoundInstruction> bound = BoundOf(plan, Rank{rank}).instructions;
    for (size_t i = 0; i < bound.size(); ++i) {
      const BoundInstruction& message = bound[i];
      if (!schedule::IsMessage(message.op)) continue;
      EXPECT_EQ(message.behind < 0, message.op == Op::kReceiveForward);
      if (message.behind < 0) continue;
      ++needs;
      ASSERT_LT(static_cast<size_t>(message.behind), i);
      const BoundInstruction& pass = bound[static_cast<size_t>(message.behind)];
      EXPECT_EQ(pass.op, message.op == Op::kSendBackward ? Op::kBackwardInput : Op::kForward);
      EXPECT_EQ(pass.part, message.part);
      EXPECT_EQ(pass.microbatch, message.microbatch);
    }
  }
  EXPECT_GT(needs, 0);
}

TEST(BoundProgramTest, EveryMessage_HasOneSenderAndOneReceiverWhoNameEachOther) {
  const plan::Plan plan = WidePlan();
  std::map<Name, std::vector<End>> sends, receives;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    for (const BoundInstruction& one : BoundOf(plan, Rank{rank}).instructions) {
      for (const BoundMessage& message : one.messages) {
        auto& ends = schedule::IsSend(one.op) ? sends : receives;
        ends[{one.link, schedule::IsForwardMessage(one.op), one.microbatch, message.place}]
            .push_back({rank, message.peer, message});
      }
    }
  }
  size_t expected = 0;
  for (size_t link = 0; link < plan.links.size(); ++link) {
    for (const plan::MicrobatchSamples& samples : MicrobatchesOf(plan))
      expected += 2 * plan::LinkMessages(plan, static_cast<int32_t>(link), samples).size();
  }
  EXPECT_EQ(sends.size(), expected);
  ASSERT_EQ(receives.size(), expected);
  for (const auto& [name, ends] : sends) {
    ASSERT_EQ(ends.size(), 1u);
    const std::vector<End>& others = receives.at(name);
    ASSERT_EQ(others.size(), 1u);
    EXPECT_EQ(ends[0].peer, others[0].rank);
    EXPECT_EQ(ends[0].rank, others[0].peer);
    EXPECT_EQ(ends[0].message.of.from, others[0].message.of.from);
    EXPECT_EQ(ends[0].message.of.to, others[0].message.of.to);
    EXPECT_EQ(ends[0].message.of.samples(), others[0].message.of.samples());
  }
}

// Stages of three and two ranks, an encoder of two: narrowed ones of a job of four.
plan::Plan NarrowedPlan() {
  const job::JobSpec spec = AJob()
                                .Module("vision", support::ClipVision(), {.tp = 4})
                                .Module("language", support::Llama(), {.tp = 4, .pp = 2})
                                .Edge("vision", "language", {.projector = 32})
                                .Batch(4, 2);
  const plan::Plan healthy = PlanOf(spec);
  return *plan::Expand(
      spec,
      plan::LayoutAfter(healthy, {.lost = {Rank{1}, Rank{2}, Rank{5}, Rank{8}, Rank{9}}})->layout);
}

// Whoever gathers knows of all that its tensor group gathers, whether or not rows come to it.
TEST(BoundProgramTest, RowsOfStagesOfUnequalWidth_AreKnownToAllOfATensorGroup) {
  const plan::Plan plan = NarrowedPlan();
  constexpr int64_t kRows = 50;
  int32_t receives = 0;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    if (plan.PlacesOf(Rank{rank}).empty()) continue;
    const plan::Place place = plan.PlacesOf(Rank{rank})[0];
    for (const BoundInstruction& one : BoundOf(plan, Rank{rank}).instructions) {
      if (!schedule::IsReceive(one.op)) continue;
      ++receives;
      const bool forward = one.op == Op::kReceiveForward;
      std::vector<int> came(kRows, 0);
      for (const BoundMessage& message : one.messages) {
        EXPECT_EQ(message.of.samples(), one.lane);
        EXPECT_EQ(forward ? message.of.to_slice : message.of.from_slice, place.tp);
        EXPECT_EQ(forward ? message.of.to_slices : message.of.from_slices, place.width);
        const plan::UnitRange rows = plan::RowsOfMessage(message.of, kRows);
        for (int64_t row = rows.first; row < rows.end(); ++row) ++came[static_cast<size_t>(row)];
      }
      const plan::UnitRange slice = plan::SliceOf(kRows, place.width, place.tp);
      for (int64_t row = 0; row < kRows; ++row)
        EXPECT_EQ(came[static_cast<size_t>(row)], row >= slice.first && row < slice.end() ? 1 : 0);
    }
  }
  EXPECT_EQ(receives, 2 * (2 + 3 + 3 + 2));  // microbatches x (activations, gradients)
}

TEST(BoundProgramTest, MessagesToItself_AreOneExchangeOnBothEndsOfWhichItStands) {
  const std::vector<BoundInstruction> program = BoundOf(NarrowPlan(), Rank{0}).instructions;
  int32_t exchanges = 0;
  for (size_t i = 0; i < program.size(); i += static_cast<size_t>(program[i].exchange)) {
    if (!schedule::IsMessage(program[i].op)) continue;
    ++exchanges;
    ASSERT_EQ(program[i].exchange, 2);
    ASSERT_EQ(program[i].messages.size(), 1u);
    EXPECT_EQ(program[i].messages[0].peer, BoundMessage::kSelf);
    EXPECT_EQ(program[i].messages[0].place, program[i + 1].messages[0].place);
    EXPECT_NE(program[i].part, program[i + 1].part);
  }
  EXPECT_EQ(exchanges, 2 * 2);  // forward and backward of two microbatches
}

TEST(BoundProgramTest, LastUse_OfAPartInAMicrobatch_IsTheLastInstructionThatNamesIt) {
  const plan::Plan plan = WidePlan();
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::set<std::pair<int32_t, int32_t>> seen, ended;
    for (const BoundInstruction& one : BoundOf(plan, Rank{rank}).instructions) {
      if (one.microbatch < 0) continue;
      EXPECT_FALSE(ended.contains({one.part, one.microbatch})) << "used after its last use";
      seen.insert({one.part, one.microbatch});
      if (one.last_use) ended.insert({one.part, one.microbatch});
    }
    EXPECT_EQ(seen, ended);
  }
}

// The two of the module behind the edge get a part of their slice from each of the four.
TEST(BoundProgramTest, Sends_OfAPass_AreThoseThatCarryMessages) {
  const plan::Plan plan = PlanOf(AJob()
                                     .Module("vision", support::ClipVision(), {.tp = 4})
                                     .Module("language", support::Llama(), {.tp = 2, .pp = 2})
                                     .Edge("vision", "language", {.projector = 32})
                                     .Batch(4, 2));
  const int32_t language = plan.spec.language;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const plan::Place place = plan.PlacesOf(Rank{rank})[0];
    for (const BoundInstruction& one : BoundOf(plan, Rank{rank}).instructions) {
      int32_t expected = 0;
      if (one.op == Op::kForward) expected = place.module != language || place.pp == 0;
      if (one.op == Op::kBackwardInput) expected = place.module == language;
      EXPECT_EQ(one.sends, expected) << "rank " << rank;
    }
  }
}

TEST(BoundProgramTest, Lane_IsThatOfThePartAtTheRanksEnd) {
  const plan::Plan plan = WidePlan();
  const std::vector<plan::MicrobatchSamples> microbatches = MicrobatchesOf(plan);
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const plan::Place place = plan.PlacesOf(Rank{rank})[0];
    for (const BoundInstruction& one : BoundOf(plan, Rank{rank}).instructions) {
      if (one.microbatch < 0) continue;
      EXPECT_EQ(one.module, place.module);
      EXPECT_EQ(one.lane, plan::LaneSamples(plan, place.module, place.dp,
                                            microbatches[static_cast<size_t>(one.microbatch)]));
    }
  }
}

// All ranks of a reduction's group know the same buckets and homes, and each is the home of its own
// share.
TEST(BoundProgramTest, Reductions_OfAGroup_AreTheSameOnAllItsRanks) {
  const plan::Plan plan =
      PlanOf(AJob()
                 .Module("language", support::Llama({.layers = 4}), {.tp = 2, .dp = 3, .pp = 2})
                 .Batch(6, 1));
  std::map<std::pair<plan::PartId, plan::RankList>, std::vector<std::pair<Rank, plan::Reduction>>>
      of_group;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    const BoundProgram program = BoundOf(plan, Rank{rank});
    ASSERT_EQ(program.reductions.size(), 1u);
    const plan::Reduction& reduction = program.reductions[0];
    EXPECT_FALSE(reduction.buckets.empty());
    of_group[{reduction.part, reduction.group}].emplace_back(Rank{rank}, reduction);
  }
  EXPECT_EQ(of_group.size(), 4u);  // stages x tensor coordinates
  for (const auto& [key, members] : of_group) {
    ASSERT_EQ(members.size(), 3u);
    const size_t buckets = members[0].second.buckets.size();
    for (const auto& [rank, reduction] : members) {
      EXPECT_EQ(reduction.group[static_cast<size_t>(reduction.self)], rank);
      EXPECT_EQ(reduction.buckets.size(), buckets);
    }
    int64_t end = 0;
    for (size_t b = 0; b < buckets; ++b) {
      const plan::UnitRange elements = members[0].second.buckets[b].elements;
      EXPECT_EQ(elements.first, end);
      for (const auto& [rank, reduction] : members) {  // in the order of the group
        const plan::ReducedBucket& bucket = reduction.buckets[b];
        EXPECT_EQ(bucket.elements, elements);
        ASSERT_EQ(bucket.own.size(), 1u);
        EXPECT_EQ(bucket.own[0].first, end);
        end = bucket.own[0].end();
      }
      EXPECT_EQ(elements.end(), end);
    }
  }
}

// Modules of the backward passes in which sums over replicas may begin.
std::vector<int32_t> Completing(const plan::Plan& plan) {
  std::vector<int32_t> modules;
  std::map<int32_t, int32_t> last;  // microbatch of a module's last backward pass
  const BoundProgram program = BoundOf(plan, Rank{0});
  for (const BoundInstruction& one : program.instructions) {
    if (one.op == Op::kBackwardInput) last[one.module] = one.microbatch;
  }
  for (const BoundInstruction& one : program.instructions) {
    if (!one.completes) continue;
    modules.push_back(one.module);
    EXPECT_EQ(one.op, Op::kBackwardInput);
    EXPECT_EQ(one.microbatch, last[one.module]);
  }
  return modules;
}

// An encoder and a decoder, laid out so.
job::JobSpec Both(const support::Layout& vision, const support::Layout& language) {
  return AJob()
      .Module("vision", support::ClipVision(), vision)
      .Module("language", support::Llama(), language)
      .Edge("vision", "language")
      .Batch(8, 2);
}

TEST(BoundProgramTest, SumsBeginInTheLastBackwardPass_WhereReductionsKeepTheirOrder) {
  EXPECT_EQ(Completing(PlanOf(Both({.dp = 2, .offset = 0}, {.dp = 2, .offset = 0}))),
            (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(Completing(PlanOf(Both({.dp = 2}, {.dp = 2}))), std::vector<int32_t>())
      << "others wait for this rank's messages";
  EXPECT_EQ(Completing(PlanOf(
                AJob()
                    .Module("language", support::Llama({.tied_head = true}), {.dp = 2, .pp = 2})
                    .Batch(8, 2))),
            std::vector<int32_t>());
}

// Predictions of steps go by the plan alone.
TEST(BoundProgramTest, SumsBeginInTheLastBackwardPass_WhereASimulatedStepHasThem) {
  const plan::Plan plans[] = {
      PlanOf(Both({.dp = 2, .offset = 0}, {.dp = 2, .offset = 0})),
      PlanOf(Both({.dp = 2}, {.dp = 2})),
      PlanOf(Both({.dp = 4, .offset = 0}, {.tp = 2, .dp = 2, .offset = 0})),
      PlanOf(Both({.dp = 4, .offset = 0}, {.dp = 2, .pp = 2, .offset = 0})),
      PlanOf(AJob().Module("language", support::Llama(), {.dp = 2}).Batch(8, 2)),
      PlanOf(AJob()
                 .Module("language", support::Llama(), {.dp = 2})
                 .Schedule(job::ScheduleName::kZeroBubbleH1)
                 .Batch(8, 2)),
      PlanOf(AJob()
                 .Module("language", support::Llama({.tied_head = true}), {.dp = 2, .pp = 2})
                 .Batch(8, 2))};
  for (const plan::Plan& plan : plans) {
    const schedule::Pipeline pipeline = schedule::MakePipeline(plan);
    const std::vector<bool> inside = schedule::SumsBeginInside(plan, pipeline);
    const std::vector<int32_t> completing = Completing(plan);
    for (const int32_t p : schedule::PartsOf(pipeline, plan, Rank{0})) {
      const int32_t module = pipeline.parts[static_cast<size_t>(p)].module;
      EXPECT_EQ(inside[static_cast<size_t>(p)],
                std::count(completing.begin(), completing.end(), module) > 0)
          << plan.digest << " module " << module;
    }
  }
}

}  // namespace
}  // namespace phalanx::train

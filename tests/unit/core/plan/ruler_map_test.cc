#include "core/plan/ruler_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/plan/loss.h"
#include "core/plan/moves.h"
#include "core/plan/state_table.h"
#include "tests/support/specs.h"
#include "tests/unit/core/plan/must_plan.h"

namespace phalanx::plan {
namespace {

using support::AJob;
using support::ClipVision;
using support::Llama;

// Element of a logical tensor: its name, and where it stands there. Padding rows of a matrix have
// none: they are known by matrix and place.
using Element = std::tuple<std::string, int64_t, int64_t>;
using Named = std::map<std::pair<RulerId, int64_t>, Element>;

// Of all elements on rulers of a module, by a rank that leads all: tensor degree 1.
Named ElementsOf(const Plan& plan, int32_t module) {
  Named named;
  const ModulePlan& layout = plan.modules[static_cast<size_t>(module)];
  for (int32_t stage = 0; stage < layout.pp(); ++stage) {
    for (int32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      const Place place{.module = module, .pp = stage};
      const StageParameters parameters = ParametersOf(plan, place, chunk);
      std::map<int64_t, Element> at;  // by offset in the flat buffer
      for (const LocalMatrix& matrix : parameters.matrices) {
        for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
          at[matrix.offset + i] = {"padding of " + std::string(RoleName(matrix.role)),
                                   matrix.layer * 10 + matrix.edge, i};
        }
        for (const Piece& piece : matrix.pieces) {
          for (int64_t row = 0; row < piece.rows; ++row) {
            for (int64_t col = 0; col < matrix.cols; ++col) {
              at[matrix.offset + (piece.local_row + row) * matrix.cols + col] = {
                  parameters.logical[static_cast<size_t>(piece.logical)].name,
                  piece.logical_row + row, col};
            }
          }
        }
      }
      const std::vector<BucketRulers> buckets = RulersOf(plan, place, parameters);
      for (size_t b = 0; b < buckets.size(); ++b) {
        for (const FamilyRuler& ruler : buckets[b].rulers) {
          std::vector<UnitRange> runs;
          buckets[b].AppendRuns(ruler.family, {0, ruler.elements()}, &runs);
          int64_t element = 0;
          const RulerId id{{module, stage, chunk}, static_cast<int32_t>(b), ruler.family};
          for (const UnitRange& run : runs) {
            for (int64_t offset = run.first; offset < run.end(); ++offset)
              named[{id, element++}] = at.at(offset);
          }
        }
      }
    }
  }
  return named;
}

AJob SmallJob(int32_t pp, bool tied) {
  AJob job;
  job::Architecture llama =
      Llama({.hidden_size = 8, .layers = 4, .heads = 4, .kv_heads = 2, .mlp_size = 24});
  llama.tied_head = tied;
  job.Module("vision", ClipVision({.hidden_size = 8, .layers = 3, .heads = 2, .mlp_size = 16}),
             {.pp = pp});
  job.Module("language", llama, {.pp = pp});
  job.Edge("vision", "language", {.projector = 16}).Batch(8, 2);
  return job;
}

TEST(RulerMapTest, EachElement_IsFoundWhereItsTensorHasIt) {
  for (const bool tied : {false, true}) {
    const Plan before = MustPlan(SmallJob(3, tied), 6);
    const auto next = LayoutAfter(before, {.lost = {Rank{1}, Rank{4}}, .spares = false});
    ASSERT_TRUE(next.ok()) << next.status();
    const Plan after = *Expand(before.spec, next->layout);
    for (int32_t module = 0; module < 2; ++module) {
      ASSERT_EQ(after.modules[static_cast<size_t>(module)].pp(), 2);
      ASSERT_FALSE(SameRulers(before, after, module));
      for (const auto& [from, to] : {std::pair(&before, &after), std::pair(&after, &before)}) {
        const Named old = ElementsOf(*from, module), now = ElementsOf(*to, module);
        const RulerMap map(*from, *to, module);
        std::set<std::pair<RulerId, int64_t>> found;
        std::map<RulerId, int64_t> elements;
        for (const auto& [at, element] : old) ++elements[at.first];
        for (const auto& [ruler, count] : elements) {
          // In two parts, so that runs begin anywhere.
          for (const UnitRange& range : {UnitRange{0, count / 3}, {count / 3, count - count / 3}}) {
            int64_t next_from = range.first;
            for (const RulerMap::Piece& piece : map.Of(ruler, range)) {
              EXPECT_EQ(piece.from, next_from);
              next_from += piece.elements.count;
              for (int64_t i = 0; i < piece.elements.count; ++i) {
                const std::pair place(piece.ruler, piece.elements.first + i);
                EXPECT_TRUE(found.insert(place).second);
                ASSERT_TRUE(now.contains(place));
                ASSERT_EQ(now.at(place), old.at({ruler, piece.from + i}));
              }
            }
            EXPECT_EQ(next_from, range.end());
          }
        }
        EXPECT_EQ(found.size(), now.size());
      }
    }
  }
}

TEST(RulerMapTest, LowerDpOrTp_LeavesRulersAsTheyAre) {
  AJob job;
  job.Module("language", Llama({.layers = 4}), {.tp = 2, .dp = 2, .pp = 2});
  job.spec().recovery.ladder = {job::Rung::kRestart};
  const Plan healthy = MustPlan(job, 8);
  const auto without = [&](const RankList& lost) {
    return *Expand(healthy.spec, LayoutAfter(healthy, {.lost = lost, .spares = false})->layout);
  };
  EXPECT_TRUE(SameRulers(healthy, without({Rank{0}})));
  EXPECT_FALSE(SameRulers(healthy, without({Rank{0}, Rank{1}, Rank{2}, Rank{4}, Rank{6}})));
}

// Applied to who had what, moves give the homes of the new layout, and no element twice.
TEST(RestartMovesTest, GiveEveryHomeWhatItLacks) {
  for (const bool mirrors : {true, false}) {
    AJob job;
    job.Module("language",
               Llama({.hidden_size = 8, .layers = 4, .heads = 4, .kv_heads = 2, .mlp_size = 24}),
               {.dp = 2, .pp = 2});
    job.spec().recovery.ladder = {job::Rung::kRestart};
    if (!mirrors) job.spec().recovery.state_home = job::StateHome::kHost;
    const Plan before = MustPlan(job, 4);
    // One is left of stage 1, none of stage 0, or the other way round.
    const Plan after = *Expand(
        before.spec,
        LayoutAfter(before, {.lost = {Rank{0}, Rank{1}, Rank{2}}, .spares = false})->layout);
    ASSERT_EQ(after.modules[0].pp(), 1);
    const Moves moves = MovesBetween(before, after);
    const std::map<PartId, StateTable> had = StateTablesOn(after, before, 0);
    ASSERT_EQ(had.size(), 1u);
    int64_t elements = 0, held = 0, moved = 0, checkpoint = 0;
    for (const HomedRuler& ruler : had.begin()->second.rulers) {
      int64_t at = 0;
      for (const HomedRun& run : ruler.runs) {
        EXPECT_EQ(run.elements.first, at) << "without gaps";
        at = run.elements.end();
        const RankList& homes = had.begin()->second.homes[static_cast<size_t>(run.homes)];
        if (std::find(homes.begin(), homes.end(), Rank{3}) != homes.end())
          held += run.elements.count;
      }
      elements += at;
    }
    for (const Move& move : moves.moves) {
      EXPECT_EQ(move.part, (PartId{0, 0, 0}));
      EXPECT_EQ(move.to, Rank{3});
      moved += move.elements.count;
      if (move.source != Move::Source::kRank) {
        checkpoint += move.elements.count;
        continue;
      }
      ADD_FAILURE() << "nobody else is left";
    }
    EXPECT_EQ(held + moved, elements);
    EXPECT_GT(held, 0);
    EXPECT_EQ(checkpoint, moved);
    EXPECT_EQ(moves.bytes, moved * 12);
  }
}

}  // namespace
}  // namespace phalanx::plan

// Layouts that a loss leaves behind train as the plain model does.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/oracle/training/cases.h"

namespace phalanx::oracle {
namespace {

using job::ScheduleName;
using support::AJob;
using support::Layout;

struct LossCase {
  NamedJob job;
  plan::RankList lost;
};

class LossTest : public testing::TestWithParam<LossCase> {};

TEST_P(LossTest, ReplicasThatAreLeft_EqualThePlainModel) {
  ExpectEqualsPlain(GetParam().job, GetParam().lost);
}

// Of modules that lose whole replicas; the batch stays.
std::vector<LossCase> Dropped() {
  const auto language = [](const Layout& layout) {
    return LanguageAlone(layout, {.tied_head = layout.pp > 1}).Batch(8, 2);
  };
  const auto two = [](const Layout& vision, const Layout& language) {
    return VisionAndLanguage(vision, language).Batch(8, 2);
  };
  std::vector<LossCase> cases;
  const auto add = [&](const std::string& name, AJob job, std::vector<int32_t> lost) {
    job.spec().recovery.ladder = {job::Rung::kDropReplica};
    LossCase made{.job = Named(name, std::move(job))};
    for (const int32_t rank : lost) made.lost.push_back(Rank{rank});
    cases.push_back(std::move(made));
  };
  add("first_of_dp3", language({.dp = 3}), {0});
  add("all_but_one_of_dp4", language({.dp = 4}), {0, 1, 3});
  add("tensor_rank_of_tp2_dp3", language({.tp = 2, .dp = 3}), {3});
  add("stage_of_pp2_dp3_tied", language({.dp = 3, .pp = 2}), {1});
  add("two_stages_of_pp2_dp3", language({.dp = 3, .pp = 2}), {0, 5});
  add("interleaved_pp2_dp2", language({.dp = 2, .pp = 2}).Schedule(ScheduleName::kInterleaved, 2),
      {3});
  add("zero_bubble_v_pp2_dp2", language({.dp = 2, .pp = 2}).Schedule(ScheduleName::kZeroBubbleV),
      {2});
  add("encoder_apart", two({.dp = 3}, {.dp = 2}), {1});
  add("encoder_apart_both", two({.dp = 3}, {.dp = 2}), {0, 4});
  add("encoder_beside", two({.dp = 4, .offset = 0}, {.tp = 2, .dp = 2, .offset = 0}), {2});
  add("encoder_beside_stages",
      two({.dp = 4, .offset = 0}, {.dp = 2, .pp = 2, .offset = 0})
          .Schedule(ScheduleName::kZeroBubbleH1),
      {3});
  add("encoder_beside_three_phase",
      two({.dp = 4, .offset = 0}, {.dp = 2, .pp = 2, .offset = 0})
          .Schedule(ScheduleName::kThreePhase),
      {0});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Dropped, LossTest, testing::ValuesIn(Dropped()),
                         [](const auto& info) { return info.param.job.name; });

}  // namespace
}  // namespace phalanx::oracle

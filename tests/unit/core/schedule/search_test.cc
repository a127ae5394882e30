#include "core/schedule/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/violation.h"
#include "core/job/job_reader.h"
#include "core/posix/beside.h"
#include "core/schedule/admission.h"
#include "core/schedule/memory_peak.h"
#include "core/schedule/preview.h"
#include "core/schedule/profile_cost.h"
#include "core/schedule/search_setting.h"
#include "core/schedule/simulator.h"
#include "core/schedule/work_model.h"
#include "tests/support/profiles.h"
#include "tests/unit/core/schedule/plans.h"
#include "tests/unit/core/schedule/searches.h"

namespace phalanx::schedule {
namespace {

using job::ScheduleName;
using searches::Decoder;
using searches::LargeWithEncoder;
using searches::Search;
using searches::Shape;
using searches::SteadyH200;
using searches::WithEncoder;
using support::AJob;
using support::Llama;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Not;

double StepOf(const job::JobSpec& spec, const DeviceProfile& profile, int32_t items = 1) {
  const plan::Plan plan = PlanOf(spec);
  const auto simulation = SimulatePlan(plan, CostFromProfile(plan, profile, items));
  EXPECT_TRUE(simulation.ok());
  return simulation->step;
}

TEST(SearchTest, PredictStep_OfAProposal_IsItsStep) {
  DeviceProfile profile = SteadyH200();
  profile.unestimated_bytes = 1'000'000;
  const SearchResult result =
      Search(LargeWithEncoder(), {.devices = 4, .profile = profile, .items = 4});
  for (const Proposal& proposal : result.best) {
    const auto prediction = PredictStep(PlanOf(proposal.spec), profile, 4);
    ASSERT_TRUE(prediction.ok()) << prediction.status();
    EXPECT_DOUBLE_EQ(prediction->step, proposal.step) << Shape(proposal.spec);
    int64_t most = 0;  // with what is tried and taken before and beside steps
    for (const MemoryPeak& peak : EstimatePeaks(PlanOf(proposal.spec), {.items = 4}))
      most = std::max(most, peak.total());
    EXPECT_EQ(prediction->memory.total(), most + 1'000'000);
    EXPECT_LE(MemoryOf(PlanOf(proposal.spec), {.items = 4}) + 1'000'000, proposal.memory)
        << "which holds whatever samples come";
    EXPECT_EQ(prediction->device_kind, "h200");
  }
}

TEST(SearchTest, PredictStep_OfFewerItemsAndLabels_IsOfTheMemoryThatTheyTake) {
  const DeviceProfile profile = SteadyH200();
  job::JobSpec spec = LargeWithEncoder();
  spec.recovery.state_copies = 1;  // no rank takes room for copies of others
  const auto memory = [&](int32_t items, double labelled_share) {
    spec.batch.labelled_share = labelled_share;
    const auto prediction = PredictStep(PlanOf(spec), profile, items);
    EXPECT_TRUE(prediction.ok()) << prediction.status();
    EXPECT_EQ(prediction->memory.rank, Rank{1});
    return prediction->memory.peak.step.total();
  };
  EXPECT_LT(memory(1, 1), memory(2, 1));
  EXPECT_LT(memory(1, 0.5), memory(1, 1));
}

TEST(SearchTest, PredictStep_OfAnUnknownShape_NamesTheModule) {
  const absl::Status status = PredictStep(Chain(1, 1), SteadyH200(), 1).status();
  ASSERT_EQ(ViolationsOf(status).size(), 1u) << status;
  EXPECT_EQ(ViolationsOf(status).front().field, "spec.modules[0].architecture");
}

TEST(SearchTest, Search_ThatIsToldToStop_LooksAtNothingMore) {
  const job::JobSpec spec = WithEncoder();
  SearchOptions options{.devices = 4, .device_memory = int64_t{8} << 30};
  const SearchResult alone = Search(spec, options);
  int64_t asked = 0;
  options.go_on = [&asked] {
    ++asked;
    return absl::OkStatus();
  };
  const SearchResult whole = Search(spec, options);
  ASSERT_EQ(whole.best.size(), alone.best.size());
  for (size_t i = 0; i < whole.best.size(); ++i) {
    EXPECT_EQ(Shape(whole.best[i].spec), Shape(alone.best[i].spec));
    EXPECT_EQ(whole.best[i].step, alone.best[i].step);
  }
  const int64_t all = asked;
  EXPECT_GE(all, whole.layouts + whole.simulated) << "before each of them";
  // While bounds are worked out, while plans are made, and while the last of the best is admitted.
  for (const int64_t last : {int64_t{1}, whole.layouts + 2, all}) {
    asked = 0;
    options.go_on = [&asked, last] {
      return ++asked < last ? absl::OkStatus() : absl::CancelledError("nobody waits");
    };
    EXPECT_EQ(SearchLayouts(spec, options).status(), absl::CancelledError("nobody waits"));
    EXPECT_EQ(asked, last);
  }
}

TEST(SearchTest, Search_WithBounds_FindsWhatTryingAllFinds) {
  for (const job::JobSpec& spec : {Decoder(), Decoder(6), WithEncoder()}) {
    for (const int32_t devices : {1, 2, 3, 4, 6}) {
      for (const DeviceProfile& profile :
           {NominalProfile(), SteadyH200(), support::Powered(SteadyH200(), 650, 1980)}) {
        SearchOptions options{.devices = devices, .profile = profile};
        const SearchResult quick = Search(spec, options);
        options.use_bounds = false;
        const SearchResult all = Search(spec, options);
        ASSERT_EQ(quick.best.size(), all.best.size());
        EXPECT_EQ(quick.layouts, all.layouts);
        EXPECT_LE(quick.simulated, all.simulated);
        for (size_t i = 0; i < all.best.size(); ++i) {
          EXPECT_EQ(quick.best[i].step, all.best[i].step) << devices << " " << i;
          EXPECT_EQ(Shape(quick.best[i].spec), Shape(all.best[i].spec)) << devices << " " << i;
        }
      }
    }
  }
}

// Written without anything that the search uses to find its way.
TEST(SearchTest, Search_OneModule_IsNoSlowerThanAnythingThatCanBePlanned) {
  const DeviceProfile profile = SteadyH200();
  for (const int32_t devices : {2, 3, 4}) {
    const SearchResult found = Search(Decoder(), {.devices = devices, .profile = profile});
    double least = 1e9;
    for (int32_t tp = 1; tp <= devices; ++tp) {
      for (int32_t pp = 1; pp <= 4 && tp * pp <= devices; ++pp) {
        if (devices % (tp * pp) != 0) continue;
        for (const int64_t micro : {1, 2, 4, 8}) {
          for (const ScheduleName name :
               {ScheduleName::k1F1B, ScheduleName::kZeroBubbleH1, ScheduleName::kZeroBubbleV}) {
            AJob job;
            job.Module("language", Llama({.layers = 4}),
                       {.tp = tp, .dp = devices / tp / pp, .pp = pp})
                .Batch(8, micro)
                .Schedule(name);
            const bool vee = name == ScheduleName::kZeroBubbleV;
            if ((vee && (pp < 2 || 2 * pp > 4)) || micro > 8 * tp * pp / devices) continue;
            least = std::min(least, StepOf(job, profile));
          }
        }
      }
    }
    EXPECT_LE(found.best.front().step, least * kNearlyEqual) << devices;
  }
}

TEST(SearchTest, Search_StepOfAProposal_IsThatOfItsPlan) {
  for (const job::JobSpec& spec : {Decoder(), WithEncoder()}) {
    for (const Proposal& proposal : Search(spec, {.devices = 4, .profile = SteadyH200()}).best) {
      EXPECT_NEAR(StepOf(proposal.spec, SteadyH200()), proposal.step, proposal.step * 1e-9)
          << Shape(proposal.spec);
      const StepParts& parts = proposal.parts;
      EXPECT_NEAR(parts.compute + parts.recompute + parts.tensor + parts.waiting + parts.update,
                  proposal.step, proposal.step * 1e-9);
    }
  }
}

TEST(SearchTest, Search_Proposals_AreSortedDifferentAndCanBeSubmitted) {
  const SearchResult found = Search(WithEncoder(), {.devices = 4});
  std::set<std::string> shapes;
  ASSERT_EQ(found.best.size(), 10u);
  EXPECT_TRUE(std::is_sorted(found.best.begin() + 1, found.best.end(),
                             [](const auto& a, const auto& b) { return a.step < b.step; }));
  EXPECT_LE(found.best[0].step, found.best[1].step * kNearlyEqual);
  for (const Proposal& proposal : found.best) {
    EXPECT_EQ(proposal.slower.empty(), &proposal == &found.best.front());
    EXPECT_TRUE(shapes.insert(Shape(proposal.spec)).second);
    EXPECT_LE(proposal.spec.World(), 4);
    const auto read = job::ReadJobSpec(job::WriteJobSpec(proposal.spec), job::Purpose::kPlan);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(job::ActedText(read->spec), job::ActedText(proposal.spec));
    EXPECT_TRUE(AdmitJob(proposal.spec, plan::MakeCluster(1, 4), {}, Epoch{1}).ok());
  }
}

// Counts the threads that looks are given to.
SearchThreads Counted(size_t count, std::atomic<size_t>& helped) {
  return {count, [&helped](size_t threads, absl::FunctionRef<void(size_t)> run) {
            RunBeside(threads, [&](size_t thread) {
              helped += thread > 0 ? 1 : 0;
              run(thread);
            });
          }};
}

// Of more layouts than are looked at at once, and of memory that has admission lower the fastest:
// what comes behind them is looked at again.
TEST(SearchTest, Search_TwiceAndByAnyNumberOfThreads_IsTheSame) {
  SearchOptions options{
      .devices = 6, .device_memory = int64_t{60} << 30, .profile = SteadyH200(), .items = 4};
  const SearchResult a = Search(LargeWithEncoder(), options);
  EXPECT_GT(a.layouts, 64);
  EXPECT_GT(a.simulated, 20);
  for (const size_t threads : {1, 3, 64}) {
    std::atomic<size_t> helped = 0;
    options.threads = Counted(threads, helped);
    const SearchResult b = Search(LargeWithEncoder(), options);
    EXPECT_EQ(helped > 0, threads > 1);
    EXPECT_EQ(a.simulated, b.simulated);
    EXPECT_EQ(a.too_large, b.too_large);
    ASSERT_EQ(a.best.size(), b.best.size());
    for (size_t i = 0; i < a.best.size(); ++i) {
      EXPECT_EQ(a.best[i].step, b.best[i].step);
      EXPECT_EQ(a.best[i].memory, b.best[i].memory);
      EXPECT_EQ(a.best[i].slower, b.best[i].slower);
      EXPECT_EQ(job::ActedText(a.best[i].spec), job::ActedText(b.best[i].spec));
    }
  }
}

TEST(SearchTest, Search_WithAScheduleThatNoLayoutCanHave_NamesDegreesAsThoseOfTheFirst) {
  job::JobSpec spec = Decoder();
  spec.schedule = {.name = ScheduleName::kInterleaved, .chunks = 2};
  EXPECT_THAT(
      ViolationsOf(SearchLayouts(spec, {.devices = 1, .keep_written = true}).status()),
      ElementsAre(Violation{.field = "spec.modules[0].parallel",
                            .rule = "none of 1 layout on 1 device can be submitted; the "
                                    "first has pp 1: interleaved needs at least 2 stages"}));
}

TEST(SearchTest, Search_ThatFindsNothing_SaysTheSameByAnyNumberOfThreads) {
  SearchOptions options{.devices = 4, .device_memory = int64_t{1} << 30, .items = 4};
  const absl::Status alone = SearchLayouts(LargeWithEncoder(), options).status();
  EXPECT_THAT(std::string(alone.message()), HasSubstr("fits the memory of each"));
  std::atomic<size_t> helped = 0;
  options.threads = Counted(3, helped);
  EXPECT_EQ(SearchLayouts(LargeWithEncoder(), options).status(), alone);
  EXPECT_GT(helped, 0);
}

TEST(SearchTest, Search_ByThreadsThatAreNotToBeHad_LooksAlone) {
  SearchOptions options{.devices = 4, .profile = SteadyH200()};
  const SearchResult alone = Search(WithEncoder(), options);
  int64_t asked = 0;
  options.threads = {8, [&asked](size_t, absl::FunctionRef<void(size_t)> run) {
                       ++asked;
                       run(0);
                     }};
  const SearchResult by_many = Search(WithEncoder(), options);
  EXPECT_GT(asked, 0);
  EXPECT_EQ(by_many.simulated, alone.simulated);
  EXPECT_EQ(Shape(by_many.best.front().spec), Shape(alone.best.front().spec));
}

TEST(SearchTest, Search_ByManyThreads_IsStoppedByTheCallersAnswer) {
  std::atomic<size_t> helped = 0;
  SearchOptions options{
      .devices = 4, .device_memory = int64_t{8} << 30, .threads = Counted(4, helped)};
  const std::thread::id caller = std::this_thread::get_id();
  int64_t asked = 0;
  options.go_on = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++asked;
    return absl::OkStatus();
  };
  const SearchResult whole = Search(WithEncoder(), options);
  ASSERT_GT(asked, whole.layouts) << "the caller looks at the first of them";
  for (const int64_t last : {int64_t{1}, whole.layouts + 1}) {
    asked = 0;
    options.go_on = [&asked, last] {
      return ++asked < last ? absl::OkStatus() : absl::UnavailableError("nobody waits");
    };
    EXPECT_EQ(SearchLayouts(WithEncoder(), options).status(),
              absl::UnavailableError("nobody waits"));
  }
}

TEST(SearchTest, Search_EncoderAndDecoderOnAFewLargeDevices_PutsBothInDataParallelOnAll) {
  const SearchResult found = Search(
      LargeWithEncoder(),
      {.devices = 4, .device_memory = int64_t{141} << 30, .profile = SteadyH200(), .items = 4});
  EXPECT_EQ(Shape(found.best.front().spec), "0+4 tp1 pp1 dp4; 0+4 tp1 pp1 dp4; ");
  for (const Proposal& proposal : found.best) EXPECT_LE(proposal.memory, int64_t{141} << 30);
}

TEST(SearchTest, Search_UnknownShape_IsRefused) {
  const auto result = SearchLayouts(
      AJob().Module("language", support::NoArchitecture(4)).Batch(4, 1), {.devices = 2});
  EXPECT_EQ(ViolationsOf(result.status()).front().field, "spec.modules[0].architecture");
}

TEST(SearchTest, Search_WrittenModules_KeepTheirLayout) {
  job::JobSpec spec = WithEncoder();
  spec.modules[0].parallel.ranks = spec.modules[0].parallel.dp = 2;
  spec.modules[0].parallel.expt_dp = 2;
  spec.batch.micro = 2;
  spec.modules[1].recompute = job::Recompute::kSelective;
  for (const Proposal& proposal :
       Search(spec, {.devices = 4, .open = {false, true}, .keep_written = true}).best) {
    EXPECT_EQ(proposal.spec.modules[0].parallel.dp, 2);
    EXPECT_EQ(proposal.spec.modules[0].parallel.tp, 1);
    EXPECT_LE(proposal.spec.batch.micro, 2);
    EXPECT_GE(proposal.spec.modules[1].recompute, job::Recompute::kSelective);
  }
}

// A layout with which the largest micro batch does not go may have a smaller one.
TEST(SearchTest, Search_ScheduleThatNeedsMicrobatches_GetsThem) {
  job::JobSpec spec = WithEncoder();
  spec.batch.micro = 4;
  spec.schedule = {.name = ScheduleName::kThreePhase, .encoder_chunks = 4};
  const SearchResult found =
      Search(spec, {.devices = 2, .open = {true, true}, .keep_written = true});
  EXPECT_FALSE(found.best.empty());
  for (const Proposal& proposal : found.best) {
    EXPECT_EQ(proposal.spec.schedule.encoder_chunks, 4) << Shape(proposal.spec);
    EXPECT_GE(PlanOf(proposal.spec).microbatches, 4) << Shape(proposal.spec);
  }
}

TEST(SearchTest, Search_TensorGroups_StayWithinANode) {
  const SearchResult found = Search(Decoder(), {.devices = 8, .node_devices = 2, .best = 1000});
  EXPECT_THAT(found.best.size(), Gt(4u));
  for (const Proposal& proposal : found.best) EXPECT_LE(proposal.spec.modules[0].parallel.tp, 2);
}

TEST(SearchTest, Search_Reasons_SayWhereTheTimeGoes) {
  const SearchResult found =
      Search(LargeWithEncoder(), {.devices = 4, .profile = SteadyH200(), .items = 4, .best = 100});
  bool waits = false, exchanges = false;
  for (const Proposal& proposal : found.best) {
    waits |= proposal.slower.find("ranks wait") == 0;
    exchanges |= proposal.slower.find("tensor ranks exchange") == 0;
    EXPECT_THAT(proposal.slower, Not(HasSubstr("-")));
  }
  EXPECT_TRUE(waits);
  EXPECT_TRUE(exchanges);
}

TEST(SearchTest, WhySlower_OfShortSteps_SaysWhereTheTimeGoesToo) {
  Proposal faster, slower;
  faster.step = 40e-6;
  slower.step = 44e-6;
  slower.parts.compute = 4e-6;
  EXPECT_EQ(WhySlower(faster, slower), "its busiest rank computes 0.0040 ms longer");
  faster.step = 0.6;
  slower.step = 0.6 + 4e-6;
  EXPECT_EQ(WhySlower(faster, slower), "takes as long, with no less memory");
}

}  // namespace
}  // namespace phalanx::schedule

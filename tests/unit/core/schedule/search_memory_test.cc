// What a search makes of memory that is short: what fits, and what admission would lower.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/schedule/admission.h"
#include "core/schedule/process_memory.h"
#include "core/schedule/search_setting.h"
#include "tests/unit/core/schedule/searches.h"

namespace phalanx::schedule {
namespace {

using searches::Decoder;
using searches::LargeWithEncoder;
using searches::Search;
using searches::Shape;
using searches::SteadyH200;
using ::testing::HasSubstr;

// Of memory that is short second homes move, and admission lowers what it has to.
TEST(SearchMemoryTest, Search_WithBoundsAndLittleMemory_FindsWhatTryingAllFinds) {
  for (const int64_t gib : {28, 36, 48, 60}) {
    SearchOptions options{
        .devices = 4, .device_memory = gib << 30, .profile = SteadyH200(), .items = 4};
    const SearchResult quick = Search(LargeWithEncoder(), options);
    options.use_bounds = false;
    const SearchResult all = Search(LargeWithEncoder(), options);
    ASSERT_EQ(quick.best.size(), all.best.size());
    for (size_t i = 0; i < all.best.size(); ++i)
      EXPECT_EQ(quick.best[i].step, all.best[i].step) << gib << " GiB, place " << i;
  }
}

// Behind a loss those that are left hold more, and admission lowers what would not fit then.
TEST(SearchMemoryTest, Search_Proposals_RunAsTheyAreRanked) {
  const DeviceProfile profile = SteadyH200();
  for (const int64_t gib : {60, 80, 141}) {
    const int64_t memory = gib << 30;
    const SearchResult found =
        Search(LargeWithEncoder(),
               {.devices = 4, .device_memory = memory, .profile = profile, .items = 4});
    for (const Proposal& proposal : found.best) {
      const auto plan = AdmitJob(proposal.spec, plan::MakeCluster(1, 4),
                                 {.devices = std::vector<int64_t>(4, memory)}, Epoch{1});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(plan->layout.micro, 0) << gib << " " << Shape(proposal.spec);
      for (const plan::ModuleLayout& module : plan->layout.modules)
        EXPECT_FALSE(module.recompute.has_value()) << gib << " " << Shape(proposal.spec);
      EXPECT_EQ(MemoryOf(*plan) + profile.unestimated_bytes, proposal.memory)
          << gib << " " << Shape(proposal.spec);
      const auto measured = Measure(*plan, profile, 4);
      ASSERT_TRUE(measured.ok()) << measured.status();
      EXPECT_DOUBLE_EQ(measured->step, proposal.step) << gib << " " << Shape(proposal.spec);
    }
  }
}

// What no estimate counts has its place on a device, too.
TEST(SearchMemoryTest, Search_Proposals_FitWithWhatNoEstimateCounts) {
  DeviceProfile profile = SteadyH200();
  profile.unestimated_bytes = int64_t{12} << 30;
  const int64_t memory = int64_t{72} << 30;
  const SearchResult found = Search(
      LargeWithEncoder(), {.devices = 4, .device_memory = memory, .profile = profile, .items = 4});
  ASSERT_FALSE(found.best.empty());
  for (const Proposal& proposal : found.best)
    EXPECT_LE(proposal.memory, memory) << Shape(proposal.spec);
  const int64_t left = memory - std::exchange(profile.unestimated_bytes, 0);
  const SearchResult smaller = Search(
      LargeWithEncoder(), {.devices = 4, .device_memory = left, .profile = profile, .items = 4});
  EXPECT_EQ(found.best.front().step, smaller.best.front().step);
}

// More ranks to talk to take more of a device.
TEST(SearchMemoryTest, Search_Proposals_FitWithTheCommunicatorsOfTheirPlans) {
  DeviceProfile profile = SteadyH200();
  profile.process = FindProfile("h200")->process;
  profile.process->communicators->wide.each_peer = int64_t{4} << 30;
  profile.unestimated_bytes = FindProfile("h200")->unestimated_bytes;
  int32_t beyond = 0;
  for (const int64_t gib : {40, 48, 60, 80}) {
    const int64_t memory = gib << 30;
    const SearchResult found =
        Search(LargeWithEncoder(),
               {.devices = 8, .device_memory = memory, .profile = profile, .items = 4});
    for (const Proposal& proposal : found.best) {
      SCOPED_TRACE(absl::StrCat(gib, " ", Shape(proposal.spec)));
      EXPECT_LE(proposal.memory, memory);
      const auto plan =
          AdmitJob(proposal.spec, plan::MakeCluster(1, 8),
                   {.devices = std::vector<int64_t>(8, memory)}, Epoch{1}, BesideOf(profile));
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(Measure(*plan, profile, 4)->step, proposal.step);
      const ProcessMemory most = MostMemory(*plan, profile, {}, memory);
      // What is prepared for losses is left out where there is no room for it.
      const int64_t beside = *most.context + *most.communicators;
      EXPECT_LE(most.peak.step.total() + beside, memory);
      beyond += beside > profile.unestimated_bytes;
    }
  }
  EXPECT_GT(beyond, 0) << "which this test is about";
}

TEST(SearchMemoryTest, Search_WhereAdmissionLowersTheFastest_ProposesWhatItWouldGive) {
  const DeviceProfile profile = SteadyH200();
  const job::JobSpec spec = LargeWithEncoder();
  SearchOptions options{.devices = 2, .profile = profile, .items = 4};
  const Proposal free = Search(spec, options).best.front();
  // As much as the fastest takes as it is written, and nothing for what is left behind a loss.
  options.device_memory = free.memory;
  const plan::MemoryLimits limits{.devices = std::vector<int64_t>(2, free.memory), .nodes = {}};
  const auto lowered = AdmitJob(free.spec, plan::MakeCluster(1, 2), limits, Epoch{1});
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  ASSERT_NE(lowered->layout.micro, 0) << "which this test is about";
  const auto as_run = Measure(*lowered, profile, 4);
  ASSERT_TRUE(as_run.ok()) << as_run.status();
  const Proposal best = Search(spec, options).best.front();
  EXPECT_LE(best.step, as_run->step * kNearlyEqual);
  EXPECT_GE(best.step * kNearlyEqual, free.step);
}

// Those that are lowered least are not always among the ten that are fastest as written.
TEST(SearchMemoryTest, Search_BestTen_AreTheBestOfAllThatWouldBeAdmitted) {
  for (const int64_t gib : {48, 50, 60}) {
    SearchOptions options{
        .devices = 4, .device_memory = gib << 30, .profile = SteadyH200(), .items = 4};
    const SearchResult ten = Search(LargeWithEncoder(), options);
    options.best = 1000;
    const SearchResult all = Search(LargeWithEncoder(), options);
    ASSERT_EQ(ten.best.size(), 10);
    ASSERT_GT(all.best.size(), 10);
    for (size_t i = 0; i < ten.best.size(); ++i)
      EXPECT_EQ(ten.best[i].step, all.best[i].step) << gib << " GiB, place " << i;
  }
}

// As admission has them, of jobs that leave open where they are, once microbatches are of one
// sample.
TEST(SearchMemoryTest, Search_SecondHomesThatFitInHostMemoryAlone_AreThere) {
  job::JobSpec spec = LargeWithEncoder();
  SearchOptions options{.devices = 4, .profile = SteadyH200(), .items = 4};
  const auto best = [&](job::StateHome home) {
    spec.recovery.state_home = home;
    double step = 1e9;
    const auto found = SearchLayouts(spec, options);
    if (!found.ok()) return step;
    for (const Proposal& proposal : found->best) {
      if (home != job::StateHome::kHost || proposal.spec.batch.micro == 1)
        step = std::min(step, proposal.step);
    }
    return step;
  };
  int32_t gained = 0;
  for (const int64_t gib : {24, 28, 32, 36, 40, 48, 56}) {
    options.device_memory = gib << 30;
    const double open = best(job::StateHome::kAuto);
    EXPECT_LE(open, best(job::StateHome::kHost) * 1.001) << gib;
    gained += best(job::StateHome::kMirror) > 1.01 * open ? 1 : 0;
  }
  EXPECT_GT(gained, 1) << "which this test is about";
}

// What is known to be too large before it is planned is, in each type.
TEST(SearchMemoryTest, Search_WhatJustFits_IsFoundInEveryType) {
  for (const job::Precision compute : {job::Precision::kBf16, job::Precision::kFp32}) {
    job::JobSpec spec = LargeWithEncoder();
    spec.compute = compute;
    spec.batch.global = 4;
    SearchOptions options{.devices = 1};
    options.device_memory = Search(spec, options).best.front().memory;
    const auto again = SearchLayouts(spec, options);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->best.front().memory, options.device_memory);
  }
}

TEST(SearchMemoryTest, Search_Proposals_SurviveWhatTheirPlansSay) {
  int32_t any = 0, some = 0;
  for (const int64_t gib : {36, 48, 60, 141}) {
    const int64_t memory = gib << 30;
    const SearchResult found =
        Search(LargeWithEncoder(),
               {.devices = 4, .device_memory = memory, .profile = SteadyH200(), .items = 4});
    for (const Proposal& proposal : found.best) {
      const auto plan =
          AdmitJob(proposal.spec, plan::MakeCluster(1, proposal.spec.World()),
                   {.devices = std::vector<int64_t>(4, memory)}, Epoch{1}, BesideOf(SteadyH200()));
      ASSERT_TRUE(plan.ok()) << plan.status();
      const bool costs = std::any_of(
          plan->notes.begin(), plan->notes.end(),
          [](const std::string& note) { return note.find("losing device") != note.npos; });
      EXPECT_EQ(proposal.survives != Survived::kAny, costs) << gib << " " << Shape(proposal.spec);
      ++(costs ? some : any);
    }
  }
  EXPECT_GT(any, 0);
  EXPECT_GT(some, 0);
}

// Also where the ten fastest survive none.
TEST(SearchMemoryTest, Search_Choice_IsWhatSurvivesMostOfThoseThatAreHardlySlower) {
  int32_t slower = 0;
  for (int64_t gib = 40; gib <= 64; gib += 4) {
    SearchOptions options{
        .devices = 6, .device_memory = gib << 30, .profile = SteadyH200(), .items = 4, .best = 3};
    const SearchResult three = Search(LargeWithEncoder(), options);
    options.best = 1000;
    const SearchResult all = Search(LargeWithEncoder(), options);
    double fastest = all.best.front().step;
    for (const Proposal& proposal : all.best) fastest = std::min(fastest, proposal.step);
    Survived most = Survived::kNone;
    for (const Proposal& proposal : all.best) {
      if (proposal.step <= fastest * kWorthALoss) most = std::max(most, proposal.survives);
    }
    const Proposal& choice = three.best.front();
    EXPECT_EQ(choice.survives, most) << gib;
    EXPECT_EQ(choice.step, all.best.front().step) << gib;
    EXPECT_LE(choice.step, fastest * kWorthALoss) << gib;
    slower += choice.step > fastest * kNearlyEqual ? 1 : 0;
  }
  EXPECT_GT(slower, 0) << "which this test is about";
}

TEST(SearchMemoryTest, Search_LessMemory_TakesWhatFits) {
  const SearchOptions large{.devices = 4, .profile = SteadyH200(), .items = 4};
  SearchOptions small = large;
  small.device_memory = int64_t{60} << 30;
  const SearchResult a = Search(LargeWithEncoder(), large), b = Search(LargeWithEncoder(), small);
  EXPECT_GT(a.best.front().memory, small.device_memory);
  EXPECT_LE(b.best.front().memory, small.device_memory);
  EXPECT_GT(b.best.front().step, a.best.front().step);
}

TEST(SearchMemoryTest, Search_MemoryThatNoEstimateCounts_IsNeededToo) {
  SearchOptions options{.devices = 2, .profile = SteadyH200(), .items = 4};
  const int64_t estimated = Search(LargeWithEncoder(), options).best.front().memory;
  options.profile.unestimated_bytes = int64_t{3} << 30;
  EXPECT_EQ(Search(LargeWithEncoder(), options).best.front().memory,
            estimated + (int64_t{3} << 30));
}

TEST(SearchMemoryTest, Search_NothingFits_SaysSo) {
  const auto result =
      SearchLayouts(LargeWithEncoder(), {.devices = 2, .device_memory = int64_t{8} << 30});
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("layouts on 2 devices fits the memory of each, 8.0 GiB: the smallest needs "
                        "at least "));
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("; try more devices, or devices of more memory"));
}

// Else it would say that less is needed than there is.
TEST(SearchMemoryTest, Search_NothingFitsBesideWhatNoEstimateCounts_SaysHowMuchIsNeeded) {
  DeviceProfile profile = NominalProfile();
  profile.unestimated_bytes = int64_t{2} << 30;
  const auto result = SearchLayouts(
      Decoder(), {.devices = 2, .device_memory = int64_t{1} << 30, .profile = profile});
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("fits the memory of each, 1.0 GiB: the smallest needs at least 2.0 GiB"));
}

// However much memory there is: it would say so for ever.
TEST(SearchMemoryTest, Search_OfWhatCouldNotBeSubmitted_SaysWhy_NotHowMuchMemoryItTakes) {
  job::JobSpec spec = Decoder();
  spec.recovery.state_copies = 1;
  int64_t memory = 0;  // with which no layout is too large of which one home would be kept
  for (const Proposal& proposal : Search(spec, {.devices = 2}).best)
    memory = std::max(memory, proposal.memory);
  spec.recovery.state_copies = 3;
  const auto result = SearchLayouts(spec, {.devices = 2, .device_memory = memory});
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("spec.recovery.state_copies: 3: may not exceed "));
}

}  // namespace
}  // namespace phalanx::schedule

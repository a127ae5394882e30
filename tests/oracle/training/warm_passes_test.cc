// What ranks run before the first step of an epoch for the sake of kernels alone.
#include "worker/train/warm_passes.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/oracle/training/cases.h"
#include "tests/oracle/training/epochs.h"
#include "tests/oracle/training/harness.h"
#include "worker/comm/communicator.h"
#include "worker/train/executor.h"
#include "worker/train/warm_up.h"

namespace phalanx::oracle {
namespace {

using support::AJob;
using support::Layout;

class WarmPassesTest : public testing::Test {
 protected:
  void Make(const Layout& layout, int64_t batch) {
    AJob job = AJob().Module("language", TinyLanguage({.layers = 2}), layout).Batch(batch, 2);
    job.spec().recovery.ladder = {job::Rung::kShrink, job::Rung::kDropReplica};
    NamedJob named = Named("warm", std::move(job));
    named.spec.steps = 20;
    epochs_.emplace(named.spec, named.data);
    epochs_->RunSteps(1);
  }
  // Microbatches that each rank's process has run alone.
  std::vector<int64_t> Alone() const {
    std::vector<int64_t> counts;
    for (int32_t rank = 0; rank < epochs_->world(); ++rank)
      counts.push_back(epochs_->warm(rank).microbatches());
    return counts;
  }
  std::vector<int64_t> Programs() const {
    std::vector<int64_t> counts;
    for (int32_t rank = 0; rank < epochs_->world(); ++rank)
      counts.push_back(epochs_->warm(rank).programs());
    return counts;
  }

  std::optional<EpochsInProcess> epochs_;
};

using Counts = std::vector<int64_t>;

TEST_F(WarmPassesTest, NewProcesses_RunEveryMicrobatchAndTheProgramOnce) {
  Make({.dp = 2}, 6);  // a replica's microbatches: of two samples, and of one
  EXPECT_EQ(Alone(), (Counts{2, 2}));
  EXPECT_EQ(Programs(), (Counts{1, 1}));
  epochs_->RunSteps(1);  // another epoch of the same layout
  EXPECT_EQ(Alone(), (Counts{2, 2}));
  EXPECT_EQ(Programs(), (Counts{1, 1}));
}

TEST_F(WarmPassesTest, LossOfAReplicaAndItsReturn_NobodyWhoWasThereRunsAnything) {
  Make({.dp = 3, .pp = 2}, 12);
  const Counts before = Alone();
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  Counts after = before;
  after[1] = 0;  // another process, which has run nothing
  EXPECT_EQ(Alone(), after);
  ASSERT_TRUE(epochs_->ReturnAll());
  epochs_->RunSteps(1);
  after[1] = 1;  // its one shape, of whatever microbatch
  EXPECT_EQ(Alone(), after);
  // The program only where it was run first.
  EXPECT_EQ(Programs(), (Counts{1, 0, 1, 1, 1, 1}));
}

TEST_F(WarmPassesTest, LossOfAllWhoRanTheProgram_IsNoReasonToRunItAgain) {
  Make({.dp = 2}, 12);
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  ASSERT_TRUE(epochs_->ReturnAll());
  epochs_->RunSteps(1);
  ASSERT_TRUE(epochs_->Lose({Rank{0}}));
  epochs_->RunSteps(1);
  EXPECT_EQ(Alone()[1], 1) << "before its first epoch";
  EXPECT_EQ(Programs(), (Counts{0, 0}));
}

TEST_F(WarmPassesTest, NarrowerStage_OnlyWhoeverHasNewShapesRunsThem) {
  Make({.tp = 2, .dp = 2}, 12);
  const Counts before = Alone();
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  EXPECT_GT(Alone()[0], before[0]) << "its matrices are of another width";
  EXPECT_EQ(Alone()[2], before[2]);
  EXPECT_EQ(Alone()[3], before[3]);
  const Counts narrow = Alone();
  ASSERT_TRUE(epochs_->ReturnAll());
  epochs_->RunSteps(1);
  // It has a tensor group again, and has nobody of it run with it.
  EXPECT_EQ(Alone()[1], 1);
  EXPECT_EQ(Alone()[0], narrow[0]);
  ASSERT_TRUE(epochs_->Lose({Rank{1}}));
  epochs_->RunSteps(1);
  EXPECT_EQ(Alone()[0], narrow[0]) << "it has run those shapes before";
  EXPECT_EQ(Programs(), (Counts{1, 0, 1, 1}));
}

// Products of matrices that LibTorch is asked for on this thread: which one, of which shapes.
class Products {
 public:
  Products()
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(&See).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    seen().clear();
  }
  ~Products() { at::removeCallback(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  static std::set<std::string>& seen() {
    thread_local std::set<std::string> products;
    return products;
  }

 private:
  static std::unique_ptr<at::ObserverContext> See(const at::RecordFunction& call) {
    std::string product = call.name();
    if (!absl::StrContains(product, "mm")) return nullptr;
    for (const c10::IValue& input : call.inputs()) {
      if (input.isTensor())
        absl::StrAppend(&product, " [", absl::StrJoin(input.toTensor().sizes(), ", "), "]");
    }
    seen().insert(std::move(product));
    return nullptr;
  }

  const at::CallbackHandle handle_;
};

// A kernel that is loaded in a step waits for messages, and so may the peers' (decision 0011).
TEST(RunPassesAloneTest, EveryProductOfAStep_HasBeenRun) {
  AJob builder = AJob()
                     .Module("vision", TinyVision(), {.offset = 0})
                     .Module("language", TinyLanguage({.layers = 2}), {.offset = 0})
                     .Edge("vision", "language", {.projector = 20})
                     .Batch(4, 2);
  const NamedJob job = Named("products", std::move(builder));
  const auto plan = PlanWithout(job.spec, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto source = MakeData(job.data);
  const auto state = train::TrainingState::Create(
      *plan, Rank{0}, {.compute = train::ComputeType(job.spec.compute)});
  ASSERT_TRUE(state.ok());
  comm::InProcessWorld world(1);
  comm::Communicators communicators = world.Connect(plan::Communicators(*plan), Rank{0});
  const auto executor = train::Executor::Create(*plan, Rank{0}, communicators, **state);
  ASSERT_TRUE(executor.ok()) << executor.status();
  train::Batches batches(*plan, (*executor)->places(), *source, at::kCPU,
                         train::ComputeType(job.spec.compute), /*length_multiple=*/1);
  const std::vector<train::Microbatch> microbatches = batches.OfStep(1);
  batches.Announce(microbatches, {});
  std::set<std::string> alone, step;
  {
    const Products products;
    train::WarmPasses warm;
    ASSERT_EQ(
        (*executor)->RunPassesAlone(batches, microbatches, train::Executor::Passes::kEvery, warm),
        absl::OkStatus());
    alone = Products::seen();
  }
  {
    const Products products;
    ASSERT_EQ((*executor)->RunUndecided(batches, microbatches), absl::OkStatus());
    step = Products::seen();
  }
  EXPECT_FALSE(step.empty());
  std::vector<std::string> missing;
  std::set_difference(step.begin(), step.end(), alone.begin(), alone.end(),
                      std::back_inserter(missing));
  EXPECT_TRUE(missing.empty()) << absl::StrJoin(missing, "\n");
}

// A new process, before it has peers: what it would run of the plan's first step.
TEST(WarmUpAloneTest, EveryRankOfAGraph_RunsItsShapesOnce) {
  AJob builder = AJob()
                     .Module("vision", TinyVision(), {.dp = 2})
                     .Module("language", TinyLanguage({.layers = 4}), {.tp = 2, .dp = 2, .pp = 2})
                     .Edge("vision", "language", {.projector = 20})
                     .Batch(6, 2);
  const NamedJob job = Named("alone", std::move(builder));
  const auto plan = PlanWithout(job.spec, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto source = MakeData(job.data);
  for (Rank rank{0}; rank.value < plan->world; ++rank.value) {
    SCOPED_TRACE(rank.value);
    train::WarmPasses warm;
    for (int32_t time = 0; time < 2; ++time) {
      const auto state = train::TrainingState::CreateEmpty(
          *plan, rank, {.compute = train::ComputeType(job.spec.compute)});
      ASSERT_TRUE(state.ok());
      EXPECT_EQ(train::WarmUpAlone(*plan, rank, *source, **state, 1, warm), absl::OkStatus());
      EXPECT_EQ(warm.microbatches(), 2) << "of two samples, and of one";
    }
    EXPECT_FALSE(warm.program());
  }
}

// Lists of labelled rows are filled up as on a GPU.
TEST(WarmUpAloneTest, WhoeverHasTheLoss_RunsAMicrobatchWithTheLongestListToo) {
  const NamedJob job = Named(
      "labelled", AJob().Module("language", TinyLanguage({.layers = 2}), {.pp = 2}).Batch(4, 2));
  const auto plan = PlanWithout(job.spec, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (Rank rank{0}; rank.value < plan->world; ++rank.value) {
    train::WarmPasses warm;
    for (int32_t time = 0; time < 2; ++time) {
      const auto state = train::TrainingState::CreateEmpty(
          *plan, rank, {.compute = train::ComputeType(job.spec.compute)});
      ASSERT_TRUE(state.ok());
      EXPECT_EQ(train::WarmUpAlone(*plan, rank, *MakeData(job.data), **state,
                                   /*length_multiple=*/8, warm),
                absl::OkStatus());
      EXPECT_EQ(warm.microbatches(), rank.value == 0 ? 1 : 2) << rank.value;
    }
  }
}

TEST(WarmUpAloneTest, RequestToStop_EndsIt) {
  const NamedJob job = Named("stopped", AJob().Module("language", TinyLanguage()).Batch(2, 1));
  const auto plan = PlanWithout(job.spec, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto state = train::TrainingState::CreateEmpty(
      *plan, Rank{0}, {.compute = train::ComputeType(job.spec.compute)});
  ASSERT_TRUE(state.ok());
  (*state)->RequestStop();
  train::WarmPasses warm;
  const absl::Status ended =
      train::WarmUpAlone(*plan, Rank{0}, *MakeData(job.data), **state, 1, warm);
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_EQ(warm.microbatches(), 0);
}

}  // namespace
}  // namespace phalanx::oracle

// Rank processes that are assigned epoch after epoch, stopped at any moment or left by a peer.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "core/plan/derivation.h"
#include "gtest/gtest.h"
#include "tests/e2e/rank/rank_world.h"
#include "tests/support/files.h"

namespace phalanx::e2e {
namespace {

constexpr int32_t kStops = 200;
constexpr int64_t kMessagesMax = 40;  // of all ranks in an epoch, before it is stopped

JobOptions Job(const std::string& output) {
  return {.steps = kForEver,
          .precision = "fp64",
          .vision = "ranks: 1",
          .language = "ranks: 4, tp: 2",
          .output = output};
}

// What the coordinator makes of what ranks say of themselves.
v1::EpochBegins BeginsOf(const RankWorld::Said& said) {
  v1::EpochBegins begins;
  for (const auto& [rank, quiet] : said.quiet) {
    if (quiet.decision().step() <= begins.decision().step()) continue;
    *begins.mutable_decision() = quiet.decision();
    begins.set_updates(quiet.updates());
    begins.set_skipped_in_a_row(quiet.skipped_in_a_row());
  }
  return begins;
}

// What a rank keeps in its daemon's memory outlives it, however it ends: of the last step that all
// ranks have a copy of, each has one.
TEST(RankEpochsTest, KilledRank_LeavesAWholeCopyOfItsState) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("copied"));
  world.Begin(std::nullopt);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& so_far) { return so_far.steps.size() >= 12; });
  for (int32_t rank = 0; rank < world.size(); ++rank) world.Kill(rank);
  std::map<int64_t, std::set<int32_t>> ranks_with;  // a copy of a step
  for (const auto& [rank, bytes] : said.host_bytes) {
    for (const checkpoint::HostCopyHeader& copy : world.HostCopies(rank, bytes)) {
      EXPECT_EQ(copy.rank, rank);
      EXPECT_EQ(copy.bytes, bytes - checkpoint::kHostCopyPage);
      ranks_with[copy.step].insert(rank);
    }
  }
  // Vision has one replica, so all that trains is copied, though those of language mirror each
  // other.
  int64_t newest = 0;
  for (const auto& [step, ranks] : ranks_with) {
    if (static_cast<int32_t>(ranks.size()) == world.size()) newest = step;
  }
  EXPECT_GE(newest, 8);
}

TEST(RankEpochsTest, NoMemoryForASecondHome_IsAnEventOrTheEndOfAJobThatAskedForIt) {
  const DataFolder data = MakeData();
  {
    RankWorld world(data, Job("without"));
    world.RefuseHostMemory();
    world.Begin(std::nullopt);
    const RankWorld::Said said =
        world.Await([](const RankWorld::Said& so_far) { return so_far.steps.size() >= 3; });
    ASSERT_EQ(static_cast<int32_t>(said.events.size()), world.size());
    for (const auto& event : said.events) {
      EXPECT_EQ(event.type(), "NoSecondHome");
      EXPECT_NE(event.message().find(" needs two host buffers of "), std::string::npos)
          << event.message();
    }
    EXPECT_EQ(world.Stop().quiet.at(0).copied(), 0);
  }
  JobOptions asked = Job("asked");
  asked.recovery = "{state_home: host}";
  RankWorld world(data, asked);
  world.RefuseHostMemory();
  world.Begin(std::nullopt);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& so_far) { return !so_far.errors.empty(); });
  EXPECT_EQ(said.errors.begin()->second.kind(), v1::FAILURE_KIND_OUT_OF_MEMORY);
  EXPECT_NE(said.errors.begin()->second.message().find("needs two host buffers of "),
            std::string::npos);
}

// Once it trained to its last step first.
TEST(RankEpochsTest, NoMemoryForASecondHomeMadeBesideTraining_EndsAJobThatAskedForItAtOnce) {
  const DataFolder data = MakeData();
  JobOptions asked = Job("asked");
  asked.recovery = "{state_home: host}";
  RankWorld world(data, asked);
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& so_far) { return so_far.steps.size() >= 3; });
  const v1::EpochBegins begins = BeginsOf(world.Stop());
  world.RefuseHostMemory();
  world.Begin(begins);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& so_far) { return !so_far.errors.empty(); });
  EXPECT_EQ(said.errors.begin()->second.kind(), v1::FAILURE_KIND_OUT_OF_MEMORY)
      << said.errors.begin()->second.message();
}

TEST(RankEpochsTest, StoppedAnywhereAndAssignedAgain_TrainAsIfNothingHadHappened) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("broken"));
  std::optional<v1::EpochBegins> begins;
  Prng prng(11);
  RankWorld::Footprint early;
  int32_t before_ready = 0;
  for (int32_t stop = 0; stop < kStops; ++stop) {
    world.Begin(begins);
    const auto messages = static_cast<int64_t>(prng.Below(kMessagesMax));
    world.Await([&](const RankWorld::Said& said) { return said.messages >= messages; });
    const RankWorld::Said said = world.Stop();
    const auto size = static_cast<size_t>(world.size());
    ASSERT_EQ(said.quiet.size(), size) << "stop " << stop << " after " << messages;
    before_ready += said.ready.size() < size ? 1 : 0;
    for (const auto& [rank, error] : said.errors) {
      EXPECT_FALSE(error.has_accused_rank())
          << "stop " << stop << ": rank " << rank << ": " << error.message();
    }
    const v1::EpochBegins now = BeginsOf(said);
    if (now.decision().step() > (begins.has_value() ? begins->decision().step() : 0)) begins = now;
    if (stop == kStops / 4) early = world.Now();
  }
  // What an epoch held is let go behind its last word.
  RankWorld::Footprint late = world.Now();
  const absl::Time patience = absl::Now() + absl::Seconds(20);
  while ((late.descriptors > early.descriptors || late.threads > early.threads) &&
         absl::Now() < patience) {
    late = world.Now();
  }
  EXPECT_LE(late.descriptors, early.descriptors);
  EXPECT_LE(late.threads, early.threads);
  EXPECT_LE(late.resident_bytes, early.resident_bytes + world.size() * (int64_t{4} << 20));
  EXPECT_GT(before_ready, 0) << "some stops came while the ranks met";
  EXPECT_LT(before_ready, kStops / 2);
  ASSERT_TRUE(begins.has_value());
  world.Begin(begins);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 3; });
  world.Stop();
  for (int32_t rank = 0; rank < world.size(); ++rank) EXPECT_EQ(world.Quit(rank), 0) << rank;

  const std::vector<Metric> broken = MetricsOf(data, "broken");
  ASSERT_EQ(StepsFault(broken, static_cast<int64_t>(broken.size())), "");
  RankWorld another(data, Job("unbroken"));
  another.Begin(std::nullopt);
  // Some steps at a time, so that a busy machine has patience for each of them.
  for (size_t steps = 0; steps < broken.size();) {
    steps = std::min(steps + 10, broken.size());
    another.Await([steps](const RankWorld::Said& said) { return said.steps.size() >= steps; });
  }
  another.Stop();
  const std::vector<Metric> unbroken = MetricsOf(data, "unbroken");
  ASSERT_GE(unbroken.size(), broken.size());
  for (size_t i = 0; i < broken.size(); ++i)
    EXPECT_NEAR(broken[i].loss, unbroken[i].loss, 1e-9 * unbroken[i].loss) << "step " << i + 1;
}

TEST(RankEpochsTest, StandbyCommunicators_AreMadeBesideTrainingAndTakenByTheNextEpoch) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("standby"));
  const auto size = static_cast<size_t>(world.size());
  const auto all_answered = [size](const RankWorld::Said& said) {
    return said.standby.size() == size;
  };
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  world.PrepareStandby("standby/1/a");
  const RankWorld::Said made = world.Await(all_answered);
  for (const auto& [rank, standby] : made.standby) {
    EXPECT_EQ(standby.set(), "standby/1/a");
    EXPECT_EQ(standby.error(), "") << "rank " << rank;
  }
  const size_t steps = made.steps.size();
  world.Await([steps](const RankWorld::Said& said) { return said.steps.size() > steps; });
  const v1::EpochBegins begins = BeginsOf(world.Stop());
  world.Begin(begins, [](v1::RunEpoch& run) { run.mutable_assign()->set_standby("standby/1/a"); });
  const RankWorld::Said next =
      world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 3; });
  EXPECT_TRUE(next.keys.empty()) << *next.keys.begin() << ": ranks met anew";
  EXPECT_TRUE(next.errors.empty());
  const v1::EpochBegins then = BeginsOf(world.Stop());
  // They are gone, and no rank waits for others that have none.
  world.Begin(then, [](v1::RunEpoch& run) { run.mutable_assign()->set_standby("standby/1/a"); });
  const RankWorld::Said without =
      world.Await([size](const RankWorld::Said& said) { return said.quiet.size() == size; });
  ASSERT_EQ(without.errors.size(), size);
  for (const auto& [rank, error] : without.errors) {
    EXPECT_EQ(error.kind(), v1::FAILURE_KIND_PEER_LOST);
    EXPECT_FALSE(error.has_accused_rank()) << "rank " << rank << ": " << error.message();
    EXPECT_TRUE(world.lives(rank));
  }
  world.Begin(then);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  world.Stop();
  for (int32_t rank = 0; rank < world.size(); ++rank) EXPECT_EQ(world.Quit(rank), 0) << rank;
}

// One rank is stopped while they are made: the others are not kept from leaving the epoch.
TEST(RankEpochsTest, StandbyCommunicatorsUnderWay_HoldUpNobodyWhoLeaves) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("standby-stopped"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  ASSERT_EQ(kill(world.pid(1), SIGSTOP), 0);
  world.PrepareStandby("standby/1/a");
  world.Await(
      [](const RankWorld::Said& said) { return said.keys.contains("standby/1/a/0/here/0"); });
  ASSERT_EQ(kill(world.pid(1), SIGCONT), 0);
  const RankWorld::Said left = world.Stop();
  EXPECT_EQ(static_cast<int32_t>(left.quiet.size()), world.size());
  for (const auto& [rank, quiet] : left.quiet) EXPECT_EQ(quiet.layout_epoch(), left.epoch);
  world.Begin(BeginsOf(left));
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  const RankWorld::Said next = world.Stop();
  EXPECT_GT(next.epoch, left.epoch);
  for (const auto& [rank, quiet] : next.quiet) EXPECT_EQ(quiet.layout_epoch(), next.epoch);
}

TEST(RankEpochsTest, RanksThatConnectBesideTraining_LeaveItOnceAllAreConnected) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("beside"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  for (int32_t rank = 0; rank + 1 < world.size(); ++rank) world.OrderBeside(rank);
  const size_t before =
      world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 3; }).steps.size();
  const RankWorld::Said training = world.Await(
      [before](const RankWorld::Said& said) { return said.steps.size() >= before + 10; });
  EXPECT_TRUE(training.quiet.empty()) << "one is not connected";
  world.OrderBeside(world.size() - 1);
  const auto size = static_cast<size_t>(world.size());
  const RankWorld::Said left = world.Await([size](const RankWorld::Said& said) {
    return said.quiet.size() == size && said.stopped.size() == size;
  });
  const v1::EpochBegins begins = BeginsOf(left);
  for (const auto& [rank, quiet] : left.quiet) {
    EXPECT_EQ(quiet.begun(), begins.decision().step()) << "rank " << rank << " broke one off";
  }
  world.GoOver(begins);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 5; });
  world.Stop();
  const std::vector<Metric> metrics = MetricsOf(data, "beside");
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
  for (int32_t rank = 0; rank < world.size(); ++rank) EXPECT_EQ(world.Quit(rank), 0) << rank;
}

// Nobody leaves with it for an epoch that does not come about.
TEST(RankEpochsTest, RankThatCannotConnectBesideTraining_LeavesItAlone) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("beside-in-vain"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  for (int32_t rank = 1; rank < world.size(); ++rank) world.OrderBeside(rank);
  world.OrderBeside(0, [](v1::RunEpoch& run) { run.mutable_assign()->set_plan_digest("another"); });
  const auto size = static_cast<size_t>(world.size());
  const RankWorld::Said said =
      world.Await([size](const RankWorld::Said& s) { return s.errors.size() == size; });
  EXPECT_NE(said.errors.at(0).message().find("another"), std::string::npos);
  for (const auto& [rank, error] : said.errors) {
    if (rank == 0) continue;
    EXPECT_EQ(error.kind(), v1::FAILURE_KIND_PEER_LOST) << rank << ": " << error.message();
    EXPECT_FALSE(error.has_accused_rank()) << rank;
  }
}

TEST(RankEpochsTest, SurvivorsOfAPeersDeath_SayWhatTheySawAndServeAnotherEpoch) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("out"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 3; });
  world.Kill(2);
  const RankWorld::Said said = world.Await(
      [&](const RankWorld::Said& s) { return s.quiet.size() + 1 == size_t(world.size()); });
  const v1::EpochBegins begins = BeginsOf(said);
  EXPECT_GE(begins.decision().step(), 3);
  for (const auto& [rank, error] : said.errors) {
    EXPECT_EQ(error.kind(), v1::FAILURE_KIND_PEER_LOST)
        << "rank " << rank << ": " << error.message();
  }
  for (const auto& [rank, quiet] : said.quiet) {
    EXPECT_NE(rank, 2);
    EXPECT_TRUE(quiet.context_ok());
    EXPECT_GE(quiet.decision().step(), begins.decision().step() - 1);
    for (const auto& home : quiet.homes()) EXPECT_GE(home.applied(), begins.decision().step() - 1);
    EXPECT_TRUE(world.lives(rank));
  }

  world.Restart(2);
  world.Begin(std::nullopt);  // from the beginning: what rank 2 held is lost
  const RankWorld::Said again =
      world.Await([](const RankWorld::Said& s) { return s.steps.size() >= 3; });
  EXPECT_EQ(again.steps[0].step(), 1);
  EXPECT_TRUE(again.errors.empty());
}

// Its daemon was out of reach when a later epoch opened the output folder: it writes nothing, and
// keeps its state for what comes.
TEST(RankEpochsTest, RankOfAnEpochThatIsOver_LeavesTheOutputFolderAlone) {
  const DataFolder data = MakeData();
  JobOptions options = Job("fenced");
  options.vision = "";
  options.language = "ranks: 1";
  RankWorld world(data, options);
  const auto planned_at = [](int64_t fence) {
    return [fence](v1::RunEpoch& run) { run.mutable_assign()->set_fence(fence); };
  };
  world.Begin(std::nullopt, planned_at(30));
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  const v1::EpochBegins begins = BeginsOf(world.Stop());
  const size_t lines = MetricsOf(data, "fenced").size();
  for (const std::optional<v1::EpochBegins>& from : {std::optional(begins), {}}) {
    world.Begin(from, planned_at(20));
    const RankWorld::Said said =
        world.Await([](const RankWorld::Said& s) { return !s.quiet.empty(); });
    ASSERT_EQ(said.errors.size(), 1u);
    const v1::RankError& error = said.errors.at(0);
    EXPECT_EQ(error.kind(), v1::FAILURE_KIND_PEER_LOST) << error.message();
    EXPECT_FALSE(error.has_accused_rank());
    EXPECT_NE(error.message().find("may not write to the output folder"), std::string::npos)
        << error.message();
    EXPECT_EQ(MetricsOf(data, "fenced").size(), lines);
  }
  world.Begin(begins, planned_at(40));
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  world.Stop();
  const std::vector<Metric> metrics = MetricsOf(data, "fenced");
  EXPECT_GT(metrics.size(), lines);
  EXPECT_EQ(StepsFault(metrics, static_cast<int64_t>(metrics.size())), "");
}

// What takes long is done by the time that it is known from where.
TEST(RankEpochsTest, EpochThatGoesOn_IsConnectedBeforeItIsToldFromWhere) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("early"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  const v1::EpochBegins begins = BeginsOf(world.Stop());
  world.Begin(std::nullopt, [](v1::RunEpoch& run) { run.mutable_assign()->set_goes_on(true); });
  for (int32_t rank = 0; rank < world.size(); ++rank) {
    world.AwaitLog(rank, absl::StrCat("epoch=2 rank=", rank, " data: "));
    world.AwaitLog(rank, absl::StrCat("epoch=2 rank=", rank, " is connected after "));
  }
  world.TellBegin(begins);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& so_far) { return !so_far.steps.empty(); });
  EXPECT_EQ(said.steps.at(0).step(), begins.decision().step() + 1);
}

// A rank of another version would run other programs than its peers, which wait for each other
// then.
// Whether it has warmed up or not when the epoch comes.
TEST(RankEpochsTest, ProcessThatIsToldToWarmUp_RunsTheEpochThatComes) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("warm"));
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return !said.steps.empty(); });
  for (const bool awaits : {true, false}) {
    world.Kill(1);
    world.Restart(1);
    world.WarmUp(1);
    if (awaits) world.Await([](const RankWorld::Said& said) { return said.warmed.contains(1); });
    world.Begin(std::nullopt);
    const RankWorld::Said said =
        world.Await([](const RankWorld::Said& so_far) { return so_far.steps.size() >= 3; });
    EXPECT_EQ(said.steps.at(2).step(), 3);
  }
}

TEST(RankEpochsTest, LayoutOfAnotherDerivation_IsRefusedNamingBoth) {
  const DataFolder data = MakeData();
  RankWorld world(data, Job("out"));
  world.Begin(std::nullopt, [](v1::RunEpoch& run) {
    run.mutable_assign()->mutable_layout()->set_derivation(plan::kDerivation + 1);
  });
  const RankWorld::Said said = world.Await(
      [&](const RankWorld::Said& s) { return s.errors.size() == size_t(world.size()); });
  for (const auto& [rank, error] : said.errors) {
    EXPECT_EQ(error.kind(), v1::FAILURE_KIND_VERSION_MISMATCH) << "rank " << rank;
    EXPECT_EQ(
        error.message().find(absl::StrCat("the layout is of derivation ", plan::kDerivation + 1,
                                          ", this rank's program of ", plan::kDerivation)),
        0u)
        << error.message();
  }
}

TEST(RankEpochsTest, StateOfAnotherStoresJob_IsNotGoneOnFrom) {
  const DataFolder data = MakeData();
  JobOptions options = Job("out");
  options.vision = "";
  options.language = "ranks: 1";
  RankWorld world(data, options);
  world.Begin(std::nullopt);
  world.Await([](const RankWorld::Said& said) { return said.steps.size() >= 2; });
  const v1::EpochBegins begins = BeginsOf(world.Stop());
  world.Begin(begins,
              [](v1::RunEpoch& run) { run.set_store(2); });  // the same number, layout and rank
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.errors.empty(); });
  EXPECT_NE(said.errors.at(0).message().find("no process of the job holds state of step"),
            std::string::npos)
      << said.errors.at(0).message();
}

// One rank, which validates.
JobOptions ValidatedAlone() {
  JobOptions options = Job("out");
  options.vision = "";
  options.language = "ranks: 1";
  options.validation = true;
  return options;
}

// What that rank says of an epoch that is ordered with `alter`.
v1::RankError ErrorOf(const std::function<void(v1::RunEpoch&)>& alter) {
  const DataFolder data = MakeData();
  RankWorld world(data, ValidatedAlone());
  world.Begin(std::nullopt, alter);
  return world.Await([](const RankWorld::Said& s) { return !s.errors.empty(); }).errors.at(0);
}

TEST(RankEpochsTest, DataThatIsGone_IsDataUnavailable) {
  const v1::RankError gone = ErrorOf([](v1::RunEpoch& run) {
    std::filesystem::remove(run.validation_index());
    for (const auto& entry :
         std::filesystem::directory_iterator(run.assign().document().directory())) {
      if (entry.path().extension() == ".tar") std::filesystem::remove(entry.path());
    }
  });
  EXPECT_EQ(gone.kind(), v1::FAILURE_KIND_DATA_UNAVAILABLE) << gone.message();
}

// Somebody has cleared the daemon's folder.
TEST(RankEpochsTest, IndexesThatAreGoneOrDamaged_AreMadeUpForByTheShards) {
  const DataFolder data = MakeData();
  RankWorld world(data, ValidatedAlone());
  world.Begin(std::nullopt, [](v1::RunEpoch& run) {
    std::filesystem::remove(run.data_index());
    support::WriteFile(run.validation_index(), "no index");
  });
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.steps.empty() || !s.errors.empty(); });
  EXPECT_TRUE(said.errors.empty()) << said.errors.begin()->second.message();
  EXPECT_NE(world.Log(0).find(" is gone: the shards are read again"), std::string::npos);
}

TEST(RankEpochsTest, LayoutOfAnotherVersion_IsThat) {
  const v1::RankError error = ErrorOf([](v1::RunEpoch& run) {
    run.mutable_assign()->mutable_layout()->set_schedule("next_years");
  });
  EXPECT_EQ(error.kind(), v1::FAILURE_KIND_VERSION_MISMATCH) << error.message();
}

TEST(RankEpochsTest, ProcessWithoutTheState_RefusesToGoOnFromIt) {
  const DataFolder data = MakeData();
  JobOptions options = Job("out");
  options.vision = "";
  options.language = "ranks: 1";
  RankWorld world(data, options);
  v1::EpochBegins begins;
  begins.mutable_decision()->set_step(5);
  begins.mutable_decision()->set_verdict(v1::StepDecision::EMPTY);
  world.Begin(begins);
  const RankWorld::Said said =
      world.Await([](const RankWorld::Said& s) { return !s.errors.empty(); });
  EXPECT_NE(said.errors.at(0).message().find("no process of the job holds state of step 5"),
            std::string::npos)
      << said.errors.at(0).message();
  EXPECT_NE(said.errors.at(0).kind(), v1::FAILURE_KIND_PEER_LOST);
}

}  // namespace
}  // namespace phalanx::e2e

#include "coordinator/runtime/board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/wire/ended_codec.h"

namespace phalanx::coordinator {
namespace {

using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobViewPtr View(int64_t id, JobPhase phase, const std::string& name = "a") {
  auto request = std::make_shared<JobRequest>();
  request->name = name;
  return std::make_shared<const JobView>(
      JobView{.id = JobId{id}, .request = request, .phase = phase});
}

std::shared_ptr<EndedJobs> NoEndedJobs() {
  return MemoryBackend(std::make_shared<MemoryDisk>()).ended_jobs();
}

std::vector<JobPhase> TakeAll(Subscription& subscription) {
  std::vector<JobPhase> phases;
  while (auto update = subscription.Take()) phases.push_back(update->job->phase);
  return phases;
}

TEST(BoardTest, Find_ByName_GivesTheNewest) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kFailed)});
  board.Publish(PublishJob{View(2, JobPhase::kQueued)});
  board.Publish(PublishJob{View(1, JobPhase::kFailed)});
  EXPECT_EQ((*board.Find("a"))->id, JobId{2});
  EXPECT_EQ((*board.Find("job-1"))->id, JobId{1});
  EXPECT_EQ(board.Find("3").status().code(), absl::StatusCode::kNotFound);
}

TEST(BoardTest, Find_ByANumberWithASign_IsNoJob) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kQueued)});
  EXPECT_EQ((*board.Find("1"))->id, JobId{1});
  for (const char* other : {"+1", "job-+1", "-1", "job--1", " 1", "job- 1", ""})
    EXPECT_EQ(board.Find(other).status().code(), absl::StatusCode::kNotFound) << other;
}

TEST(BoardTest, Devices_AreCountedByWhoHasThem_AndByTheirChecks) {
  Board board;
  board.Connect(NoEndedJobs());
  auto check = std::make_shared<job::NodeCheck>();
  check->devices.push_back({.device = 0, .verdict = job::CheckVerdict::kPassed});
  check->devices.push_back({.device = 1, .verdict = job::CheckVerdict::kFailed});
  NodeView node{.name = "a",
                .connected = true,
                .device_jobs = {JobId{7}, JobId{7}, JobId{}, JobId{}},
                .failed_devices = {1, 2},
                .check = check};
  board.Publish(PublishNode{std::make_shared<const NodeView>(node)});
  NodeView spares{.name = "b",
                  .connected = true,
                  .device_jobs = {JobId{7}, JobId{}, JobId{}},
                  .reserve = ReserveMark{.reason = "spares"}};
  board.Publish(PublishNode{std::make_shared<const NodeView>(spares)});
  const NodeMark mark{.reason = "repair"};
  for (const bool connected : {true, false}) {
    NodeView cordoned{.name = connected ? "c" : "d",
                      .connected = connected,
                      .device_jobs = {JobId{7}, JobId{}},
                      .mark = mark};
    board.Publish(PublishNode{std::make_shared<const NodeView>(cordoned)});
  }
  board.Publish(PublishNode{std::make_shared<const NodeView>(NodeView{.name = "e"})});
  board.Publish(
      PublishHeartbeat{"a", absl::FromUnixSeconds(1'700'000'000), {41, 0, 63, 50}, {9, 0, -1, 7}});
  Gauges gauges;
  board.Count(gauges);
  EXPECT_EQ(gauges.devices_reserved, 2) << "one is lent";
  EXPECT_EQ(gauges.nodes_ready, 2);
  EXPECT_EQ(gauges.nodes_cordoned, 2) << "connected or not";
  EXPECT_EQ(gauges.nodes_disconnected, 1);
  EXPECT_EQ(gauges.devices_cordoned, 1) << "of the one that is there, what no job has";
  EXPECT_EQ(gauges.devices_used, 4) << "a job that goes on with a failed one has it";
  EXPECT_EQ(gauges.devices_failed, 1);
  EXPECT_EQ(gauges.devices_free, 1);
  EXPECT_EQ(gauges.checks[job::CheckVerdict::kPassed], 1);
  EXPECT_EQ(gauges.checks[job::CheckVerdict::kFailed], 1);
  EXPECT_EQ(gauges.warmest_celsius, 63);
  EXPECT_THAT(board.Nodes().at(0).device_temperatures, ElementsAre(41, 0, 63, 50));
  EXPECT_THAT(board.Nodes().at(0).device_used_memory, ElementsAre(9, 0, -1, 7));
  EXPECT_THAT(board.Nodes().at(0).failed_devices, ElementsAre(1, 2));
}

TEST(BoardTest, SuspendedJobs_AreThoseThatWaitInTheQueue) {
  Board board;
  board.Connect(NoEndedJobs());
  int64_t id = 0;
  for (const JobPhase phase : {JobPhase::kQueued, JobPhase::kRunning}) {
    for (const bool suspended : {true, false}) {
      ++id;
      JobView view = *View(id, phase, absl::StrCat("job", id));
      view.suspended = suspended;
      board.Publish(PublishJob{std::make_shared<const JobView>(view)});
    }
  }
  Gauges gauges;
  board.Count(gauges);
  EXPECT_EQ(gauges.jobs_suspended, 1);
  EXPECT_EQ(gauges.jobs[JobPhase::kQueued], 2);
}

TEST(BoardTest, SeriesOfJobs_AreBounded_AndOfTheNewest) {
  Board board;
  board.Connect(NoEndedJobs());
  const auto count = static_cast<int64_t>(kJobSeriesMax) + 44;
  for (int64_t id = 1; id <= count; ++id) {
    JobView view = *View(id, JobPhase::kRunning, absl::StrCat("job", id));
    view.last_step = StepReport{.step = id};
    board.Publish(PublishJob{std::make_shared<const JobView>(view)});
  }
  Gauges gauges;
  board.Count(gauges);
  ASSERT_EQ(gauges.running.size(), kJobSeriesMax);
  EXPECT_EQ(gauges.running.front().job, absl::StrCat("job", count));
  EXPECT_EQ(gauges.running.back().job, "job45");
  EXPECT_EQ(gauges.jobs[JobPhase::kRunning], count);
}

TEST(BoardTest, Nodes_AreThoseBehindAName_OrTheOneOfThatName) {
  Board board;
  board.Connect(NoEndedJobs());
  for (const char* name : {"b", "a", "d"}) {
    board.Publish(PublishNode{
        std::make_shared<const NodeView>(NodeView{.name = name, .device_jobs = {JobId{7}}})});
  }
  board.Publish(PublishHeartbeat{"c", absl::FromUnixSeconds(1'700'000'000), {41}, {9}});
  const auto names = [&board](size_t count, const NodeName& after) {
    std::vector<NodeName> found;
    for (const NodeView& node : board.Nodes(count, after)) found.push_back(node.name);
    return found;
  };
  EXPECT_THAT(names(2, ""), ElementsAre("a", "b"));
  EXPECT_THAT(names(2, "b"), ElementsAre("d")) << "c has only been heard of";
  EXPECT_THAT(names(9, "aa"), ElementsAre("b", "d"));
  EXPECT_THAT(names(9, "d"), ElementsAre());
  ASSERT_TRUE(board.FindNode("d").has_value());
  EXPECT_EQ(board.FindNode("d")->name, "d");
  EXPECT_FALSE(board.FindNode("c").has_value());
  EXPECT_FALSE(board.FindNode("e").has_value());
}

TEST(BoardTest, NodesWithoutFp8_AreCountedAsNodesComeChangeAndGo) {
  Board board;
  const auto publish = [&board](const NodeName& name, const std::string& fp8,
                                job::DeviceKind kind = job::DeviceKind::kGpu) {
    NodeView node{.name = name, .device_kind = kind};
    if (!fp8.empty()) node.labels["phalanx/fp8"] = fp8;
    board.Publish(PublishNode{std::make_shared<const NodeView>(std::move(node))});
  };
  const auto count = [&board] {
    const Fp8Nodes nodes = board.Fp8();
    return std::pair(static_cast<int>(nodes.gpu_nodes), static_cast<int>(nodes.without));
  };
  using ::testing::Pair;
  EXPECT_THAT(count(), Pair(0, 0));
  publish("cpu", "no", job::DeviceKind::kCpu);
  board.Publish(PublishHeartbeat{.node = "silent"});
  EXPECT_THAT(count(), Pair(0, 0)) << "neither is known to have GPUs";
  publish("silent", "");
  EXPECT_THAT(count(), Pair(1, 0));
  for (const char* name : {"e", "d", "c", "b", "a"}) publish(name, "no");
  publish("a", "no");
  EXPECT_THAT(count(), Pair(6, 5));
  EXPECT_THAT(board.Fp8().names, ElementsAre("a", "b", "c", "d"));
  publish("a", "yes");
  publish("b", "no", job::DeviceKind::kCpu);
  EXPECT_THAT(count(), Pair(5, 3));
  for (const char* name : {"c", "silent", "nobody", "cpu"}) board.Publish(RetractNode{name});
  EXPECT_THAT(count(), Pair(3, 2));
  EXPECT_THAT(board.Fp8().names, ElementsAre("d", "e"));
  NodeView named{.name = "d", .device_kind = job::DeviceKind::kGpu};
  named.labels["phalanx/fp8"] = "no";
  named.device_names = {"NVIDIA A100-SXM4-80GB", ""};
  board.Publish(PublishNode{std::make_shared<const NodeView>(std::move(named))});
  EXPECT_THAT(board.Fp8().names, ElementsAre("d: NVIDIA A100-SXM4-80GB", "e"));
}

TEST(BoardTest, DataShapes_AreTheLastOfEachSet_AndTheOldestAreForgotten) {
  Board board;
  EXPECT_EQ(board.DataShapeOf("a"), std::nullopt);
  board.Publish(PublishDataShape{"a", {.items = 1, .labelled_share = 0.5}});
  board.Publish(PublishDataShape{"a", {.items = 4, .labelled_share = 0.25}});
  EXPECT_EQ(board.DataShapeOf("a"), (job::DataShape{.items = 4, .labelled_share = 0.25}));
  for (size_t i = 0; i < kDataShapesMax; ++i)
    board.Publish(PublishDataShape{absl::StrCat("set-", i), {}});
  EXPECT_EQ(board.DataShapeOf("a"), std::nullopt);
  EXPECT_TRUE(board.DataShapeOf("set-0").has_value());
}

TEST(BoardTest, SlowDevices_AreOfTheirNodesWhileTheirJobsNameThem) {
  Board board;
  board.Connect(NoEndedJobs());
  for (const char* name : {"a", "b"}) {
    board.Publish(PublishNode{std::make_shared<const NodeView>(
        NodeView{.name = name, .connected = true, .device_jobs = {JobId{7}, JobId{7}}})});
  }
  const auto publish = [&board](std::vector<SlowDevice> slow) {
    JobView view = *View(7, JobPhase::kRunning);
    view.slow_devices = std::move(slow);
    board.Publish(PublishJob{std::make_shared<const JobView>(view)});
  };
  const SlowDevice slow{
      .job = JobId{7}, .rank = 3, .node = "b", .device = 1, .seconds = 3, .others_seconds = 1};
  publish({slow, {.job = JobId{7}, .node = "gone"}});
  EXPECT_TRUE(board.Nodes().at(0).slow_devices.empty());
  EXPECT_THAT(board.Nodes().at(1).slow_devices, ElementsAre(slow));
  Gauges gauges;
  board.Count(gauges);
  EXPECT_EQ(gauges.devices_slow, 2);
  publish({});
  EXPECT_TRUE(board.Nodes().at(1).slow_devices.empty());
  gauges = {};
  board.Count(gauges);
  EXPECT_EQ(gauges.devices_slow, 0);
}

TEST(BoardTest, DamagedEntry_IsListedAsSuchAmongTheOthersAndRefusedByItself) {
  auto disk = std::make_shared<MemoryDisk>();
  MemoryBackend backend(disk);
  EndedState sound;
  sound.view = *View(2, JobPhase::kSucceeded, "sound");
  const EndedJob damaged{.job = JobId{1},
                         .name = "damaged",
                         .phase = JobPhase::kFailed,
                         .ended = absl::FromUnixSeconds(1'700'000'000),
                         .summary = "\x01\x02\x03\x04\x05\x06\x07\x08\xFF"};
  ASSERT_TRUE(backend
                  .Commit({.ended = {damaged,
                                     {.job = JobId{2},
                                      .name = "sound",
                                      .phase = JobPhase::kSucceeded,
                                      .summary = EncodeSummary(sound)}}})
                  .ok());
  Board board;
  board.Connect(backend.ended_jobs());
  const auto jobs = *board.List(JobId{10}, 10);
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0]->request->name, "sound");
  EXPECT_EQ(jobs[1]->request->name, "damaged");
  EXPECT_EQ(jobs[1]->phase, JobPhase::kFailed);
  EXPECT_TRUE(jobs[1]->damaged);
  EXPECT_FALSE(jobs[0]->damaged);
  EXPECT_THAT(jobs[1]->reason, HasSubstr("the summary of job-1 has the checksum"));
  EXPECT_EQ(*board.IdOf("damaged"), JobId{1}) << "it can be deleted";
  EXPECT_EQ(*board.IdOf("job-2"), JobId{2});
  EXPECT_TRUE(absl::IsNotFound(board.IdOf("nobody").status()));
  EXPECT_EQ(board.Find("a\nb").status().message(), "there is no job \"a\\nb\"");
  const absl::Status refused = board.Find("damaged").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--check-store"));
}

TEST(BoardTest, SlowWatcher_SkipsNoPhase) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kQueued)});
  auto subscription = std::make_shared<Subscription>([] {});
  ASSERT_TRUE(board.Subscribe(JobId{1}, subscription).ok());
  for (JobPhase phase : {JobPhase::kQueued, JobPhase::kStarting, JobPhase::kRunning,
                         JobPhase::kRunning, JobPhase::kFailed}) {
    board.Publish(PublishJob{View(1, phase)});
  }
  EXPECT_THAT(TakeAll(*subscription), ElementsAre(JobPhase::kQueued, JobPhase::kStarting,
                                                  JobPhase::kRunning, JobPhase::kFailed));
}

TEST(BoardTest, ManySlowWatchers_HoldNoMoreThanTheirBoundTogether) {
  constexpr int kWatchers = 400, kEvents = 30;  // 16 KiB each: 188 MiB in all
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  std::vector<std::shared_ptr<Subscription>> watchers;
  for (int i = 0; i < kWatchers; ++i) {
    watchers.push_back(std::make_shared<Subscription>([] {}));
    ASSERT_TRUE(board.Subscribe(JobId{1}, watchers.back()).ok());
  }
  for (int number = 1; number <= kEvents; ++number) {
    board.Publish(PublishEvent{
        JobId{1}, {.number = number, .type = "Noise", .message = std::string(16 << 10, 'x')}});
    EXPECT_LE(board.pending_bytes(), kPendingBytesMax + (17 << 10));
  }
  for (const auto& watcher : watchers) {
    const auto update = watcher->Take();
    ASSERT_TRUE(update.has_value());
    EXPECT_EQ(update->events.back().number, kEvents) << "the newest is never dropped";
  }
  EXPECT_EQ(board.pending_bytes(), 0);
}

TEST(BoardTest, SlowWatcher_KeepsTheNewestSteps) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  auto subscription = std::make_shared<Subscription>([] {});
  ASSERT_TRUE(board.Subscribe(JobId{1}, subscription).ok());
  for (int64_t step = 1; step <= 1000; ++step) board.Publish(PublishStep{JobId{1}, {.step = step}});
  const auto update = subscription->Take();
  ASSERT_TRUE(update.has_value());
  EXPECT_EQ(update->steps.size(), kPendingStepsMax);
  EXPECT_EQ(update->steps.back().step, 1000);
}

// A watcher that reads on knows how many it was not told of.
TEST(BoardTest, SlowWatcher_SeesByTheirNumbersHowManyEventsItMissed) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  auto subscription = std::make_shared<Subscription>([] {});
  ASSERT_TRUE(board.Subscribe(JobId{1}, subscription).ok());
  constexpr int64_t kMissed = 7, kEvents = kMissed + static_cast<int64_t>(kPendingEventsMax);
  for (int64_t number = 1; number <= kEvents; ++number)
    board.Publish(PublishEvent{JobId{1}, {.number = number, .type = "Noise"}});
  const auto update = subscription->Take();
  ASSERT_TRUE(update.has_value());
  ASSERT_EQ(update->events.size(), kPendingEventsMax);
  EXPECT_EQ(update->events.front().number, kMissed + 1);
  EXPECT_EQ(update->events.back().number, kEvents);
  EXPECT_EQ(board.Events(JobId{1}, 0)->size(), static_cast<size_t>(kEvents)) << "they are there";
}

TEST(BoardTest, CurveOfTheStore_GoesOnWithWhatIsPublished) {
  Board board;
  board.Connect(NoEndedJobs());
  board.RestoreCurve(JobId{1}, {{.step = 1, .loss = 5}, {.step = 2, .loss = 4}});
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  board.Publish(PublishStep{JobId{1}, {.step = 2, .loss = 3}});
  board.Publish(PublishStep{JobId{1}, {.step = 4, .loss = 2}});
  EXPECT_THAT(board.CurveOf(JobId{1}),
              ElementsAre(CurvePoint{.step = 1, .loss = 5}, CurvePoint{.step = 2, .loss = 3},
                          CurvePoint{.step = 4, .loss = 2}));
}

TEST(BoardTest, CurveToStore_HasStepsThatAreNotPublishedYet_AndIsBounded) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  EXPECT_EQ(board.CurveToStore(JobId{1}, {.step = 1}).size(), 1u);
  EXPECT_EQ(board.CurveToStore(JobId{1}, {.step = 2}).size(), 2u);
  for (int64_t step = 3; step <= 5000; ++step) board.Publish(PublishStep{JobId{1}, {.step = step}});
  const std::vector<CurvePoint> stored = board.CurveToStore(JobId{1}, {.step = 5001});
  EXPECT_LE(stored.size(), kStoredPointsMax);
  EXPECT_GT(stored.size(), kStoredPointsMax / 4);
}

TEST(BoardTest, CurvesOfJobsThatTrain_AreBounded_AndEndedOnesAreInTheStore) {
  auto disk = std::make_shared<MemoryDisk>();
  MemoryBackend backend(disk);
  EndedState ended;
  ended.view = *View(1, JobPhase::kSucceeded);
  ended.curve = {{.step = 9, .loss = 2}};
  ASSERT_TRUE(backend
                  .Commit({.ended = {{.job = JobId{1},
                                      .name = "a",
                                      .phase = JobPhase::kSucceeded,
                                      .summary = EncodeSummary(ended),
                                      .details = EncodeDetails(ended)}}})
                  .ok());
  Board board;
  board.Connect(backend.ended_jobs());
  board.Publish(PublishJob{View(1, JobPhase::kSucceeded)});
  board.Publish(PublishStep{JobId{1}, {.step = 8}});
  board.Forget(JobId{1});
  EXPECT_THAT(board.CurveOf(JobId{1}), ElementsAre(CurvePoint{.step = 9, .loss = 2}));
  for (int64_t id = 2; id <= static_cast<int64_t>(kCurvesMax) + 2; ++id) {
    board.Publish(PublishJob{View(id, JobPhase::kRunning)});
    board.Publish(PublishStep{JobId{id}, {.step = 1}});
  }
  EXPECT_TRUE(board.CurveOf(JobId{2}).empty());
  EXPECT_EQ(board.CurveOf(JobId{3}).size(), 1u);
}

TEST(BoardTest, LateWatcher_GetsTheEvaluation) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kRunning)});
  board.Publish(PublishEvaluation{
      JobId{1}, std::make_shared<const EvaluationReport>(EvaluationReport{.loss = 2})});
  auto subscription = std::make_shared<Subscription>([] {});
  ASSERT_TRUE(board.Subscribe(JobId{1}, subscription).ok());
  EXPECT_EQ(subscription->Take()->evaluation->loss, 2);
}

TEST(BoardTest, Events_AreBoundedAndTheNewestStay) {
  Board board;
  board.Connect(NoEndedJobs());
  for (int64_t number = 1; number <= static_cast<int64_t>(kEventsMax) + 10; ++number) {
    board.Publish(PublishEvent{JobId{1}, {.number = number}});
  }
  EXPECT_EQ(board.Events(JobId{1}, 0)->size(), kEventsMax);
  EXPECT_EQ(board.Events(JobId{1}, 0)->back().number, static_cast<int64_t>(kEventsMax) + 10);
}

TEST(BoardTest, EventsOfAllJobs_AreBoundedInBytes_AndTheJobWithMostLosesItsOldest) {
  const std::string message(1000, 'x');
  Board board(20'000);
  board.Connect(NoEndedJobs());
  const auto publish = [&](int64_t job, int64_t count) {
    for (int64_t number = 1; number <= count; ++number) {
      board.Publish(PublishEvent{JobId{job}, {.number = number, .message = message}});
    }
  };
  publish(1, 3);
  publish(2, 1000);
  EXPECT_EQ(board.Events(JobId{1}, 0)->size(), 3u);
  const std::vector<JobEvent> kept = *board.Events(JobId{2}, 0);
  EXPECT_EQ(kept.back().number, 1000);
  EXPECT_GT(kept.size(), 3u);
  EXPECT_LT((kept.size() + 3) * message.size(), 20'000u);
  board.Forget(JobId{2});
  publish(3, static_cast<int64_t>(kept.size()));
  EXPECT_EQ(board.Events(JobId{3}, 0)->size(), kept.size()) << "what a job held is free again";
  EXPECT_EQ(board.Events(JobId{1}, 0)->size(), 3u);
}

TEST(BoardTest, Gauges_CountJobsOfEachPhase) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kQueued)});
  board.Publish(PublishJob{View(2, JobPhase::kQueued)});
  board.Publish(PublishJob{View(1, JobPhase::kStarting)});
  Gauges gauges;
  board.Count(gauges);
  EXPECT_EQ(gauges.jobs[JobPhase::kQueued], 1);
  EXPECT_EQ(gauges.jobs[JobPhase::kStarting], 1);
}

TEST(BoardTest, WatchersComeAndGoWhileJobsMove) {
  Board board;
  board.Connect(NoEndedJobs());
  board.Publish(PublishJob{View(1, JobPhase::kQueued)});
  std::thread publisher([&board] {
    for (int64_t step = 1; step <= 2000; ++step) {
      board.Publish(PublishStep{JobId{1}, {.step = step}});
      board.Publish(PublishJob{View(1, JobPhase::kRunning)});
    }
  });
  for (int i = 0; i < 200; ++i) {
    auto subscription = std::make_shared<Subscription>([] {});
    EXPECT_TRUE(board.Subscribe(JobId{1}, subscription).ok());
    EXPECT_TRUE(subscription->Take().has_value());
    board.Unsubscribe(JobId{1}, subscription.get());
  }
  publisher.join();
}

}  // namespace
}  // namespace phalanx::coordinator

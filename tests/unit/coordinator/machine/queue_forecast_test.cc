// When jobs free their devices, and when those that wait for them start.
#include "coordinator/machine/queue_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/prng.h"
#include "core/base/rough_time.h"

namespace phalanx::coordinator {
namespace {

using job::DeviceKind;
using job::JobPhase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Instant kNoForecast = absl::InfiniteFuture();
constexpr absl::Duration kNoLimit = absl::InfiniteDuration();

class QueueForecastTest : public testing::Test {
 protected:
  Node& AddNode(const NodeName& name, size_t devices) {
    Node& node = nodes_[name];
    node.name = name;
    node.session = SessionId{nodes_.size()};
    node.device_jobs.resize(devices);
    return node;
  }
  // A job of a hundred steps that waits behind all others.
  LiveJob& Wait(int32_t devices, absl::Duration limit = kNoLimit) {
    const JobId id{static_cast<int64_t>(jobs_.size()) + 1};
    LiveJob& job = jobs_[id];
    job.state.id = id;
    Ask(job, {.steps = 100, .time_limit = limit, .world = devices, .devices = devices});
    queue_.push_back(id);
    return job;
  }
  static void Ask(LiveJob& job, JobRequest request) {
    job.state.request = std::make_shared<const JobRequest>(std::move(request));
  }
  // One that has begun to train now, on the first devices of the node that are free.
  LiveJob& Run(Node& node, int32_t devices, absl::Duration limit = kNoLimit) {
    LiveJob& job = Wait(devices, limit);
    queue_.pop_back();
    job.state.phase = JobPhase::kRunning;
    job.state.counts_since = now_;
    job.run.emplace().stepped_at = now_;
    for (JobId& holder : node.device_jobs) {
      if (holder == JobId{} && devices-- > 0) holder = job.state.id;
    }
    return job;
  }
  void Train(LiveJob& job, int64_t first, int64_t last, absl::Duration each = absl::Minutes(1)) {
    for (int64_t step = first; step <= last; ++step) {
      now_ += each;
      job.step_times.Reached(now_, step, each);
      job.last_step = StepReport{.step = step};
      job.run->stepped_at = now_;
    }
  }
  QueueForecast Forecast() const { return QueueForecast(options_, jobs_, nodes_, now_); }
  QueueSpot Spot(const LiveJob& job) const {
    return Forecast().SpotOf(job, Forecast().AheadOf(job, queue_));
  }
  std::vector<int64_t> Ahead(const LiveJob& job) const {
    std::vector<int64_t> jobs;
    for (const LiveJob* other : Forecast().AheadOf(job, queue_))
      jobs.push_back(other->state.id.value);
    return jobs;
  }
  // As a guess of what comes in so long is told.
  std::optional<Instant> About(absl::Duration delay) const { return RoughTime(now_, now_ + delay); }

  const CoordinatorOptions options_;
  // What a job may take behind its limit.
  const absl::Duration ends_ = options_.end_grace + options_.cancel_grace + absl::Seconds(30);
  Instant now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<JobId, LiveJob> jobs_;
  NodeTable nodes_;
  std::vector<JobId> queue_;
};

TEST_F(QueueForecastTest, JobThatRuns_EndsByItsLimit_AndWhatItsEndTakes) {
  LiveJob& job = Run(AddNode("n", 4), 2, absl::Hours(2));
  const Instant begun = now_;
  now_ += absl::Minutes(10);
  EXPECT_EQ(Forecast().EndsBy(job), begun + absl::Hours(2) + ends_);
  job.state.used = absl::Minutes(30);  // in a run before
  EXPECT_EQ(Forecast().EndsBy(job), begun + absl::Minutes(90) + ends_);
}

TEST_F(QueueForecastTest, JobThatWaits_WouldBeginWithItsPlan) {
  EXPECT_EQ(Forecast().EndsBy(Wait(2, absl::Hours(2))),
            now_ + absl::Seconds(30) + absl::Hours(2) + ends_);
}

TEST_F(QueueForecastTest, WhenAJobWithoutALimitEnds_NobodyKnows) {
  Node& node = AddNode("n", 4);
  EXPECT_EQ(Forecast().EndsBy(Run(node, 2)), kNoForecast);
  EXPECT_EQ(Forecast().EndsBy(Wait(2)), kNoForecast);
}

TEST_F(QueueForecastTest, JobThatHasEnded_IsGoneSoon_OrNobodyKnowsWhen) {
  LiveJob& job = Run(AddNode("n", 4), 2);
  job.state.phase = JobPhase::kCancelled;
  job.state.ended = now_;
  const Instant gone = now_ + options_.cancel_grace + absl::Seconds(30);
  EXPECT_EQ(Forecast().EndsBy(job), gone);
  EXPECT_EQ(Forecast().EndsAbout(job), gone);
  now_ = gone;
  EXPECT_EQ(Forecast().EndsBy(job), kNoForecast) << "its ranks may never be gone";
}

TEST_F(QueueForecastTest, GuessOfAnEnd_IsOfTheStepsThatAreLeft) {
  LiveJob& job = Run(AddNode("n", 4), 4);
  Train(job, 1, 8);
  EXPECT_EQ(Forecast().EndsAbout(job), kNoForecast) << "too few steps to tell";
  Train(job, 9, 9);
  const Instant end = now_ + absl::Minutes(91);
  EXPECT_EQ(Forecast().EndsAbout(job), end);
  now_ += absl::Seconds(59);
  EXPECT_EQ(Forecast().EndsAbout(job), end) << "the step goes on meanwhile";
  now_ += absl::Seconds(2);
  EXPECT_EQ(Forecast().EndsAbout(job), end + absl::Seconds(1)) << "it takes longer than others";
}

TEST_F(QueueForecastTest, GuessOfAnEnd_IsNotLaterThanTheLimit) {
  LiveJob& job = Run(AddNode("n", 4), 4, absl::Hours(1));
  Train(job, 1, 20);
  EXPECT_EQ(Forecast().EndsAbout(job), Forecast().EndsBy(job));
}

TEST_F(QueueForecastTest, JobThatLeavesOrRecovers_LeavesNoGuess) {
  LiveJob& job = Run(AddNode("n", 4), 4);
  Train(job, 1, 20);
  ASSERT_LT(Forecast().EndsAbout(job), kNoForecast);
  job.state.ending.emplace();
  EXPECT_EQ(Forecast().EndsAbout(job), kNoForecast) << "how long does its checkpoint take";
  job.state.ending.reset();
  job.recovery.emplace();
  EXPECT_EQ(Forecast().EndsAbout(job), kNoForecast);
}

TEST_F(QueueForecastTest, JobThatWaitsAgain_WouldGoOnFromItsCheckpoint) {
  LiveJob& job = Run(AddNode("n", 4), 4);
  Train(job, 1, 41);
  job.state.phase = JobPhase::kQueued;
  job.run.reset();
  EXPECT_EQ(Forecast().EndsAbout(job), now_ + absl::Minutes(100)) << "it has none";
  job.state.last_checkpoint = {.step = 40, .path = "/c/40"};
  EXPECT_EQ(Forecast().EndsAbout(job), now_ + absl::Minutes(60));
}

TEST_F(QueueForecastTest, EnoughDevices_AreFreeOnceSomeJobsHaveEnded) {
  Node& node = AddNode("n", 4);
  Run(node, 1);
  Run(node, 2, absl::Hours(2));
  EXPECT_EQ(Forecast().EnoughFreeBy({.devices = 1}), now_);
  EXPECT_EQ(Forecast().EnoughFreeBy({.devices = 3}), now_ + absl::Hours(2) + ends_);
  EXPECT_EQ(Forecast().EnoughFreeBy({.devices = 4}), kNoForecast);
}

TEST_F(QueueForecastTest, DevicesOfNodesThatTakeNoJobs_AreNotWaitedFor) {
  Node& node = AddNode("n", 2);
  Run(node, 1, absl::Hours(2));
  const Instant all = now_ + absl::Hours(2) + ends_;
  ASSERT_EQ(Forecast().EnoughFreeBy({.devices = 2}), all);
  node.suspect = true;  // what is free may be gone; what is held is not expected at once
  EXPECT_EQ(Forecast().EnoughFreeBy({.devices = 1}), all);
  EXPECT_EQ(Forecast().EnoughFreeBy({.devices = 2}), kNoForecast);
  node.suspect = false;
  const JobRequest one{.devices = 1};
  node.reserve = ReserveMark{};
  EXPECT_EQ(Forecast().EnoughFreeBy(one), kNoForecast);
  node.reserve.reset();
  node.mark = NodeMark{};
  EXPECT_EQ(Forecast().EnoughFreeBy(one), kNoForecast);
  node.mark.reset();
  node.session = SessionId{};
  EXPECT_EQ(Forecast().EnoughFreeBy(one), kNoForecast);
}

TEST_F(QueueForecastTest, Ahead_AreThoseBeforeItThatWaitForTheSameNodes) {
  AddNode("n", 4);
  AddNode("g", 4).device_kind = DeviceKind::kGpu;
  Wait(4);
  LiveJob& on_gpus = Wait(4);
  Ask(on_gpus, {.devices = 4, .device_kind = DeviceKind::kGpu});
  Wait(5).too_large = true;
  Wait(1).over_quota = "its owner has enough";
  Wait(2);
  EXPECT_THAT(Ahead(Wait(1)), ElementsAre(1, 5));
  EXPECT_THAT(Ahead(on_gpus), IsEmpty());
}

TEST_F(QueueForecastTest, PlaceWithoutAKnownStart_IsTheNumberAlone) {
  Run(AddNode("n", 4), 4);
  Wait(4);
  const QueueSpot spot = Spot(Wait(4));
  EXPECT_EQ(spot.number, 2);
  EXPECT_EQ(spot.starts_by, std::nullopt);
  EXPECT_EQ(spot.starts_about, std::nullopt);
}

TEST_F(QueueForecastTest, JobThatDevicesAloneDoNotStart_IsToldNoTimeAndNoNumber) {
  Run(AddNode("n", 4), 4, absl::Hours(1));
  LiveJob& job = Wait(4);
  EXPECT_TRUE(Spot(job).starts_by.has_value());
  EXPECT_EQ(Spot(job).number, 1);
  job.over_quota = "its owner has enough";
  EXPECT_EQ(Spot(job).starts_by, std::nullopt);
  EXPECT_EQ(Spot(job).number, 0);
  job.over_quota.clear();
  job.too_large = true;
  EXPECT_EQ(Spot(job).starts_by, std::nullopt);
  EXPECT_EQ(Spot(job).number, 0);
}

TEST_F(QueueForecastTest, StartAtOnce_IsNotTold) {
  AddNode("n", 4);
  EXPECT_EQ(Spot(Wait(4)).starts_by, std::nullopt) << "it waits for something else";
}

TEST_F(QueueForecastTest, Guess_FollowsThePace) {
  LiveJob& running = Run(AddNode("n", 4), 4);
  Train(running, 1, 50, absl::Seconds(6));
  EXPECT_EQ(Spot(Wait(4)).starts_about, About(absl::Minutes(5)));
}

TEST_F(QueueForecastTest, EndThatIsYearsAway_IsNotGuessed) {
  LiveJob& running = Run(AddNode("n", 4), 4);
  Ask(running, {.steps = 1'000'000'000'000, .devices = 4});
  Train(running, 1, 20);
  EXPECT_EQ(Spot(Wait(4)).starts_about, std::nullopt);
}

TEST_F(QueueForecastTest, HolderThatStandsStill_IsNotGuessedOf) {
  LiveJob& running = Run(AddNode("n", 4), 4);
  const LiveJob& waits = Wait(4);
  Train(running, 1, 20);
  now_ += absl::Minutes(9);
  EXPECT_TRUE(Spot(waits).starts_about.has_value());
  now_ += absl::Minutes(2);
  EXPECT_EQ(Spot(waits).starts_about, std::nullopt);
}

TEST_F(QueueForecastTest, OneOfTwoHoldersThatHasNotTrained_LeavesNoGuess) {
  Node& node = AddNode("n", 4);
  LiveJob& trains = Run(node, 2);
  Run(node, 2);
  Train(trains, 1, 20);
  EXPECT_TRUE(Spot(Wait(2)).starts_about.has_value());
  queue_.clear();
  EXPECT_EQ(Spot(Wait(4)).starts_about, std::nullopt);
}

TEST_F(QueueForecastTest, Guess_IsToldOnlyBeforeTheLatestStart) {
  LiveJob& running = Run(AddNode("n", 4), 4, absl::Hours(10));
  Train(running, 1, 20);
  const QueueSpot spot = Spot(Wait(4));
  ASSERT_TRUE(spot.starts_by.has_value() && spot.starts_about.has_value());
  EXPECT_LT(*spot.starts_about, *spot.starts_by - absl::Hours(8));
}

TEST_F(QueueForecastTest, HolderThatItsLimitEnds_LeavesNoGuess) {
  LiveJob& running = Run(AddNode("n", 4), 4, absl::Hours(1));
  Train(running, 1, 20);
  const QueueSpot spot = Spot(Wait(4));
  EXPECT_TRUE(spot.starts_by.has_value());
  EXPECT_EQ(spot.starts_about, std::nullopt) << "it would take longer than it may";
}

TEST_F(QueueForecastTest, JobBeforeItInTheQueue_LeavesNoGuess_UnlessBothFit) {
  LiveJob& running = Run(AddNode("n", 4), 4);
  const LiveJob &first = Wait(2, absl::Hours(1)), &second = Wait(2), &third = Wait(1);
  Train(running, 1, 20);
  ASSERT_TRUE(Spot(first).starts_about.has_value());
  EXPECT_EQ(Spot(second).starts_about, Spot(first).starts_about);
  EXPECT_EQ(Spot(third).starts_about, std::nullopt) << "how fast they will be nobody knows";
}

// Clusters of some nodes, and what runs and waits there, drawn from a seed.
class RandomForecastTest : public QueueForecastTest {
 protected:
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(prng_.Below(static_cast<uint64_t>(bound)));
  }
  bool Chance(int64_t in) { return Below(in) == 0; }
  absl::Duration DrawLimit() { return Chance(4) ? kNoLimit : absl::Minutes(1 + Below(100)); }
  // Some go by labels.
  void DrawLabels(std::map<std::string, std::string>& labels, int64_t in) {
    if (Chance(in)) labels["zone"] = Chance(2) ? "a" : "b";
  }

  void Draw(uint64_t seed) {
    prng_ = Prng(seed);
    jobs_.clear();
    nodes_.clear();
    queue_.clear();
    for (int64_t i = 1 + Below(4); i > 0; --i) DrawNode(absl::StrCat("n", i));
    std::set<QueuePlace> order;
    for (int64_t i = 1 + Below(10); i > 0; --i) {
      const auto devices = static_cast<int32_t>(1 + Below(5));
      LiveJob& job = Wait(devices, DrawLimit());
      JobRequest request = *job.state.request;
      request.priority = static_cast<int32_t>(Below(3));
      if (Chance(6)) request.device_kind = DeviceKind::kGpu;
      DrawLabels(request.node_selector, 4);
      Ask(job, std::move(request));
      job.too_large = Chance(12);
      if (Chance(12)) job.over_quota = "its owner has enough";
      if (Chance(2)) DrawSteps(job, 10 + Below(40));  // before it was queued again
      order.insert({job.state.request->priority, job.state.id});
    }
    queue_.clear();
    for (const QueuePlace& place : order) queue_.push_back(place.job);
  }
  void DrawNode(const NodeName& name) {
    Node& node = AddNode(name, static_cast<size_t>(1 + Below(5)));
    if (Chance(6)) node.device_kind = DeviceKind::kGpu;
    DrawLabels(node.labels, 2);
    while (node.UnheldDevices() > 0 && !Chance(5)) {
      const auto devices = static_cast<int32_t>(1 + Below(node.UnheldDevices()));
      LiveJob& job = Run(node, devices, DrawLimit());
      job.state.counts_since = now_ - absl::Minutes(Below(20));
      if (!Chance(6)) DrawSteps(job, 10 + Below(80));
    }
    node.suspect = Chance(8);
    if (Chance(8)) node.session = SessionId{};
    if (Chance(8)) node.mark = NodeMark{};
    if (Chance(8)) node.reserve = ReserveMark{};
    if (Chance(8)) node.failed_checks.insert(0);
  }
  // The last of them now.
  void DrawSteps(LiveJob& job, int64_t steps) {
    const absl::Duration each = absl::Seconds(10 + Below(60));
    for (int64_t step = 1; step <= steps; ++step)
      job.step_times.Reached(now_ - each * (steps - step), step, each);
    job.last_step = StepReport{.step = steps};
    job.state.last_checkpoint = {.step = steps, .path = "/c"};
  }

  static bool MayUse(const Node& node, const JobRequest& request) {
    return node.device_kind == request.device_kind &&
           std::all_of(request.node_selector.begin(), request.node_selector.end(),
                       [&node](const auto& label) {
                         const auto found = node.labels.find(label.first);
                         return found != node.labels.end() && found->second == label.second;
                       });
  }
  // Replayed device by device, with the ends that jobs have.
  template <typename EndOf>
  std::optional<Instant> PlainStart(const LiveJob& job, EndOf end_of, int64_t& number) const {
    std::vector<Instant> free_at;
    for (const auto& [name, node] : nodes_) {
      const bool gives = node.connected() && !node.mark.has_value() && !node.reserve.has_value();
      if (!gives || !MayUse(node, *job.state.request)) continue;
      for (size_t i = 0; i < node.device_jobs.size(); ++i) {
        const JobId holder = node.device_jobs[i];
        const bool failed = node.failed_checks.contains(static_cast<int32_t>(i));
        if (holder != JobId{}) {
          free_at.push_back(end_of(jobs_.at(holder)));
        } else if (!node.suspect && !failed) {
          free_at.push_back(now_);
        }
      }
    }
    number = 0;
    Instant start = now_;
    for (const JobId id : queue_) {
      const LiveJob& other = jobs_.at(id);
      const bool is_last = id == job.state.id;
      const bool meets = std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
        return MayUse(node.second, *job.state.request) && MayUse(node.second, *other.state.request);
      });
      const bool counts = meets && !other.too_large && other.over_quota.empty();
      if (!counts && !is_last) continue;
      ++number;
      const auto devices = static_cast<size_t>(other.state.request->devices);
      std::sort(free_at.begin(), free_at.end());
      start = std::max(start, devices > free_at.size() ? kNoForecast : free_at[devices - 1]);
      if (is_last) break;
      std::fill_n(free_at.begin(), std::min(devices, free_at.size()),
                  start + (end_of(other) - now_));
    }
    if (job.too_large || !job.over_quota.empty()) return std::nullopt;
    if (start <= now_ || start == kNoForecast) return std::nullopt;
    return start;
  }

  Prng prng_{0};
};

TEST_F(RandomForecastTest, Spots_AreThoseOfAReplayDeviceByDevice) {
  int64_t unknown = 0, known = 0, guessed = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Draw(seed);
    const QueueForecast forecast = Forecast();
    for (const JobId id : queue_) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", ", ToString(id)));
      const LiveJob& job = jobs_.at(id);
      int64_t number = 0;
      const auto by = PlainStart(
          job, [&](const LiveJob& other) { return forecast.EndsBy(other); }, number);
      auto about = PlainStart(
          job, [&](const LiveJob& other) { return forecast.EndsAbout(other); }, number);
      if (about.has_value()) about = RoughTime(now_, *about);
      if (job.too_large || !job.over_quota.empty()) number = 0;
      if (by.has_value() && about.has_value() && *about >= *by) about.reset();
      const QueueSpot spot = Spot(job);
      ASSERT_EQ(spot.number, number);
      ASSERT_EQ(spot.starts_by, by);
      ASSERT_EQ(spot.starts_about, about);
      if (by.has_value()) ++known;
      if (about.has_value()) ++guessed;
      if (!by.has_value() && !about.has_value()) ++unknown;
    }
  }
  EXPECT_GT(unknown, 500);
  EXPECT_GT(known, 500);
  EXPECT_GT(guessed, 200);
}

}  // namespace
}  // namespace phalanx::coordinator

// What pages know of the queue, and how often it costs a question.
#include "coordinator/status/queue_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace phalanx::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

MATCHER_P(Number, number, "") { return arg.number == number; }

class MovedClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(absl::Duration time) { now_ += time; }

 private:
  Instant now_ = absl::FromUnixSeconds(1'000'000);
};

class QueueWatchTest : public ::testing::Test {
 protected:
  using Answer = std::function<void(absl::StatusOr<QueueWatch::Spots>)>;
  // Answers the last question.
  void Say(const absl::StatusOr<QueueWatch::Spots>& spots) {
    std::exchange(answer_, nullptr)(spots);
  }

  MovedClock clock_;
  std::vector<std::vector<JobId>> questions_;
  Answer answer_;
  std::unique_ptr<QueueWatch> watch_ = std::make_unique<QueueWatch>(
      [this](std::vector<JobId> jobs, Answer answer) {
        questions_.push_back(std::move(jobs));
        answer_ = std::move(answer);
      },
      clock_);
};

TEST_F(QueueWatchTest, Answer_IsThereOnTheNextLook) {
  EXPECT_THAT(watch_->Of({JobId{7}, JobId{8}}), IsEmpty());
  EXPECT_THAT(questions_, ElementsAre(ElementsAre(JobId{7}, JobId{8})));
  Say(QueueWatch::Spots{{JobId{8}, {.number = 2}}});
  EXPECT_THAT(watch_->Of({JobId{7}, JobId{8}}), ElementsAre(Pair(JobId{8}, Number(2))));
  EXPECT_THAT(watch_->Of({JobId{7}}), IsEmpty());
}

TEST_F(QueueWatchTest, HoweverManyLook_ItAsksOnceASecond_AndForAllOfThem) {
  for (int i = 1; i < 100; ++i) watch_->Of({JobId{i}, JobId{i + 1}});
  EXPECT_THAT(questions_, ElementsAre(ElementsAre(JobId{1}, JobId{2})));
  clock_.Advance(QueueWatch::kPause);
  watch_->Of({JobId{1}});
  EXPECT_EQ(questions_.size(), 1u) << "the first has no answer yet";
  Say(QueueWatch::Spots{});
  watch_->Of({JobId{200}});
  ASSERT_EQ(questions_.size(), 2u);
  EXPECT_EQ(questions_[1].size(), QueueWatch::kAskedMax);
  EXPECT_EQ(questions_[1][0], JobId{200}) << "the page of one job goes before long lists";
  EXPECT_EQ(questions_[1][1], JobId{1});
  Say(QueueWatch::Spots{});
  watch_->Of({JobId{1}});
  EXPECT_EQ(questions_.size(), 2u) << "no second has gone by";
}

TEST_F(QueueWatchTest, AnswerToOthers_HidesNobody) {
  watch_->Of({JobId{7}, JobId{8}});
  Say(QueueWatch::Spots{{JobId{7}, {.number = 1}}, {JobId{8}, {.number = 2}}});
  clock_.Advance(QueueWatch::kPause);
  watch_->Of({JobId{9}});
  Say(QueueWatch::Spots{{JobId{9}, {.number = 3}}});
  EXPECT_THAT(
      watch_->Of({JobId{7}, JobId{8}, JobId{9}}),
      ElementsAre(Pair(JobId{7}, Number(1)), Pair(JobId{8}, Number(2)), Pair(JobId{9}, Number(3))));
}

TEST_F(QueueWatchTest, JobThatWaitsNoLonger_HasNoPlace) {
  watch_->Of({JobId{7}, JobId{8}});
  Say(QueueWatch::Spots{{JobId{7}, {.number = 1}}, {JobId{8}, {.number = 2}}});
  clock_.Advance(QueueWatch::kPause);
  watch_->Of({JobId{7}, JobId{8}});
  Say(QueueWatch::Spots{{JobId{8}, {.number = 1}}});
  EXPECT_THAT(watch_->Of({JobId{7}, JobId{8}}), ElementsAre(Pair(JobId{8}, Number(1))));
}

TEST_F(QueueWatchTest, WhatWasSaidLongAgo_IsNotTold) {
  watch_->Of({JobId{7}});
  Say(QueueWatch::Spots{{JobId{7}, {.number = 1}}});
  clock_.Advance(QueueWatch::kKept);
  EXPECT_THAT(watch_->Of({JobId{7}}), ElementsAre(Pair(JobId{7}, Number(1))));
  clock_.Advance(absl::Seconds(1));
  EXPECT_THAT(watch_->Of({JobId{7}}), IsEmpty());
}

TEST_F(QueueWatchTest, CoordinatorThatRefuses_IsAskedAgainLater) {
  watch_->Of({JobId{7}});
  Say(absl::UnavailableError("the store fails"));
  EXPECT_THAT(watch_->Of({JobId{7}}), IsEmpty());
  clock_.Advance(QueueWatch::kPause);
  watch_->Of({JobId{7}});
  EXPECT_EQ(questions_.size(), 2u);
}

TEST_F(QueueWatchTest, AnswerBehindTheEnd_IsLetGo) {
  watch_->Of({JobId{7}});
  watch_.reset();
  Say(QueueWatch::Spots{{JobId{7}, {.number = 1}}});
}

}  // namespace
}  // namespace phalanx::coordinator

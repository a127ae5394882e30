#include "worker/rank/endings.h"

#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace phalanx::rank {
namespace {

// In which order they have gone.
class Gone {
 public:
  void Add(std::string name) {
    const MutexLock lock(&mu_);
    names_.push_back(std::move(name));
  }
  std::vector<std::string> names() const {
    const MutexLock lock(&mu_);
    return names_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

// Waits for its peers as it goes.
class Lingering {
 public:
  Lingering(std::string name, std::latch& peers, Gone& gone)
      : name_(std::move(name)), peers_(peers), gone_(gone) {}
  ~Lingering() {
    peers_.wait();
    gone_.Add(name_);
  }

 private:
  const std::string name_;
  std::latch& peers_;
  Gone& gone_;
};

TEST(EndingsTest, WhatWaitsAsItGoes_HoldsUpNobodyButWhoWaitsForAll) {
  std::latch peers(1);
  Gone gone;
  Endings endings;
  EXPECT_TRUE(endings.AwaitAll(comm::DeadlineIn(absl::ZeroDuration()))) << "there is nothing";
  endings.Add(std::make_shared<Lingering>("first", peers, gone));
  endings.Add(std::make_shared<Lingering>("second", peers, gone));
  EXPECT_THAT(gone.names(), testing::IsEmpty());
  EXPECT_FALSE(endings.AwaitAll(comm::DeadlineIn(absl::Milliseconds(1))));
  peers.count_down();
  EXPECT_TRUE(endings.AwaitAll(comm::DeadlineIn(absl::Seconds(20))));
  EXPECT_THAT(gone.names(), testing::ElementsAre("first", "second"));
}

TEST(EndingsTest, Endings_EndWhenAllHaveGone) {
  std::latch peers(1);
  Gone gone;
  {
    Endings endings;
    endings.Add(std::make_shared<Lingering>("first", peers, gone));
    endings.Add(std::make_shared<Lingering>("second", peers, gone));
    peers.count_down();
  }
  EXPECT_THAT(gone.names(), testing::ElementsAre("first", "second"));
}

}  // namespace
}  // namespace phalanx::rank

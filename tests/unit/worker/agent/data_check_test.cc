// Data sets that are checked beside one another, with checks that do what the document says.
#include "worker/agent/data_check.h"

#include <poll.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kPatienceMilliseconds = 20'000;

// A check of the document "hang" reads one byte and stands still until storage answers; one of
// "slow" reads on until it is called off; any other is done at once.
struct DataPreparerTest : public ::testing::Test {
  ~DataPreparerTest() override { Answer(); }

  DataOutcome Check(const Document& document, data::ReadProgress& progress) {
    if (document.text == "hang" || document.text == "slow") {
      progress.bytes += 1;
      MutexLock lock(&mutex);
      ++begun;
      changed.SignalAll();
      while (!answers && !(document.text == "slow" && progress.called_off)) changed.Wait(&mutex);
      return {.status = absl::CancelledError("late")};
    }
    return {.digest = document.text};
  }
  void Answer() {
    MutexLock lock(&mutex);
    answers = true;
    changed.SignalAll();
  }
  // So many checks stand still or go on.
  void AwaitBegun(int count) {
    MutexLock lock(&mutex);
    while (begun < count) changed.Wait(&mutex);
  }
  void Prepare(uint64_t request, std::string text) {
    preparer.Carry(PrepareData{
        RequestNumber{request}, JobId{static_cast<int64_t>(request)}, {.text = std::move(text)}});
  }
  // Requests that are answered next.
  std::set<uint64_t> Await(size_t count) {
    std::set<uint64_t> requests;
    while (requests.size() < count) {
      pollfd ready{inbox.fd(), POLLIN, 0};
      if (poll(&ready, 1, kPatienceMilliseconds) != 1) break;
      for (const Event& event : inbox.TakeAll())
        requests.insert(std::get<DataPrepared>(event).request.value);
    }
    return requests;
  }

  Mutex mutex;
  CondVar changed;
  bool answers = false;
  int begun = 0;
  Inbox inbox;
  DataPreparer preparer{[this](const PrepareData& order, data::ReadProgress& progress) {
                          return Check(order.document, progress);
                        },
                        inbox};
};

TEST_F(DataPreparerTest, StorageThatHangs_HoldsUpNoOtherJob) {
  Prepare(1, "hang");
  Prepare(2, "fine");
  Prepare(3, "fine");
  EXPECT_THAT(Await(2), ElementsAre(2, 3));
  EXPECT_TRUE(preparer.busy());
  Answer();
  EXPECT_THAT(Await(1), ElementsAre(1));
}

TEST_F(DataPreparerTest, WhatWaits_SaysBehindWhom_AndGoesOnOnceOneIsDone) {
  const auto bound = static_cast<int>(DataPreparer::kThreadsMax);
  for (int i = 1; i <= bound; ++i) Prepare(static_cast<uint64_t>(i), "hang");
  AwaitBegun(bound);
  Prepare(9, "fine");
  const std::vector<Preparing> list = preparer.UnderWay();
  ASSERT_EQ(list.size(), DataPreparer::kThreadsMax + 1);
  EXPECT_EQ(list.front().bytes_read, 1);
  EXPECT_EQ(list.front().behind, JobId{});
  EXPECT_EQ(list.back().job, JobId{9});
  EXPECT_EQ(list.back().bytes_read, bound) << "what it waits for goes on";
  EXPECT_EQ(list.back().behind, JobId{1});
  Answer();
  EXPECT_TRUE(Await(DataPreparer::kThreadsMax + 1).contains(9));
}

TEST_F(DataPreparerTest, CalledOff_IsNotAnswered_AndWhatWaitedForItGoesOn) {
  const auto bound = static_cast<int>(DataPreparer::kThreadsMax);
  for (int i = 1; i <= bound; ++i) Prepare(static_cast<uint64_t>(i), "slow");
  AwaitBegun(bound);
  Prepare(8, "fine");
  Prepare(9, "fine");
  preparer.Carry(CancelData{RequestNumber{8}});  // waits
  preparer.Carry(CancelData{RequestNumber{1}});  // reads
  {
    MutexLock lock(&mutex);
    changed.SignalAll();
  }
  EXPECT_THAT(Await(1), ElementsAre(9));
  for (int i = 2; i <= bound; ++i)
    preparer.Carry(CancelData{RequestNumber{static_cast<uint64_t>(i)}});
  EXPECT_THAT(preparer.UnderWay(), IsEmpty());
}

TEST(RemoveOldIndexesTest, ThoseThatWereUsedLast_Stay) {
  namespace fs = std::filesystem;
  const fs::path folder = support::MakeFolder("indexes");
  const auto now = fs::file_time_type::clock::now();
  const auto add = [&](const std::string& name, std::chrono::minutes age) {
    support::WriteFile((folder / name).string(), "");
    fs::last_write_time(folder / name, now - age);
  };
  const auto names = [&folder] {
    std::set<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.insert(entry.path().filename());
    return all;
  };
  add("new.index", std::chrono::minutes(1));
  add("oldest.index", std::chrono::minutes(500));
  add("old.index", std::chrono::minutes(400));
  add("new.index.7.1.tmp", std::chrono::minutes(1));
  add("old.index.7.1.tmp", std::chrono::minutes(400));
  add("note", std::chrono::minutes(900));
  RemoveOldIndexes(folder.string(), 2);
  EXPECT_THAT(names(), ElementsAre("new.index", "new.index.7.1.tmp", "note", "old.index"));
  RemoveOldIndexes(folder.string(), 0);
  EXPECT_THAT(names(), ElementsAre("new.index.7.1.tmp", "note"));
  RemoveOldIndexes((folder / "none").string());
}

}  // namespace
}  // namespace phalanx::agent

#include "worker/checkpoint/pinning_thread.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "tests/unit/worker/checkpoint/memory_file.h"

namespace phalanx::checkpoint {
namespace {

using Use = PinningThread::Use;

// Counts pieces; the thread stops in each until it is let through.
class Gate {
 public:
  Pinning Functions() {
    return {.pin =
                [this](std::byte*, size_t) {
                  const MutexLock lock(&mu_);
                  ++begun_;
                  changed_.SignalAll();
                  while (!open_ && begun_ > let_) changed_.Wait(&mu_);
                  ++pinned_;
                  changed_.SignalAll();
                  return true;
                },
            .unpin =
                [this](std::byte*) {
                  const MutexLock lock(&mu_);
                  ++unpinned_;
                  changed_.SignalAll();
                }};
  }
  void AwaitBegun(int64_t pieces) {
    const MutexLock lock(&mu_);
    while (begun_ < pieces) changed_.Wait(&mu_);
  }
  void AwaitUnpinned(int64_t pieces) {
    const MutexLock lock(&mu_);
    while (unpinned_ < pieces) changed_.Wait(&mu_);
  }
  void Let(int64_t pieces) {
    const MutexLock lock(&mu_);
    let_ += pieces;
    changed_.SignalAll();
  }
  void Open() {
    const MutexLock lock(&mu_);
    open_ = true;
    changed_.SignalAll();
  }
  int64_t begun() {
    const MutexLock lock(&mu_);
    return begun_;
  }
  int64_t pinned() {
    const MutexLock lock(&mu_);
    return pinned_;
  }
  int64_t unpinned() {
    const MutexLock lock(&mu_);
    return unpinned_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t begun_ = 0, pinned_ = 0, unpinned_ = 0, let_ = 0;
  bool open_ = false;
};

// Two files of as many pieces each, as a daemon gives them.
struct Files {
  explicit Files(int64_t pieces)
      : bytes(pieces * kPiece), first(AFile(bytes)), second(AFile(bytes)) {}
  PinningThread::Wanted Wanted() const {
    PinningThread::Wanted wanted{.bytes = bytes};
    wanted.fds.emplace_back(dup(first.get()));
    wanted.fds.emplace_back(dup(second.get()));
    return wanted;
  }
  int64_t bytes;
  UniqueFd first, second;
};

TEST(PinningThreadTest, WhatIsWanted_IsMadeAndTakenOnce) {
  Gate gate;
  PinningThread thread(gate.Functions());
  const Files files(2);
  EXPECT_FALSE(thread.making(Use::kSecondHome));
  thread.Make(Use::kSecondHome, files.Wanted());
  EXPECT_TRUE(thread.making(Use::kSecondHome));
  gate.AwaitBegun(1);
  EXPECT_FALSE(thread.Take(Use::kSecondHome).has_value());
  gate.Open();
  auto made = thread.Await(Use::kSecondHome);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->size(), 2u);
  EXPECT_TRUE((*made)[1]->Is(files.second.get(), files.bytes));
  EXPECT_TRUE((*made)[0]->ready() && (*made)[1]->ready());
  EXPECT_EQ(gate.pinned(), 4);
  EXPECT_FALSE(thread.making(Use::kSecondHome));
  EXPECT_FALSE(thread.Take(Use::kSecondHome).has_value());
}

// The first step of an epoch waits for no more than the piece that was begun.
TEST(PinningThreadTest, Held_BeginsNoPieceUntilItIsReleased) {
  Gate gate;
  PinningThread thread(gate.Functions());
  const Files files(3);
  thread.Make(Use::kSecondHome, files.Wanted());
  gate.AwaitBegun(1);
  thread.Hold();
  gate.Let(1);
  thread.Make(Use::kCheckpoint, {.bytes = kPiece});
  EXPECT_EQ(gate.begun(), 1);
  thread.Release();
  gate.AwaitBegun(2);
  gate.Open();
  EXPECT_TRUE(thread.Await(Use::kSecondHome).ok());
  EXPECT_TRUE(thread.Await(Use::kCheckpoint).ok());
}

TEST(PinningThreadTest, HeldFromTheBeginning_MakesForWhoeverWaits) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  thread.Hold();
  const Files files(1);
  thread.Make(Use::kSecondHome, files.Wanted());
  EXPECT_TRUE(thread.Await(Use::kSecondHome).ok());
}

// The end of an epoch does not wait for a second home that is being made, and the next epoch has
// what there is of it.
TEST(PinningThreadTest, Cancel_ReturnsAtOnceAndKeepsWhatIsMade) {
  Gate gate;
  PinningThread thread(gate.Functions());
  const Files files(2);
  thread.Make(Use::kSecondHome, files.Wanted());
  gate.AwaitBegun(1);
  thread.Cancel(Use::kSecondHome);  // the thread is inside its first piece
  EXPECT_FALSE(thread.making(Use::kSecondHome));
  thread.Make(Use::kSecondHome, files.Wanted());
  gate.Open();
  ASSERT_TRUE(thread.Await(Use::kSecondHome).ok());
  EXPECT_EQ(gate.pinned(), 4);
  EXPECT_EQ(gate.unpinned(), 4) << "the memory went with what Await returned";
}

TEST(PinningThreadTest, MemoryThatIsGivenBack_IsNotPinnedAgain) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  const Files files(1);
  for (int32_t i = 0; i < 3; ++i) {
    thread.Make(Use::kSecondHome, files.Wanted());
    auto made = thread.Await(Use::kSecondHome);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(gate.pinned(), 2);
    thread.GiveBack(Use::kSecondHome, *std::move(made));
  }
}

// What is in it may be needed until what takes its place is written.
TEST(PinningThreadTest, SecondHomeOfBefore_StaysBesideAnotherUntilItIsDropped) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  const Files files(1), others(2);
  for (const Files* next : {&files, &others, &files}) {
    thread.Make(Use::kSecondHome, next->Wanted());
    auto made = thread.Await(Use::kSecondHome);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(thread.Find(next->first.get(), next->bytes), nullptr) << "it is in use";
    thread.GiveBack(Use::kSecondHome, *std::move(made));
  }
  EXPECT_EQ(gate.pinned(), 6) << "each once";
  for (const Files* kept : {&files, &others}) {
    const PinnedMapping* found = thread.Find(kept->second.get(), kept->bytes);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->pinned(), kept->bytes);
  }
  thread.DropSpare(Use::kSecondHome);
  thread.AwaitRoom(Use::kSecondHome, 1);
  EXPECT_EQ(gate.unpinned(), 6);
  EXPECT_EQ(thread.Find(files.first.get(), files.bytes), nullptr);
}

TEST(PinningThreadTest, CopiesOfOthers_AreAsLargeAsTheirFilesAndMakeWayForNewOnes) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  const Files small(1), large(2);
  PinningThread::Wanted both{.bytes = 0};
  both.fds.emplace_back(dup(small.first.get()));
  both.fds.emplace_back(dup(large.first.get()));
  thread.Make(Use::kOthers, std::move(both));
  auto made = thread.Await(Use::kOthers);
  ASSERT_TRUE(made.ok()) << made.status();
  thread.GiveBack(Use::kOthers, *std::move(made));
  EXPECT_NE(thread.Find(small.first.get(), small.bytes), nullptr);
  EXPECT_NE(thread.Find(large.first.get(), large.bytes), nullptr);
  thread.GiveBack(Use::kOthers, {});
  thread.AwaitRoom(Use::kSecondHome, 1);
  EXPECT_EQ(gate.unpinned(), 3);
}

TEST(PinningThreadTest, MemoryOfNoFile_IsTakenBackIfItIsLargeEnough) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  EXPECT_EQ(thread.TakeBack(Use::kCheckpoint, 1), nullptr);
  thread.Make(Use::kCheckpoint, {.bytes = 2 * kPiece});
  auto made = thread.Await(Use::kCheckpoint);
  ASSERT_TRUE(made.ok());
  thread.GiveBack(Use::kCheckpoint, *std::move(made));
  EXPECT_EQ(thread.TakeBack(Use::kCheckpoint, 3 * kPiece), nullptr);
  const auto memory = thread.TakeBack(Use::kCheckpoint, kPiece);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->bytes(), 2 * kPiece);
}

// A daemon gives what is free, and what this process maps is not.
TEST(PinningThreadTest, Room_IsThereOnceMemoryOfAnotherSizeHasGone) {
  Gate gate;
  gate.Open();
  PinningThread thread(gate.Functions());
  const Files files(1);
  thread.Make(Use::kSecondHome, files.Wanted());
  auto made = thread.Await(Use::kSecondHome);
  ASSERT_TRUE(made.ok());
  thread.GiveBack(Use::kSecondHome, *std::move(made));
  EXPECT_TRUE(thread.MakeRoom(Use::kSecondHome, files.bytes)) << "it is what will be wanted";
  thread.Hold();
  EXPECT_FALSE(thread.MakeRoom(Use::kSecondHome, 2 * files.bytes));
  EXPECT_EQ(gate.unpinned(), 0) << "held";
  thread.AwaitRoom(Use::kSecondHome, 2 * files.bytes);
  EXPECT_EQ(gate.unpinned(), 2);
  EXPECT_TRUE(thread.MakeRoom(Use::kSecondHome, 2 * files.bytes));
}

TEST(PinningThreadTest, WhatGoes_WaitsForASecondHomeThatIsToBeMade) {
  Gate gate;
  gate.Let(2);
  PinningThread thread(gate.Functions());
  const Files files(1), others(1);
  thread.Make(Use::kOthers, files.Wanted());
  auto made = thread.Await(Use::kOthers);
  ASSERT_TRUE(made.ok());
  thread.GiveBack(Use::kOthers, *std::move(made));
  thread.Hold();
  thread.GiveBack(Use::kOthers, {});
  thread.Make(Use::kSecondHome, others.Wanted());
  thread.Release();
  gate.AwaitBegun(3);
  EXPECT_EQ(gate.unpinned(), 0);
  gate.Open();
  EXPECT_TRUE(thread.Await(Use::kSecondHome).ok());
  gate.AwaitUnpinned(2);
}

// Else a process would hold more with each epoch that is over before its thread has nothing to do.
TEST(PinningThreadTest, WhatGoes_DoesSoBeforeCopiesOfOthersAreMade) {
  Gate gate;
  gate.Let(2);
  PinningThread thread(gate.Functions());
  const Files before(1), others(1);
  thread.Make(Use::kSecondHome, before.Wanted());
  auto made = thread.Await(Use::kSecondHome);
  ASSERT_TRUE(made.ok());
  thread.GiveBack(Use::kSecondHome, *std::move(made));
  thread.Hold();
  thread.Make(Use::kOthers, others.Wanted());
  thread.DropSpare(Use::kSecondHome);
  thread.Release();
  gate.AwaitBegun(3);
  EXPECT_EQ(gate.unpinned(), 2);
  gate.Open();
  EXPECT_TRUE(thread.Await(Use::kOthers).ok());
}

TEST(PinningThreadTest, End_LetsEverythingGo) {
  Gate gate;
  {
    PinningThread thread(gate.Functions());
    const Files files(2);
    thread.Make(Use::kSecondHome, files.Wanted());
    gate.AwaitBegun(1);
    gate.Let(1);
    thread.Hold();
    gate.Open();
  }
  EXPECT_EQ(gate.pinned(), gate.unpinned());
}

TEST(PinningThreadTest, FileThatCannotBeMapped_IsSaid) {
  PinningThread thread({});
  PinningThread::Wanted wanted{.bytes = kPiece};
  wanted.fds.emplace_back(memfd_create("empty", MFD_CLOEXEC));  // without pages
  thread.Make(Use::kSecondHome, std::move(wanted));
  EXPECT_TRUE(absl::IsResourceExhausted(thread.Await(Use::kSecondHome).status()));
}

}  // namespace
}  // namespace phalanx::checkpoint

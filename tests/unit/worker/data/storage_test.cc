// Storage that does not answer: a read of a shard that stands still. This program's own pread
// stands before the system's.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <stop_token>
#include <thread>

#include "core/base/mutex.h"
#include "core/job/failure.h"
#include "tests/support/files.h"
#include "tests/support/shards.h"
#include "worker/data/data_set.h"

namespace {

phalanx::Mutex g_mutex;
phalanx::CondVar g_changed;
bool g_hangs = false;
int g_held = 0;  // reads that stand still

}  // namespace

extern "C" ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  using Function = ssize_t (*)(int, void*, size_t, off_t);
  static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pread"));
  {
    phalanx::MutexLock lock(&g_mutex);
    ++g_held;
    g_changed.SignalAll();
    while (g_hangs) g_changed.Wait(&g_mutex);
    --g_held;
    g_changed.SignalAll();
  }
  return system(file, to, bytes, offset);
}

namespace phalanx::data {
namespace {

using ::testing::HasSubstr;

class StorageTest : public ::testing::Test {
 protected:
  StorageTest() {
    const support::ShardFiles files = support::WriteShards(folder_, {.samples = 8, .shards = 1});
    spec_ = {.shards = files.shards,
             .tokenizer = files.tokenizer,
             .encoders = {support::ImageEncoder(4)},
             .context = 32,
             .vocabulary = files.vocabulary};
  }
  ~StorageTest() override {
    Hang(false);
    MutexLock lock(&g_mutex);
    while (g_held > 0) g_changed.Wait(&g_mutex);
  }

  static void Hang(bool hangs) {
    MutexLock lock(&g_mutex);
    g_hangs = hangs;
    g_changed.SignalAll();
  }
  static void AwaitHeld() {
    MutexLock lock(&g_mutex);
    while (g_held == 0) g_changed.Wait(&g_mutex);
  }
  std::unique_ptr<Loader> Make(absl::Duration patience) {
    absl::StatusOr<Index> index = Index::Build(spec_);
    EXPECT_TRUE(index.ok()) << index.status();
    auto loader = Loader::Create(*std::move(index), spec_,
                                 {.threads = 1, .patience = patience, .modules = {0}});
    EXPECT_TRUE(loader.ok()) << loader.status();
    return *std::move(loader);
  }

  const std::string folder_ = support::MakeFolder("storage");
  DataSetSpec spec_;
};

TEST_F(StorageTest, ThatDoesNotAnswer_IsDataUnavailableNamingTheShard) {
  const auto loader = Make(absl::Milliseconds(50));
  Hang(true);
  for (const bool announced : {true, false}) {
    if (announced) loader->Announce({0, 1, 2});
    const absl::Status status = loader->Take(announced ? 0 : 7).status();
    EXPECT_EQ(job::KindOf(status), job::FailureKind::kDataUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(spec_.shards[0]));
    EXPECT_THAT(std::string(status.message()), HasSubstr("was not read within 50ms"));
  }
  Hang(false);
  EXPECT_TRUE(loader->Take(3).ok()) << "it goes on where storage does";
}

TEST_F(StorageTest, Stop_EndsTheWait) {
  const auto loader = Make(absl::Hours(1));
  std::stop_source stop;
  loader->set_stop(stop.get_token());
  Hang(true);
  std::jthread other([&] {
    AwaitHeld();
    stop.request_stop();
  });
  EXPECT_EQ(loader->Take(0).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(StorageTest, LoaderThatGoes_LeavesAReadThatStandsStill) {
  auto loader = Make(absl::Milliseconds(1));
  Hang(true);
  EXPECT_FALSE(loader->Take(0).ok());
  AwaitHeld();
  loader.reset();
  MutexLock lock(&g_mutex);
  // One of a loader that went in an earlier test may stand beside it.
  EXPECT_GE(g_held, 1);
}

TEST_F(StorageTest, IndexThatIsCalledOff_EndsBehindTheReadUnderWay) {
  ReadProgress progress;
  Hang(true);
  std::jthread other([&] {
    AwaitHeld();
    progress.called_off = true;
    Hang(false);
  });
  EXPECT_EQ(Index::Build(spec_, &progress).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(StorageTest, ShardThatWasCut_EndsWhereTheFileDoes) {
  const auto loader = Make(absl::Minutes(1));
  ASSERT_TRUE(loader->Take(0).ok());  // has opened it
  ASSERT_EQ(truncate(spec_.shards[0].c_str(), 700), 0);
  const absl::Status cut = loader->Take(7).status();
  EXPECT_THAT(std::string(cut.message()),
              HasSubstr(spec_.shards[0] + ": ends at byte 700, before"));
}

}  // namespace
}  // namespace phalanx::data

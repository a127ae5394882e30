// Ranks as real processes: what threads of one process cannot show, a death above all.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

// A small table and a report per rank in memory that forked processes share.
class SharedTable final : public Rendezvous {
 public:
  static SharedTable* Create() {
    void* memory = mmap(nullptr, sizeof(SharedTable), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return new (memory) SharedTable;
  }
  SharedTable() {
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&mutex_, &mutex);
    pthread_condattr_t condition;
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&changed_, &condition);
  }
  absl::Status Put(const std::string& key, const std::string& value) override {
    if (key.size() >= sizeof(Entry::key) || value.size() > sizeof(Entry::value))
      return absl::InternalError(key);
    pthread_mutex_lock(&mutex_);
    Entry& entry = entries_[count_++];
    std::memcpy(entry.key, key.c_str(), key.size() + 1);
    std::memcpy(entry.value, value.data(), value.size());
    entry.size = value.size();
    pthread_cond_broadcast(&changed_);
    pthread_mutex_unlock(&mutex_);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) override {
    // Of the monotonic clock, as pthread_cond_clockwait() counts.
    const timespec until =
        absl::ToTimespec(absl::UnixEpoch() + absl::FromChrono(deadline.time_since_epoch()));
    pthread_mutex_lock(&mutex_);
    absl::StatusOr<std::string> result = absl::DeadlineExceededError(key);
    for (int timed_out = 0; timed_out == 0;) {
      for (size_t i = 0; i < count_; ++i) {
        if (key == entries_[i].key) {
          result = std::string(entries_[i].value, entries_[i].size);
          timed_out = -1;
        }
      }
      if (timed_out == 0)
        timed_out = pthread_cond_clockwait(&changed_, &mutex_, CLOCK_MONOTONIC, &until);
    }
    pthread_mutex_unlock(&mutex_);
    return result;
  }

  char reports[8][256] = {};

 private:
  struct Entry {
    char key[64];
    char value[1024];
    size_t size = 0;
  };
  pthread_mutex_t mutex_;
  pthread_cond_t changed_;
  size_t count_ = 0;
  Entry entries_[256];
};

// Runs `body` in a process per rank; its text comes back, or "killed". No thread may be alive here.
std::vector<std::string> RunProcesses(
    Kind kind, int32_t world, const std::function<std::string(Member&, SharedTable&)>& body) {
  SharedTable* table = SharedTable::Create();
  std::vector<pid_t> children;
  for (int32_t rank = 0; rank < world; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      auto connected = ConnectGloo(Everyone(world), Rank{rank}, world, *table,
                                   {.shared_memory = kind == Kind::kGlooSharedMemory});
      std::string report = std::string(connected.status().message());
      if (connected.ok()) {
        Member member{.rank = rank, .communicators = *std::move(connected)};
        report = body(member, *table);
      }
      std::strncpy(table->reports[rank], report.c_str(), sizeof(table->reports[rank]) - 1);
      _exit(0);
    }
    children.push_back(pid);
  }
  std::vector<std::string> reports;
  for (int32_t rank = 0; rank < world; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    reports.push_back(WIFSIGNALED(status) ? "killed" : table->reports[rank]);
  }
  munmap(table, sizeof(SharedTable));
  return reports;
}

class ProcessesTest : public testing::TestWithParam<Kind> {};

TEST_P(ProcessesTest, AllReduce_AcrossProcesses) {
  const auto reports = RunProcesses(GetParam(), 4, [](Member& me, SharedTable&) -> std::string {
    for (const int64_t count : {1, 1000, 300'000}) {
      std::vector<float> data(count, static_cast<float>(me.rank + 1));
      const absl::Status status = me.all().AllReduceSum(data.data(), count, DType::kFp32);
      if (!status.ok()) return std::string(status.message());
      if (data != std::vector<float>(count, 10.0f)) return "wrong sum";
    }
    return "fine";
  });
  EXPECT_EQ(reports, std::vector<std::string>(4, "fine"));
}

TEST_P(ProcessesTest, AKilledPeer_FailsAllOthersAtOnce_ByItsRank) {
  const auto body = [](Member& me, SharedTable& table) -> std::string {
    int64_t value = 1;
    absl::Status status = me.all().AllReduceSum(&value, 1, DType::kInt64);
    if (me.rank == 3) {
      (void)table.Put("killed at", absl::FormatTime(absl::Now()));
      raise(SIGKILL);
    }
    // Rank 2 waits for the dead one; 1 waits for 2 and 0 for 1, which are alive and silent.
    if (status.ok()) {
      status = me.all().Exchange({}, {{.peer = me.rank + 1, .data = &value, .bytes = 8}});
    }
    const absl::Time failed = absl::Now();
    const auto text = table.Get("killed at", DeadlineIn(absl::Seconds(10)));
    absl::Time killed;
    if (!text.ok() || !absl::ParseTime(absl::RFC3339_full, *text, &killed, nullptr))
      return "no time";
    if (failed - killed > absl::Seconds(2)) return "too late";
    const bool named = status.message().find("rank 3 is gone") != std::string::npos;
    return absl::IsUnavailable(status) && named ? "named" : status.ToString();
  };
  EXPECT_EQ(RunProcesses(GetParam(), 4, body),
            (std::vector<std::string>{"named", "named", "named", "killed"}));
}

TEST_P(ProcessesTest, AKilledPeer_InTheMiddleOfALargeCollective_FailsTheOthers) {
  const auto body = [](Member& me, SharedTable&) -> std::string {
    std::vector<float> data(1 << 20, 1.0f);
    absl::Status status = me.all().AllReduceSum(data.data(), 1, DType::kFp32);
    if (me.rank == 0) {
      // Its messages are posted, and only some of them taken, when it dies.
      me.all().Exchange({{.peer = 1, .data = data.data(), .bytes = 4 << 20}}, {}).IgnoreError();
      raise(SIGKILL);
    }
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      status = me.all().AllReduceSum(data.data(), 1 << 20, DType::kFp32);
    }
    return absl::IsUnavailable(status) ? "failed" : status.ToString();
  };
  EXPECT_EQ(RunProcesses(GetParam(), 3, body),
            (std::vector<std::string>{"killed", "failed", "failed"}));
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessesTest,
                         testing::Values(Kind::kGlooTcp, Kind::kGlooSharedMemory),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace phalanx::comm

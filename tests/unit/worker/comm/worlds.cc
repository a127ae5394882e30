#include "tests/unit/worker/comm/worlds.h"

#include <chrono>
#include <latch>
#include <thread>
#include <utility>

#include "gtest/gtest.h"

namespace phalanx::comm {

absl::Status MemoryRendezvous::Put(const std::string& key, const std::string& value) {
  MutexLock lock(&mutex_);
  table_[key] = value;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryRendezvous::Get(const std::string& key, Deadline deadline) {
  MutexLock lock(&mutex_);
  for (bool expired = false;; expired = changed_.WaitUntil(&mutex_, deadline)) {
    if (const auto found = table_.find(key); found != table_.end()) return found->second;
    if (expired) return absl::DeadlineExceededError(key);
  }
}

std::string NameOf(Kind kind) {
  switch (kind) {
    case Kind::kInProcess:
      return "InProcess";
    case Kind::kGlooTcp:
      return "GlooTcp";
    case Kind::kGlooSharedMemory:
      return "GlooSharedMemory";
  }
  return "";
}

plan::CommunicatorSpec Group(std::string name, std::vector<int32_t> ranks) {
  plan::CommunicatorSpec spec;
  spec.name = std::move(name);
  for (const int32_t rank : ranks) spec.ranks.push_back(Rank{rank});
  return spec;
}

std::vector<plan::CommunicatorSpec> Everyone(int32_t world) {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < world; ++rank) ranks.push_back(rank);
  return {Group("all", ranks)};
}

void RunWorld(Kind kind, int32_t world, const std::vector<plan::CommunicatorSpec>& specs,
              const std::function<void(Member&)>& body, WorldOptions options) {
  MemoryRendezvous rendezvous;
  InProcessWorld in_process(world);
  options.shared_memory = kind == Kind::kGlooSharedMemory;
  std::latch connected_all(world);  // no rank acts, or leaves, while another still connects
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Member member{.rank = rank};
      if (kind == Kind::kInProcess) {
        member.communicators = in_process.Connect(specs, Rank{rank});
      } else {
        auto connected = ConnectGloo(specs, Rank{rank}, world, rendezvous, options);
        if (!connected.ok()) connected_all.count_down();
        ASSERT_TRUE(connected.ok()) << connected.status();
        member.communicators = *std::move(connected);
      }
      connected_all.arrive_and_wait();
      body(member);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace phalanx::comm

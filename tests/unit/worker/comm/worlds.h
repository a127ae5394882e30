// tests/unit/worker/comm/worlds.h: worlds of ranks as threads, over each transport.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "core/plan/plan.h"
#include "worker/comm/communicator.h"

namespace phalanx::comm {

// A table in memory. Thread-safe.
class MemoryRendezvous final : public Rendezvous {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> table_ ABSL_GUARDED_BY(mutex_);
};

enum class Kind { kInProcess, kGlooTcp, kGlooSharedMemory };
std::string NameOf(Kind kind);

plan::CommunicatorSpec Group(std::string name, std::vector<int32_t> ranks);
// One communicator "all" of ranks 0..world-1.
std::vector<plan::CommunicatorSpec> Everyone(int32_t world);

// Runs `body` for every rank of a fresh world, each on its own thread; returns when all are done.
// A connection that fails is a test failure.
struct Member {
  int32_t rank = 0;  // of the world
  Communicators communicators;
  Communicator& all() { return *communicators[0]; }
};
void RunWorld(Kind kind, int32_t world, const std::vector<plan::CommunicatorSpec>& specs,
              const std::function<void(Member&)>& body, WorldOptions options = {});

}  // namespace phalanx::comm

// tests/e2e/agent/worker_process.h: a real phalanx-worker under test, with fake ranks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/v1/worker_service.pb.h"
#include "tests/support/process.h"

namespace phalanx::agent {

// A job file that trains on shards made on the spot, named as the fake rank is to behave.
v1::JobDocument Job(const std::string& behaviour);

v1::Command PrepareCommand(int64_t job, const v1::JobDocument& document);
v1::Command AssignCommandOf(int64_t job, int64_t epoch, const v1::JobDocument& document,
                            const std::vector<int32_t>& devices);
v1::Command StopCommandOf(int64_t job, int64_t epoch, double grace_seconds);

// Killed, with all its ranks, when the test ends.
class WorkerProcess {
 public:
  // Node "here" with 4 devices; `arguments` are added.
  explicit WorkerProcess(const std::string& coordinator,
                         const std::vector<std::string>& arguments = {});

  pid_t pid() const { return process_.pid(); }
  const std::string& state() const { return state_; }
  void Signal(int number) const { process_.Signal(number); }
  // Waits for its end; what waitpid said.
  int AwaitEnd() { return process_.Wait(); }

  int32_t OpenDescriptors() const;
  // Of the daemon itself, zombies included.
  int32_t Children() const;
  // Until it has reaped all of them, at most 20 s.
  bool AwaitNoChildren() const;
  int64_t ResidentBytes() const;

 private:
  const std::string state_;
  support::Process process_;
};

}  // namespace phalanx::agent

// tests/e2e/agent/worker_process.h: a real phalanx-worker under test, with fake ranks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/v1/worker_service.pb.h"
#include "worker/agent/unique_fd.h"

namespace phalanx::agent {

// A job file that trains on shards made on the spot, named as the fake rank is to behave.
v1::JobDocument Job(const std::string& behaviour);

v1::Command PrepareCommand(int64_t job, const v1::JobDocument& document);
v1::Command AssignCommandOf(int64_t job, int64_t epoch, const v1::JobDocument& document,
                            const std::vector<int32_t>& devices);
v1::Command StopCommandOf(int64_t job, int64_t epoch, double grace_seconds);

// Watches a process that need not be a child.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  // False: it still lives after the tests' patience.
  bool AwaitEnd() const;

 private:
  const UniqueFd pidfd_;
};

// Killed, with all its ranks, when the test ends.
class WorkerProcess {
 public:
  // Node "here" with 4 devices; `arguments` are added.
  explicit WorkerProcess(const std::string& coordinator, std::vector<std::string> arguments = {});
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  const std::string& state() const { return state_; }
  void Signal(int number) const;
  // Waits for its end; what waitpid said.
  int AwaitEnd();

  int32_t OpenDescriptors() const;
  // Of the daemon itself, zombies included.
  int32_t Children() const;
  int64_t ResidentBytes() const;

 private:
  const std::string state_;
  pid_t pid_ = 0;
};

// Runs a program to its end; its exit code and what it wrote to stdout.
struct Finished {
  int exit_code = 0;
  std::string output;
};
Finished RunToEnd(const std::vector<std::string>& command);

}  // namespace phalanx::agent

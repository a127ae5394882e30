// tests/unit/worker/agent/machine_harness.h: drives an agent machine and writes down what it
// orders.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/agent/machine/machine.h"

namespace phalanx::agent {

// The first processes that a machine starts.
inline constexpr ProcessNumber kP1{1}, kP2{2};

// One action in a line: "StartProcess p1 job-7/1 rank 0 device 0". Log lines have none.
std::string ToLine(const Action& action);

inline StopCommand AStop(int64_t epoch, absl::Duration grace = absl::Seconds(10), int64_t job = 7) {
  return {JobId{job}, Epoch{epoch}, grace, "the job ended"};
}

class Harness {
 public:
  explicit Harness(int32_t devices = 4, MachineOptions options = {});

  // Feeds one event and returns the lines of the actions, log lines left out.
  std::vector<std::string> Feed(const Event& event);
  // Moves time to the machine's next deadline, at most by `limit`, and tells it so, until `span`
  // has passed. Returns everything it ordered meanwhile.
  std::vector<std::string> Advance(absl::Duration span);

  // Opens the first or the next session: everything up to the welcome.
  std::vector<std::string> Welcome(uint64_t coordinator = 9, uint64_t store = 5);
  std::vector<std::string> Command(uint64_t number, agent::Command command);
  std::vector<std::string> Break(absl::Status status = absl::UnavailableError("gone"));
  // Confirms every message that was sent to this session so far.
  std::vector<std::string> ConfirmAll();

  // job-7, `epoch`, on these devices of this node; prepared data and started processes.
  AssignCommand AnAssign(int64_t epoch, std::vector<int32_t> devices, int64_t job = 7) const;
  // Assign, data, starts and hellos: the processes run their epoch.
  void RunJob(int64_t epoch, std::vector<int32_t> devices, uint64_t command_number = 1,
              int64_t job = 7);
  std::vector<std::string> DataReady(uint64_t request, absl::Status status = absl::OkStatus());
  std::vector<std::string> Exited(int64_t process, int32_t exit_code, int32_t signal);

  Instant now = absl::UnixEpoch() + absl::Hours(1);
  Machine machine;
  SessionNumber session;
  int32_t unconfirmed = 0;
  uint64_t last_request = 0;
  std::vector<UploadLogs> uploads;   // not yet answered
  absl::Status upload_status;        // how they are answered
  std::vector<int64_t> started;      // processes whose start was ordered
  std::set<uint64_t> logged_stores;  // whose logs orders were about
  std::vector<std::string> logged;   // what it told people
};

}  // namespace phalanx::agent

// client/doctor.h: `phalanx doctor`: whether a machine, and the cluster that it belongs to, can do
// what jobs will ask of them, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/machine_facts.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::client {

struct Finding {
  enum class Verdict : uint8_t {
    kOk,
    kSkipped,  // nothing here to look at
    kWarning,  // jobs run, some of them worse
    kProblem,  // some job will fail of it
  };
  std::string check;  // "driver"
  Verdict verdict = Verdict::kOk;
  std::string found;  // a sentence
  std::string next;   // what to do; empty: nothing
};
absl::string_view ToString(Finding::Verdict verdict);  // "ok", ...

// Of the machine alone, in a fixed order.
std::vector<Finding> ExamineMachine(const MachineFacts& facts);
// What a coordinator says of its nodes, of which it knows since `now` on this machine's clock.
// `version`: this client's.
std::vector<Finding> ExamineCluster(const std::vector<v1::NodeStatus>& nodes,
                                    const std::string& version, absl::Time now);

struct DoctorOptions {
  std::string folder;   // that jobs share; empty: not looked at
  bool cluster = true;  // ask the coordinator too
  std::string version;
  Format format = Format::kTable;
};
// Returns kSuccess, or kFailure if there is a problem. A coordinator that does not answer is one
// where `cluster` is set.
int Doctor(Connection& connection, const DoctorOptions& options, Io& io);

}  // namespace phalanx::client

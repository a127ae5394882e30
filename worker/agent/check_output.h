// worker/agent/check_output.h: what the process of a check says of devices, as it comes.
//
// Each line that is a NodeCheck, in JSON, says what was found of devices or of the node
// (worker/rank/node_check.h). Of other lines the first few are logged. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/job/node_check.h"

namespace phalanx::agent {

class CheckOutput {
 public:
  // Whether it ends a line that is a NodeCheck.
  bool Append(absl::string_view text);

  // In the order in which they were said, those without a verdict too.
  const std::vector<job::DeviceCheck>& devices() const { return devices_; }
  const std::optional<job::LoopbackCheck>& loopback() const { return loopback_; }

 private:
  bool Read(const std::string& line);

  std::vector<job::DeviceCheck> devices_;
  std::optional<job::LoopbackCheck> loopback_;
  std::string line_;   // that has not ended
  size_t bytes_ = 0;   // that were taken
  size_t others_ = 0;  // lines
};

}  // namespace phalanx::agent

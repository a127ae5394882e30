// worker/agent/flags.h: the command line of phalanx-worker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/agent/agent.h"

namespace phalanx::agent {

inline constexpr int kUsage = 2;                      // exit code
inline constexpr double kCheckIntervalDefault = 600;  // seconds

struct Flags {
  AgentOptions options;
  std::vector<std::string> labels;
  std::string failure_domain;
  std::optional<std::string> device_memory, host_memory;
  std::string job_file;
  std::string join_token_file;
  bool plaintext = false;
  double check_interval = kCheckIntervalDefault;
  double grace = absl::ToDoubleSeconds(AgentOptions().machine.shutdown_grace);
};

// The exit code where there is nothing to run; what is wrong is told.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

// Of a flag that may be left out; 0: it was. Errors: InvalidArgument.
absl::StatusOr<int64_t> SizeOf(absl::string_view flag, const std::optional<std::string>& text);

// Of --label and --failure-domain. Errors: InvalidArgument.
absl::Status TakeLabels(const Flags& flags, AgentOptions& options);

}  // namespace phalanx::agent

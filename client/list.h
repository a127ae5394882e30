// client/list.h: `phalanx list`: jobs, chosen by the coordinator, once or as they change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/connection.h"
#include "client/format.h"
#include "client/watch.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::client {

struct ListOptions {
  Format format = Format::kTable;
  int32_t limit = 0;                           // the newest so many; 0: all
  std::vector<v1::JobPhase> phases;            // empty: any
  std::map<std::string, std::string> labels;   // all of them
  std::string node;                            // empty: any
  std::string owner;                           // empty: any
  bool watch = false;                          // then a job again whenever its state changes
  absl::Duration interval = absl::Seconds(1);  // how often a watch asks
};

// Prints jobs, newest first. A watch then goes on until it is stopped, and prints a job when it
// begins to match, and when its state, epoch or reason changes; of more than 1,000 live jobs the
// newest. Returns the exit code.
int List(Connection& connection, const ListOptions& options, Stopper& stopper, Io& io);

// "running" and "queued,starting", whatever their case. Errors: InvalidArgument, with the word and
// those that there are.
absl::StatusOr<std::vector<v1::JobPhase>> ParsePhases(absl::Span<const std::string> lists);
// "team=demo" and "a=1,b=2". Errors: InvalidArgument, with the text and the rule.
absl::StatusOr<std::map<std::string, std::string>> ParseSelector(
    absl::Span<const std::string> lists);

}  // namespace phalanx::client

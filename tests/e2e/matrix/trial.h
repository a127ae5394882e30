// tests/e2e/matrix/trial.h: a row is tried with real processes, and compared with what is expected.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/matrix/row.h"
#include "tests/e2e/recovery/trouble.h"

namespace phalanx::e2e {

struct Verdict {
  Outcome found;
  // From the fault to where all ranks were ready again; nullopt: there was no recovery.
  std::optional<absl::Duration> back;
  // From the fault to the verdict of the coordinator; nullopt: there was none, or nobody knows when
  // the fault came about.
  std::optional<absl::Duration> detected;
  std::string wrong;  // empty: all is as expected
  std::string logs;   // of the coordinator and all nodes
};

// Not thread-safe.
class Trials {
 public:
  Trials() : data_(MakeSmallData()) {}
  // Never throws: what is thrown is what was wrong.
  Verdict Try(const Row& row);

 private:
  void Run(const Row& row, Verdict& verdict);
  // Of a run of the same job without a fault; each once.
  const std::vector<Metric>& Whole(const JobOptions& job);
  std::string CurveFault(const Row& row, const std::vector<Metric>& hit);

  const DataFolder data_;
  int folders_ = 0;
  std::map<std::pair<std::string, int64_t>, std::vector<Metric>> whole_;  // by layout and steps
};

// "< 1 s", "timeout of 5 s, then < 1 s"; empty: it was as expected, and nothing was lost.
std::string BackText(const Row& row, const Verdict& verdict);

}  // namespace phalanx::e2e

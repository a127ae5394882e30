// tests/sim/scale/report.h: all figures of the simulation at scale, as a page.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace phalanx::scale {

struct ReportOptions {
  std::string size = "paper";
  uint64_t seed = 1;
  int32_t draws = 20, losses = 20;
  double days = 2;
};

struct Report {
  std::string page;     // docs/scale.md
  std::string trouble;  // jobs have ended; empty: none has
};

// `progress`: each line of a table as soon as it is known.
Report MakeReport(const ReportOptions& options,
                  const std::function<void(const std::string&)>& progress);

}  // namespace phalanx::scale

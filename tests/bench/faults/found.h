// tests/bench/faults/found.h: what kills of ranks came to, of one layout and of all.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/bench/faults/held.h"
#include "tests/bench/faults/throughput.h"
#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

class Series {
 public:
  void Add(double value) { values_.push_back(value); }
  void Add(const Series& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }
  bool empty() const { return values_.empty(); }
  // Of at least one value.
  double Percentile(double part);
  nlohmann::ordered_json ToJson();
  std::string ToWords();  // "p50 7 ms, p99 20 ms, max 44 ms"

 private:
  std::vector<double> values_;
};

// Milliseconds.
struct Times {
  Series stopped, next_step, pause;
  void Add(const Times& other);
};

// How far losses and norms are at most from those of a run without a failure, in parts of them, and
// what checkpoints have at the end.
struct Differences {
  double loss = 0, norm = 0, model = 0;
  void Add(const std::vector<Metric>& hit, const std::vector<Metric>& whole);
  void Add(const Differences& other);
};

// What some processes held at two times.
struct Holding {
  Held first, end;
};

// What one layout came to.
struct Found {
  Holding all;  // of coordinator and daemons together, and how many processes there are with ranks
  std::vector<std::pair<std::string, Holding>> each;  // of coordinator and daemons, by name
  Holding spared;  // of the process of a rank that was not hit, of the job where it grew most
  bool spared_flat = true;  // in every job
  int64_t steps = 0;
  double loss_early = 0, loss_late = 0;  // means over some steps, of the last job
  std::string fault;                     // of its steps, or of its losses
  Differences differences;
  Times times;
  Throughput throughput;
  int64_t restarted = 0;  // processes of ranks that nobody had killed

  void AddSpared(const Holding& one);
  bool right() const {
    return fault.empty() && restarted == 0 && IsFlat(all.first, all.end) && spared_flat &&
           !throughput.IsRuledOut();
  }
};

nlohmann::ordered_json ToJson(Found& found);

// All of it on one line, as docs/performance-control-plane.md has it. `kills` of each of so many
// layouts.
std::string LineOf(int64_t kills, std::vector<Found>& found);

}  // namespace phalanx::e2e

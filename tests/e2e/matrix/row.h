// tests/e2e/matrix/row.h: one fault, where it comes about, and what becomes of the job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

class Scene;

// Flags of `phalanx inject`; empty: not given.
struct Injection {
  int32_t rank = 0;
  std::string fault, phase;
  int64_t at_step = 0;
  std::string duration;
  bool waits() const { return at_step > 0 || !phase.empty(); }
};

// What is told of a row when it has ended, and what is expected of it.
struct Outcome {
  // "shrink: language tp 2 -> 1 in replica 1", "trains on", "the job fails".
  std::string what;
  // Of the verdict, or of the failed job; empty: nobody is to blame.
  std::string cause;
  // More than one is expected where several are hit at once.
  std::vector<int32_t> first_ranks;
  // Steps that were begun again, at most.
  int64_t redone = 0;
};
inline Outcome Fails(const std::string& cause, int32_t rank) {
  return {.what = "the job fails", .cause = cause, .first_ranks = {rank}};
}

// Of jobs whose language model has three replicas of two tensor ranks.
inline constexpr char kDropped[] = "drop-replica: language dp 3 -> 2";
inline constexpr char kShrunk[] = "shrink: language tp 2 -> 1 in replica 1";

struct Row {
  std::string section;  // of the page
  std::string fault, phase;
  JobOptions job;
  std::vector<std::string> coordinator_flags = {};
  std::vector<Injection> injections = {};
  // What is done to processes once the faults are asked for.
  std::function<void(Scene&)> act = nullptr;
  Outcome expected;
  // Regular expressions, each of which is found in some event's message: what tells of faults
  // behind the first, and of their cause.
  std::vector<std::string> then = {};
  // What the fault has to last for until it counts as one, and how it is called.
  absl::Duration timeout = absl::ZeroDuration();
  std::string timeout_name = {};
  // In which the verdict on it cannot come, though it counts as a fault: it is held back, or nobody
  // is there to judge it.
  absl::Duration unseen = absl::ZeroDuration();
  // The job has ended by then; at least support::kPatience.
  absl::Duration patience = absl::ZeroDuration();
  // Why it may be that nobody knows how soon there was a verdict, or how soon all were back; empty:
  // both are known wherever there are any.
  std::string no_detected = {}, no_back = {};

  std::string name() const { return phase.empty() ? fault : fault + " in " + phase; }
};

// From the fault to the verdict of the coordinator, at most, as the detector of the row's cause
// promises it; nullopt: nobody is to blame.
std::optional<absl::Duration> DetectedWithin(const Row& row);

// Of the page, in its order.
std::vector<Row> AllRows();
// Faults on demand in each phase.
std::vector<Row> RowsOfPlaces();
// What is done to processes, nodes and links from outside.
std::vector<Row> RowsOfProcesses();

// Six ranks on three nodes, three replicas of two tensor ranks each: `here` has 0 and 1, `middle` 2
// and 3, `there` 4 and 5. Who is lost stays out.
JobOptions AJob();
inline constexpr int64_t kSteps = 120;
inline constexpr int64_t kAtStep = 20;

}  // namespace phalanx::e2e

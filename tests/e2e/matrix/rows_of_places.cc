// Faults on demand, each in every phase that it can be asked for.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/matrix/row.h"
#include "tests/e2e/matrix/scene.h"

namespace phalanx::e2e {
namespace {

// Of the middle node, and of the second replica with the rank before it.
constexpr int32_t kHit = 3;
// Of the last node: the first is killed, the second hit while the others make up for that.
constexpr int32_t kKilled = 5, kHitThen = 4;
constexpr char kShrunkOfKilled[] = "shrink: language tp 2 -> 1 in replica 2";

constexpr const char* kPhases[] = {"forward",   "backward", "reduce", "record",
                                   "optimizer", "mirror",   "gather", "checkpoint"};

// For which a rank waits for the checkpoint that is being written at the end, and for the last one.
constexpr absl::Duration kLastPart = absl::Seconds(2 * 120 + 5);

struct Kind {
  const char* fault;
  const char* duration;
  Outcome hit;         // of kHit
  Outcome recovering;  // of kHitThen, while it recovers from kKilled
  absl::Duration timeout = absl::ZeroDuration();
  const char* timeout_name = "";
  std::vector<std::string> coordinator_flags = {};
  // Where it concerns the thread that writes checkpoints alone.
  Outcome writes_on = {};
  // Of Row::then, of kHitThen; empty: it is not lost.
  const char* then = "";
};

Outcome RankLost(const char* cause, int32_t first = kHit, const char* what = kShrunk) {
  return {.what = what, .cause = cause, .first_ranks = {first}, .redone = 1};
}

Outcome BothLost() { return RankLost("RankKilled", kKilled, kDropped); }
Outcome KilledLost() { return RankLost("RankKilled", kKilled, kShrunkOfKilled); }

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>{
      {"kill",
       "",
       RankLost("RankKilled"),
       BothLost(),
       absl::ZeroDuration(),
       "",
       {},
       {},
       "rank 4 on node there was killed by signal 9"},
      {"exit",
       "",
       RankLost("RankExited"),
       BothLost(),
       absl::ZeroDuration(),
       "",
       {},
       {},
       "rank 4 on node there exited with code 1"},
      {"xid:79",
       "",
       RankLost("DeviceFailed"),
       BothLost(),
       absl::ZeroDuration(),
       "",
       {},
       {},
       "of node there reported XID 79"},
      {"oom",
       "",
       Fails("OutOfMemory", kHit),
       Fails("OutOfMemory", kHitThen),
       absl::ZeroDuration(),
       "",
       {},
       {"trains on, a checkpoint is not written"}},
      {"throw", "", Fails("RankError", kHit), Fails("RankError", kHitThen)},
      {"stop",
       "",
       RankLost("RankHung"),
       BothLost(),
       absl::Seconds(5),
       "5 s of standing still",
       {},
       {},
       "rank 4: it has not run for long"},
      {"hang",
       "",
       RankLost("RankHung"),
       BothLost(),
       absl::Seconds(5),
       "5 s of standing still",
       {},
       {},
       "rank 4: its training hangs"},
      {"stop", "1s", {.what = "trains on"}, KilledLost(), absl::Seconds(1), "1 s"},
      {"hang",
       "1s",
       {.what = "trains on"},
       KilledLost(),
       absl::Seconds(1),
       "1 s",
       {},
       {"trains on, a checkpoint is not written"}},
      {"partition",
       "4s",
       RankLost("NodeLost", 2, kDropped),
       BothLost(),
       absl::Seconds(2),
       "2 s of silence",
       {"--heartbeat-interval", "250ms", "--heartbeat-timeout", "2s"},
       {},
       // As NodeLost says it.
       "node there (has been away|is silent|is lost)"},
      {"slow:3", "1s", {.what = "trains on"}, KilledLost()},
  };
  return kinds;
}

Row ARow(const Kind& kind, const std::string& phase) {
  Row row{.section = "Faults on demand", .fault = kind.fault, .phase = phase, .job = AJob()};
  if (*kind.duration != '\0') row.fault += std::string(" for ") + kind.duration;
  row.coordinator_flags = kind.coordinator_flags;
  row.timeout = kind.timeout;
  row.timeout_name = kind.timeout_name;
  if (kind.hit.cause == "NodeLost") row.unseen = kind.timeout;  // what is judged is silence
  row.expected = kind.hit;
  return row;
}

// Where it is at the time, in a phase of a step, and while training goes on from another loss:
// before it is known from where, and where state is about to move.
void AddRows(const Kind& kind, std::vector<Row>& rows) {
  Row at_once = ARow(kind, "");
  at_once.injections = {{.rank = kHit, .fault = kind.fault, .duration = kind.duration}};
  rows.push_back(std::move(at_once));
  for (const std::string phase : kPhases) {
    Row row = ARow(kind, phase);
    // It is of the thread that trains, which writes no checkpoint.
    if (row.fault == "throw" && phase == "checkpoint") continue;
    if (phase == "checkpoint") {
      // One that is written for a second is still written when the next is due: that is left out.
      const bool brief = *kind.duration != '\0' && kind.writes_on.what != "";
      row.job.checkpoint = brief ? "every: 2" : "every: 20";
      if (kind.writes_on.what != "") row.expected = kind.writes_on;
      if (row.fault == "hang") {
        // Nor is the last one, which the job needs (docs/decisions/0072).
        row.expected = Fails("CheckpointUnavailable", kHit);
        row.unseen = kLastPart;
      }
      row.patience = absl::Minutes(5);  // of a rank for the last one
    }
    row.injections = {{kHit, kind.fault, phase, kAtStep, kind.duration}};
    rows.push_back(std::move(row));
  }
  for (const bool moving : {false, true}) {
    Row row = ARow(kind, moving ? "recovery, as state moves" : "recovery");
    row.injections = {{kHitThen, kind.fault, "recovery", moving ? 1 : 0, kind.duration}};
    if (row.fault == "hang") {  // before an epoch's first step nobody knows how long work takes
      row.timeout = absl::Seconds(30);
      row.timeout_name = "30 s of standing still";
    }
    row.unseen = absl::ZeroDuration();  // the first verdict is on who is killed
    row.act = [](Scene& scene) { scene.Signal({kKilled}, SIGKILL); };
    row.expected = kind.recovering;
    if (*kind.then != '\0') row.then = {kind.then};
    rows.push_back(std::move(row));
  }
}

// In each phase in which a rank gives another one a message: of its tensor group, of its data group
// and of all; then between two stages.
void AddMute(std::vector<Row>& rows) {
  const Outcome again{.what = "the same ranks begin again",
                      .cause = "NoProgress",
                      .first_ranks = {-1},
                      .redone = 1};
  const auto add = [&](const std::string& fault, const std::string& phase, int32_t rank) -> Row& {
    Row row{.section = "Faults on demand", .fault = fault, .phase = phase, .job = AJob()};
    row.coordinator_flags = {"--heartbeat-interval", "250ms", "--heartbeat-timeout", "5s"};
    row.injections = {{rank, "mute", phase, kAtStep}};
    row.expected = again;
    row.timeout = absl::Seconds(11);
    row.timeout_name = "10 s in which all wait";
    return rows.emplace_back(std::move(row));
  };
  for (const char* phase :
       {"forward", "backward", "reduce", "record", "optimizer", "mirror", "gather"})
    add("mute", phase, kHit);
  // Rank 0 is of the first stage: what it gives behind a pass is for the next one.
  add("mute between stages", "forward", 0).job.language = "ranks: 6, pp: 2";
}

// Each has all optimizer state: it updates all weights, and gathers none.
void AddTwoReplicas(std::vector<Row>& rows) {
  for (const char* phase : {"optimizer", "mirror", "gather"}) {
    Row row{.section = "Faults on demand",
            .fault = "kill of one of two replicas",
            .phase = phase,
            .job = AJob()};
    row.job.language = "ranks: 2";
    row.injections = {{1, "kill", phase, kAtStep}};
    row.expected = RankLost("RankKilled", 1, "drop-replica: language dp 2 -> 1");
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Row> RowsOfPlaces() {
  std::vector<Row> rows;
  for (const Kind& kind : Kinds()) AddRows(kind, rows);
  AddTwoReplicas(rows);
  AddMute(rows);
  const Kind nan{"nan", "", {.what = "1 step skipped"}, {}};
  for (const char* phase : {"", "forward", "backward", "reduce", "record"}) {
    rows.push_back(ARow(nan, phase));
    rows.back().injections = {{kHit, nan.fault, phase, *phase == '\0' ? 0 : kAtStep}};
  }
  // What ends the process alone, and what ends nothing.
  for (const Kind& xid : {Kind{"xid:31", "", RankLost("RankCrashed"), {}},
                          Kind{"xid:63", "", {.what = "trains on"}, {}}}) {
    rows.push_back(ARow(xid, ""));
    rows.back().injections = {{.rank = kHit, .fault = xid.fault}};
  }
  return rows;
}

}  // namespace phalanx::e2e

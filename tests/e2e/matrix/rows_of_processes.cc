// What is done to processes, nodes and links from outside.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "tests/e2e/matrix/harm.h"
#include "tests/e2e/matrix/row.h"

namespace phalanx::e2e {
namespace {

constexpr int64_t kLong = 600;       // for a node that is away for seconds
constexpr int64_t kVeryLong = 2000;  // for who comes back
// Row::no_detected, where a partition comes about at a step.
constexpr char kCutOff[] = "a node that is cut off cannot say since when";

const std::vector<std::string>& Impatient() {
  static const auto& flags =
      *new std::vector<std::string>{"--heartbeat-interval", "250ms", "--heartbeat-timeout", "2s"};
  return flags;
}

JobOptions Steps(int64_t steps, const std::string& recovery = "{rejoin: manual}") {
  JobOptions job = AJob();
  job.steps = steps;
  job.recovery = recovery;
  return job;
}

JobOptions WithCheckpoints(JobOptions job) {
  job.checkpoint = "every: 5";
  return job;
}

// None is due but that of the last step and what a suspension asks for: one that is due may be left
// out while the one before is still written, on a disk that is slow for a moment.
JobOptions ThatMaySuspend(JobOptions job) {
  job.checkpoint = absl::StrCat("every: ", job.steps);
  return job;
}

JobOptions LaidOut(const std::string& language, const std::string& recovery) {
  JobOptions job = AJob();
  job.language = language;
  job.recovery = recovery;
  return job;
}

Outcome Lost(const std::string& what, const std::string& cause, std::vector<int32_t> first) {
  return {.what = what, .cause = cause, .first_ranks = std::move(first), .redone = 1};
}

Outcome TrainsOn() { return {.what = "trains on"}; }

// What two ranks of six have, one after the other, while training goes on from another loss.
struct OnTheWay {
  const char *fault, *duration;
  int32_t left;      // ranks
  const char* then;  // Row::then of each, with its rank and node
  absl::Duration timeout = absl::ZeroDuration();
  const char* timeout_name = "";
  std::vector<std::string> coordinator_flags = {};
};
std::vector<OnTheWay> FaultsOnTheWay() {
  return {{"exit", "", 3, "rank $0 on node $1 exited with code 1"},
          {"stop", "", 3, "rank $0: it has not run for long", absl::Seconds(10),
           "5 s of standing still, twice"},
          // Before an epoch's first step nobody knows how long work takes.
          {"hang", "", 3, "rank $0: its training hangs", absl::Seconds(60),
           "30 s of standing still, twice"},
          {"xid:79", "", 3, "of node $1 reported XID 79"},
          // With what is left on the two nodes.
          {"partition", "4s", 2, "node $1 (has been away|is silent|is lost)", absl::Seconds(2),
           "2 s of silence", Impatient()}};
}

void AddRanks(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "Ranks";
    rows.push_back(std::move(row));
  };
  add({.fault = "the rank that writes metrics is killed",
       .job = AJob(),
       .act = Kills({0}),
       .expected = Lost("shrink: language tp 2 -> 1 in replica 0", "RankKilled", {0})});
  add({.fault = "two ranks at once",
       .job = AJob(),
       .act = Kills({1, 4}),
       .expected = Lost("shrink: language tp 2 -> 1 in replicas 0, 2", "RankKilled", {1, 4})});
  add({.fault = "both ranks of a replica at once",
       .job = AJob(),
       .act = Kills({4, 5}),
       .expected = Lost(kDropped, "RankKilled", {4, 5})});
  add({.fault = "a rank crashes: SIGSEGV",
       .job = AJob(),
       .act = Crashes({3}, SIGSEGV),
       .expected = Lost(kShrunk, "RankCrashed", {3})});
  add({.fault = "a rank crashes: SIGABRT, as of an exception that nobody catches",
       .job = AJob(),
       .act = Crashes({3}, SIGABRT),
       .expected = Lost(kShrunk, "RankCrashed", {3})});
  add({.fault = "two ranks crash at once: SIGSEGV",
       .job = AJob(),
       .act = Crashes({1, 4}, SIGSEGV),
       .expected = Lost("shrink: language tp 2 -> 1 in replicas 0, 2", "RankCrashed", {1, 4})});
  add({.fault = "the disk of the output folder is full",
       .job = Steps(kVeryLong),
       .act = FillsDisk({0, 1, 2, 3, 4, 5}),
       .expected = Fails("OutputUnavailable", 0),
       .unseen = absl::Seconds(15)});  // in which training waits for room
  add({.fault = "the only rank that saw the decision is killed",
       .job = AJob(),
       .injections = {{3, "hang", "record", kAtStep, "3s"}},
       .act = KillsWhoAloneDecided(3, 6),
       .expected = Lost(kShrunk, "RankKilled", {3}),
       .timeout = absl::Seconds(3),
       .timeout_name = "3 s in which it was held",
       .unseen = absl::Seconds(3)});
  add({.fault = "a rank is killed, two others one after the other while that is made up for",
       .job = LaidOut("ranks: 6", "{state_copies: 3, rejoin: manual}"),
       .injections = {{3, "kill", "recovery"}, {0, "kill", "recovery", 1}},
       .act = Kills({1}),
       .expected = Lost("drop-replica: language dp 6 -> 3", "RankKilled", {1}),
       .then = {"rank 3 on node middle was killed by signal 9",
                "rank 0 on node here was killed by signal 9"}});
  for (const OnTheWay& way : FaultsOnTheWay()) {
    const std::string duration = way.duration;
    add({.fault = absl::StrCat(
             "a rank is killed, two others are hit one after the other while that is made up for: ",
             way.fault, duration.empty() ? "" : " for ", duration),
         .job = LaidOut("ranks: 6", "{state_copies: 3, rejoin: manual}"),
         .coordinator_flags = way.coordinator_flags,
         .injections = {{3, way.fault, "recovery", 0, duration},
                        {0, way.fault, "recovery", 1, duration}},
         .act = Kills({1}),
         .expected =
             Lost(absl::StrCat("drop-replica: language dp 6 -> ", way.left), "RankKilled", {1}),
         .then = {absl::Substitute(way.then, 3, "middle"), absl::Substitute(way.then, 0, "here")},
         .timeout = way.timeout,
         .timeout_name = way.timeout_name,
         .patience = absl::Minutes(3)});
  }
  add({.fault = "a rank is killed while another is stopped, which goes on when it is left out",
       .job = AJob(),
       .act = PausesRankAndKills(4, 3),
       .expected = Lost("shrink: language tp 2 -> 1 in replicas 1, 2", "RankKilled", {3}),
       // By its daemon, or by the coordinator, whichever is first: RankHung, both.
       .then = {"rank 4(: it has not run for long| has not left epoch 1 within 5s)"},
       .timeout = absl::Seconds(5),
       .timeout_name = "5 s without a word of the other"});
  add({.fault = "a rank is killed and comes back",
       .job = Steps(kVeryLong, ""),
       .act =
           [](Scene& scene) {
             Kills({3})(scene);
             AwaitsReturn()(scene);
           },
       .expected = Lost("shrink: language tp 2 -> 1 in replica 1; then rank 3 came back: "
                        "language tp 1 -> 2 in replica 1",
                        "RankKilled", {3})});
  add({.fault = "a device fails, and its rank could come back",
       .job = Steps(kLong, ""),
       .injections = {{3, "xid:79"}},
       .expected = Lost(kShrunk, "DeviceFailed", {3})});
}

// There is one to go back to.
Harm BehindACheckpoint(Harm harm) {
  return [harm = std::move(harm)](Scene& scene) {
    scene.AwaitEvent("CheckpointPublished");
    harm(scene);
  };
}

void AddHomes(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "Homes of state";
    rows.push_back(std::move(row));
  };
  constexpr char kNarrow[] =
      "shrink, restart: language tp 2 -> 1 in replicas 0, 1; back to the "
      "checkpoint";
  add({.fault = "both homes of a segment at once, with checkpoints",
       .job = WithCheckpoints(AJob()),
       .act = BehindACheckpoint(Kills({1, 3})),
       .expected = {kNarrow, "RankKilled", {1, 3}, 20}});
  add({.fault = "both homes of a segment at once, without checkpoints",
       .job = AJob(),
       .act = Kills({1, 3}),
       .expected = Fails("StateLost", -1)});
  JobOptions before_the_first = AJob();
  before_the_first.checkpoint = absl::StrCat("every: ", before_the_first.steps - 1);
  add({.fault = "both homes of a segment at once, before the first checkpoint",
       .job = before_the_first,
       .act = Kills({1, 3}),
       .expected = {"shrink, restart: language tp 2 -> 1 in replicas 0, 1; back to the beginning",
                    "RankKilled",
                    {1, 3},
                    before_the_first.steps}});
  add({.fault = "both replicas' ranks of a segment at once, with copies in host memory",
       .job = Steps(kSteps, "{state_home: host, rejoin: manual}"),
       .act = Kills({1, 3}),
       .expected = {
           "shrink: language tp 2 -> 1 in replicas 0, 1; back to the copies in host memory",
           "RankKilled",
           {1, 3},
           2}});
  add({.fault = "the last replica of a stage, with copies in host memory",
       .job = LaidOut("ranks: 2, pp: 2", "{ladder: [wait]}"),
       .act = Kills({1}),
       .expected = {
           "wait: back to the copies in host memory; rank 1 came back", "RankKilled", {1}, 2}});
  add({.fault = "the last replica of a stage, which stays out",
       .job = LaidOut("ranks: 2, pp: 2", "{state_home: host, rejoin: manual}"),
       .act = Kills({1}),
       .expected = {"restart: language pp 2 -> 1; back to the copies in host memory",
                    "RankKilled",
                    {1},
                    2}});
  add({.fault = "all ranks at once, of stages that are there once",
       .job = LaidOut("ranks: 2, pp: 2", "{}"),
       .act = Kills({0, 1}),
       .expected = {"wait: back to the copies in host memory; ranks 0, 1 came back",
                    "RankKilled",
                    {0, 1},
                    2}});
  add({.fault = "a rank is killed, and the ladder is []",
       .job = LaidOut("ranks: 6, tp: 2", kNoRecovery),
       .act = Kills({3}),
       .expected = Fails("RankKilled", 3)});
  add({.fault = "a rank is killed, and the budget is spent",
       .job = LaidOut("ranks: 6, tp: 2", "{rejoin: manual, budget: {total: 0}}"),
       .act = Kills({3}),
       .expected = Fails("RankKilled", 3)});
  add({.fault = "a rank crashes, and the budget is spent",
       .job = LaidOut("ranks: 6, tp: 2", "{rejoin: manual, budget: {total: 0}}"),
       .act = Crashes({3}, SIGABRT),
       .expected = Fails("RankCrashed", 3)});
  add({.fault = "both ranks of a replica crash at once, and the ladder is [shrink]",
       .job = LaidOut("ranks: 6, tp: 2", "{rejoin: manual, ladder: [shrink]}"),
       .act = Crashes({2, 3}, SIGABRT),
       .expected = {.what = "the job fails", .cause = "RankCrashed", .first_ranks = {2, 3}}});
}

JobOptions WithSpares(const std::string& language, int32_t spares) {
  JobOptions job = AJob();
  job.language = language;
  job.spares = spares;
  return job;
}

void AddSpares(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "Spares";
    rows.push_back(std::move(row));
  };
  add({.fault = "a rank is killed, and there are spares",
       .job = WithSpares("ranks: 4, tp: 2", 2),
       .act = Kills({3}),
       .expected = Lost("spare: a spare takes over rank 3", "RankKilled", {3})});
  add({.fault = "a device fails, and there are spares",
       .job = WithSpares("ranks: 4, tp: 2", 2),
       .injections = {{3, "xid:79"}},
       .expected = Lost("spare: a spare takes over rank 3", "DeviceFailed", {3})});
  add({.fault = "kill -9 of a daemon, and there are spares for its ranks",
       .job = WithSpares("ranks: 4, tp: 2", 2),
       .act = KillsDaemons({"middle"}),
       .expected = Lost("spare: spares take over ranks 2, 3", "NodeLost", {2})});
  add({.fault = "kill -9 of a daemon, and there is a spare for one of its ranks",
       .job = WithSpares("ranks: 4", 1),
       .act = KillsDaemons({"middle"}),
       .expected = Lost("spare, drop-replica: a spare takes over rank 2; language dp 4 -> 3",
                        "NodeLost", {2})});
}

void AddWithoutStandby(std::vector<Row>& rows) {
  for (const char* phase : {"backward", "optimizer", "recovery"}) {
    Row row{.section = "Without standby communicators",
            .fault = "kill",
            .phase = phase,
            .job = AJob(),
            .expected = Lost(kShrunk, "RankKilled", {3})};
    row.job.standby = false;
    row.injections = {{3, "kill", phase, kAtStep}};
    if (std::string(phase) == "recovery") {
      row.injections = {{4, "kill", phase}};
      row.act = Kills({5});
      row.expected = Lost(kDropped, "RankKilled", {5});
    }
    rows.push_back(std::move(row));
  }
}

void AddQueued(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "Suspended jobs";
    rows.push_back(std::move(row));
  };
  add({.fault = "a job is suspended, and resumed",
       .job = ThatMaySuspend(Steps(kLong)),
       .act = SuspendsAndResumes(),
       .expected = TrainsOn()});
  add({.fault = "a rank is killed, and the job is suspended when it trains again, and resumed",
       .job = ThatMaySuspend(Steps(kLong)),
       .act =
           [](Scene& scene) {
             Kills({3})(scene);
             scene.AwaitEvent("Recovered");
             SuspendsAndResumes()(scene);
           },
       .expected = Lost(kShrunk, "RankKilled", {3})});
}

void AddNodes(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "Nodes and daemons";
    rows.push_back(std::move(row));
  };
  const Outcome without = Lost(kDropped, "NodeLost", {4});
  add({.fault = "all processes of a node are killed",
       .job = AJob(),
       .act = KillsNode("there"),
       .expected = without});
  add({.fault = "a node falls silent",
       .job = AJob(),
       .coordinator_flags = Impatient(),
       .act = Silences("there"),
       .expected = without,
       .timeout = absl::Seconds(2),
       .timeout_name = "2 s of silence",
       .unseen = absl::Seconds(2)});
  add({.fault = "kill -9 of a daemon",
       .job = AJob(),
       .act = KillsDaemons({"there"}),
       .expected = without});
  add({.fault = "kill -9 of a daemon, which is started again",
       .job = Steps(kVeryLong, ""),
       .act = RestartsDaemon("there"),
       .expected = Lost("drop-replica: language dp 3 -> 2; then ranks 4, 5 came back: "
                        "language dp 2 -> 3",
                        "NodeLost", {4})});
  add({.fault = "kill -9 of a daemon while the loss of one of its ranks is made up for",
       .job = AJob(),
       .injections = {{0, "hang", "recovery", 0, "1s"}},
       .act = KillsAndThen(3, KillsDaemons({"middle"})),
       .expected = Lost(kDropped, "RankKilled", {3}),
       .timeout = absl::Seconds(1),
       .timeout_name = "1 s in which a rank was held"});
  add({.fault = "kill -9 of two daemons at once, with checkpoints",
       .job = WithCheckpoints(AJob()),
       .act = BehindACheckpoint(KillsDaemons({"middle", "there"})),
       .expected = {"drop-replica, restart: language dp 3 -> 1; back to the checkpoint",
                    "NodeLost",
                    {2, 4},
                    20}});
  add({.fault = "SIGSTOP of a daemon, SIGCONT after 2 s",
       .job = Steps(kLong),
       .act = PausesDaemon("there", absl::Seconds(2)),
       .expected = TrainsOn()});
  add({.fault = "SIGSTOP of a daemon, SIGCONT when its ranks are left out",
       .job = Steps(kLong),
       .coordinator_flags = Impatient(),
       .act = PausesDaemonUntilLeftOut("there", {4, 5}),
       .expected = without,
       .timeout = absl::Seconds(2),
       .timeout_name = "2 s of silence",
       .unseen = absl::Seconds(2)});
  add({.fault = "SIGSTOP of a daemon and its ranks, SIGCONT when they are left out",
       .job = Steps(kLong),
       .coordinator_flags = Impatient(),
       .act = PausesNodeUntilLeftOut("there", {4, 5}),
       .expected = without,
       .timeout = absl::Seconds(2),
       .timeout_name = "2 s of silence",
       .unseen = absl::Seconds(2)});
  add({.fault = "a partition that heals",
       .job = Steps(kVeryLong, ""),
       .coordinator_flags = Impatient(),
       .injections = {{4, "partition", "", kAtStep, "4s"}},
       .act = AwaitsReturn(),
       .expected = Lost("drop-replica: language dp 3 -> 2; then ranks 4, 5 came back: "
                        "language dp 2 -> 3",
                        "NodeLost", {4}),
       .timeout = absl::Seconds(2),
       .timeout_name = "2 s of silence",
       .unseen = absl::Seconds(2),
       .no_detected = kCutOff});
}

// `here` has the rank that writes metrics and publishes checkpoints, which does not know at first
// that others went on without it.
void AddNodeOfTheReporter(std::vector<Row>& rows) {
  const auto add = [&rows](const std::string& fault, int64_t steps, const Harm& harm,
                           const std::string& no_detected) {
    for (const bool checkpoints : {false, true}) {
      Row row{.section = "The node of the rank that writes metrics",
              .fault = fault,
              .job = Steps(steps),
              .coordinator_flags = Impatient(),
              .act = harm,
              .expected = Lost(kDropped, "NodeLost", {0}),
              .timeout = absl::Seconds(2),
              .timeout_name = "2 s of silence",
              .unseen = absl::Seconds(2),
              .no_detected = no_detected};
      if (checkpoints) {
        row.fault += ", with checkpoints";
        row.job = WithCheckpoints(row.job);
        row.act = BehindACheckpoint(harm);
      }
      rows.push_back(std::move(row));
    }
  };
  add("a partition that heals after 4 s", kVeryLong, CutsOff(0, absl::Seconds(4), {0, 1}), kCutOff);
  add("SIGSTOP of its daemon and ranks, SIGCONT when they are left out", kLong,
      PausesNodeUntilLeftOut("here", {0, 1}), "");
}

void AddCoordinator(std::vector<Row>& rows) {
  const auto add = [&rows](Row row) {
    row.section = "The coordinator";
    rows.push_back(std::move(row));
  };
  constexpr char kNarrow[] = "shrink: language tp 2 -> 1 in replica 2";
  add({.fault = "kill -9 of the coordinator",
       .job = Steps(kLong),
       .act = KillsCoordinator(),
       .expected = TrainsOn()});
  for (const bool moving : {false, true}) {
    add({.fault = "kill -9 of the coordinator",
         .phase = moving ? "recovery, as state moves" : "recovery",
         .job = AJob(),
         .injections = {{4, "hang", "recovery", moving ? 1 : 0, "1s"}},
         .act = KillsAndThen(5, KillsCoordinator()),
         .expected = Lost(kNarrow, "RankKilled", {5}),
         .timeout = absl::Seconds(1),
         .timeout_name = "1 s in which a rank was held",
         .no_back = "a coordinator that is gone may have been the one to see it"});
  }
  add({.fault = "kill -9 of the coordinator and of a rank at once",
       .job = AJob(),
       .act =
           [](Scene& scene) {
             Kills({5})(scene);
             KillsCoordinator()(scene);
           },
       .expected = Lost(kNarrow, "RankKilled", {5}),
       .unseen = absl::Seconds(2)});  // until there is another one, and nodes have come back
  add({.fault = "SIGSTOP of the coordinator, SIGCONT after 4 s",
       .job = Steps(kLong),
       .coordinator_flags = Impatient(),
       .act = PausesCoordinator(absl::Seconds(4)),
       .expected = TrainsOn()});
  add({.fault = "SIGSTOP of the coordinator, SIGCONT after 4 s, and a rank is killed meanwhile",
       .job = AJob(),
       .coordinator_flags = Impatient(),
       .act = PausesCoordinatorAndKills(absl::Seconds(4), 3),
       .expected = Lost(kShrunk, "RankKilled", {3}),
       .timeout = absl::Seconds(4),
       .timeout_name = "4 s without a coordinator",
       .unseen = absl::Seconds(4)});
}

}  // namespace

std::vector<Row> RowsOfProcesses() {
  std::vector<Row> rows;
  AddRanks(rows);
  AddHomes(rows);
  AddSpares(rows);
  AddNodes(rows);
  AddNodeOfTheReporter(rows);
  AddCoordinator(rows);
  AddQueued(rows);
  AddWithoutStandby(rows);
  return rows;
}

}  // namespace phalanx::e2e

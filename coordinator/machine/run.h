// coordinator/machine/run.h: what a coordinator knows of the running of one epoch and keeps
// nowhere: after a restart it asks the nodes again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/machine/events.h"
#include "coordinator/machine/evidence.h"
#include "coordinator/machine/records.h"
#include "core/checkpoint/manifest.h"

namespace phalanx::coordinator {

struct RankState {
  int32_t team = 0;  // index into Run::teams
  bool used = true;  // the plan gives it work
  bool ready = false;
  bool succeeded = false;
  bool exited = false;
  bool safe = false;  // what it keeps has all its homes, or gets none more
};

// The ranks of one node.
struct Team {
  NodeName node;
  std::vector<int32_t> devices;
  std::vector<int32_t> ranks;  // on them; ascending
  bool prepared = false;       // its data is checked and indexed
  int32_t lost_preparing = 0;  // so often its node came back as another process before that
  // Until then, as the last heartbeat of its node said.
  int64_t bytes_read = 0;
  JobId behind;           // whose data this job's waits behind; 0: it does not wait
  bool assigned = false;  // it was told to start its ranks, so they may be there
  bool seen = false;  // after a restart of the coordinator: its node says that the ranks are there
  bool released = false;  // its ranks are gone for certain; its devices are free
  // Its node may have been told to make ready for ranks that are lost, and may have processes for
  // some that have exited.
  bool starts_again = false;
  // The node is back and does not list the ranks: their last reports must come until then.
  Instant missing_deadline = absl::InfiniteFuture();

  // "a", "a (behind job-1)".
  std::string PreparingName() const;
  bool Has(int32_t rank) const { return std::binary_search(ranks.begin(), ranks.end(), rank); }
  int32_t DeviceOf(int32_t rank) const;  // that it has
};

// A checkpoint of which some ranks have written their parts.
struct WrittenParts {
  std::map<int32_t, checkpoint::PartFile> parts;  // by rank
  double seconds = 0;                             // that the slowest of them took
};

struct Run {
  // Preparing: no rank exists. Assigned: ranks may. Reattaching: assigned while Starting by a
  // coordinator before this one, so some of the rendezvous may be lost.
  enum class Stage : uint8_t { kPreparing, kAssigned, kReattaching } stage = Stage::kPreparing;
  std::vector<RankState> ranks;
  // So many of the first ranks have no work or are ready, or have all their homes: where AllReady
  // and AllSafe go on, since each of many ranks that becomes so asks whether all are. 0 where some
  // is not ready any more.
  size_t ready_known = 0, safe_known = 0;
  std::vector<Team> teams;
  std::map<std::string, std::string> rendezvous;         // all that was said
  std::map<std::string, std::string> rendezvous_unsent;  // the part of it that no node was told
  size_t rendezvous_bytes = 0;                           // of all
  std::string data_digest;
  std::optional<CheckpointSource> checkpoint;  // that was chosen with the data
  // The last epoch of the job that a node has seen, which refuses this one; 0: none does.
  Epoch epoch_seen;
  Instant prepare_deadline = absl::InfiniteFuture();  // moved by progress
  Instant start_deadline = absl::InfiniteFuture();
  Instant reattach_deadline = absl::InfiniteFuture();
  Instant rendezvous_deadline = absl::InfiniteFuture();  // when to send what has gathered
  // Why a rank waits for the output folder, until it is ready or a step is reported; empty: none
  // waits.
  std::string output_waiting;
  int32_t output_waiting_rank = 0;
  // What ranks say about their peers, and until when it waits for better evidence.
  std::vector<Accusation> accusations;
  Instant accused_at;  // the first of them
  // The first of those that accuse and were then killed by a signal: the cause unless a better one
  // comes: a peer that is gone kills nobody. Or the first that died, until its exit is told.
  std::optional<FailureCause> accuser_killed;
  Instant settle_deadline = absl::InfiniteFuture();
  // Where the state of ranks stands that have left the epoch, should others be found to be lost.
  std::map<int32_t, RankQuiet> quiets;
  // The job fails of a death, and why, once it is told how that process ended.
  struct Failing {
    FailureCause cause;
    std::string why;
  };
  std::optional<Failing> failing;
  Instant fail_deadline = absl::InfiniteFuture();
  Instant quiet_deadline = absl::InfiniteFuture();  // for the ranks of the epoch before (Recovery)
  Instant hold_deadline = absl::InfiniteFuture();   // for lost ranks that the job waits for

  // coordinator_progress.cc: when a step was reported last, or all ranks were ready; how many were
  // since then; how many ranks have work, once all are ready.
  Instant stepped_at = absl::InfiniteFuture();
  int64_t steps = 0;
  int64_t working = 0;
  // Nodes all of whose ranks stand in waits, each since when, and until when that is known.
  struct Wait {
    Instant since, until;
  };
  std::map<NodeName, Wait> waits;
  size_t waits_not = 0;  // a team that was not among them, or not for long

  // For ranks to make a set of standby communicators, or to try those that failed once more.
  Instant standby_deadline = absl::InfiniteFuture();

  // By step: those that some ranks have not written, and those whose turn to be published has not
  // come. Ranks are not equally fast, and reports of two nodes come in any order.
  std::map<int64_t, WrittenParts> written;
  // What a rank said last of a part that it could not write: "rank 1: step 7: /c: No space left on
  // device"; empty: nothing since this coordinator began.
  std::string part_failed;
  // Whether all ranks have written their parts.
  bool IsWhole(const WrittenParts& checkpoint) const {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].used && !checkpoint.parts.contains(static_cast<int32_t>(i))) return false;
    }
    return true;
  }
  // All ranks have succeeded and the last checkpoint is not published, or not known to be written.
  Instant publish_deadline = absl::InfiniteFuture();
  // The job is to wish for its end; once it has, to end whatever its ranks have done.
  Instant end_deadline = absl::InfiniteFuture();
  int64_t ended_step = 0;  // of the ranks that have succeeded, one for all; 0: none has
  // A coordinator before this one had it, and may have heard of parts what it did not store: nodes
  // say it again.
  bool awaits_parts = false;

  // What nodes may start again they still may in this run, which follows.
  void KeepStartsAgain(const Run& before);

  Team* TeamOf(const NodeName& node);
  const Team* TeamOf(const NodeName& node) const;
  Team* TeamOfRank(int32_t rank);
  const Team* TeamOfRank(int32_t rank) const;
  template <typename Predicate>
  bool AllUsed(Predicate predicate) const {
    size_t known = 0;
    return AllUsedFrom(known, predicate);
  }
  // The first `known` ranks need not be asked; it becomes as many as that is true of.
  template <typename Predicate>
  bool AllUsedFrom(size_t& known, Predicate predicate) const {
    while (known < ranks.size() && (!ranks[known].used || predicate(ranks[known]))) ++known;
    return known == ranks.size();
  }
  bool AllReady() {
    return AllUsedFrom(ready_known, [](const RankState& rank) { return rank.ready; });
  }
  bool AllSafe() {
    return AllUsedFrom(safe_known, [](const RankState& rank) { return rank.safe; });
  }
  bool HasWork(const Team& team) const {
    return std::any_of(team.ranks.begin(), team.ranks.end(),
                       [this](int32_t rank) { return ranks[static_cast<size_t>(rank)].used; });
  }
  bool Succeeded() const {
    return AllUsed([](const RankState& rank) { return rank.succeeded; });
  }
  // All ranks of the team that have work have done their last step.
  bool Succeeded(const Team& team) const {
    return std::all_of(team.ranks.begin(), team.ranks.end(), [this](int32_t rank) {
      const RankState& state = ranks[static_cast<size_t>(rank)];
      return !state.used || state.succeeded;
    });
  }
  // Whether its node is to choose the checkpoint that the job begins with.
  bool Chooses(const Team& team) const {
    return &team == &teams.front() && !checkpoint.has_value();
  }
  // Of the node: the first that has work, else the first of all.
  int32_t FirstRank(const Team& team) const;
  // What was said of peers is judged.
  void EndJudging();
  // Nobody is waited for any more on the way to the next epoch.
  void EndRecovering() { quiet_deadline = start_deadline = absl::InfiniteFuture(); }
  // The job has ended: nothing more comes of it but that its ranks go.
  void EndAll();
  Instant NextDeadline() const;
  // But for end_deadline, which is not of somebody who may be late.
  void MoveDeadlines(absl::Duration by);
};

// A run of the layout before anything has happened.
Run MakeRun(const plan::Layout& layout);
// That have work in it.
std::set<int32_t> WorkingRanks(const plan::Layout& layout);

}  // namespace phalanx::coordinator

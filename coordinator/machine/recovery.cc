#include "coordinator/machine/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::coordinator {
namespace {

absl::Status CheckHomes(int32_t rank, const RankQuiet& quiet, int64_t step) {
  for (const RankQuiet::Home& home : quiet.homes) {
    if (home.applied == step || home.applied == step - 1) continue;
    return absl::InternalError(absl::StrCat("the epoch would go on behind step ", step,
                                            ", and what rank ", rank, " keeps for rank ",
                                            home.primary, " of part ", home.chunk, " of module ",
                                            home.module, " is of step ", home.applied));
  }
  return absl::OkStatus();
}

}  // namespace

bool SameStart(const EpochStart& a, const EpochStart& b) {
  return a.step() == b.step() && a.updates == b.updates &&
         a.skipped_in_a_row == b.skipped_in_a_row &&
         a.decision.has_value() == b.decision.has_value() &&
         (!a.decision.has_value() || (a.decision->verdict == b.decision->verdict &&
                                      a.decision->gradient_scale == b.decision->gradient_scale));
}

bool AccusesWhoTrains(const Recovery& recovery, const FailureCause& verdict) {
  const bool of_peers = verdict.kind == job::FailureKind::kPeerLost ||
                        verdict.kind == job::FailureKind::kNodeUnreachable ||
                        verdict.kind == job::FailureKind::kNodeLost;
  const bool trains = recovery.beside && recovery.stage == Recovery::Stage::kLeaving;
  // Later than that a node whose session broke, too, is lost.
  const bool trained = recovery.by_choice && recovery.stage >= Recovery::Stage::kLeaving &&
                       recovery.tries < kTriesWithoutBlame &&
                       verdict.kind != job::FailureKind::kNodeLost;
  return (trains || trained) && of_peers && !recovery.back.contains(verdict.rank);
}

bool MetWhileConnecting(const Recovery& recovery, const FailureCause& cause) {
  const bool of_itself = cause.kind == job::FailureKind::kRankError ||
                         cause.kind == job::FailureKind::kOutOfMemory ||
                         cause.kind == job::FailureKind::kVersionMismatch;
  return recovery.beside && recovery.stage == Recovery::Stage::kLeaving && of_itself &&
         cause.rank >= 0;
}

bool StaysByChoice(const Recovery& recovery, const std::set<int32_t>& lost, bool apart) {
  if (!recovery.by_choice) return false;
  return apart ||
         (recovery.stage != Recovery::Stage::kEntering &&
          std::includes(recovery.back.begin(), recovery.back.end(), lost.begin(), lost.end()));
}

bool MayHoldState(const Recovery& recovery) {
  return recovery.by_choice && recovery.entered && !recovery.back.empty() &&
         recovery.tries < kTriesWithoutBlame;
}

void NoteSpared(Recovery& recovery, const plan::RankList& lost) {
  for (auto rank = recovery.lost.begin(); rank != recovery.lost.end();) {
    const auto at = rank++;
    if (std::find(lost.begin(), lost.end(), Rank{*at}) != lost.end()) continue;
    recovery.back.insert(*at);
    recovery.spared.insert(*at);
    recovery.lost.erase(at);
  }
}

std::string LostText(const Recovery& recovery) {
  return absl::StrCat(recovery.lost.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(recovery.lost, ", "));
}

std::string StageText(const Recovery& recovery) {
  const bool stood = recovery.cause.kind == job::FailureKind::kNoProgress;
  std::string begin = !recovery.lost.empty() ? absl::StrCat("it has lost ", LostText(recovery))
                      : stood                ? "nobody in it got any further"
                      : recovery.paces       ? "samples are dealt by which devices are slow"
                                             : "ranks come back";
  switch (recovery.stage) {
    case Recovery::Stage::kPlanning:
      return absl::StrCat(begin, ": the next layout is being planned");
    case Recovery::Stage::kWaiting:
      return absl::StrCat("it waits for ", LostText(recovery), ", which it cannot go on without");
    case Recovery::Stage::kLeaving:
      if (recovery.beside)
        return absl::StrCat(begin, ": ", recovery.paces ? "ranks" : "the others",
                            " train on until all are connected");
      return absl::StrCat(begin, ": ranks ", absl::StrJoin(recovery.awaited, ", "),
                          " have still to say where their state stands");
    case Recovery::Stage::kEntering:
      return absl::StrCat(begin, ": not all ranks of the next epoch are ready");
  }
  return begin;
}

void ForgetBefore(Epoch from, RankQuiet& quiet) {
  if (quiet.layout_epoch == Epoch{0} || quiet.layout_epoch >= from) return;
  quiet.known = {};
  quiet.homes.clear();
  quiet.begun = 0;
}

absl::StatusOr<EpochStart> Settle(const std::map<int32_t, RankQuiet>& quiets,
                                  const std::optional<EpochStart>& reported) {
  constexpr int32_t kReported = -1;
  std::map<int64_t, std::pair<int32_t, EpochStart>> known;  // by step: who said so first
  if (reported.has_value()) known.emplace(reported->step(), std::pair(kReported, *reported));
  for (const auto& [rank, quiet] : quiets) {
    if (!quiet.known.decision.has_value()) continue;
    const auto [entry, is_new] = known.try_emplace(quiet.known.step(), rank, quiet.known);
    if (is_new || SameStart(entry->second.second, quiet.known)) continue;
    const int32_t other = entry->second.first;
    return absl::InternalError(absl::StrCat(
        "rank ", rank, " knows step ", entry->first, " to be decided differently than ",
        other == kReported ? "was reported" : absl::StrCat("rank ", other)));
  }
  const EpochStart start = known.empty() ? EpochStart{} : known.rbegin()->second.second;
  for (const auto& [rank, quiet] : quiets) {
    const absl::Status sound = CheckHomes(rank, quiet, start.step());
    if (!sound.ok()) return sound;
  }
  return start;
}

}  // namespace phalanx::coordinator

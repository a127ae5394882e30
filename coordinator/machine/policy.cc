#include "coordinator/machine/policy.h"

#include "absl/strings/str_cat.h"

namespace phalanx::coordinator {
namespace {

using job::FailureKind;

std::string DoesNotGoOn(FailureKind kind) {
  return absl::StrCat("a job in its state does not go on after ", job::ToString(kind));
}

// As long as no rank had started there, nothing is lost with a node but what it had prepared.
Remedy OnNodeLost(const Policy& policy, const Run& run, const NodeName& name,
                  const NodeTable& cluster) {
  if (run.teams.empty()) {
    if (!policy.may_wait) return {Course::kFail, "the job may not wait"};
    return {Course::kWait, absl::StrCat("nothing of the job had started on node ", name,
                                        ", so it waits for devices again")};
  }
  const Team* team = run.TeamOf(name);
  if (team != nullptr && team->assigned && policy.may_recover)
    return {Course::kRecover, absl::StrCat("training goes on without node ", name)};
  if (team != nullptr && team->assigned) {
    return {Course::kFail, absl::StrCat("ranks on node ", name,
                                        " may have trained, and this release does not move them")};
  }
  if (!policy.may_wait) return {Course::kFail, "the job may not wait"};
  const auto node = cluster.find(name);
  if (node == cluster.end() || !node->second.connected()) {
    return {Course::kQueue, absl::StrCat("no rank had started on node ", name,
                                         ", which is away, so the job waits for devices again")};
  }
  return {Course::kWait, absl::StrCat("no rank had started on node ", name,
                                      ", which is back and prepares the data again")};
}

// A coordinator that came back while ranks started finds that some did not: none can have trained.
Remedy OnRanksLost(const Policy& policy, const Run& run, const NodeName& name) {
  if (policy.may_recover && run.stage != Run::Stage::kReattaching)
    return {Course::kRecover, absl::StrCat("training goes on without the ranks on node ", name)};
  if (run.stage != Run::Stage::kReattaching) {
    return {Course::kFail, DoesNotGoOn(FailureKind::kRanksLost)};
  }
  return {Course::kStartAnew, absl::StrCat("the ranks on node ", name,
                                           " had not started, so none of the epoch has trained")};
}

// A node that has seen a later epoch of the job than the store knows: ranks that it does not start
// keep all others from training.
Remedy OnStartFailed(const Policy& policy, const Run& run, const NodeName& name) {
  if (policy.may_recover)
    return {Course::kRecover, absl::StrCat("training goes on without node ", name)};
  if (run.epoch_seen.value == 0) {
    return {Course::kFail, DoesNotGoOn(FailureKind::kStartFailed)};
  }
  return {
      Course::kStartAnew,
      absl::StrCat("node ", name, " has seen epoch ", run.epoch_seen.value,
                   " of the job, so the store was put back, and none of the epoch has trained")};
}

// Ranks find each other by way of the coordinator, and give up where it is away for too long: they
// are not to blame for that, nor is whom they waited for, whose node may never have been told of
// the epoch. None is ready, so none has trained.
Remedy OnPeersMissed(const Policy& policy, FailureKind kind) {
  if (policy.may_recover) return {Course::kRecover, "training goes on without what is lost"};
  if (policy.may_start_anew) {
    return {Course::kStartAnew,
            "its ranks may have waited for a coordinator that was away, and none has trained"};
  }
  return {Course::kFail, DoesNotGoOn(kind)};
}

Remedy RemedyOf(const Policy& policy, const Run& run, const Loss& loss, const NodeTable& cluster) {
  switch (loss.kind) {
    case FailureKind::kNodeLost:
      return OnNodeLost(policy, run, loss.node, cluster);
    case FailureKind::kRanksLost:
      return OnRanksLost(policy, run, loss.node);
    case FailureKind::kStartFailed:
      return OnStartFailed(policy, run, loss.node);
    case FailureKind::kRankCrashed:
    case FailureKind::kRankExited:
      if (policy.may_recover) return {Course::kRecover, "training goes on without the rank"};
      return {Course::kFail, absl::StrCat(job::ToString(loss.kind), " would come again")};
    case FailureKind::kStateLost:
      if (policy.may_go_back)
        return {Course::kGoBack, "training goes back to its last checkpoint, or its beginning"};
      return {Course::kFail, "there is no checkpoint that it could go back to"};
    case FailureKind::kPeerLost:
    case FailureKind::kNodeUnreachable:
      return OnPeersMissed(policy, loss.kind);
    case FailureKind::kRankKilled:
    case FailureKind::kRankHung:
    case FailureKind::kDeviceFailed:
      if (policy.may_recover) return {Course::kRecover, "training goes on without what is lost"};
      break;
    case FailureKind::kRankError:
    case FailureKind::kPlanInvalid:
    case FailureKind::kDataInvalid:
    case FailureKind::kDataCorrupt:
    case FailureKind::kOutOfMemory:
    case FailureKind::kNonFinite:
    case FailureKind::kVersionMismatch:
    case FailureKind::kCheckpointInvalid:
      return {Course::kFail, absl::StrCat(job::ToString(loss.kind), " would come again")};
    case FailureKind::kNoProgress:
      if (policy.may_recover) return {Course::kRecover, "training begins again on the same ranks"};
      break;
    case FailureKind::kNodeStopped:
      if (policy.may_recover)
        return {Course::kRecover, absl::StrCat("training goes on without node ", loss.node)};
      break;
    case FailureKind::kStartTimeout:
    case FailureKind::kPrepareFailed:
    case FailureKind::kDataUnavailable:
    case FailureKind::kOutputUnavailable:
    case FailureKind::kPrepareTimeout:
    case FailureKind::kCheckpointUnavailable:
    case FailureKind::kTimeLimit:
      break;
  }
  return {Course::kFail, DoesNotGoOn(loss.kind)};
}

// Whether other devices, or another start on the same ones, may do better.
bool MayDoBetter(FailureKind kind) {
  switch (kind) {
    case FailureKind::kNodeLost:
    case FailureKind::kNodeUnreachable:
    case FailureKind::kNodeStopped:
    case FailureKind::kRanksLost:
    case FailureKind::kRankKilled:
    case FailureKind::kRankCrashed:
    case FailureKind::kRankExited:
    case FailureKind::kRankHung:
    case FailureKind::kPeerLost:
    case FailureKind::kDeviceFailed:
    case FailureKind::kStartFailed:
    case FailureKind::kStartTimeout:
    case FailureKind::kPrepareTimeout:
    case FailureKind::kCheckpointUnavailable:
    case FailureKind::kNoProgress:
      return true;
    default:
      return false;
  }
}

}  // namespace

Remedy RemedyFor(const Policy& policy, const Run& run, absl::Span<const Loss> losses,
                 const NodeTable& cluster) {
  Remedy remedy;
  for (const Loss& loss : losses) {
    remedy = RemedyOf(policy, run, loss, cluster);
    if (remedy.course == Course::kFail && policy.may_queue && MayDoBetter(loss.kind))
      remedy = {Course::kQueue, "it has trained before, so it waits for devices again"};
    if (loss.kind == FailureKind::kPrepareFailed && policy.may_start_elsewhere)
      remedy = {Course::kQueue, absl::StrCat("it starts on other nodes than ", loss.node)};
    if (remedy.course == Course::kFail) break;
  }
  return remedy;
}

}  // namespace phalanx::coordinator

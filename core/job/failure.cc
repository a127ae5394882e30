#include "core/job/failure.h"

#include <algorithm>
#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/accused.h"

namespace phalanx::job {
namespace {

constexpr char kKindUrl[] = "phalanx/failure-kind";

using K = FailureKind;
constexpr std::array kFailures = {
    FailureTraits{K::kNodeLost, "NodeLost", true, Fault::kNode,
                  "a node is silent or away, or its daemon died and came back",
                  "look at the node: power, network, the log of phalanx-worker"},
    FailureTraits{K::kNodeUnreachable, "NodeUnreachable", true, Fault::kNetwork,
                  "several ranks lost their connections to a node whose daemon is still heard (by "
                  "a coordinator "
                  "that has just started: is back; until then it waits as long as for silence)",
                  "check the network between the nodes, and --address of phalanx-worker there"},
    FailureTraits{K::kNodeStopped, "NodeStopped", true, Fault::kOperator,
                  "the daemon of a node was asked to end and ended its ranks",
                  "start phalanx-worker there again, then submit the job again; with a checkpoint "
                  "section, or a "
                  "ladder that does without the node, it would have gone on"},
    FailureTraits{K::kRanksLost, "RanksLost", true, Fault::kNode,
                  "a daemon came back without its ranks and without their last reports",
                  "look at the log of phalanx-worker on the node, then submit the job again"},
    FailureTraits{
        K::kRankKilled, "RankKilled", true, Fault::kNode,
        "a rank process was ended by a signal from outside",
        "SIGKILL that nobody sent is most often the kernel out of memory: dmesg says so; of "
        "any other signal find out who sends it, then submit the job again"},
    FailureTraits{K::kRankCrashed, "RankCrashed", false, Fault::kProgram,
                  "a rank process ended itself by a signal such as SIGSEGV or SIGABRT",
                  "read the end of the rank's log (phalanx logs) and report it"},
    FailureTraits{K::kRankExited, "RankExited", false, Fault::kProgram,
                  "a rank process exited before its last step without saying why",
                  "read the end of the rank's log (phalanx logs) and report it"},
    FailureTraits{K::kRankError, "RankError", false, Fault::kProgram,
                  "a rank met an error of no other kind",
                  "read the message and the rank's log (phalanx logs) and report it"},
    FailureTraits{K::kPeerLost, "PeerLost", true, Fault::kNetwork,
                  "a rank lost its connection to another, and nothing else explains it",
                  "check the network between the two nodes, then submit the job again"},
    FailureTraits{K::kStartFailed, "StartFailed", true, Fault::kNode,
                  "a node could not start its rank processes",
                  "look at the message and at --rank-program, memory and limits of that node"},
    FailureTraits{K::kStartTimeout, "StartTimeout", true, Fault::kNetwork,
                  "ranks were not ready in time",
                  "check that the nodes reach each other's --address, then read the ranks' logs"},
    FailureTraits{K::kPrepareFailed, "PrepareFailed", true, Fault::kNode,
                  "a node could not check or index the data",
                  "look at the message and at the disk of --state on that node"},
    FailureTraits{K::kPlanInvalid, "PlanInvalid", false, Fault::kUser,
                  "the job cannot be laid out on its devices",
                  "change the job as the message says; phalanx plan shows it without a cluster"},
    FailureTraits{
        K::kDataInvalid, "DataInvalid", false, Fault::kData,
        "shards or tokenizer break a rule, or nodes read different data",
        "do what the message calls for: mend the data or its paths, which phalanx validate "
        "--check-data looks through, or what the node lets jobs use (--secrets, --read-folder, "
        "--write-folder)"},
    FailureTraits{K::kDataCorrupt, "DataCorrupt", false, Fault::kData,
                  "more samples are corrupt than the job allows",
                  "mend the samples that are named, or raise data.corrupt_max"},
    FailureTraits{K::kDataUnavailable, "DataUnavailable", true, Fault::kStorage,
                  "a shard vanished, changed or cannot be read since it was indexed",
                  "bring the shard back as it was, then submit the job again"},
    FailureTraits{
        K::kOutputUnavailable, "OutputUnavailable", true, Fault::kStorage,
        "the output folder cannot be made or written to, or another job that runs holds it",
        "do what the message calls for: make room, mend the rights of the folder, or give "
        "jobs that run at one time folders of their own; then submit the job again"},
    FailureTraits{K::kOutOfMemory, "OutOfMemory", false, Fault::kUser,
                  "a rank ran out of device or host memory",
                  "lower batch.micro, set recompute, or lay the job out on more devices"},
    FailureTraits{K::kNonFinite, "NonFinite", false, Fault::kUser,
                  "the loss or the gradients of too many steps in a row were not finite",
                  "lower the learning rate, or look for broken samples"},
    FailureTraits{K::kDeviceFailed, "DeviceFailed", true, Fault::kDevice, "a GPU reported an error",
                  "look for XID messages in dmesg on the node; reset or replace the GPU"},
    FailureTraits{K::kVersionMismatch, "VersionMismatch", false, Fault::kOperator,
                  "coordinator and worker lay a job out differently",
                  "install one version on the coordinator and on all nodes"},
    FailureTraits{K::kPrepareTimeout, "PrepareTimeout", true, Fault::kStorage,
                  "nodes that prepare data made no progress for long",
                  "check that the nodes can read the shards at a fair speed"},
    FailureTraits{
        K::kCheckpointInvalid, "CheckpointInvalid", false, Fault::kUser,
        "the checkpoint to go on from is damaged, of another model, or of a step behind "
        "the job's last",
        "name another in checkpoint.resume_from; phalanx checkpoints list and verify show "
        "which are sound"},
    FailureTraits{K::kCheckpointUnavailable, "CheckpointUnavailable", true, Fault::kStorage,
                  "the checkpoint to go on from cannot be read, or not from every node; or that of "
                  "the last step could not be written",
                  "do what the message calls for: bring the folder back to where all nodes see it, "
                  "make room, or mend its rights; then submit the job again"},
    FailureTraits{
        K::kTimeLimit, "TimeLimit", true, Fault::kUser,
        "the job had its time_limit to run and was not done",
        "raise time_limit, or go on from its last checkpoint (checkpoint.resume_from: latest)"},
    FailureTraits{
        K::kRankHung, "RankHung", true, Fault::kNode,
        "a rank process stood still: its worker ended it, or it did not leave its epoch in time",
        "find out who stops processes on that node (SIGSTOP, a debugger, a frozen "
        "container) or what it waits for; then submit the job again"},
    FailureTraits{
        K::kStateLost, "StateLost", true, Fault::kNode,
        "all homes of some optimizer state went at once, and there is no checkpoint",
        "write checkpoints, and more often (checkpoint.every), or keep state in more replicas "
        "(recovery.state_copies, at most as many as a module has); then submit it "
        "again"},
    FailureTraits{K::kNoProgress, "NoProgress", true, Fault::kNetwork,
                  "no step was decided for long, and all ranks waited for each other or for their "
                  "devices",
                  "look for links between the nodes that drop packets and for devices that hang, "
                  "and read the ranks' logs (phalanx logs); then submit the job again"},
};
static_assert(kFailures.size() == static_cast<size_t>(K::kNoProgress));

}  // namespace

absl::Span<const FailureTraits> AllFailures() { return kFailures; }

const FailureTraits& TraitsOf(FailureKind kind) { return kFailures[static_cast<size_t>(kind) - 1]; }

absl::string_view NextAfter(FailureKind kind, int32_t signal) {
  constexpr int32_t kKill = 9, kProcessorTime = 24;  // SIGKILL, SIGXCPU
  if (kind != K::kRankKilled || signal == 0) return TraitsOf(kind).next;
  if (signal == kKill) {
    return "if nobody sent it, the kernel was most likely out of memory: dmesg on the node says so";
  }
  if (signal == kProcessorTime) {
    return "raise the limit on processor time under which phalanx-worker runs there (ulimit -t), "
           "then submit the job again";
  }
  return "find out who sends the rank processes of that node this signal, then submit the job "
         "again";
}

std::string NextWhereItTrainsOn(FailureKind kind, int32_t signal) {
  return absl::StrReplaceAll(NextAfter(kind, signal), {{", then submit the job again", ""},
                                                       {"; then submit the job again", ""},
                                                       {", then submit it again", ""},
                                                       {"; then submit it again", ""}});
}

absl::string_view ToString(FailureKind kind) { return TraitsOf(kind).name; }

absl::string_view ToString(Fault fault) {
  constexpr absl::string_view kNames[] = {"device", "node",    "network", "storage",
                                          "data",   "program", "user",    "operator"};
  return kNames[static_cast<size_t>(fault)];
}

std::optional<FailureKind> ParseFailureKind(absl::string_view name) {
  const auto found = std::find_if(kFailures.begin(), kFailures.end(),
                                  [name](const FailureTraits& t) { return t.name == name; });
  if (found == kFailures.end()) return std::nullopt;
  return found->kind;
}

std::optional<FailureKind> FailureKindOf(int32_t number) {
  if (number < 1 || number > static_cast<int32_t>(kFailures.size())) return std::nullopt;
  return static_cast<FailureKind>(number);
}

std::string FailureReference() {
  std::string text =
      "# Why jobs fail\n\n"
      "Every failed job has one of these causes: in `phalanx describe`, in its JSON as\n"
      "`failure.cause`, and as the label `cause` of `phalanx_jobs_ended_total`. *Again* says "
      "whether "
      "the same\njob may well go through when it is submitted again.\n\n"
      "The first evidence of the highest rank names the cause: (1) the exit or the signal of a "
      "process as its\ndaemon saw it, and a failed session of a node; (2) what a rank says about "
      "itself; (3) what a rank says\nabout a peer, which accuses the peer and waits 300 ms for (1) "
      "and (2); (4) silence.\n\n"
      "A device that is slow fails no job: an event `SlowDevice` names it, and the job trains on "
      "at its\npace ([operations.md](operations.md#slow-devices)). Nor does a step whose loss or "
      "gradients are not finite on any rank:\nall ranks skip it, which `skipped` says in "
      "`metrics.jsonl`, and too many in a row alone are `NonFinite`.\n"
      "[`phalanx inject --fault nan`](cli.md#faults-on-demand) brings one about.\n\n"
      "| Cause | What was seen | Whose fault | Again | What to do |\n|---|---|---|---|---|\n";
  for (const FailureTraits& failure : kFailures) {
    absl::StrAppend(&text, "| `", failure.name, "` | ", failure.meaning, " | ",
                    ToString(failure.fault), " | ", failure.retryable ? "yes" : "no", " | ",
                    failure.next, " |\n");
  }
  return text;
}

absl::Status WithKind(FailureKind kind, absl::Status status) {
  status.SetPayload(kKindUrl, absl::Cord(ToString(kind)));
  return status;
}

std::optional<FailureKind> KindIn(const absl::Status& status) {
  const auto payload = status.GetPayload(kKindUrl);
  if (!payload.has_value()) return std::nullopt;
  return ParseFailureKind(std::string(*payload));
}

FailureKind KindOf(const absl::Status& status) {
  if (const std::optional<FailureKind> carried = KindIn(status)) return *carried;
  const bool peer =
      AccusedIn(status).has_value() || absl::IsUnavailable(status) || absl::IsAborted(status);
  return peer ? FailureKind::kPeerLost : FailureKind::kRankError;
}

}  // namespace phalanx::job

// worker/rank/rank_reports.h: what a rank says of itself, and what it is told of its state, as
// messages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/failure.h"
#include "phalanx/v1/common.pb.h"
#include "phalanx/v1/worker_service.pb.h"
#include "worker/channel/frame_socket.h"
#include "worker/train/training_state.h"

namespace phalanx::rank {

// Whether a rank that ended so is not where the trouble began: its peers went away, it was told to
// stop, or the checkpoint that it was to go on from is not sound, and there may be another. Its
// process and its state are sound.
bool IsCollateral(const absl::Status& ended);

// What kept a rank from being connected for its next epoch while it trains: a loss of peers that
// nobody is named for, unless it is collateral already. So its process stays, which trained well,
// and all go on in a layout as there was.
absl::Status AsCollateral(absl::Status ended);

// Of a path of the job, with its field and as it was written, that leads out of the node's folders
// when it is opened: `why`, as of CheckBelow (core/posix/below.h).
absl::Status LeadsOut(job::FailureKind kind, const std::string& field, const std::string& path,
                      const absl::Status& why);

// Whose they are.
struct ReportsOf {
  int64_t job = 0, epoch = 0;
  int32_t rank = 0;
};
// Thread-safe. Errors: those of the channel; DeadlineExceeded.
absl::Status SendReport(channel::FrameSocket& channel, const ReportsOf& whose,
                        v1::RankReport report);

// Tells the daemon of connections that were refused, `refused` of them and the last one from
// `last`, and the log of this rank. Thread-safe; what cannot be sent is in the log alone.
void TellStrangers(channel::FrameSocket& channel, const ReportsOf& whose, int64_t refused,
                   const std::string& last);

v1::RankError ErrorReport(const absl::Status& ended);
// `epoch`: the last one that began with that state; 0: there is none.
v1::RankQuiet QuietReport(const train::Standing& standing, int64_t epoch, bool context_ok);

v1::EpochBegins BeginsAt(const train::Decision& decision, const train::Counts& counts);
// Errors: InvalidArgument, naming the field, for a decision that none can be.
absl::StatusOr<train::Start> StartOf(const v1::EpochBegins& begins);
v1::StepDecision ToProto(const train::Decision& decision);

}  // namespace phalanx::rank

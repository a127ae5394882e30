// What ranks still report of an epoch that their job has left since.
#include <variant>

#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {

using job::FailureKind;

void Coordinator::OnEarlierReport(Job& job, const RankReported& event) {
  if (const auto* published = std::get_if<RankCheckpointPublished>(&event.report))
    return OnEarlierReport(job, event.epoch, *published);
  if (!job.recovery.has_value()) return;
  Recovery& recovery = *job.recovery;
  if (recovery.goes_back) return OnReportOfBefore(job, event);
  if (event.epoch != recovery.from) return;
  if (const auto* quiet = std::get_if<RankQuiet>(&event.report)) {
    // Once the next epoch has begun without it, what a rank knows of later steps is of no use.
    if (recovery.stage == Recovery::Stage::kEntering) return;
    return OnReport(job, event.rank, *quiet);
  }
  if (const auto* step = std::get_if<StepReport>(&event.report)) {
    if (recovery.stage == Recovery::Stage::kEntering) return;
    NoteDecided(job, event.decided);
    return OnReport(job, event.rank, *step);
  }
  // Of a process that another one has taken over from.
  const bool replaced =
      recovery.back.contains(event.rank) && !recovery.awaited.contains(event.rank);
  if (recovery.lost.contains(event.rank) || replaced) {
    const bool ended = std::holds_alternative<RankDied>(event.report) ||
                       std::holds_alternative<RankExited>(event.report);
    if (ended) recovery.silent.erase(event.rank);
    return;
  }
  const RankState& now = job.run->ranks[static_cast<size_t>(event.rank)];
  if (const auto* died = std::get_if<RankDied>(&event.report))
    return OnReport(job, event.rank, *died);
  if (const auto* error = std::get_if<RankError>(&event.report)) {
    // What its daemon says of a device, or of a process that stands still, holds in any epoch.
    const bool holds =
        error->kind == FailureKind::kDeviceFailed || error->kind == FailureKind::kRankHung;
    if (holds && now.used) OnReport(job, event.rank, *error);
    return;
  }
  const auto* exited = std::get_if<RankExited>(&event.report);
  if (exited == nullptr) return;
  if (now.used) return OnReport(job, event.rank, *exited);
  // It has no work in the next epoch, so its process was ended.
  recovery.awaited.erase(event.rank);
  CheckQuiet(job);
}

// Where it goes back nobody asks what ranks had. But who died on leaving is lost, whatever process
// its daemon has started for it since.
void Coordinator::OnReportOfBefore(Job& job, const RankReported& event) {
  const Recovery& recovery = *job.recovery;
  if (recovery.left == Epoch{} || event.epoch < recovery.left) return;
  if (recovery.lost.contains(event.rank) || recovery.back.contains(event.rank)) return;
  if (!job.run->ranks[static_cast<size_t>(event.rank)].used) return;
  if (const auto* died = std::get_if<RankDied>(&event.report))
    return OnReport(job, event.rank, *died);
  const auto* exited = std::get_if<RankExited>(&event.report);
  if (exited != nullptr && !exited->expected) return OnReport(job, event.rank, *exited);
  const auto* error = std::get_if<RankError>(&event.report);
  if (error != nullptr && error->kind == FailureKind::kDeviceFailed)
    OnReport(job, event.rank, *error);
}

}  // namespace phalanx::coordinator

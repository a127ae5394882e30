// State that processes have lost, and of which the nodes' daemons keep copies (copies.h): the next
// epoch begins with these.
//
// Its ranks say first which copies are there (Recovery::Stage::kLeaving), and so do nodes that had
// work and have none any more (Recovery::keepers); from that follows the step that it begins
// behind, which is stored and told as after any loss. Where that cannot be, training goes back to a
// checkpoint.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {

using job::FailureKind;

void Coordinator::AssignFromCopies(Job& job, const PlanSummary& plan, std::string standby) {
  const Epoch left = job.state.epoch;
  if (job.recovery->left == Epoch{}) job.recovery->left = left;
  // One that has not begun belongs to the same recovery.
  const bool again = job.state.from_copies && !job.state.start.has_value();
  const Run before = *std::exchange(job.run, MakeRun(plan.layout));
  job.run->KeepStartsAgain(before);
  WatchEnd(job);
  job.run->data_digest = plan.layout.data_digest;
  job.decided.reset();
  Commit(job, EpochPlanned{.layout = plan.layout,
                           .plan_digest = plan.digest,
                           .checkpoint = job.state.checkpoint,
                           .host_memory = plan.host_memory,
                           .state_epoch = again ? job.state.state_epoch : left,
                           .from_copies = true,
                           .standby = std::move(standby)});
  TellNotes(job, plan);
  GiveBackDevices(job, before, left);
  ChargeNodes(job);
  AskForCopies(job);
  AssignAll(job);
  NotePlanned(job, plan);
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankCopies& report) {
  if (job.state.IsTerminal() || !job.recovery.has_value() || !job.recovery->from_copies) return;
  Recovery& recovery = *job.recovery;
  if (recovery.stage != Recovery::Stage::kLeaving || recovery.awaited.erase(rank) == 0) return;
  recovery.copies[rank] = report;
  CheckCopies(job);
}

void Coordinator::AskForCopies(Job& job) {
  job.recovery->keepers = KeepersOfCopies(nodes_, job);
  AwaitCopies(job);
  if (!job.recovery->keepers.empty())
    SetDeadline(job, job.run->quiet_deadline, options_.keepers_timeout);
}

void Coordinator::LoseKeeper(Job& job, int32_t keeper, const std::string& why) {
  if (!job.recovery.has_value() || job.recovery->stage != Recovery::Stage::kLeaving) return;
  Recovery& recovery = *job.recovery;
  // Its daemon has the copies still, and another process may give them.
  const bool has_said = recovery.keepers.contains(keeper) && recovery.copies.contains(keeper);
  if (!has_said || recovery.lost_keepers >= kTriesMax) return LeaveOutKeeper(job, keeper);
  ++recovery.lost_keepers;
  Commit(job,
         EventRecorded{"RankFailed", absl::StrCat("rank ", keeper, ": ", why), job.state.epoch});
  OrderGoBack(job);
}

void Coordinator::LeaveOutKeeper(Job& job, int32_t keeper) {
  if (!job.recovery.has_value() || job.recovery->stage != Recovery::Stage::kLeaving) return;
  Recovery& recovery = *job.recovery;
  if (recovery.keepers.erase(keeper) == 0) return;
  recovery.awaited.erase(keeper);
  recovery.copies.erase(keeper);
  CheckCopies(job);
}

void Coordinator::LeaveOutKeepers(Job& job) {
  job.run->quiet_deadline = absl::InfiniteFuture();
  for (const int32_t keeper : job.recovery->keepers) job.recovery->awaited.erase(keeper);
  CheckCopies(job);
}

void Coordinator::CheckCopies(Job& job) {
  Recovery& recovery = *job.recovery;
  if (!recovery.awaited.empty()) return;
  job.run->quiet_deadline = absl::InfiniteFuture();
  if (!TakersKnowKeepers(nodes_, job)) {  // which is known of all by now
    for (const int32_t keeper : recovery.keepers) recovery.copies.erase(keeper);
    recovery.keepers.clear();
  }
  const std::optional<ChosenCopies> chosen = ChooseCopies(job.state.copied, recovery.copies);
  std::string message;
  if (!chosen.has_value()) {
    message = "there is no step of whose state the nodes of the job have whole copies in memory";
  } else if (MayGoBack(job) && LastCheckpoint(job).has_value() &&
             LastCheckpoint(job)->step >= chosen->start.step()) {
    message = absl::StrCat("the nodes of the job have copies of its state in memory of step ",
                           chosen->start.step(), " at most, and its checkpoint is of step ",
                           LastCheckpoint(job)->step);
  } else {
    return BeginFromCopies(job, *chosen);
  }
  OnFailure(job, {.kind = FailureKind::kStateLost, .message = std::move(message), .time = now_});
}

void Coordinator::BeginFromCopies(Job& job, const ChosenCopies& chosen) {
  const int64_t step = chosen.start.step();
  const std::optional<StepReport>& told =
      job.last_step.has_value() ? job.last_step : job.state.stored_step;
  const int64_t again = told.has_value() ? std::max<int64_t>(told->step - step, 0) : 0;
  job.recovery->stage = Recovery::Stage::kEntering;
  Commit(job, EventRecorded{"WentBack",
                            absl::StrCat("training goes back to step ", step,
                                         ", which all copies in memory that are left have: ", again,
                                         again == 1 ? " step is" : " steps are", " done again"),
                            job.state.epoch});
  plan::RankList keepers;
  int64_t copies_max = 0;  // of one of them
  for (const int32_t keeper : job.recovery->keepers) {
    const auto said = job.recovery->copies.find(keeper);
    if (said == job.recovery->copies.end()) continue;
    // Also where it has none: somebody is to take what does not train of the ranks there.
    keepers.push_back(Rank{keeper});
    const auto copies =
        std::count_if(said->second.pairs.begin(), said->second.pairs.end(),
                      [&chosen](const auto& pair) { return pair.epoch == chosen.epoch; });
    copies_max = std::max<int64_t>(copies_max, copies);
  }
  Commit(job, EpochBegan{job.state.epoch, chosen.start, chosen.epoch, std::move(keepers)});
  NoteDecided(job, chosen.start);
  for (const Team& team : job.run->teams) TellBegin(job, team);
  NoteBegan(job, step);
  SetDeadline(job, job.run->start_deadline,
              options_.start_timeout + copies_max * options_.inherit_timeout);
}

void Coordinator::TellBeginWithCopies(const Job& job, const Team& team) {
  const auto node = nodes_.find(team.node);
  const CopiedEpoch* copies = job.state.copied.Find(job.state.copies_epoch);
  if (node == nodes_.end() || copies == nullptr) return;
  if (!job.run->HasWork(team) && !node->second.connected()) return;
  Tell(job, NodeCommand{team.node, node->second.incarnation,
                        BeginEpoch{.job = job.state.id,
                                   .epoch = job.state.epoch,
                                   .start = *job.state.start,
                                   .copies = CopiesSource{.epoch = copies->epoch,
                                                          .layout = copies->layout,
                                                          .plan_digest = copies->plan_digest,
                                                          .keepers = job.state.copies_keepers}}});
}

void Coordinator::ResumeFromCopies(Job& job) {
  if (job.state.start.has_value()) return;
  Recovery& recovery =
      job.recovery.emplace(Recovery{.goes_back = true, .from_copies = true, .since = now_});
  recovery.cause = {.kind = FailureKind::kStateLost,
                    .message = "state was lost before this coordinator started",
                    .time = now_};
  if (job.incident.has_value()) recovery.cause = job.incident->cause;
  for (const Rank rank : job.state.layout->lost) recovery.lost.insert(rank.value);
  AskForCopies(job);
  SetDeadline(job, job.run->start_deadline, options_.start_timeout);
}

}  // namespace phalanx::coordinator

// Checkpoints: ranks say that their parts are written; when all have, that is stored, and one rank
// is told to publish it.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kWrittenMax = 4;  // checkpoints that wait for parts or for their turn

}  // namespace

void Coordinator::NoteChoice(Job& job, const std::optional<CommandFinished::Choice>& choice) {
  if (!choice.has_value()) return;
  for (const std::string& one : choice->passed_over) {
    Commit(job, EventRecorded{"CheckpointPassedOver", one, job.state.epoch});
  }
  job.run->checkpoint = choice->checkpoint;
  Commit(job, EventRecorded{"Resumed",
                            choice->checkpoint.has_value()
                                ? absl::StrCat("behind step ", choice->checkpoint->step, ", from ",
                                               choice->checkpoint->path)
                                : "there is no checkpoint: training begins with its first step",
                            job.state.epoch});
}

void Coordinator::OnReport(Job& job, int32_t rank, const RankCheckpointPart& report) {
  Run& run = *job.run;
  // Reports come again when a node is back: of those of an earlier step nobody needs anything.
  if (job.state.IsTerminal() || report.step <= job.state.checkpoint_step) return;
  WrittenParts& written = run.written[report.step];
  written.parts.insert_or_assign(rank, report.part);
  written.seconds = std::max(written.seconds, report.seconds);
  PublishNext(job);
  while (run.written.size() > kWrittenMax) GiveUpWritten(job, run.written.begin()->first);
}

void Coordinator::PublishNext(Job& job) {
  Run& run = *job.run;
  const auto whole = [&run](const auto& entry) { return run.IsWhole(entry.second); };
  const auto next = std::find_if(run.written.begin(), run.written.end(), whole);
  if (next == run.written.end()) return;
  if (job.state.publishing.has_value()) {
    // One after the other, unless it takes so long that another one waits already.
    if (std::find_if(std::next(next), run.written.end(), whole) == run.written.end()) return;
    GiveUpPublishing(job, "later ones wait");
  }
  const int64_t step = next->first;
  // Ranks write one after the other: who has written this one has done with those before.
  while (run.written.begin()->first < step) GiveUpWritten(job, run.written.begin()->first);
  const WrittenParts written = std::move(next->second);
  run.written.erase(next);
  CheckpointWritten record{.epoch = job.state.epoch, .step = step, .rank = -1};
  std::vector<checkpoint::PartFile> parts;
  for (const auto& [rank, part] : written.parts) {
    if (part.file.empty()) continue;
    if (record.rank < 0) record.rank = rank;
    record.bytes += part.bytes;
    parts.push_back(part);
  }
  if (record.rank < 0) return PublishNext(job);  // nobody had anything to write
  record.parts_digest = checkpoint::DigestOf(parts);
  record.seconds = written.seconds;
  Commit(job, std::move(record));
  SetDeadline(job, run.publish_deadline, options_.publish_timeout);
  TellPublish(job);
}

void Coordinator::GiveUpWritten(Job& job, int64_t step) {
  const auto written = job.run->written.extract(step);
  Commit(job, EventRecorded{kCheckpointFailed,
                            absl::StrCat("step ", step, ": ",
                                         MissingParts(nodes_, *job.run, written.mapped())),
                            job.state.epoch});
}

void Coordinator::TellPublish(const Job& job) {
  const CheckpointWritten& written = *job.state.publishing;
  const Team* team = job.run->TeamOfRank(written.rank);
  const auto node = team == nullptr ? nodes_.end() : nodes_.find(team->node);
  if (node == nodes_.end()) return;
  Tell(job, NodeCommand{team->node, node->second.incarnation,
                        PublishCheckpoint{.job = job.state.id,
                                          .epoch = written.epoch,
                                          .rank = written.rank,
                                          .step = written.step,
                                          .parts_digest = written.parts_digest}});
}

void Coordinator::TellPublishAgain(const Node& node) {
  for (const JobId id : active_) {
    const Job& job = jobs_.at(id);
    const Team* team = job.run->TeamOf(node.name);
    if (job.state.IsTerminal() || !job.state.publishing.has_value() || team == nullptr) continue;
    if (team->seen && team->Has(job.state.publishing->rank)) TellPublish(job);
  }
}

void Coordinator::OnReport(Job& job, int32_t, const RankCheckpointPublished& report) {
  const std::optional<CheckpointWritten>& publishing = job.state.publishing;
  if (job.state.IsTerminal() || !publishing.has_value() || publishing->step != report.step) return;
  job.run->publish_deadline = absl::InfiniteFuture();
  Commit(job, CheckpointEnded{.epoch = job.state.epoch,
                              .step = report.step,
                              .path = report.path,
                              .error = report.error});
  PublishNext(job);
  CheckSucceeded(job);
}

void Coordinator::OnEarlierReport(Job& job, Epoch epoch, const RankCheckpointPublished& report) {
  const std::optional<CheckpointWritten>& before =
      epoch == job.state.epoch ? job.state.publishing : job.state.publishing_before;
  if (job.state.IsTerminal() || !before.has_value() || before->epoch != epoch) return;
  if (before->step != report.step) return;
  Commit(job, CheckpointEnded{
                  .epoch = epoch, .step = report.step, .path = report.path, .error = report.error});
}

bool Coordinator::CheckpointsAreDone(Job& job) {
  if (!job.state.publishing.has_value()) return true;
  if (job.run->publish_deadline == absl::InfiniteFuture()) {  // of before this coordinator's start
    SetDeadline(job, job.run->publish_deadline, options_.publish_timeout);
  }
  return false;
}

void Coordinator::OnPublishDeadline(Job& job) {
  EndPublishing(job, absl::StrCat(absl::FormatDuration(options_.publish_timeout), " have passed"));
}

void Coordinator::EndPublishing(Job& job, const std::string& since) {
  job.run->publish_deadline = absl::InfiniteFuture();
  if (job.state.publishing.has_value()) {
    GiveUpPublishing(job, since);
    PublishNext(job);
  } else {
    job.run->awaits_parts = false;
  }
  CheckSucceeded(job);
}

void Coordinator::GiveUpPublishing(Job& job, const std::string& since) {
  const CheckpointWritten written = *job.state.publishing;
  Commit(job, CheckpointEnded{.epoch = written.epoch,
                              .step = written.step,
                              .error = absl::StrCat("rank ", written.rank,
                                                    " has not published it, and ", since)});
}

}  // namespace phalanx::coordinator

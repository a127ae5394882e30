// Checkpoints: ranks say that their parts are written; when all have, that is stored, and one rank
// is told to publish it.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "coordinator/machine/coordinator.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kMissingNamedMax = 8;

}  // namespace

void Coordinator::OnReport(Job& job, int32_t rank, const RankCheckpointPart& report) {
  Run& run = *job.run;
  // Reports come again when a node is back: of those of an earlier step nobody needs anything.
  if (job.state.IsTerminal() || report.step <= job.state.checkpoint_step) return;
  if (report.step < run.written.step) return;
  if (report.step > run.written.step) {
    GiveUpWritten(job);
    run.written = {.step = report.step};
  }
  run.written.parts.insert_or_assign(rank, report.part);
  run.written.seconds = std::max(run.written.seconds, report.seconds);
  std::vector<checkpoint::PartFile> parts;
  int32_t publisher = -1;
  int64_t bytes = 0;
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    if (!run.ranks[i].used) continue;
    const auto part = run.written.parts.find(static_cast<int32_t>(i));
    if (part == run.written.parts.end()) return;
    if (part->second.file.empty()) continue;
    if (publisher < 0) publisher = part->first;
    parts.push_back(part->second);
    bytes += part->second.bytes;
  }
  run.written.parts.clear();
  if (publisher < 0) return;
  Commit(job, CheckpointWritten{.epoch = job.state.epoch,
                                .step = report.step,
                                .rank = publisher,
                                .parts_digest = checkpoint::DigestOf(parts),
                                .bytes = bytes,
                                .seconds = run.written.seconds});
  TellPublish(job);
}

std::string Coordinator::MissingParts(const Run& run) {
  const WrittenParts& written = run.written;
  if (written.parts.empty()) return "";
  std::vector<int32_t> missing;
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    const auto rank = static_cast<int32_t>(i);
    if (run.ranks[i].used && !written.parts.contains(rank)) missing.push_back(rank);
  }
  const absl::Span<const int32_t> named =
      absl::MakeSpan(missing).first(std::min(missing.size(), kMissingNamedMax));
  return absl::StrCat("not written by ", missing.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(named, ", "),
                      named.size() < missing.size() ? " and others" : "");
}

void Coordinator::GiveUpWritten(Job& job) {
  const std::string missing = MissingParts(*job.run);
  if (missing.empty()) return;
  Commit(job, EventRecorded{"CheckpointFailed",
                            absl::StrCat("step ", job.run->written.step, ": ", missing),
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
  Commit(job, CheckpointEnded{.epoch = job.state.epoch,
                              .step = report.step,
                              .path = report.path,
                              .error = report.error});
  CheckSucceeded(job);
}

bool Coordinator::CheckpointsAreDone(Job& job) {
  if (!job.state.publishing.has_value()) return true;
  if (job.run->publish_deadline == absl::InfiniteFuture()) {
    SetDeadline(job, job.run->publish_deadline, options_.publish_timeout);
  }
  return false;
}

void Coordinator::GiveUpPublishing(Job& job) {
  job.run->publish_deadline = absl::InfiniteFuture();
  if (!job.state.publishing.has_value()) return;
  const CheckpointWritten written = *job.state.publishing;
  Commit(job, CheckpointEnded{
                  .epoch = written.epoch,
                  .step = written.step,
                  .error = absl::StrCat("rank ", written.rank, " has not published it within ",
                                        absl::FormatDuration(options_.publish_timeout))});
  CheckSucceeded(job);
}

}  // namespace phalanx::coordinator

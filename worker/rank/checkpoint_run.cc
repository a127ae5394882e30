#include "worker/rank/checkpoint_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/checkpoint/names.h"
#include "worker/checkpoint/loader.h"

namespace phalanx::rank {

CheckpointRun::CheckpointRun(const plan::Plan& plan, const train::TrainingState& state,
                             checkpoint::Snapshot& snapshot, CheckpointOptions options,
                             std::function<void(v1::RankReport)> report)
    : plan_(plan),
      state_(state),
      options_(std::move(options)),
      report_(std::move(report)),
      writer_(
          snapshot,
          {.directory = options_.directory,
           .store = options_.store,
           .job = options_.job,
           .rank = options_.rank.value,
           .before_block =
               [this](int64_t step) {
                 return options_.faults->Reach(job::FaultPhase::kCheckpoint, step);
               },
           .folders = options_.folders},
          [this](const checkpoint::Written& written) { OnWritten(written); },
          [this](const checkpoint::CheckpointName& name,
                 const absl::StatusOr<checkpoint::Published>& published) {
            OnPublished(name, published);
          }) {}

void CheckpointRun::OnSettled() {
  const train::Decision& decided = state_.decided();
  const int64_t every = plan_.spec.checkpoint->every;
  if (every == 0 || decided.step % every != 0 || decided.step == plan_.spec.steps) return;
  // A record is made while the step before is under way: it does not know of what that one begins.
  if (decided.writing != 0 || begun_step_ == decided.step - 1) {
    if (options_.reporter) TellSkipped(decided.step);
    return;
  }
  Begin();
}

void CheckpointRun::Begin() {
  const train::Decision& decided = state_.decided();
  const checkpoint::CheckpointName name{.step = decided.step, .epoch = plan_.epoch().value};
  {
    // Before it is begun: the order to publish it may come right behind what is told of it.
    const MutexLock lock(&mu_);
    begun_.push_back(
        checkpoint::ManifestOf(plan_, options_.store, options_.job, decided, state_.counts()));
    if (begun_.size() > kBegunMax) begun_.pop_front();
  }
  begun_step_ = decided.step;
  if (writer_.Begin(name)) return;
  // It was given longer than it may take.
  {
    const MutexLock lock(&mu_);
    begun_.pop_back();
  }
  TellSkipped(name.step);
}

void CheckpointRun::TellSkipped(int64_t step) {
  TellEvent("CheckpointSkipped",
            absl::StrCat("step ", step, ": the checkpoint before is still being written to ",
                         options_.directory));
}

void CheckpointRun::OnWritten(const checkpoint::Written& written) {
  if (!written.part.ok()) {
    if (absl::IsCancelled(written.part.status())) return;
    return TellEvent("CheckpointFailed", absl::StrCat("step ", written.name.step, ": ",
                                                      written.part.status().message()));
  }
  v1::RankReport report;
  v1::RankCheckpointPart& out = *report.mutable_checkpoint_part();
  out.set_step(written.name.step);
  out.set_seconds(written.seconds);
  if (const std::optional<checkpoint::PartFile>& part = *written.part; part.has_value()) {
    out.set_file(part->file);
    out.set_bytes(part->bytes);
    out.set_header_bytes(part->header_bytes);
    out.set_entries(part->entries);
    out.set_digest(part->digest);
  }
  report_(std::move(report));
}

void CheckpointRun::Publish(const v1::PublishCheckpoint& order) {
  checkpoint::Publication publication{.directory = options_.directory,
                                      .parts_digest = order.parts_digest(),
                                      .keep = plan_.spec.checkpoint->keep,
                                      .in_use = options_.in_use,
                                      .folders = options_.folders};
  {
    const MutexLock lock(&mu_);
    const auto begun = std::find_if(
        begun_.begin(), begun_.end(),
        [&](const checkpoint::Manifest& manifest) { return manifest.step == order.step(); });
    if (begun != begun_.end()) publication.manifest = *begun;
  }
  if (publication.manifest.step == 0) {
    return OnPublished({.step = order.step(), .epoch = order.epoch()},
                       absl::FailedPreconditionError(
                           absl::StrCat("rank ", options_.rank.value,
                                        " cannot publish it: it has begun later ones meanwhile")));
  }
  writer_.Publish(std::move(publication));
}

void CheckpointRun::OnPublished(const checkpoint::CheckpointName& name,
                                const absl::StatusOr<checkpoint::Published>& published) {
  v1::RankReport report;
  v1::RankCheckpointPublished& out = *report.mutable_checkpoint_published();
  out.set_step(name.step);
  if (published.ok()) {
    for (const std::string& left : published->left) TellEvent("CheckpointLeft", left);
    out.set_path(published->path);
  } else {
    out.set_error(std::string(published.status().message()));
  }
  report_(std::move(report));
}

void CheckpointRun::TellEvent(const char* type, std::string message) {
  v1::RankReport report;
  report.mutable_event()->set_type(type);
  report.mutable_event()->set_message(std::move(message));
  report_(std::move(report));
}

}  // namespace phalanx::rank

#include "coordinator/machine/job_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "coordinator/machine/incident.h"
#include "core/plan/memory_fit.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kLostNamedMax = 16;

// ", without ranks 1, 5"; "": all are there.
std::string WithoutText(const plan::RankList& lost) {
  if (lost.empty()) return "";
  const absl::Span<const Rank> named =
      absl::MakeSpan(lost).first(std::min(lost.size(), kLostNamedMax));
  return absl::StrCat(
      ", without ", lost.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(named, ", ",
                    [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value); }),
      named.size() < lost.size() ? " and others" : "");
}

bool HasNode(const Placement& placement, const NodeName& name) {
  return std::any_of(placement.begin(), placement.end(),
                     [&name](const NodeDevices& entry) { return entry.node == name; });
}

// Of a job that had `earlier` when it was on `before`, and is on `now`.
std::vector<NodeName> EarlierNodes(std::vector<NodeName> earlier, const Placement& before,
                                   const Placement& now) {
  for (const NodeDevices& entry : before) {
    std::erase(earlier, entry.node);
    earlier.push_back(entry.node);
  }
  std::erase_if(earlier, [&now](const NodeName& name) { return HasNode(now, name); });
  if (earlier.size() > JobState::kEarlierNodesMax)
    earlier.erase(earlier.begin(), earlier.end() - JobState::kEarlierNodesMax);
  return earlier;
}

// Adds the event that `record` brings about, numbered, to a job's list.
class Applier {
 public:
  Applier(JobState& state, const JournalRecord& record) : state_(state), time_(record.time) {}

  void operator()(const JobSubmitted& body) {
    if (state_.event_count != 0) return;
    state_.request = body.request;
    state_.request_id = body.request_id;
    state_.submitted = time_;
    state_.reason = "waits for its devices";
    Add("Submitted", absl::StrCat(body.request->name, ": ", body.request->devices, " devices, ",
                                  body.request->steps, " steps",
                                  body.request->owner.empty() ? "" : ", by ", body.request->owner));
  }

  void operator()(const PhaseChanged& body) {
    if (!job::MayMove(state_.phase, body.phase)) return;
    const bool gives_up = body.phase == job::JobPhase::kQueued && !body.in_order;
    if (gives_up && state_.phase == job::JobPhase::kStarting) ++state_.failed_starts;
    if (body.phase == job::JobPhase::kRunning) state_.failed_starts = 0;
    state_.phase = body.phase;
    state_.reason = body.reason;
    state_.unsaved.clear();
    state_.failure = body.failure;
    state_.queued_again = body.phase == job::JobPhase::kQueued;
    state_.trained = state_.trained || body.phase == job::JobPhase::kRunning;
    if (state_.queued_again) {
      if (gives_up && state_.trained) state_.recoveries.push_back(time_);
      state_.ending.reset();
      if (state_.counts_since.has_value()) state_.used += time_ - *state_.counts_since;
      state_.counts_since.reset();
      if (!state_.incidents.empty()) state_.incidents_over = state_.incidents.back()->number;
    }
    if (body.phase == job::JobPhase::kStarting) {
      state_.counts_since = time_;
      if (!state_.started.has_value()) state_.started = time_;
    }
    if (job::IsTerminal(body.phase)) state_.ended = time_;
    Add(std::string(job::ToString(body.phase)), body.reason);
  }

  void operator()(const EpochPlanned& body) {
    const Epoch epoch = body.layout->epoch;
    if (epoch < state_.epoch || state_.IsTerminal()) return;
    const bool is_new = epoch > state_.epoch;
    if (is_new && body.state_epoch == state_.epoch) state_.state_layout = state_.layout;
    if (is_new) {
      state_.queued_again = false;
      state_.fence = std::max(state_.fence + 1, absl::ToUnixMicros(time_));
      state_.succeeded.clear();
      state_.ended_step = 0;
      state_.start = std::nullopt;
      state_.copies_epoch = Epoch{};
      state_.copies_keepers.clear();
      state_.checkpoint_step = 0;
      if (state_.publishing.has_value()) state_.publishing_before = state_.publishing;
      state_.publishing = std::nullopt;
      state_.unpublished = std::nullopt;
    }
    const bool was_by_choice = state_.by_choice;
    state_.epoch = epoch;
    state_.layout = body.layout;
    if (!(*state_.placement == body.layout->nodes)) {
      state_.earlier_nodes =
          EarlierNodes(*state_.earlier_nodes, *state_.placement, body.layout->nodes);
      state_.placement = body.layout->nodes;
    }
    state_.waits_since.reset();
    state_.plan_digest = body.plan_digest;
    state_.standby = body.standby;
    state_.beside = body.beside;
    state_.ends = body.ends;
    state_.by_choice = body.by_choice;
    state_.checkpoint = body.checkpoint;
    state_.host_memory = body.host_memory;
    // Losses before the next epoch has begun belong to the recovery that is under way. Ranks that
    // come back are none, nor are samples that are dealt otherwise, nor what it takes to go back
    // from either: the first loss on such a way is. Nor is an epoch that saves state: what follows
    // it, the queue, is.
    const bool goes_back = is_new && body.state_epoch == Epoch{0};
    const bool begins = body.state_epoch != state_.state_epoch || (is_new && was_by_choice);
    const bool goes_on = body.state_epoch != Epoch{0} && begins;
    const bool counts = goes_back || (goes_on && !body.beside && !body.by_choice && !body.ends);
    if (state_.phase == job::JobPhase::kRunning && counts) state_.recoveries.push_back(time_);
    if (goes_back) state_.begun = state_.decided = std::nullopt;
    state_.state_epoch = body.state_epoch;
    if (body.from_copies) state_.decided = std::nullopt;
    state_.from_copies = body.from_copies;
    state_.copied.Planned(body, goes_back);
    const bool trains = state_.phase == job::JobPhase::kRunning && !state_.ending.has_value();
    if (trains) state_.reason = state_.TrainsText();
    if (is_new) {
      Add("Planned", absl::StrCat("epoch ", epoch.value, ": ", ToString(body.layout->nodes),
                                  ", plan ", body.plan_digest, WithoutText(body.layout->lost)));
    }
  }

  void operator()(const EventRecorded& body) {
    if (body.type == kCorruptSample && state_.corrupt_samples.insert(body.message).second) {
      state_.corrupt_bytes += static_cast<int64_t>(body.message.size());
    }
    if (body.type == kCheckpointGivenUp && !state_.earlier_checkpoints.empty()) {
      state_.last_checkpoint = std::move(state_.earlier_checkpoints.back());
      state_.earlier_checkpoints.pop_back();
    }
    if (body.type == kWaiting && !state_.waits_since.has_value()) state_.waits_since = time_;
    if (body.type == kEndGivenUp && state_.ending.has_value()) {
      state_.ending.reset();
      state_.suspended = false;
      state_.unsaved = body.message;
      state_.reason = state_.TrainsText();
    }
    Add(body.type, body.message);
  }
  void operator()(const Evaluated& body) {
    state_.evaluation = body.evaluation;
    Add("Evaluated", absl::StrCat("validation loss ", body.evaluation.loss, ", uniform guess ",
                                  body.evaluation.uniform_loss));
  }
  void operator()(const StepReached& body) {
    state_.stored_step = body.step;
    NoteDecided(body.decided);
  }
  void operator()(const EpochBegan& body) {
    if (body.epoch != state_.epoch || state_.start.has_value()) return;
    if (Progresses(state_, body.start)) {
      state_.without_progress = 0;
    } else if (!state_.by_choice) {
      ++state_.without_progress;
    }
    state_.start = state_.begun = body.start;
    state_.copies_epoch = body.copies_epoch;
    state_.copies_keepers = body.copies_keepers;
    state_.copied.Began(body.epoch, body.start.step());
    NoteDecided(body.start);
  }
  void operator()(const RanksSucceeded& body) {
    if (body.epoch != state_.epoch) return;
    const int64_t step = body.step == 0 ? state_.request->steps : body.step;
    if (step < state_.request->steps && !state_.ending.has_value()) return;
    state_.succeeded.insert(body.ranks.begin(), body.ranks.end());
    state_.ended_step = step;
  }
  void operator()(const EndWished& body) {
    const bool ends = state_.ending.has_value() && !state_.ending->wish.queues;
    if (ends || state_.phase != job::JobPhase::kRunning) return;
    JobState::Ending ending{.wish = body,
                            .since = time_,
                            .saves = body.AfterHold() || !body.lost.empty(),
                            .lost = body.lost};
    if (state_.ending.has_value() && state_.ending->saves) {
      ending.saves = true;
      ending.lost = state_.ending->lost;
    }
    state_.ending = std::move(ending);
    state_.unsaved.clear();
    state_.reason = absl::StrCat(ReasonOf(body, *state_.request),
                                 body.queues ? ": its state is saved before its devices are free"
                                             : ": it ends with a checkpoint");
    Add("EndWished", state_.reason);
  }

  void operator()(const SuspensionChanged& body) {
    if (state_.IsTerminal() || body.suspended == state_.suspended) return;
    state_.suspended = body.suspended;
    if (state_.phase == job::JobPhase::kQueued)
      state_.reason = body.suspended ? absl::StrCat("suspended ", OnRequestOf(body.by))
                                     : "waits for its devices";
    Add(body.suspended ? "Suspended" : "Resumed",
        absl::StrCat(OnRequestOf(body.by), body.suspended ? ": it waits until it is resumed" : ""));
  }
  void operator()(const NodeMarked&) {}      // is of no job
  void operator()(const DeviceTimeUsed&) {}  // neither
  void operator()(const IncidentNoted& body) { Keep(state_.incidents, body.incident); }
  void operator()(const CheckpointWritten& body) {
    if (body.epoch != state_.epoch || body.step <= state_.checkpoint_step) return;
    state_.checkpoint_step = body.step;
    state_.publishing = body;
  }
  void operator()(const CheckpointEnded& body) {
    std::optional<CheckpointWritten>& publishing =
        body.epoch == state_.epoch ? state_.publishing : state_.publishing_before;
    if (!publishing.has_value() || publishing->epoch != body.epoch ||
        publishing->step != body.step) {
      return;
    }
    const CheckpointWritten written = *std::exchange(publishing, std::nullopt);
    if (!body.error.empty()) {
      state_.unpublished = body;
      return Add(kCheckpointFailed, absl::StrCat("step ", body.step, ": ", body.error));
    }
    const bool newest = !state_.last_checkpoint.has_value() ||
                        state_.last_checkpoint->step < body.step || body.epoch == state_.epoch;
    if (newest) KeepLastCheckpoint();
    if (newest)
      state_.last_checkpoint = {body.step, body.path, time_, written.bytes, written.seconds};
    Add("CheckpointPublished", absl::StrFormat("step %d: %s, %s in %.1f s", body.step, body.path,
                                               plan::FormatBytes(written.bytes), written.seconds));
  }

  std::vector<JobEvent> TakeEvents() { return std::move(events_); }

 private:
  void Add(std::string type, std::string message) {
    events_.push_back({.number = ++state_.event_count,
                       .time = time_,
                       .type = std::move(type),
                       .message = std::move(message),
                       .epoch = state_.epoch});
  }

  // Another one is published. Those behind it are of steps that are done again.
  void KeepLastCheckpoint() {
    std::vector<PublishedCheckpoint>& earlier = state_.earlier_checkpoints;
    if (state_.last_checkpoint.has_value()) earlier.push_back(*state_.last_checkpoint);
    if (earlier.size() > kEarlierCheckpointsMax) earlier.erase(earlier.begin());
  }

  void NoteDecided(const std::optional<EpochStart>& decided) {
    if (!decided.has_value()) return;
    if (!state_.decided.has_value() || state_.decided->step() < decided->step())
      state_.decided = decided;
  }

  JobState& state_;
  const Instant time_;
  std::vector<JobEvent> events_;
};

}  // namespace

std::vector<JobEvent> JobState::Apply(const JournalRecord& record) {
  // Only its submission makes a job.
  if (request == nullptr && !std::holds_alternative<JobSubmitted>(record.body)) return {};
  Applier applier(*this, record);
  std::visit(applier, record.body);
  return applier.TakeEvents();
}

std::string JobState::TrainsText() const {
  std::string text = absl::StrCat("trains on ", ToString(WithoutLost(*layout)));
  if (!unsaved.empty()) absl::StrAppend(&text, "; ", unsaved);
  return text;
}

JobView JobState::View(const std::optional<StepReport>& last_step) const {
  return {.id = id,
          .request = request,
          .phase = phase,
          .epoch = epoch,
          .reason = reason,
          .submitted = submitted,
          .started = started,
          .ended = ended,
          .last_step = last_step.has_value() ? last_step : stored_step,
          .last_checkpoint = last_checkpoint,
          .placement = phase == job::JobPhase::kQueued ? Shared<Placement>() : placement,
          .layout = IsTerminal() ? Shared<plan::Layout>() : layout,
          .plan_digest = plan_digest,
          .failure = failure,
          .earlier_nodes = phase == job::JobPhase::kQueued
                               ? Shared(EarlierNodes(*earlier_nodes, *placement, {}))
                               : earlier_nodes,
          .suspended = suspended};
}

std::string OnRequestOf(const std::string& by) {
  return by.empty() ? "on request" : absl::StrCat("by ", by);
}

std::string ReasonOf(const EndWished& wish, const JobRequest& request) {
  if (wish.suspends) return absl::StrCat("suspended ", OnRequestOf(wish.by));
  if (wish.preempted_by != JobId{})
    return absl::StrCat(ToString(wish.preempted_by), ", of a larger priority, needs its devices");
  if (wish.queues && !wish.node.empty()) return absl::StrCat("node ", wish.node, " is drained");
  if (wish.queues) {
    return absl::StrCat("not enough came back within ", absl::FormatDuration(request.hold));
  }
  if (wish.failure == job::FailureKind::kTimeLimit)
    return absl::StrCat("its time_limit of ", absl::FormatDuration(request.time_limit),
                        " is reached");
  if (wish.failure.has_value()) return absl::StrCat("node ", wish.node, " is stopping");
  return absl::StrCat("cancelled ", OnRequestOf(wish.by));
}

Placement WithoutLost(const plan::Layout& layout) {
  Placement left;
  int32_t rank = 0;
  for (const NodeDevices& entry : layout.nodes) {
    NodeDevices part{.node = entry.node};
    for (const int32_t device : entry.devices) {
      const bool lost =
          std::find(layout.lost.begin(), layout.lost.end(), Rank{rank++}) != layout.lost.end();
      if (!lost) part.devices.push_back(device);
    }
    if (!part.devices.empty()) left.push_back(std::move(part));
  }
  return left;
}

std::string ToString(const Placement& placement) {
  const absl::Span<const NodeDevices> all = placement;
  std::string text = absl::StrJoin(all.first(std::min(all.size(), kNodesNamedMax)), ", ",
                                   [](std::string* out, const NodeDevices& entry) {
                                     absl::StrAppend(out, entry.devices.size(), " on ", entry.node);
                                   });
  if (all.size() > kNodesNamedMax) {
    absl::StrAppend(&text, " and more on ", all.size() - kNodesNamedMax, " other nodes");
  }
  return text;
}

bool Progresses(const JobState& job, const EpochStart& start) {
  return start.step() > (job.begun.has_value() ? job.begun->step() : job.FirstStep());
}

}  // namespace phalanx::coordinator

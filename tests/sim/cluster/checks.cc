// What must hold of the coordinator after every event.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/coordinator_host.h"

namespace phalanx::sim {

using coordinator::Command;
using coordinator::JournalRecord;

bool CoordinatorHost::IsStored(JobId job,
                               const std::function<bool(const JournalRecord&)>& matches) const {
  return std::any_of(log_.rbegin(), log_.rend(), [&](const StoredLine& line) {
    return line.number <= stored_number_ && line.record.job == job && matches(line.record);
  });
}

// What a command orders follows the stored record of it.
void CoordinatorHost::CheckCommand(const Command& command) {
  if (const auto* prepare = std::get_if<coordinator::PrepareData>(&command)) {
    if (!IsStored(prepare->job, [](const JournalRecord& record) {
          return std::holds_alternative<coordinator::EpochPlanned>(record.body);
        })) {
      ledger_.Violate("data is prepared before the plan is stored");
    }
  } else if (const auto* assign = std::get_if<coordinator::Assign>(&command)) {
    if (!IsStored(assign->job, [&](const JournalRecord& record) {
          const auto* planned = std::get_if<coordinator::EpochPlanned>(&record.body);
          return planned != nullptr && planned->layout == assign->layout;
        })) {
      ledger_.Violate(absl::StrCat(ToString(assign->job), " epoch ", assign->epoch.value,
                                   ": ranks are assigned before their epoch is stored"));
    }
  } else if (const auto* begin = std::get_if<coordinator::BeginEpoch>(&command)) {
    if (!IsStored(begin->job, [&](const JournalRecord& record) {
          const auto* began = std::get_if<coordinator::EpochBegan>(&record.body);
          return began != nullptr && began->epoch == begin->epoch && began->start == begin->start;
        })) {
      ledger_.Violate(absl::StrCat(ToString(begin->job), " epoch ", begin->epoch.value,
                                   " begins before that is stored"));
    }
  }
}

bool CoordinatorHost::Serves() const {
  return up() && !paused_since_.has_value() && store_failure_.ok() &&
         stored_number_ == last_number_;
}

bool CoordinatorHost::HasBegun(JobId id, Epoch epoch) const {
  const auto found = machine_->jobs().find(id);
  if (found == machine_->jobs().end()) return false;
  const coordinator::JobState& state = found->second.state;
  return !state.IsTerminal() && state.epoch == epoch && state.start.has_value();
}

void CoordinatorHost::Check() {
  CheckDevices();
  CheckAcknowledged();
}

void CoordinatorHost::CheckDevices() {
  std::map<std::pair<NodeName, int32_t>, JobId> holders;
  for (const auto& [id, job] : machine_->jobs()) {
    const bool live = !job.state.IsTerminal() && job.state.phase != job::JobPhase::kQueued;
    if (live && !job.run.has_value())
      ledger_.Violate(absl::StrCat(ToString(id), " is live and has no run"));
    if (!job.run.has_value()) continue;
    for (const coordinator::Team& team : job.run->teams) {
      if (team.released) continue;
      for (const int32_t device : team.devices) {
        const auto [holder, added] = holders.emplace(std::pair(team.node, device), id);
        if (added) continue;
        ledger_.Violate(absl::StrCat(team.node, " device ", device, " has ",
                                     ToString(holder->second), " and ", ToString(id)));
      }
    }
  }
}

void CoordinatorHost::CheckAcknowledged() {
  for (auto job = acknowledged_.begin(); job != acknowledged_.end();) {
    if (archived_.contains(*job)) {
      job = acknowledged_.erase(job);
      continue;
    }
    if (!machine_->jobs().contains(*job))
      ledger_.Violate(absl::StrCat(ToString(*job), " was acknowledged and is gone"));
    ++job;
  }
  for (auto job = cancels_acknowledged_.begin(); job != cancels_acknowledged_.end();) {
    if (archived_.contains(*job)) {
      job = cancels_acknowledged_.erase(job);
      continue;
    }
    const auto found = machine_->jobs().find(*job);
    if (found == machine_->jobs().end() || !found->second.state.IsTerminal())
      ledger_.Violate(absl::StrCat(ToString(*job), " was cancelled and goes on"));
    ++job;
  }
}

// Replaying what is stored gives the durable state of each job.
void CoordinatorHost::CheckReplay() {
  if (!up() || stored_number_ != last_number_) return;
  for (const JobId id : std::exchange(changed_, {})) {
    const auto job = machine_->jobs().find(id);
    if (job == machine_->jobs().end()) continue;
    const coordinator::JobState& a = job->second.state;
    const coordinator::JobState& b = replayed_.at(id);
    if (a.phase != b.phase || a.reason != b.reason || a.epoch != b.epoch || a.fence != b.fence ||
        !(a.layout == b.layout) || a.plan_digest != b.plan_digest || a.standby != b.standby ||
        a.beside != b.beside || a.ends != b.ends || a.recoveries != b.recoveries ||
        a.failed_starts != b.failed_starts || a.start != b.start ||
        a.state_epoch != b.state_epoch || a.submitted != b.submitted || a.ended != b.ended ||
        a.stored_step != b.stored_step || a.failure != b.failure || a.succeeded != b.succeeded ||
        a.event_count != b.event_count) {
      ledger_.Violate(absl::StrCat(ToString(id), ": its replay differs"));
    }
  }
}

}  // namespace phalanx::sim

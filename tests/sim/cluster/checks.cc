// What must hold of the coordinator after every event.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/cluster/coordinator_host.h"
#include "tests/sim/cluster/transfers.h"

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
  CheckLoans();
  CheckEnded();
  answers_.Check(*machine_);
}

void CoordinatorHost::CheckDevices() {
  std::map<std::pair<NodeName, int32_t>, JobId> holders;
  for (const auto& [id, job] : machine_->jobs()) {
    const bool live = !job.state.IsTerminal() && job.state.phase != job::JobPhase::kQueued;
    if (live && !job.run.has_value())
      ledger_.Violate(absl::StrCat(ToString(id), " is live and has no run"));
    const auto hold = [&](const NodeName& node, int32_t device) {
      const auto [holder, added] = holders.emplace(std::pair(node, device), id);
      if (added) return;
      ledger_.Violate(absl::StrCat(node, " device ", device, " has ", ToString(holder->second),
                                   " and ", ToString(id)));
    };
    for (const auto& [place, device] : job.loans) hold(device.node, device.index);
    if (job.planning.has_value() && !job.run.has_value()) {
      for (const plan::NodeDevices& entry : job.planning->placement) {
        for (const int32_t device : entry.devices) hold(entry.node, device);
      }
    }
    if (!job.run.has_value()) continue;
    for (const coordinator::Team& team : job.run->teams) {
      if (team.released) continue;
      for (const int32_t device : team.devices) hold(team.node, device);
    }
  }
  // Nobody else has a device, nor is one held for nobody.
  for (const auto& [name, node] : machine_->nodes()) {
    for (size_t device = 0; device < node.device_jobs.size(); ++device) {
      const auto holder = holders.find({name, static_cast<int32_t>(device)});
      const JobId wanted = holder == holders.end() ? JobId{} : holder->second;
      if (node.device_jobs[device] == wanted) continue;
      ledger_.Violate(absl::StrCat(name, " device ", device, " is taken for ",
                                   ToString(node.device_jobs[device]), "'s, and is ",
                                   ToString(wanted), "'s"));
    }
  }
}

// What is lent is of a node in reserve, to a job that trains on or waits without what it has lost,
// whose ladder has `spare`.
void CoordinatorHost::CheckLoans() {
  std::map<std::pair<JobId, int32_t>, plan::Device> loans;
  for (const auto& [id, job] : machine_->jobs()) {
    for (const auto& [place, device] : job.loans) {
      const auto known = loans_.find({id, place});
      loans.emplace(std::pair(id, place), device);
      if (known != loans_.end() && known->second == device) continue;
      if (!machine_->nodes().at(device.node).reserve.has_value())
        ledger_.Violate(absl::StrCat(device.node, " lends a device and is not in reserve"));
      const plan::RankList& lost = job.state.layout->lost;
      const bool is_lost = std::find(lost.begin(), lost.end(), Rank{place}) != lost.end() ||
                           (job.recovery.has_value() && job.recovery->lost.contains(place));
      if (!is_lost || !job.state.request->borrows)
        ledger_.Violate(
            absl::StrCat(ToString(id), " is lent a device for rank ", place, ", which needs none"));
    }
  }
  loans_ = std::move(loans);
}

// Who was told that a job has ended is never told otherwise, nor would be if they asked.
void CoordinatorHost::CheckEnded() {
  for (const auto& [id, view] : views_) {
    if (!job::IsTerminal(view.phase)) continue;
    const auto job = machine_->jobs().find(id);
    if (job == machine_->jobs().end() || job->second.state.phase != view.phase)
      ledger_.Violate(absl::StrCat(ToString(id), " has ended, and is not what users were told"));
  }
}

// On which some rank of the layout has work. Those of others may be late to say what copies they
// have, or end before they have given them.
std::set<NodeName> CoordinatorHost::NodesAtWork(const coordinator::JobState& job) {
  std::set<NodeName> nodes;
  const plan::Layout& layout = *job.layout;
  if (layout.nodes.empty()) return nodes;
  const JobPlanPtr plan = planner_.Expand(job.request->document.text, layout);
  Rank rank{0};
  for (const plan::NodeDevices& node : layout.nodes) {
    for (size_t i = 0; i < node.devices.size(); ++i, ++rank.value) {
      if (!plan->plan.PlacesOf(rank).empty()) nodes.insert(node.node);
    }
  }
  return nodes;
}

// Of the last copies of the job that all ranks had: an epoch that begins with copies knows of those
// where its ranks work, and of those that somebody gives for their node.
bool CoordinatorHost::ReachesLastCopies(const coordinator::JobState& job,
                                        const coordinator::EpochBegan& began) {
  std::set<NodeName> nodes = NodesAtWork(job);
  Rank place{0};
  for (const plan::NodeDevices& node : job.layout->nodes) {
    for (size_t i = 0; i < node.devices.size(); ++i, ++place.value) {
      const plan::RankList& keepers = began.copies_keepers;
      if (std::find(keepers.begin(), keepers.end(), place) != keepers.end())
        nodes.insert(node.node);
    }
  }
  const std::set<size_t> copies = ledger_.NodesWithCopies(job.id);
  return std::all_of(copies.begin(), copies.end(),
                     [&](size_t index) { return nodes.contains(absl::StrCat("node-", index)); });
}

// Nobody had to leave the layout that trains: those of its ranks that have work in the next one,
// too, have all of its state.
void CoordinatorHost::CheckByChoice(const coordinator::JobState& job) {
  if (!job.by_choice || !job.goes_on()) return;
  const std::string& text = job.request->document.text;
  const JobPlanPtr trains = planner_.Expand(text, *job.state_layout);
  const JobPlanPtr next = planner_.Expand(text, *job.layout);
  std::map<int32_t, Holdings> kept;
  for (const int32_t rank : next->ranks) {
    const auto held = trains->holdings.find(rank);
    if (held != trains->holdings.end())
      kept[rank] = Renamed(held->second, trains->plan, next->plan);
  }
  const auto rounds = PlanTransfers(next->holdings, kept);
  if (rounds.ok()) return;
  ledger_.Violate(
      absl::StrCat(ToString(job.id), " epoch ", job.epoch.value,
                   " is planned by choice, and loses state: ", rounds.status().message()));
}

// A job whose copies survive where its ranks work does not end for lack of state; it may for lack
// of devices, at once where it does not wait for them and has lost some more since its last
// step, and for having recovered too often.
void CoordinatorHost::CheckStateLost(const coordinator::JobView& job) {
  if (!job.failure.has_value() || job.failure->kind != job::FailureKind::kStateLost) return;
  const std::string& message = job.failure->message;
  if (absl::StrContains(message, "not enough came back within")) return;
  if (absl::StrContains(message, "recovery.budget")) return;
  const bool loses_ranks = ledger_.LosesRanks(job.id) && !job.request->waits;
  if (loses_ranks && absl::StrContains(message, "what is left cannot go on: no replica")) return;
  const std::set<size_t> nodes = ledger_.NodesWithCopies(job.id);
  if (nodes.empty() || !job.request->recovers) return;
  const auto found = machine_->jobs().find(job.id);
  if (found == machine_->jobs().end()) return;
  const std::set<NodeName> at_work = NodesAtWork(found->second.state);
  for (const size_t index : nodes) {
    const std::string name = absl::StrCat("node-", index);
    const auto node = machine_->nodes().find(name);
    if (node == machine_->nodes().end() || !node->second.connected() || !at_work.contains(name))
      return;
  }
  ledger_.Violate(
      absl::StrCat(ToString(job.id), " ends, and all copies of its state are there: ", message));
}

// Replaying what is stored gives the durable state of each job.
void CoordinatorHost::CheckReplay() {
  if (!up() || stored_number_ != last_number_) return;
  for (const JobId id : std::exchange(changed_, {})) {
    const auto job = machine_->jobs().find(id);
    if (job == machine_->jobs().end()) continue;
    const coordinator::JobState& a = job->second.state;
    const coordinator::JobState& b = replayed_.at(id);
    if (a.phase != b.phase || a.suspended != b.suspended || a.reason != b.reason ||
        a.epoch != b.epoch || a.fence != b.fence || !(a.layout == b.layout) ||
        a.plan_digest != b.plan_digest || a.standby != b.standby || a.beside != b.beside ||
        a.ends != b.ends || a.by_choice != b.by_choice || a.recoveries != b.recoveries ||
        a.failed_starts != b.failed_starts || a.start != b.start ||
        a.state_epoch != b.state_epoch || a.submitted != b.submitted || a.ended != b.ended ||
        a.stored_step != b.stored_step || a.waits_since != b.waits_since ||
        a.earlier_checkpoints != b.earlier_checkpoints || a.failure != b.failure ||
        a.succeeded != b.succeeded || a.event_count != b.event_count) {
      ledger_.Violate(absl::StrCat(ToString(id), ": its replay differs"));
    }
  }
}

}  // namespace phalanx::sim

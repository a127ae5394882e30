// Devices of nodes in reserve, lent to jobs that lose one.
//
// A place of a job whose device is gone for good gets one of a node that is in reserve: it is held
// for the place from then on, made ready beside training as a device is that comes back
// (coordinator_return.cc), and the place returns on it. From that epoch on the device is the job's
// as all of its layout are, and goes back with them; the one that the place had before is the job's
// no more.
//
// What is held is stored nowhere: a coordinator that starts looks for devices anew.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/machine/coordinator.h"
#include "coordinator/machine/job_nodes.h"

namespace phalanx::coordinator {
namespace {

// Since when the job does without what it has lost.
Instant LostSince(const LiveJob& job) {
  if (job.recovery.has_value()) return job.recovery->since;
  return job.state.recoveries.empty() ? job.state.submitted : job.state.recoveries.back();
}

// It waits, and others that it has lost are not in `back`: with them there may be a layout.
bool AwaitsOthers(const LiveJob& job, const plan::RankList& back) {
  if (!job.recovery.has_value()) return false;
  const JobRequest& request = *job.state.request;
  std::set<int32_t> lost = job.recovery->lost;
  for (const Rank place : job.state.layout->lost) lost.insert(place.value);
  return std::any_of(lost.begin(), lost.end(), [&](int32_t place) {
    return place < request.world && !Contains(request.lost, Rank{place}) &&
           !Contains(back, Rank{place});
  });
}

// The place that has the device; -1: none has.
int32_t PlaceOn(const Run& run, const plan::Device& device) {
  const Team* team = run.TeamOf(device.node);
  if (team == nullptr) return -1;
  const auto at = std::find(team->devices.begin(), team->devices.end(), device.index);
  if (at == team->devices.end()) return -1;
  return team->ranks[static_cast<size_t>(at - team->devices.begin())];
}

// Of one that has lost places, and trains on or waits for them.
bool MayBorrow(const LiveJob& job) {
  const JobRequest& request = *job.state.request;
  if (!request.borrows || !request.recovers || !job.run.has_value()) return false;
  if (job.state.phase != job::JobPhase::kRunning || job.state.ending.has_value()) return false;
  if (job.recovery.has_value()) {
    if (job.recovery->stage != Recovery::Stage::kWaiting) return false;
    if (job.recovery->goes_back) return !job.recovery->from_copies;
    return !job.recovery->needs_lost && job.recovery->from == job.state.epoch;
  }
  return request.rejoins && job.state.layout->lost.size() > request.lost.size();
}

// For the place; those that have ranks of the job first. nullopt: there is none for it.
std::optional<plan::Device> DeviceInReserve(const NodeTable& nodes,
                                            const std::set<NodeName>& reserved, const LiveJob& job,
                                            int32_t place) {
  std::map<NodeName, std::string> domains;  // as they were when the job was placed
  bool has_domains = false;
  for (const NodeDevices& entry : job.state.layout->nodes) {
    domains.emplace(entry.node, entry.domain);
    has_domains = has_domains || !entry.domain.empty();
  }
  std::optional<plan::Device> found;
  for (const NodeName& name : reserved) {
    const Node& node = nodes.at(name);
    const auto prepared = job.prepared.find(name);
    const bool refused = prepared != job.prepared.end() && prepared->second.refused &&
                         prepared->second.of == node.incarnation;
    if (!node.Schedulable() || !Matches(node, *job.state.request) || refused ||
        IsKeptOut(job, place, node) || !CarriesOut(node, *job.state.layout)) {
      continue;
    }
    // One that has ranks of the job has its data.
    const Team* team = job.run->TeamOf(name);
    const bool is_near = team != nullptr && HasRanks(job, *team);
    if (found.has_value() && !is_near) continue;
    for (int32_t device = 0; device < static_cast<int32_t>(node.device_jobs.size()); ++device) {
      if (!node.IsFree(device)) continue;
      const auto known = domains.find(name);
      const std::string domain = known != domains.end() ? known->second
                                 : has_domains          ? FailureDomainOf(node)
                                                        : "";
      found = {name, device, domain};
      if (is_near) return found;
      break;
    }
  }
  return found;
}

}  // namespace

// In the order of losses, then of the queue.
void Coordinator::LendDevices() {
  for (const JobId id : std::set<JobId>(borrowing_)) KeepLoans(jobs_.at(id));
  if (reserved_.empty()) return;
  std::vector<std::tuple<Instant, QueuePlace>> lacking;
  for (const JobId id : active_) {
    const Job& job = jobs_.at(id);
    if (MayBorrow(job) && (job.recovery.has_value() || SparesThatServe(nodes_, job) == 0))
      lacking.emplace_back(LostSince(job), QueuePlace{job.state.request->priority, id});
  }
  std::sort(lacking.begin(), lacking.end());
  for (const auto& [since, place] : lacking) Lend(jobs_.at(place.job));
}

void Coordinator::Lend(Job& job) {
  std::set<int32_t> places;
  for (const Rank place : job.state.layout->lost) places.insert(place.value);
  if (job.recovery.has_value()) places.insert(job.recovery->lost.begin(), job.recovery->lost.end());
  std::erase_if(places, [&](int32_t place) {
    const bool is_rank = place < job.state.request->world;
    return !is_rank || Contains(job.state.request->lost, Rank{place}) ||
           job.loans.contains(place) || MayServe(nodes_, job, place) || !IsGone(nodes_, job, place);
  });
  // Spares of a job that waits were too few, and serve beside what it is lent.
  size_t wanted = places.size() - std::min(places.size(), SparesThatServe(nodes_, job));
  bool any = false;
  for (const int32_t place : places) {
    if (wanted == 0) break;
    std::optional<plan::Device> device = DeviceInReserve(nodes_, reserved_, job, place);
    if (!device.has_value()) continue;
    Node& node = nodes_.at(device->node);
    node.device_jobs[static_cast<size_t>(device->index)] = job.state.id;
    PublishView(node);
    Log(absl::StrCat("job=", job.state.id.value, " epoch=", job.state.epoch.value, " rank=", place,
                     " is lent device ", device->index, " of node=", device->node));
    job.loans.emplace(place, *std::move(device));
    borrowing_.insert(job.state.id);
    --wanted;
    any = true;
  }
  if (any && job.recovery.has_value()) job.recovery->tried.clear();
  if (any) ConsiderReturn(job);
}

void Coordinator::KeepLoans(Job& job) {
  const bool of_no_use =
      job.recovery.has_value() && (job.recovery->from_copies || job.recovery->needs_lost);
  if (!job.run.has_value() || of_no_use) return GiveUpLoans(job);
  for (auto loan = job.loans.begin(); loan != job.loans.end();) {
    const auto& [place, device] = *loan++;
    const bool is_lost = Contains(job.state.layout->lost, Rank{place}) ||
                         (job.recovery.has_value() && job.recovery->lost.contains(place));
    const auto node = nodes_.find(device.node);
    const auto prepared = job.prepared.find(device.node);
    const bool serves = node != nodes_.end() && node->second.Schedulable() &&
                        !node->second.HasFailed(device.index) &&
                        !IsKeptOut(job, place, node->second) &&
                        CarriesOut(node->second, *job.state.layout) &&
                        (prepared == job.prepared.end() || !prepared->second.refused ||
                         prepared->second.of != node->second.incarnation);
    if (!is_lost || !serves || MayServe(nodes_, job, place)) GiveUpLoan(job, place);
  }
}

void Coordinator::RefuseLoans(Job& job, const plan::RankList& back, const absl::Status& why) {
  if (absl::IsDataLoss(why) && job.recovery.has_value()) {
    job.recovery->needs_lost = true;
    return;
  }
  for (const Rank rank : back) {
    const auto loan = job.loans.find(rank.value);
    const auto node = loan == job.loans.end() ? nodes_.end() : nodes_.find(loan->second.node);
    if (node == nodes_.end() || AwaitsOthers(job, back)) continue;
    job.lost_again[{rank.value, node->first}] = {.of = node->second.incarnation,
                                                 .times = Job::LostAgain::kTimesMax};
    capacity_changed_ = true;
  }
}

void Coordinator::GiveUpLoan(Job& job, int32_t place) {
  const plan::Device device = std::move(job.loans.extract(place).mapped());
  if (job.recovery.has_value()) job.recovery->tried.clear();
  if (job.loans.empty()) borrowing_.erase(job.state.id);
  FreeDevices(job, device.node, {device.index});
  Log(absl::StrCat("job=", job.state.id.value, " epoch=", job.state.epoch.value, " rank=", place,
                   " gives device ", device.index, " of node=", device.node, " back"));
  const bool has_more =
      (job.run.has_value() && job.run->TeamOf(device.node) != nullptr) ||
      std::any_of(job.loans.begin(), job.loans.end(),
                  [&device](const auto& loan) { return loan.second.node == device.node; });
  if (has_more && job.run.has_value()) ChargeNodes(job);
  const auto node = nodes_.find(device.node);
  if (has_more || node == nodes_.end()) return;
  // One that has not the job's data is not asked again.
  const auto prepared = job.prepared.find(device.node);
  if (prepared == job.prepared.end() || prepared->second.refused) return;
  job.prepared.erase(prepared);
  if (!node->second.connected()) return;
  Tell(job, NodeCommand{device.node, node->second.incarnation,
                        StopRanks{.job = job.state.id,
                                  .epoch = job.state.epoch,
                                  .grace = options_.failure_grace,
                                  .reason = "another device serves"}});
}

void Coordinator::GiveUpLoans(Job& job) {
  while (!job.loans.empty()) GiveUpLoan(job, job.loans.begin()->first);
}

void Coordinator::GiveBackDevices(Job& job, const Run& before, Epoch epoch) {
  for (auto loan = job.loans.begin(); loan != job.loans.end();) {
    const auto at = loan++;
    const plan::Device& device = at->second;
    const int32_t place = PlaceOn(*job.run, device);  // another one, where it serves better
    if (place < 0) continue;
    const Team& had = *before.TeamOfRank(place);
    Commit(job, EventRecorded{
                    "DeviceLent",
                    absl::StrCat("rank ", place, " goes on on device ", device.index, " of node ",
                                 device.node, ", which is in reserve, instead of device ",
                                 had.DeviceOf(place), " of node ", had.node),
                    job.state.epoch});
    job.loans.erase(at);
  }
  if (job.loans.empty()) borrowing_.erase(job.state.id);
  for (const Team& team : before.teams) {
    const Team* now = job.run->TeamOf(team.node);
    std::vector<int32_t> left;
    for (const int32_t device : team.devices) {
      const bool stays = now != nullptr && std::find(now->devices.begin(), now->devices.end(),
                                                     device) != now->devices.end();
      if (!stays) left.push_back(device);
    }
    if (left.empty() || team.released) continue;
    FreeDevices(job, team.node, left);
    const auto node = nodes_.find(team.node);
    if (node == nodes_.end()) continue;
    if (now == nullptr) job.prepared.erase(team.node);
    // What one that is away has by then it says when it comes back.
    if (!team.assigned || !node->second.connected()) continue;
    if (now != nullptr) {
      node->second.NoteLeftovers(job.state.id, job.state.epoch);
      continue;
    }
    // Nothing else runs there before what may still be there is gone.
    node->second.foreign.insert({job.state.id, epoch});
    Tell(job, NodeCommand{team.node, node->second.incarnation,
                          StopRanks{.job = job.state.id,
                                    .epoch = epoch,
                                    .grace = options_.failure_grace,
                                    .reason = "the job goes on on other devices"}});
  }
}

}  // namespace phalanx::coordinator

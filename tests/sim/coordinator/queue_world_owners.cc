// Quotas and shares of owners, computed anew.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {

std::pair<int64_t, int64_t> QueueWorld::HeldBy(const std::string& owner,
                                               const std::set<JobId>& later) const {
  int64_t devices = 0, jobs = 0;
  for (const auto& [id, job] : machine_->jobs()) {
    const bool has = job.planning.has_value() || job.run.has_value();
    if (!has || later.contains(id) || job.state.request->owner != owner) continue;
    devices += job.state.request->devices;
    ++jobs;
  }
  return {devices, jobs};
}

double QueueWorld::ShareOf(const std::string& owner, const std::set<JobId>& later) const {
  const auto used = used_.find(owner);
  const double before = used == used_.end() ? 0 : used->second;
  const auto held = static_cast<double>(HeldBy(owner, later).first);
  return (before + 60 * held) / quotas_.Of(owner).weight;
}

void QueueWorld::UseDevices() {
  const double half_life = absl::ToDoubleSeconds(options_.share_half_life);
  if (half_life <= 0) return;
  const double left = std::exp2(-1 / half_life);
  for (const char* owner : kOwners) {
    const auto held = static_cast<double>(HeldBy(owner, {}).first);
    used_[owner] = used_[owner] * left + held * half_life / std::log(2.0) * (1 - left);
  }
}

// Of what was used what was stored last, and since then what those have used that have devices.
void QueueWorld::RestoreUse() {
  const double half_life = absl::ToDoubleSeconds(options_.share_half_life);
  if (half_life <= 0) return;
  std::map<std::string, std::pair<Instant, double>> stored;
  for (const JournalRecord& record : log_) {
    if (const auto* used = std::get_if<DeviceTimeUsed>(&record.body))
      stored[used->owner] = {record.time, used->device_seconds};
  }
  used_.clear();
  for (const auto& [owner, last] : stored)
    used_[owner] = last.second * std::exp2(-absl::ToDoubleSeconds(now_ - last.first) / half_life);
  for (const auto& [id, job] : machine_->jobs()) {
    if (!job.run.has_value() || !job.state.counts_since.has_value()) continue;
    const std::string& owner = job.state.request->owner;
    Instant since = *job.state.counts_since;
    if (stored.contains(owner)) since = std::max(since, stored.at(owner).first);
    const double counted = 1 - std::exp2(-absl::ToDoubleSeconds(now_ - since) / half_life);
    used_[owner] += job.state.request->devices * half_life / std::log(2.0) * counted;
  }
}

std::set<JobId> QueueWorld::Waiting(const std::set<JobId>& later) const {
  std::set<JobId> waiting;
  for (const auto& [id, job] : machine_->jobs()) {
    const bool waits = job.state.phase == job::JobPhase::kQueued && !job.planning.has_value() &&
                       !job.state.suspended;
    if (waits && !later.contains(id)) waiting.insert(id);
  }
  return waiting;
}

std::set<JobId> QueueWorld::Kept(const std::set<JobId>& waiting,
                                 const std::set<JobId>& later) const {
  std::set<JobId> kept;
  for (const char* owner : kOwners) {
    const Quota& quota = quotas_.Of(owner);
    const auto [devices, jobs] = HeldBy(owner, later);
    std::vector<std::pair<int32_t, JobId>> own;  // in their order
    for (const JobId id : waiting) {
      const JobRequest& request = *machine_->jobs().at(id).state.request;
      if (request.owner != owner) continue;
      const bool too_large = request.devices > CapacityFor(request);  // it waits for nodes
      if (!too_large) own.emplace_back(-request.priority, id);
    }
    std::sort(own.begin(), own.end());
    bool over = false;
    for (const auto& [priority, id] : own) {
      const int64_t needed = machine_->jobs().at(id).state.request->devices;
      const bool never = needed > quota.devices_max || quota.jobs_max == 0;
      if (!never) over = over || jobs + 1 > quota.jobs_max || devices > quota.devices_max - needed;
      if (never || over) kept.insert(id);
    }
  }
  return kept;
}

// Jobs of one owner are looked at in their order, so those that were planned by this look and stand
// behind this one had nothing yet when it was looked at.
double QueueWorld::ShareAtTurn(const Coordinator::Job& job, std::set<JobId> later) const {
  const JobRequest& request = *job.state.request;
  for (const JobId id : planned_) {
    const Coordinator::Job& planned = machine_->jobs().at(id);
    const JobRequest& other = *planned.state.request;
    if (planned.run.has_value() || other.owner != request.owner) continue;
    const bool behind = std::pair(-request.priority, job.state.id) < std::pair(-other.priority, id);
    if (behind) later.insert(id);
  }
  return ShareOf(request.owner, later);
}

std::optional<bool> QueueWorld::IsBefore(const Coordinator::Job& a, const Coordinator::Job& b,
                                         const std::set<JobId>& later) const {
  const JobRequest& first = *a.state.request;
  const JobRequest& second = *b.state.request;
  if (first.priority != second.priority) return first.priority > second.priority;
  const bool turns = options_.share_half_life > absl::ZeroDuration();
  if (!turns || first.owner == second.owner) return a.state.id < b.state.id;
  const double share = ShareAtTurn(a, later), other = ShareAtTurn(b, later);
  if (share == 0 && other == 0) return a.state.id < b.state.id;
  if (std::abs(share - other) < 1e-6 * (share + other)) return std::nullopt;
  return share < other;
}

std::vector<const Coordinator::Job*> QueueWorld::FirstsBefore(const Coordinator::Job& job,
                                                              const std::set<JobId>& later) {
  const std::set<JobId> waiting = Waiting(later), kept = Kept(waiting, later);
  std::vector<const Coordinator::Job*> before;
  for (const JobId id : waiting) {
    const Coordinator::Job& other = machine_->jobs().at(id);
    if (other.state.request->devices > CapacityFor(*other.state.request)) continue;
    const bool is_kept = kept.contains(id);
    if (is_kept) ++counts_.kept;
    const std::optional<bool> is_before = IsBefore(other, job, later);
    if (!is_before.has_value()) return {};
    if (is_kept) continue;
    const bool same = other.state.request->priority == job.state.request->priority;
    if (!*is_before && same && id < job.state.id) ++counts_.turns;
    if (*is_before) before.push_back(&other);
  }
  while (true) {
    std::map<std::pair<job::DeviceKind, std::map<std::string, std::string>>,
             const Coordinator::Job*>
        of_lines;
    for (const Coordinator::Job* other : before) {
      const JobRequest& request = *other->state.request;
      const Coordinator::Job*& first = of_lines[{request.device_kind, request.node_selector}];
      if (first == nullptr || IsBefore(*other, *first, later) == true) first = other;
    }
    std::vector<const Coordinator::Job*> firsts;
    for (const auto& [line, first] : of_lines) firsts.push_back(first);
    const std::set<JobId> waits_for_them = KeptByFirsts(firsts, later);
    if (waits_for_them.empty()) return firsts;
    std::erase_if(before, [&waits_for_them](const Coordinator::Job* other) {
      return waits_for_them.contains(other->state.id);
    });
  }
}

std::set<JobId> QueueWorld::KeptByFirsts(const std::vector<const Coordinator::Job*>& firsts,
                                         const std::set<JobId>& later) const {
  std::set<JobId> kept;
  for (const char* owner : kOwners) {
    const Quota& quota = quotas_.Of(owner);
    auto [devices, jobs] = HeldBy(owner, later);
    std::map<std::pair<int32_t, JobId>, int64_t> own;  // in their order
    for (const Coordinator::Job* first : firsts) {
      const JobRequest& request = *first->state.request;
      if (request.owner == owner) own[{-request.priority, first->state.id}] = request.devices;
    }
    for (const auto& [place, needed] : own) {
      if (jobs + 1 > quota.jobs_max || devices > quota.devices_max - needed) {
        kept.insert(place.second);
      } else {
        devices += needed;
        ++jobs;
      }
    }
  }
  return kept;
}

void QueueWorld::CheckLeavesQuota(const Coordinator::Job& job, const Coordinator::Job& first,
                                  std::set<JobId> later) {
  const JobRequest& needs = *first.state.request;
  if (job.state.request->owner != needs.owner) return;
  later.erase(job.state.id);
  const Quota& quota = quotas_.Of(needs.owner);
  const auto [devices, jobs] = HeldBy(needs.owner, later);
  if (quota.devices_max != kNoQuota || quota.jobs_max != kNoQuota) ++counts_.left;
  if (jobs + 1 > quota.jobs_max || devices > quota.devices_max - needs.devices) {
    Violate(absl::StrCat(ToString(job.state.id), " goes ahead of ", ToString(first.state.id),
                         " of ", needs.devices, ", and ", needs.owner, " has ", devices, " of ",
                         quota.devices_max, " devices and ", jobs, " of ", quota.jobs_max,
                         " jobs by it"));
  }
}

// What is planned at once is within its owner's quota, all together.
void QueueWorld::CheckQuotas(const std::vector<JobId>& planned) {
  for (const JobId id : planned) {
    const Coordinator::Job& job = machine_->jobs().at(id);
    if (job.run.has_value()) continue;  // it had its devices before
    const std::string& owner = job.state.request->owner;
    const Quota& quota = quotas_.Of(owner);
    const auto [devices, jobs] = HeldBy(owner, {});
    if (devices > quota.devices_max || jobs > quota.jobs_max) {
      Violate(absl::StrCat(ToString(id), " gets devices, and ", owner, " has ", devices,
                           " devices and ", jobs, " jobs by it; its quota is ", quota.devices_max,
                           " and ", quota.jobs_max));
    }
  }
}

void QueueWorld::CheckAnswer(const AnswerJob& answer) {
  const auto asked = asked_.find(answer.token);
  if (asked == asked_.end()) return;
  const JobRequest& request = *asked->second;
  const Quota& quota = quotas_.Of(request.owner);
  const bool never = request.devices > quota.devices_max || quota.jobs_max == 0;
  if (never != absl::IsFailedPrecondition(answer.job.status()))
    Violate(absl::StrCat(request.name, " is answered ", answer.job.status().ToString()));
  asked_.erase(asked);
}

Quotas QueueWorld::DrawQuotas() {
  const auto quota = [this] {
    Quota drawn;
    if (Chance(2))
      drawn.devices_max =
          1 + static_cast<int64_t>(prng_.Below(static_cast<uint64_t>(devices_) + 4));
    if (Chance(3)) drawn.jobs_max = static_cast<int64_t>(prng_.Below(4));
    if (Chance(4)) drawn.queued_max = static_cast<int64_t>(prng_.Below(6));
    if (Chance(3)) drawn.weight = 0.5 + static_cast<double>(prng_.Below(4));
    return drawn;
  };
  Quotas quotas{.others = quota()};
  for (const char* owner : kOwners) {
    if (Chance(2)) quotas.owners[owner] = quota();
  }
  return quotas;
}

}  // namespace phalanx::coordinator

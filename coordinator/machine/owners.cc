#include "coordinator/machine/owners.h"

#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"

namespace phalanx::coordinator {
namespace {

constexpr absl::Duration kHeldFor = absl::Minutes(1);

std::string Name(const std::string& owner) { return owner.empty() ? "nobody" : owner; }

// Why a job of so many devices never gets them; empty: it may.
std::string Beyond(const std::string& owner, const Quota& quota, int64_t devices) {
  if (quota.jobs_max < 1) {
    return absl::StrCat("the quota of ", Name(owner),
                        " lets no job run (jobs_max: 0); ask whoever keeps the quotas");
  }
  if (devices <= quota.devices_max) return "";
  return absl::StrCat("it needs ", devices, " devices, and the quota of ", Name(owner), " is ",
                      quota.devices_max,
                      " (devices_max): make it smaller, or ask whoever keeps the quotas");
}

}  // namespace

absl::Status Owners::CheckSubmit(const JobRequest& request, bool any_priority) const {
  const Quota& quota = quotas_.Of(request.owner);
  if (!any_priority && request.priority > quota.priority_max) {
    return ViolationsStatus(
        {{.field = "spec.priority",
          .value = absl::StrCat(request.priority),
          .rule = absl::StrCat("must be at most ", quota.priority_max, ", the priority_max of ",
                               Name(request.owner), "'s quota; lower it, or ask an operator")}});
  }
  if (std::string never = Beyond(request.owner, quota, request.devices); !never.empty())
    return absl::FailedPreconditionError(never);
  const auto use = uses_.find(request.owner);
  const int64_t waiting = use == uses_.end() ? 0 : use->second.queued + use->second.parked;
  const int64_t waiting_max =
      quota.queued_max.value_or(request.owner.empty() ? kNoQuota : kQueuedMax);
  if (waiting < waiting_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      waiting, " jobs of ", Name(request.owner), " wait, and its quota is ", waiting_max,
      " (queued_max): submit again when one of them has started, or cancel one"));
}

void Owners::Queued(const std::string& owner, int64_t more) {
  int64_t& queued = uses_[owner].queued;
  waiting_owners_ -= queued > 0 ? 1 : 0;
  queued += more;
  waiting_owners_ += queued > 0 ? 1 : 0;
}

std::optional<DeviceTimeUsed> Owners::Charge(const std::string& owner, int64_t devices, bool has,
                                             Instant now) {
  Use& use = uses_[owner];
  use.jobs += has ? 1 : -1;
  use.devices += has ? devices : -devices;
  if (half_life_ <= absl::ZeroDuration()) return std::nullopt;
  use.time.Have(now, use.devices, half_life_);
  if (has || owner.empty()) return std::nullopt;
  return DeviceTimeUsed{owner, use.time.At(now, half_life_)};
}

void Owners::Restore(const DeviceTimeUsed& used, Instant at) {
  DeviceTime& time = uses_[used.owner].time;
  if (at >= time.restored_at()) time.Restore(at, used.device_seconds);
}

void Owners::HadBefore(const std::string& owner, int64_t devices, Instant since, Instant now) {
  DeviceTime& time = uses_[owner].time;
  time.Add(std::max(since, time.restored_at()), now, devices, half_life_);
}

bool Owners::Change(Quotas quotas) {
  if (quotas == quotas_) return false;
  quotas_ = std::move(quotas);
  return true;
}

std::string Owners::WhyWaits(JobId job, const JobRequest& request) {
  const Quota& quota = quotas_.Of(request.owner);
  if (quota.devices_max == kNoQuota && quota.jobs_max == kNoQuota) return "";
  // One that never fits holds nobody up.
  if (std::string never = Beyond(request.owner, quota, request.devices); !never.empty())
    return never;
  if (const auto first = waits_.find(request.owner); first != waits_.end()) {
    return absl::StrCat(ToString(first->second), " of ", Name(request.owner),
                        " is before it and waits for their quota");
  }
  const Use& use = uses_[request.owner];
  const Reserved& reserved = reserved_[request.owner];
  std::string why;
  if (use.jobs >= quota.jobs_max) {
    why = absl::StrCat("the quota of ", Name(request.owner), " is used up: ", use.jobs, " of ",
                       quota.jobs_max, " jobs have devices (jobs_max)");
  } else if (use.devices > quota.devices_max - request.devices) {
    why = absl::StrCat("the quota of ", Name(request.owner), " is used up: its jobs have ",
                       use.devices, " of ", quota.devices_max,
                       " devices (devices_max), and this one needs ", request.devices);
  } else if (use.jobs + reserved.jobs >= quota.jobs_max ||
             use.devices + reserved.devices > quota.devices_max - request.devices) {
    return absl::StrCat(ToString(reserved.job), " of ", Name(request.owner),
                        " is before it, waits for devices and needs what is left of their quota");
  }
  if (!why.empty()) waits_.emplace(request.owner, job);
  return why;
}

void Owners::Reserve(JobId job, const JobRequest& request) {
  Reserved& reserved = reserved_[request.owner];
  reserved.job = job;
  reserved.devices += request.devices;
  ++reserved.jobs;
}

double Owners::ShareOf(const std::string& owner, Instant now) const {
  const auto use = uses_.find(owner);
  if (use == uses_.end()) return 0;
  const double held = static_cast<double>(use->second.devices) * absl::ToDoubleSeconds(kHeldFor);
  return (use->second.time.At(now, half_life_) + held) / quotas_.Of(owner).weight;
}

void TakeTurns(const std::vector<OwnedJob>& jobs,
               const std::function<double(const std::string& owner)>& share,
               const std::function<bool(size_t place)>& visit) {
  struct Waiting {
    std::string owner;
    std::vector<size_t> places;  // of jobs, the oldest first
    size_t visited = 0;
  };
  std::vector<Waiting> waiting;
  std::map<absl::string_view, size_t> known;  // by owner, where in `waiting`
  for (size_t place = 0; place < jobs.size(); ++place) {
    const auto [found, added] = known.try_emplace(jobs[place].owner, waiting.size());
    if (added) waiting.push_back({std::string(jobs[place].owner), {}});
    waiting[found->second].places.push_back(place);
  }
  using Turn = std::tuple<double, JobId, size_t>;  // share, oldest job, where in `waiting`
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  const auto line_up = [&](size_t owner) {
    const Waiting& its = waiting[owner];
    turns.emplace(share(its.owner), jobs[its.places[its.visited]].job, owner);
  };
  for (size_t owner = 0; owner < waiting.size(); ++owner) line_up(owner);
  while (!turns.empty()) {
    const size_t owner = std::get<2>(turns.top());
    turns.pop();
    Waiting& its = waiting[owner];
    if (!visit(its.places[its.visited])) return;
    if (++its.visited < its.places.size()) line_up(owner);
  }
}

}  // namespace phalanx::coordinator

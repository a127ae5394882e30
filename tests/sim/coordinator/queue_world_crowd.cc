// The queue where jobs of few devices arrive without end and one that needs all devices waits.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/sim/coordinator/queue_world.h"

namespace phalanx::coordinator {
namespace {

// So many small jobs wait at any time: with room for more there are more.
constexpr int kWaitingMin = 4;
// With several owners, of whom any may be before it: of the bound of one.
constexpr double kTurns = 2;

}  // namespace

JobId QueueWorld::SubmitOf(int32_t devices, const char* owner) {
  auto request = std::make_shared<JobRequest>(
      JobRequest{.name = absl::StrCat("job", ++token_),
                 .steps = 1 + static_cast<int64_t>(prng_.Below(Chance(2) ? 300 : 40)),
                 .devices = devices});
  request->world = devices;
  request->checkpoints = !Chance(5);
  request->time_limit = absl::Seconds(5 + static_cast<int64_t>(prng_.Below(200)));
  request->owner = owner;
  asked_[Token{token_}] = request;
  Feed(SubmitRequested{Token{token_}, request, ""});
  return machine_->jobs().rbegin()->first;
}

void QueueWorld::Crowd() {
  const auto small_max = static_cast<uint64_t>(std::max<int64_t>(devices_ / 2, 1));
  int waiting = 0;
  for (const auto& [id, job] : machine_->jobs()) {
    if (!job.state.IsTerminal() && !job.run.has_value() && !job.planning.has_value()) ++waiting;
  }
  const int waiting_min = kWaitingMin * (faults_.owners ? 3 : 1);
  while (waiting++ < waiting_min) {
    const char* const owner =
        faults_.owners ? kOwners[prng_.Below(std::size(kOwners))] : kOwners[0];
    const auto most = owner == kOwners[1] ? std::min<uint64_t>(small_max, 2) : small_max;
    SubmitOf(1 + static_cast<int32_t>(prng_.Below(most)), owner);
  }
  Second();
}

QueueWorld::Wait QueueWorld::WaitOfTheWidest() {
  for (uint64_t second = 10 + prng_.Below(60); second > 0; --second) Crowd();
  // Those that have devices are over by the last of their limits; then those that wait before it
  // may have all devices one after another.
  Instant latest = now_;
  absl::Duration before;
  for (const auto& [id, job] : machine_->jobs()) {
    if (job.run.has_value() || job.planning.has_value()) {
      latest = std::max(latest, LimitOf(job));
    } else if (!job.state.IsTerminal()) {
      before += LimitOf(job) - now_;
    }
  }
  const Instant submitted = now_;
  Wait wait{.bound = latest + before + kPlanned - now_};
  // Others take their turns first until each has had as much as its owner, by its weight.
  if (faults_.owners) wait.bound *= kTurns;
  const JobId widest = SubmitOf(static_cast<int32_t>(devices_), kOwners[0]);
  const auto starts = [&] { return machine_->jobs().at(widest).run.has_value(); };
  for (; !starts() && wait.waited <= wait.bound && violations_.empty();
       wait.waited = now_ - submitted) {
    const size_t before_it = machine_->jobs().size();
    Crowd();
    wait.arrived += static_cast<int64_t>(machine_->jobs().size() - before_it);
  }
  if (wait.waited > wait.bound)
    Violate(absl::StrCat(ToString(widest), " of all devices has not started after ",
                         absl::FormatDuration(wait.waited)));
  return wait;
}

}  // namespace phalanx::coordinator

#include "worker/rank/standby_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/plan/memory_estimate.h"
#include "core/plan/memory_fit.h"
#include "core/plan/plan.h"
#include "core/plan/preparation.h"
#include "core/wire/job_yaml.h"
#include "core/wire/layout_codec.h"
#include "spdlog/spdlog.h"
#include "worker/comm/releases.h"
#include "worker/device/cuda_device.h"
#include "worker/model/torch_boundary.h"
#include "worker/rank/connect.h"
#include "worker/rank/rank_reports.h"

namespace phalanx::rank {
namespace {

// Of one set: nobody waits for it, and others of the epoch wait to be made.
constexpr absl::Duration kSetupTimeout = absl::Seconds(10);
constexpr std::chrono::milliseconds kStandbyLookInterval{5};
constexpr absl::Duration kRoomTimeout = absl::Seconds(10);
constexpr absl::Duration kFreeLookInterval = absl::Milliseconds(50);

absl::StatusOr<plan::Plan> PlanOf(const v1::Assign& assign, const v1::Layout& layout) {
  ASSIGN_OR_RETURN(job::ReadJob read,
                   wire::ReadJobFile(assign.document().text(), job::Purpose::kAccepted));
  ASSIGN_OR_RETURN(plan::Layout decided, wire::FromProto(layout));
  return plan::Expand(read.spec, std::move(decided));
}

// Waits until all ranks of the plan are about to connect. On GPUs communicators that were begun can
// hardly be given up beside kernels that wait for peers, as freeing memory waits for these.
absl::Status MeetAll(const plan::Plan& plan, Rank self, comm::Rendezvous& rendezvous) {
  const auto key = [](Rank rank) { return absl::StrCat("here/", rank.value); };
  // They may be waiting for room.
  const comm::Deadline deadline = comm::DeadlineIn(kSetupTimeout + kRoomTimeout);
  RETURN_IF_ERROR(rendezvous.Put(key(self), "yes"));
  for (Rank rank{0}; rank.value < plan.world; ++rank.value) {
    if (!plan.PlacesOf(rank).empty()) RETURN_IF_ERROR(rendezvous.Get(key(rank), deadline).status());
  }
  return absl::OkStatus();
}

absl::Status NotThere(const std::string& set, absl::string_view why) {
  return job::WithKind(
      job::FailureKind::kPeerLost,
      absl::UnavailableError(absl::StrCat("communicators ", set, " cannot be used: ", why)));
}

// On which standby communicators are used first; then on that of whoever uses them.
struct WarmUpStream {
  std::optional<c10::Stream> stream;
  std::atomic<bool> in_use{true};
};

}  // namespace

StandbyPool::~StandbyPool() {
  Close(std::numeric_limits<int64_t>::max());
  std::thread thread;
  {
    const MutexLock lock(&mu_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.SignalAll();
  if (thread.joinable()) thread.join();
}

std::string StandbyPool::Prefix(const v1::PrepareStandby& order) {
  return absl::StrCat(order.set(), "/", order.attempt(), "/");
}

std::string StandbyPool::FailedKey(const v1::PrepareStandby& order) {
  return absl::StrCat(Prefix(order), "failed");
}

void StandbyPool::GiveUp(Making& making, absl::Status reason) {
  making.rendezvous.Abort(std::move(reason));
  making.stop.request_stop();
}

void StandbyPool::Drop(std::vector<Set>::iterator set) {
  dropped_.push_back(std::move(*set));
  made_.erase(set);
}

std::vector<StandbyPool::Set>::iterator StandbyPool::Find(const std::string& set) {
  return std::find_if(made_.begin(), made_.end(), [&set](const Set& s) { return s.name == set; });
}

bool StandbyPool::UnderWay(const std::string& set) {
  if (wanted_ != nullptr) return wanted_->order.set() == set;
  return making_ != nullptr && making_->order.set() == set && !making_->stop.stop_requested();
}

void StandbyPool::Make(const v1::RunEpoch& of, const v1::PrepareStandby& order) {
  std::shared_ptr<Making> replaced;
  {
    const MutexLock lock(&mu_);
    if (order.epoch() <= closed_ || ending_ || UnderWay(order.set())) return;
    replaced = making_;
    wanted_ = std::make_shared<Making>(channel_, of, order);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.SignalAll();
  if (replaced != nullptr) GiveUp(*replaced, absl::CancelledError("another set is wanted"));
}

void StandbyPool::Deliver(const v1::Rendezvous& message) {
  std::shared_ptr<Making> failed;
  std::string why;
  {
    const MutexLock lock(&mu_);
    for (const std::shared_ptr<Making>& making : {making_, wanted_}) {
      if (making == nullptr) continue;
      making->rendezvous.Deliver(message);
      const auto found = message.entries().find(FailedKey(making->order));
      if (found == message.entries().end()) continue;
      failed = making;
      why = found->second;
    }
  }
  if (failed != nullptr) GiveUp(*failed, absl::AbortedError(why));
}

void StandbyPool::Close(int64_t epoch) {
  std::shared_ptr<Making> making;
  {
    const MutexLock lock(&mu_);
    closed_ = std::max(closed_, epoch);
    if (wanted_ != nullptr && wanted_->order.epoch() <= closed_) wanted_ = nullptr;
    if (making_ != nullptr && making_->order.epoch() <= closed_) making = making_;
  }
  changed_.SignalAll();
  if (making != nullptr) GiveUp(*making, absl::CancelledError("the epoch ends"));
}

void StandbyPool::KeepOnly(const std::string& set) {
  {
    const MutexLock lock(&mu_);
    const auto kept = Find(set);
    if (kept != made_.end() && kept->memory > 0 && left_ >= kept->memory) return;
    for (size_t i = made_.size(); i-- > 0;) {
      if (set.empty() || made_[i].name != set) Drop(made_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  changed_.SignalAll();
}

absl::StatusOr<comm::Communicators> StandbyPool::Take(const v1::Assign& assign) {
  const std::string& name = assign.standby();
  const MutexLock lock(&mu_);
  const auto set = Find(name);
  if (set == made_.end()) return NotThere(name, "this rank has none of them");
  absl::Status sound;
  if (set->job != assign.job() || set->epoch >= assign.epoch() ||
      set->plan_digest != assign.plan_digest()) {
    sound = absl::InternalError("they were made for another plan");
  }
  for (const auto& communicator : set->communicators) {
    if (communicator != nullptr) sound.Update(communicator->Check());
  }
  if (!sound.ok()) {
    Drop(set);
    changed_.SignalAll();
    return NotThere(name, sound.message());
  }
  comm::Communicators taken = std::move(set->communicators);
  made_.erase(set);
  return taken;
}

absl::Status StandbyPool::AwaitIdle(const std::stop_token& stop) {
  const auto give_up = comm::DeadlineIn(options_.idle_timeout);
  const MutexLock lock(&mu_);
  while (!idle()) {
    if (stop.stop_requested()) return absl::CancelledError("asked to stop while connecting");
    if (std::chrono::steady_clock::now() >= give_up) {
      // What they wait for are peers that are gone; another epoch may go on with what is here.
      return job::WithKind(
          job::FailureKind::kPeerLost,
          absl::DeadlineExceededError("communicators of before are still being made"));
    }
    changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + kStandbyLookInterval);
  }
  return absl::OkStatus();
}

void StandbyPool::Run() {
  while (true) {
    std::vector<Set> dropped;
    std::shared_ptr<Making> making;
    {
      const MutexLock lock(&mu_);
      busy_ = false;
      making_ = nullptr;
      changed_.SignalAll();
      while (wanted_ == nullptr && dropped_.empty() && !ending_) changed_.Wait(&mu_);
      if (ending_) return;
      busy_ = true;
      dropped = std::exchange(dropped_, {});
      if (dropped.empty()) making = making_ = std::exchange(wanted_, nullptr);
    }
    // All at once: each may take a while to end.
    for (Set& set : dropped) {
      for (const auto& communicator : set.communicators) {
        if (communicator != nullptr) communicator->Abort(absl::CancelledError("not wanted"));
      }
    }
    dropped.clear();
    if (making != nullptr) MakeSet(*making);
  }
}

int64_t StandbyPool::MemoryLeft() const {
  return options_.memory_left != nullptr ? options_.memory_left() : device::MemoryFree();
}

absl::StatusOr<int64_t> StandbyPool::CheckRoom(const v1::RunEpoch& of,
                                               const v1::PrepareStandby& order,
                                               const std::stop_token& stop) const {
  ASSIGN_OR_RETURN(const plan::Plan now, PlanOf(of.assign(), of.assign().layout()));
  ASSIGN_OR_RETURN(const plan::Plan next, PlanOf(of.assign(), order.layout()));
  const Rank self{of.rank()};
  const int64_t more =
      plan::EstimateMemory(next, self).total() - plan::EstimateMemory(now, self).total();
  // Beside what the layout takes more of it.
  const int64_t needed = std::max<int64_t>(more, 0) + plan::kPreparedRoom;
  // Communicators of the epoch before may be there still, and to free some beside others that are
  // made takes several times as long.
  const comm::Deadline give_up = comm::DeadlineIn(kRoomTimeout);
  while (!comm::Releases::OfProcess().AwaitFreed(comm::DeadlineIn(kFreeLookInterval)) &&
         !stop.stop_requested() && std::chrono::steady_clock::now() < give_up) {
  }
  const int64_t left = MemoryLeft();
  if (left >= needed) return needed;
  return absl::ResourceExhaustedError(
      absl::StrCat("the device has ", left, " bytes left, and ", needed, " are to be"));
}

absl::StatusOr<StandbyPool::Made> StandbyPool::Connect(Making& making) {
  ASSIGN_OR_RETURN(const plan::Plan plan, PlanOf(making.of.assign(), making.order.layout()));
  Made made{.has_work = !plan.PlacesOf(Rank{making.of.rank()}).empty()};
  if (!made.has_work) return made;
  if (plan.digest != making.order.plan_digest()) {
    return absl::FailedPreconditionError(absl::StrCat("this rank's plan has digest ", plan.digest,
                                                      ", the coordinator's ",
                                                      making.order.plan_digest()));
  }
  comm::WorldOptions options;
  options.setup_timeout = kSetupTimeout;
  options.stop = making.stop.get_token();
  options.strangers = [this, &making](int64_t refused, const std::string& last) {
    TellStrangers(channel_,
                  {.job = making.of.assign().job(),
                   .epoch = making.of.assign().epoch(),
                   .rank = making.of.rank()},
                  refused, last);
  };
  const bool gpu = making.of.device_kind() == "gpu";
  auto warm_up = std::make_shared<WarmUpStream>();
  if (gpu) RETURN_IF_ERROR(device::UseCudaDevice(making.of.device_index()));
  if (counts_memory(making.of)) {
    ASSIGN_OR_RETURN(made.memory, CheckRoom(making.of, making.order, making.stop.get_token()));
  }
  if (gpu) {
    // That of this thread is the one on which training may wait for its peers.
    static const device::OwnedStream& stream = *new device::OwnedStream(device::TakeStream());
    warm_up->stream = stream.get();
    options.current_stream = [warm_up] {
      return warm_up->in_use ? device::Handle(*warm_up->stream) : device::CurrentStream();
    };
  }
  // Nobody else's entries, nor those of another set or attempt.
  PrefixedRendezvous rendezvous(making.rendezvous, Prefix(making.order));
  const int64_t left = gpu ? MemoryLeft() : 0;
  RETURN_IF_ERROR(MeetAll(plan, Rank{making.of.rank()}, rendezvous));
  ASSIGN_OR_RETURN(made.communicators, ConnectRanks(plan, making.of, faults_, rendezvous, options));
  warm_up->in_use = false;
  if (gpu) {
    spdlog::info("job={} epoch={} rank={} {}: the device has {} left, {} before",
                 making.order.job(), making.order.epoch(), making.of.rank(), making.order.set(),
                 plan::FormatBytes(MemoryLeft()), plan::FormatBytes(left));
  }
  return made;
}

void StandbyPool::MakeSet(Making& making) {
  bool there = false;  // asked for once more
  {
    const MutexLock lock(&mu_);
    there = Find(making.order.set()) != made_.end();
    if (there) making_ = nullptr;
  }
  if (there) return Tell(making, absl::OkStatus());
  Made made;
  absl::Status status = model::CallTorch("standby communicators", [&]() -> absl::Status {
    ASSIGN_OR_RETURN(made, Connect(making));
    return absl::OkStatus();
  });
  if (status.ok() && !made.has_work) return;
  const int64_t left = status.ok() && made.memory > 0 ? MemoryLeft() : 0;
  {
    const MutexLock lock(&mu_);
    making_ = nullptr;                            // who asks from here on wants another answer
    if (making.order.epoch() <= closed_) return;  // with what is made
    if (status.ok() && making.stop.stop_requested()) status = absl::CancelledError("given up");
    if (status.ok()) {
      left_ = left;
      made_.push_back({.name = making.order.set(),
                       .plan_digest = making.order.plan_digest(),
                       .job = making.order.job(),
                       .epoch = making.order.epoch(),
                       .memory = made.memory,
                       .communicators = std::move(made.communicators)});
    }
  }
  Tell(making, status);
}

void StandbyPool::Tell(const Making& making, const absl::Status& made) {
  const v1::PrepareStandby& order = making.order;
  spdlog::info("job={} epoch={} rank={} {}: {}", order.job(), order.epoch(), making.of.rank(),
               order.set(), made.ToString());
  const ReportsOf whose{.job = order.job(), .epoch = order.epoch(), .rank = making.of.rank()};
  v1::RankReport report;
  report.mutable_standby()->set_set(order.set());
  if (!made.ok()) {
    report.mutable_standby()->set_error(made.message().empty() ? made.ToString()
                                                               : std::string(made.message()));
    // Who waits for this rank need not.
    v1::RankReport failed;
    failed.mutable_rendezvous()->set_key(FailedKey(order));
    failed.mutable_rendezvous()->set_value(
        absl::StrCat("rank ", making.of.rank(), ": ", made.message()));
    SendReport(channel_, whose, std::move(failed)).IgnoreError();
  }
  SendReport(channel_, whose, std::move(report)).IgnoreError();
}

}  // namespace phalanx::rank

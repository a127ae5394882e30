#include "worker/checkpoint/pinning_thread.h"

#include <algorithm>

#include "core/base/status.h"

namespace phalanx::checkpoint {
namespace {

using std::chrono::steady_clock;

// A host that is short of memory or of time is no reason to pause for longer.
constexpr std::chrono::milliseconds kPauseMax{50};

}  // namespace

PinningThread::PinningThread(Pinning pinning)
    : pinning_(std::move(pinning)), thread_([this] { Work(); }) {}

PinningThread::~PinningThread() {
  {
    const MutexLock lock(&mu_);
    ends_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void PinningThread::Make(Use use, Wanted wanted) {
  const MutexLock lock(&mu_);
  Slot& slot = SlotOf(use);
  ++slot.number;
  slot.wants = true;
  slot.wanted = std::move(wanted);
  if (slot.made.has_value() && slot.made->ok()) Drop(**slot.made);
  slot.made.reset();
  changed_.SignalAll();
}

bool PinningThread::making(Use use) const {
  const MutexLock lock(&mu_);
  return slots_[static_cast<size_t>(use)].wants;
}

std::optional<absl::StatusOr<Mappings>> PinningThread::Take(Use use) {
  const MutexLock lock(&mu_);
  Slot& slot = SlotOf(use);
  if (!slot.made.has_value()) return std::nullopt;
  slot.wants = false;
  return std::exchange(slot.made, std::nullopt);
}

absl::StatusOr<Mappings> PinningThread::Await(Use use) {
  const MutexLock lock(&mu_);
  Slot& slot = SlotOf(use);
  ++awaited_;
  changed_.SignalAll();
  while (slot.wants && !slot.made.has_value()) changed_.Wait(&mu_);
  --awaited_;
  if (!slot.made.has_value()) return absl::CancelledError("the memory is not wanted any more");
  slot.wants = false;
  absl::StatusOr<Mappings> made = *std::move(slot.made);
  slot.made.reset();
  return made;
}

void PinningThread::Cancel(Use use) {
  const MutexLock lock(&mu_);
  Slot& slot = SlotOf(use);
  ++slot.number;
  slot.wants = false;
  slot.wanted.reset();
  if (slot.made.has_value() && slot.made->ok()) {
    Drop(slot.spare);
    slot.spare = std::move(**slot.made);
  }
  slot.made.reset();
  changed_.SignalAll();
}

void PinningThread::GiveBack(Use use, Mappings mappings) {
  const MutexLock lock(&mu_);
  Slot& slot = SlotOf(use);
  Drop(slot.spare);
  slot.spare = std::move(mappings);
  changed_.SignalAll();
}

void PinningThread::DropOthers(Slot& slot, int64_t bytes) {
  const bool fits = std::all_of(slot.spare.begin(), slot.spare.end(),
                                [bytes](const auto& spare) { return spare->bytes() == bytes; });
  if (!fits) Drop(slot.spare);
  changed_.SignalAll();
}

bool PinningThread::MakeRoom(Use use, int64_t bytes) {
  const MutexLock lock(&mu_);
  DropOthers(SlotOf(use), bytes);
  return dropped_.empty() && !dropping_;
}

void PinningThread::AwaitRoom(Use use, int64_t bytes) {
  const MutexLock lock(&mu_);
  ++awaited_;
  DropOthers(SlotOf(use), bytes);
  while (!dropped_.empty() || dropping_) changed_.Wait(&mu_);
  --awaited_;
}

std::unique_ptr<PinnedMapping> PinningThread::TakeBack(Use use, int64_t bytes) {
  const MutexLock lock(&mu_);
  Mappings& spare = SlotOf(use).spare;
  if (spare.size() != 1 || !spare[0]->ready() || !spare[0]->Is(-1, bytes)) return nullptr;
  std::unique_ptr<PinnedMapping> mapping = std::move(spare[0]);
  spare.clear();
  return mapping;
}

void PinningThread::Hold() {
  const MutexLock lock(&mu_);
  held_ = true;
}

void PinningThread::Release() {
  const MutexLock lock(&mu_);
  held_ = false;
  changed_.SignalAll();
}

bool PinningThread::Are(const Mappings& mappings, const Wanted& wanted) {
  if (mappings.size() != std::max<size_t>(wanted.fds.size(), 1)) return false;
  for (size_t i = 0; i < mappings.size(); ++i) {
    const int fd = wanted.fds.empty() ? -1 : wanted.fds[i].get();
    if (!mappings[i]->Is(fd, wanted.bytes)) return false;
  }
  return true;
}

void PinningThread::Drop(Mappings& mappings) {
  for (auto& mapping : mappings) dropped_.push_back(std::move(mapping));
  mappings.clear();
}

std::optional<PinningThread::Task> PinningThread::NextTask() {
  if (held_ && awaited_ == 0) return std::nullopt;
  if (!dropped_.empty()) {  // first: what is wanted may need its place
    Task task;
    task.mappings.push_back(std::move(dropped_.back()));
    dropped_.pop_back();
    dropping_ = true;
    return task;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.wanted.has_value()) continue;
    if (!Are(slot.spare, *slot.wanted)) {
      if (!slot.spare.empty()) {
        Drop(slot.spare);
        return NextTask();
      }
    }
    Task task{.slot = i,
              .number = slot.number,
              .wanted = *std::exchange(slot.wanted, std::nullopt),
              .mappings = std::exchange(slot.spare, {})};
    return task;
  }
  return std::nullopt;
}

void PinningThread::Work() {
  while (true) {
    std::optional<Task> task;
    {
      const MutexLock lock(&mu_);
      while (!ends_ && !(task = NextTask()).has_value()) changed_.Wait(&mu_);
      if (ends_) return;
    }
    if (task->slot.has_value()) {
      const absl::Status made = MakeAll(*task);
      Finish(*std::move(task), made);
      continue;
    }
    SteadyTime began = steady_clock::now();
    task->mappings[0]->Unpin([&] {
      const bool goes_on = Pause(*task, began);
      began = steady_clock::now();
      return goes_on;
    });
    task.reset();
    const MutexLock lock(&mu_);
    dropping_ = false;
    changed_.SignalAll();
  }
}

absl::Status PinningThread::MakeAll(Task& task) {
  const Wanted& wanted = task.wanted;
  if (task.mappings.empty()) {
    for (size_t i = 0; i < std::max<size_t>(wanted.fds.size(), 1); ++i) {
      const int fd = wanted.fds.empty() ? -1 : wanted.fds[i].get();
      ASSIGN_OR_RETURN(task.mappings.emplace_back(),
                       PinnedMapping::Map(fd, wanted.bytes, pinning_));
    }
  }
  SteadyTime began = steady_clock::now();
  for (const auto& mapping : task.mappings) {
    RETURN_IF_ERROR(mapping->Pin([&] {
      const bool goes_on = Pause(task, began);
      began = steady_clock::now();
      return goes_on;
    }));
  }
  return absl::OkStatus();
}

void PinningThread::Finish(Task task, const absl::Status& status) {
  const MutexLock lock(&mu_);
  Slot& slot = slots_[*task.slot];
  if (slot.number != task.number) {  // it is not wanted any more
    Drop(slot.spare);
    slot.spare = std::move(task.mappings);
  } else if (status.ok()) {
    slot.made = std::move(task.mappings);
  } else {
    Drop(task.mappings);
    slot.made = status;
  }
  changed_.SignalAll();
}

bool PinningThread::Pause(const Task& task, SteadyTime began) {
  const SteadyTime now = steady_clock::now();
  const SteadyTime until = now + std::min<SteadyTime::duration>(now - began, kPauseMax);
  const MutexLock lock(&mu_);
  const auto wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !ends_ && (!task.slot.has_value() || slots_[*task.slot].number == task.number);
  };
  while (wanted() && awaited_ == 0) {
    if (held_) {
      changed_.Wait(&mu_);
    } else if (changed_.WaitUntil(&mu_, until)) {
      break;
    }
  }
  return wanted();
}

}  // namespace phalanx::checkpoint

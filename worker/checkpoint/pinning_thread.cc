#include "worker/checkpoint/pinning_thread.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/base/status.h"

namespace phalanx::checkpoint {
namespace {

using std::chrono::steady_clock;

// A host that is short of memory or of time is no reason to pause for longer.
constexpr std::chrono::milliseconds kPauseMax{50};

int64_t MappedBytes(int fd, int64_t bytes) {
  struct stat info {};
  return bytes > 0 || fstat(fd, &info) != 0 ? bytes : info.st_size;
}

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
  if (slot.made.has_value() && slot.made->ok()) Keep(use, std::move(**slot.made));
  slot.made.reset();
  changed_.SignalAll();
}

void PinningThread::GiveBack(Use use, Mappings mappings) {
  const MutexLock lock(&mu_);
  Keep(use, std::move(mappings));
  changed_.SignalAll();
}

void PinningThread::Keep(Use use, Mappings mappings) {
  Mappings& spare = SlotOf(use).spare;
  if (use != Use::kSecondHome) Drop(spare);
  for (auto& mapping : mappings) spare.push_back(std::move(mapping));
}

void PinningThread::DropOthers(Slot& slot, int64_t bytes) {
  Mappings fit;
  for (auto& mapping : std::exchange(slot.spare, {}))
    (mapping->bytes() == bytes ? fit : dropped_).push_back(std::move(mapping));
  slot.spare = std::move(fit);
  room_wanted_ = !dropped_.empty() || dropping_;
  changed_.SignalAll();
}

void PinningThread::DropSpare(Use use) {
  const MutexLock lock(&mu_);
  Drop(SlotOf(use).spare);
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

Mappings PinningThread::TakeWanted(Mappings& spare, const Wanted& wanted) {
  Mappings taken;
  for (size_t i = 0; i < std::max<size_t>(wanted.fds.size(), 1); ++i) {
    const int fd = wanted.fds.empty() ? -1 : wanted.fds[i].get();
    const auto same = std::find_if(spare.begin(), spare.end(), [&](const auto& mapping) {
      return mapping->Is(fd, MappedBytes(fd, wanted.bytes));
    });
    taken.push_back(same == spare.end() ? nullptr : std::move(*same));
    if (same != spare.end()) spare.erase(same);
  }
  return taken;
}

const PinnedMapping* PinningThread::Find(int fd, int64_t bytes) const {
  const MutexLock lock(&mu_);
  for (const Slot& slot : slots_) {
    for (const Mappings* mappings :
         {&slot.spare, slot.made.has_value() && slot.made->ok() ? &**slot.made : nullptr}) {
      if (mappings == nullptr) continue;
      for (const auto& mapping : *mappings) {
        if (mapping->Is(fd, bytes)) return mapping.get();
      }
    }
  }
  return nullptr;
}

void PinningThread::Drop(Mappings& mappings) {
  for (auto& mapping : mappings) dropped_.push_back(std::move(mapping));
  mappings.clear();
}

bool PinningThread::GoesFirst() const {
  return room_wanted_ || !slots_[static_cast<size_t>(Use::kSecondHome)].wanted.has_value();
}

std::optional<PinningThread::Task> PinningThread::NextTask() {
  if (held_ && awaited_ == 0) return std::nullopt;
  if (!dropped_.empty() && GoesFirst()) {
    Task task;
    task.mappings.push_back(std::move(dropped_.back()));
    dropped_.pop_back();
    dropping_ = true;
    return task;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.wanted.has_value()) continue;
    Mappings mappings = TakeWanted(slot.spare, *slot.wanted);
    if (!slot.spare.empty() && static_cast<Use>(i) != Use::kSecondHome) {
      Drop(slot.spare);
      for (auto& mapping : mappings) {
        if (mapping != nullptr) slot.spare.push_back(std::move(mapping));
      }
      return NextTask();
    }
    Task task{.slot = i,
              .number = slot.number,
              .wanted = *std::exchange(slot.wanted, std::nullopt),
              .mappings = std::move(mappings)};
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
    PinnedMapping& mapping = *task->mappings[0];
    const bool gone = mapping.Unpin([&] { return Pause(*task, mapping.locked()); });
    if (gone) task.reset();
    const MutexLock lock(&mu_);
    if (!gone) dropped_.push_back(std::move(task->mappings[0]));
    dropping_ = false;
    room_wanted_ = room_wanted_ && !dropped_.empty();
    changed_.SignalAll();
  }
}

absl::Status PinningThread::MakeAll(Task& task) {
  const Wanted& wanted = task.wanted;
  for (size_t i = 0; i < task.mappings.size(); ++i) {
    if (task.mappings[i] != nullptr) continue;
    const int fd = wanted.fds.empty() ? -1 : wanted.fds[i].get();
    ASSIGN_OR_RETURN(task.mappings[i],
                     PinnedMapping::Map(fd, MappedBytes(fd, wanted.bytes), pinning_));
  }
  for (const auto& mapping : task.mappings)
    RETURN_IF_ERROR(mapping->Pin([&] { return Pause(task, mapping->locked()); }));
  return absl::OkStatus();
}

void PinningThread::Finish(Task task, const absl::Status& status) {
  std::erase(task.mappings, nullptr);  // what could not be mapped
  const MutexLock lock(&mu_);
  Slot& slot = slots_[*task.slot];
  if (slot.number != task.number) {  // it is not wanted any more
    Keep(static_cast<Use>(*task.slot), std::move(task.mappings));
  } else if (status.ok()) {
    slot.made = std::move(task.mappings);
  } else {
    Drop(task.mappings);
    slot.made = status;
  }
  changed_.SignalAll();
}

bool PinningThread::Pause(const Task& task, SteadyTime::duration locked) {
  const SteadyTime until = steady_clock::now() + std::min<SteadyTime::duration>(locked, kPauseMax);
  const MutexLock lock(&mu_);
  const auto wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ends_) return false;
    return task.slot.has_value() ? slots_[*task.slot].number == task.number : GoesFirst();
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

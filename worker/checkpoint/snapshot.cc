#include "worker/checkpoint/snapshot.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "c10/core/StreamGuard.h"
#include "core/base/status.h"
#include "core/plan/memory_estimate.h"
#include "worker/model/torch_boundary.h"

namespace phalanx::checkpoint {
namespace {

// Between two looks at the device, from a thread that has no other work.
constexpr std::chrono::milliseconds kDeviceLookInterval{2};

int64_t Aligned(int64_t bytes) {
  return (bytes + plan::kHostSectionAlignment - 1) / plan::kHostSectionAlignment *
         plan::kHostSectionAlignment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Snapshot>> Snapshot::Create(const plan::Plan& plan,
                                                           train::TrainingState& state) {
  const int64_t bytes = BytesNeeded(plan, state);
  std::unique_ptr<PinnedMapping> memory;
  if (bytes > 0) {
    // Not of LibTorch's allocator for pinned memory, which takes the next power of two.
    ASSIGN_OR_RETURN(memory, PinnedMapping::Map(-1, bytes, PinningOf(state.options().device)));
    RETURN_IF_ERROR(memory->Pin([] { return true; }));
  }
  return Create(plan, state, std::move(memory));
}

std::unique_ptr<Snapshot> Snapshot::Create(const plan::Plan& plan, train::TrainingState& state,
                                           std::unique_ptr<PinnedMapping> memory) {
  std::unique_ptr<Snapshot> snapshot(new Snapshot(state, SectionsToWrite(plan, state)));
  snapshot->memory_ = std::move(memory);
  if (snapshot->memory_ != nullptr) snapshot->Place(*snapshot->memory_, 0);
  return snapshot;
}

int64_t Snapshot::BytesNeeded(const plan::Plan& plan, train::TrainingState& state) {
  return BytesOf(SectionsToWrite(plan, state));
}

std::unique_ptr<PinnedMapping> Snapshot::TakeMemory(std::unique_ptr<Snapshot> snapshot) {
  if (snapshot == nullptr) return nullptr;
  if (snapshot->copier_.joinable()) snapshot->copier_.join();
  return std::move(snapshot->memory_);
}

std::unique_ptr<Snapshot> Snapshot::Into(PinnedMapping& mapping, int64_t offset,
                                         train::TrainingState& state,
                                         std::vector<Section> sections) {
  std::unique_ptr<Snapshot> snapshot(new Snapshot(state, std::move(sections)));
  snapshot->Place(mapping, offset);
  return snapshot;
}

Snapshot::Snapshot(train::TrainingState& state, std::vector<Section> sections)
    : state_(&state), stream_(train::TakeStream(state.options().device)) {
  for (Section& section : sections) copies_.push_back({.section = std::move(section)});
  TakeTurns();
}

Snapshot::~Snapshot() { Detach(); }

void Snapshot::Detach() {
  if (copier_.joinable()) copier_.join();
  if (state_ != nullptr) state_->LetGo(this);
  state_ = nullptr;
  turns_.clear();
  copies_.clear();
}

int64_t Snapshot::BytesOf(const std::vector<Section>& sections) {
  int64_t sum = 0;
  for (const Section& section : sections) sum += Aligned(section.bytes());
  return sum;
}

int64_t Snapshot::bytes() const {
  int64_t sum = 0;
  for (const Copied& copy : copies_) sum += Aligned(copy.section.bytes());
  return sum;
}

absl::StatusOr<bool> Snapshot::Done() {
  const MutexLock lock(&mu_);
  RETURN_IF_ERROR(failed_);
  return complete_ && copied_.Passed();
}

void Snapshot::Place(PinnedMapping& mapping, int64_t offset) {
  grid_ = mapping.data();
  std::byte* next = grid_ + offset;
  for (Copied& copy : copies_) {
    copy.array = at::from_blob(next, {copy.section.elements}, ScalarTypeOf(copy.section.dtype));
    next += Aligned(copy.section.bytes());
  }
}

void Snapshot::TakeTurns() {
  for (Copied& copy : copies_) {
    const Section& section = copy.section;
    if (turns_.empty() || turns_.back().part != section.part ||
        turns_.back().block != section.block) {
      turns_.push_back({.part = section.part, .block = section.block});
    }
    turns_.back().copies.push_back(&copy);
  }
  const auto trained_end =
      std::stable_partition(turns_.begin(), turns_.end(), std::not_fn(IsOfFrozen));
  // The buckets of a part are updated from the last one on.
  for (auto first = turns_.begin(); first != trained_end;) {
    const auto end = std::find_if(first, trained_end,
                                  [&](const Turn& turn) { return turn.part != first->part; });
    std::reverse(first, end);
    first = end;
  }
}

absl::Status Snapshot::Begin() {
  if (copies_.empty()) return absl::OkStatus();
  if (copier_.joinable()) copier_.join();
  {
    const MutexLock lock(&mu_);
    complete_ = false;
    failed_ = absl::OkStatus();
  }
  if (stream_.get().has_value()) return Enqueue();
  copier_ = std::jthread([this] {
    const absl::Status copied = model::CallTorch("the copy for a checkpoint", [this] {
      for (const Turn& turn : turns_) CopyTurn(turn);
      std::erase_if(turns_, IsOfFrozen);
      return absl::OkStatus();
    });
    const MutexLock lock(&mu_);
    failed_ = copied;
    complete_ = true;
    complete_changed_.SignalAll();
  });
  state_->HoldState(this, {.wait = [this](const train::StateBlock*) { AwaitCopy(); },
                           .reads =
                               [this] {
                                 const MutexLock lock(&mu_);
                                 return !complete_;
                               }});
  return absl::OkStatus();
}

absl::Status Snapshot::Enqueue() {
  const at::Device device = state_->options().device;
  const c10::OptionalStreamGuard guard(stream_.get());
  copied_turns_.clear();
  std::optional<train::Moment> first;
  RETURN_IF_ERROR(model::CallTorch("the copy for a checkpoint", [&] {
    for (const Turn& turn : turns_) {
      // Not for the passes that the host is ahead with.
      if (turn.block == nullptr) {
        turn.part->begun().Await();
      } else {
        turn.part->updated(turn.block->bucket).Await();
      }
      if (!first.has_value()) first = train::Moment::Now(device);
      CopyTurn(turn);
      if (turn.block != nullptr) copied_turns_[turn.block] = train::Moment::Now(device);
    }
    return absl::OkStatus();
  }));
  std::erase_if(turns_, IsOfFrozen);
  const train::Moment copied = train::Moment::Now(device);
  {
    const MutexLock lock(&mu_);
    copied_ = copied;
    complete_ = true;  // as far as this thread is concerned
    complete_changed_.SignalAll();
  }
  // A copy that waits for updates does not read: what keeps these is to be found.
  const train::Moment begun = first.value_or(copied);  // nothing trains, and all was copied before
  state_->HoldState(this,
                    {.wait = [this](const train::StateBlock* block) { AwaitTurn(block); },
                     .reads = [begun, copied] { return begun.Passed() && !copied.Passed(); }});
  return absl::OkStatus();
}

void Snapshot::CopyTurn(const Turn& turn) {
  for (Copied* copy : turn.copies) CopyOut(copy->section, copy->array, grid_);
}

void Snapshot::AwaitTurn(const train::StateBlock* block) {
  if (block == nullptr) {
    copied_turns_.clear();
    const MutexLock lock(&mu_);
    copied_.Await();
    return;
  }
  const auto turn = copied_turns_.find(block);
  if (turn == copied_turns_.end()) return;
  turn->second.Await();
  copied_turns_.erase(turn);
}

void Snapshot::AwaitCopy() {
  const MutexLock lock(&mu_);
  while (!complete_) complete_changed_.Wait(&mu_);
}

absl::Status Snapshot::Await(const std::stop_token& stop) {
  AwaitCopy();
  train::Moment copied;
  {
    const MutexLock lock(&mu_);
    RETURN_IF_ERROR(failed_);
    copied = copied_;
  }
  return model::CallTorch("the copy for a checkpoint", [&]() -> absl::Status {
    while (!copied.Passed()) {
      if (stop.stop_requested()) return absl::CancelledError("asked to stop");
      std::this_thread::sleep_for(kDeviceLookInterval);
    }
    return absl::OkStatus();
  });
}

PartWrite Snapshot::Entries() const {
  PartWrite write;
  for (const Copied& copy : copies_) {
    const auto* memory = static_cast<const std::byte*>(copy.array.const_data_ptr());
    for (const LocalEntry& local : copy.section.entries) {
      write.entries.push_back(local.entry);
      write.sources.push_back(
          {.first = memory + local.position * checkpoint::BytesOf(local.entry.dtype),
           .stride = local.stride});
    }
  }
  return write;
}

}  // namespace phalanx::checkpoint

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "worker/data/data_set.h"
#include "worker/data/sample_reader.h"

namespace phalanx::data {
namespace {

using Result = absl::StatusOr<std::shared_ptr<const Sample>>;

class ThreadedLoader final : public Loader {
 public:
  ThreadedLoader(std::unique_ptr<SampleReader> reader, const LoaderOptions& options)
      : options_(options), reader_(std::move(reader)) {
    for (int32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }

  ~ThreadedLoader() override {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    work_.SignalAll();
  }

  void Announce(absl::Span<const int64_t> samples) override {
    // Outlives the lock: freeing pixels takes time.
    absl::flat_hash_map<int64_t, std::shared_ptr<Slot>> old;
    {
      MutexLock lock(&mu_);
      old.swap(slots_);
      pending_.clear();
      held_ = held_bytes_ = 0;
      for (const int64_t sample : samples) {
        std::shared_ptr<Slot>& slot = slots_[sample];
        if (slot == nullptr) {
          const auto known = old.find(sample);
          slot = known != old.end() ? known->second
                                    : std::make_shared<Slot>(sample, reader_->BytesOf(sample));
          slot->uses = 0;
          if (slot->state == State::kPending) {
            pending_.push_back(slot);
          } else {
            Hold(*slot);
          }
        }
        ++slot->uses;
      }
    }
    work_.SignalAll();
  }

  Result Take(int64_t sample) override {
    std::shared_ptr<Slot> slot;
    {
      MutexLock lock(&mu_);
      const auto found = slots_.find(sample);
      if (found != slots_.end()) slot = found->second;
      if (slot != nullptr && slot->state != State::kPending) {
        while (slot->state != State::kDone) done_.Wait(&mu_);
        Use(sample, *slot);
        return slot->result;
      }
      if (slot != nullptr) {
        slot->state = State::kDecoding;
        Hold(*slot);
      }
    }
    // No thread has begun it: waiting for one could be waiting for ever, since they stop where
    // enough is ready.
    Result result = reader_->Read(sample);
    if (slot != nullptr) {
      MutexLock lock(&mu_);
      slot->result = result;
      slot->state = State::kDone;
      Use(sample, *slot);
    }
    return result;
  }

  int64_t ready_bytes() const override {
    MutexLock lock(&mu_);
    return held_bytes_;
  }

 private:
  enum class State : uint8_t { kPending, kDecoding, kDone };
  // One announced sample; guarded by mu_.
  struct Slot {
    Slot(int64_t sample, int64_t bytes) : sample(sample), bytes(bytes) {}
    const int64_t sample, bytes;
    State state = State::kPending;
    int64_t uses = 0;  // how often it will be taken
    Result result = absl::UnknownError("not decoded");
  };

  // One use of a sample that is done; with the last the slot goes, and there is room for another.
  void Use(int64_t sample, Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (--slot.uses > 0) return;
    const auto found = slots_.find(sample);
    if (found == slots_.end() || found->second.get() != &slot) return;
    slots_.erase(found);
    --held_;
    held_bytes_ -= slot.bytes;
    work_.SignalAll();
  }

  void Hold(const Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++held_;
    held_bytes_ += slot.bytes;
  }

  // Whether a thread may begin the next one.
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (held_ == 0) return true;
    return held_ < options_.ready_max &&
           held_bytes_ + pending_.front()->bytes <= options_.ready_bytes_max;
  }

  void Work() {
    while (const std::shared_ptr<Slot> slot = NextPending()) {
      Result result = reader_->Read(slot->sample);
      MutexLock lock(&mu_);
      slot->result = std::move(result);
      slot->state = State::kDone;
      done_.SignalAll();
    }
  }

  // Waits for a slot to decode; nullptr at the end.
  std::shared_ptr<Slot> NextPending() {
    MutexLock lock(&mu_);
    while (true) {
      // Those that Take was quicker with need no room.
      while (!pending_.empty() && pending_.front()->state != State::kPending) pending_.pop_front();
      if (stopping_) return nullptr;
      if (!pending_.empty() && HasRoom()) break;
      work_.Wait(&mu_);
    }
    const std::shared_ptr<Slot> slot = std::move(pending_.front());
    pending_.pop_front();
    slot->state = State::kDecoding;
    Hold(*slot);
    return slot;
  }

  // Constant after construction.
  const LoaderOptions options_;
  const std::unique_ptr<SampleReader> reader_;
  mutable Mutex mu_;
  CondVar work_;  // something is pending and there is room, or the end
  CondVar done_;  // some slot is done
  absl::flat_hash_map<int64_t, std::shared_ptr<Slot>> slots_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Slot>> pending_ ABSL_GUARDED_BY(mu_);  // in announced order
  int64_t held_ ABSL_GUARDED_BY(mu_) = 0;  // of slots_, those being decoded or done
  int64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Last member: joined before what the threads read is destroyed.
  std::vector<std::jthread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(Index index, const DataSetSpec& spec,
                                                       const LoaderOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<SampleReader> reader,
                   SampleReader::Create(std::move(index), spec, options));
  return std::make_unique<ThreadedLoader>(std::move(reader), options);
}

}  // namespace phalanx::data

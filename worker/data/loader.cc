#include <algorithm>
#include <chrono>
#include <deque>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "worker/data/data_set.h"
#include "worker/data/sample_reader.h"

namespace phalanx::data {
namespace {

using Result = absl::StatusOr<std::shared_ptr<const Sample>>;

using SteadyTime = std::chrono::steady_clock::time_point;

// Destruction waits so long for reads that are under way, and leaves alone those that storage
// holds.
constexpr std::chrono::seconds kLastReads{2};

// What items that found no place in LoaderOptions::memory take beyond what they would have there.
int64_t BytesBesideMemory(const Sample& sample) {
  int64_t bytes = 0;
  for (const Sample::Items& items : sample.encoders) {
    for (size_t i = 0; i < items.stored.size(); ++i) {
      if (items.stored[i] == nullptr)
        bytes += static_cast<int64_t>(items.values[i].size() *
                                      (sizeof(float) - BytesOfValue(items.stored_type)));
    }
  }
  return bytes;
}

// What the loader and its threads share; it goes with the last of them.
class Decoder : public std::enable_shared_from_this<Decoder> {
 public:
  Decoder(std::unique_ptr<SampleReader> reader, const LoaderOptions& options)
      : options_(options), reader_(std::move(reader)) {}

  void Start() {
    {
      MutexLock lock(&mu_);
      threads_ = options_.threads + 1;
    }
    for (int32_t i = 0; i < options_.threads; ++i) {
      std::thread([self = shared_from_this()] { self->ServeAnnounced(); }).detach();
    }
    std::thread([self = shared_from_this()] { self->ServeWanted(); }).detach();
  }

  void End() {
    const SteadyTime deadline = std::chrono::steady_clock::now() + kLastReads;
    MutexLock lock(&mu_);
    stopping_ = true;
    work_.SignalAll();
    wanting_.SignalAll();
    while (threads_ > 0 && !done_.WaitUntil(&mu_, deadline)) {
    }
  }

  void Announce(absl::Span<const int64_t> samples) {
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

  Result Take(int64_t sample, const std::stop_token& stop) {
    const SteadyTime deadline =
        std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.patience);
    const std::stop_callback wake(stop, [this] {
      MutexLock lock(&mu_);
      done_.SignalAll();
    });
    MutexLock lock(&mu_);
    const auto found = slots_.find(sample);
    const std::shared_ptr<Slot> slot =
        found != slots_.end() ? found->second
                              : std::make_shared<Slot>(sample, reader_->BytesOf(sample));
    if (slot->state == State::kPending) {
      // No thread has begun it: waiting for one could be waiting for ever, since they stop where
      // enough is ready.
      slot->state = State::kDecoding;
      if (found != slots_.end()) Hold(*slot);
      wanted_.push_back(slot);
      wanting_.Signal();
    }
    while (slot->state != State::kDone) {
      if (stop.stop_requested()) return absl::CancelledError("asked to stop");
      if (done_.WaitUntil(&mu_, deadline) && slot->state != State::kDone) return Silence(sample);
    }
    Use(sample, *slot);
    return slot->result;
  }

  bool IsReady(int64_t sample) const {
    MutexLock lock(&mu_);
    const auto found = slots_.find(sample);
    return found != slots_.end() && found->second->state == State::kDone;
  }

  int64_t ready_bytes() const {
    MutexLock lock(&mu_);
    return held_bytes_;
  }

 private:
  enum class State : uint8_t { kPending, kDecoding, kDone };
  // One sample, announced or wanted; guarded by mu_.
  struct Slot {
    Slot(int64_t sample, int64_t bytes) : sample(sample), bytes(bytes) {}
    const int64_t sample;
    int64_t bytes;  // until it is decoded, as its shape says
    State state = State::kPending;
    int64_t uses = 0;  // how often it will be taken
    Result result = absl::UnknownError("not decoded");
  };

  absl::Status Silence(int64_t sample) const {
    return job::WithKind(
        job::FailureKind::kDataUnavailable,
        absl::UnavailableError(absl::StrCat(
            reader_->ShardOf(sample), " is not answered for: ", reader_->NameOf(sample),
            " was not read within ", absl::FormatDuration(options_.patience))));
  }

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

  void Decode(Slot& slot) {
    Result result = reader_->Read(slot.sample);
    const int64_t beyond = result.ok() ? BytesBesideMemory(**result) : 0;
    MutexLock lock(&mu_);
    slot.bytes += beyond;
    if (const auto held = slots_.find(slot.sample);
        held != slots_.end() && held->second.get() == &slot)
      held_bytes_ += beyond;
    slot.result = std::move(result);
    slot.state = State::kDone;
    done_.SignalAll();
  }

  void Leave() {
    MutexLock lock(&mu_);
    --threads_;
    done_.SignalAll();
  }

  void ServeAnnounced() {
    while (const std::shared_ptr<Slot> slot = NextPending()) Decode(*slot);
    Leave();
  }

  void ServeWanted() {
    while (const std::shared_ptr<Slot> slot = NextWanted()) Decode(*slot);
    Leave();
  }

  // Waits for what Take asks for; nullptr at the end.
  std::shared_ptr<Slot> NextWanted() {
    MutexLock lock(&mu_);
    while (wanted_.empty() && !stopping_) wanting_.Wait(&mu_);
    if (stopping_) return nullptr;
    std::shared_ptr<Slot> slot = std::move(wanted_.front());
    wanted_.pop_front();
    return slot;
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
  CondVar work_;     // something is pending and there is room, or the end
  CondVar wanting_;  // something is wanted, or the end
  CondVar done_;     // some slot is done, a thread has left, or Take is asked to stop
  absl::flat_hash_map<int64_t, std::shared_ptr<Slot>> slots_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Slot>> pending_ ABSL_GUARDED_BY(mu_);  // in announced order
  int64_t held_ ABSL_GUARDED_BY(mu_) = 0;  // of slots_, those being decoded or done
  int64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // More than one only where Take gave up on storage.
  std::deque<std::shared_ptr<Slot>> wanted_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  int32_t threads_ ABSL_GUARDED_BY(mu_) = 0;  // that have not left
};

class ThreadedLoader final : public Loader {
 public:
  explicit ThreadedLoader(std::shared_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {
    decoder_->Start();
  }
  ~ThreadedLoader() override { decoder_->End(); }

  void Announce(absl::Span<const int64_t> samples) override { decoder_->Announce(samples); }
  Result Take(int64_t sample) override { return decoder_->Take(sample, stop_); }
  bool IsReady(int64_t sample) const override { return decoder_->IsReady(sample); }
  void set_stop(std::stop_token stop) override { stop_ = std::move(stop); }
  int64_t ready_bytes() const override { return decoder_->ready_bytes(); }

 private:
  const std::shared_ptr<Decoder> decoder_;
  std::stop_token stop_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(Index index, const DataSetSpec& spec,
                                                       const LoaderOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<SampleReader> reader,
                   SampleReader::Create(std::move(index), spec, options));
  return std::make_unique<ThreadedLoader>(std::make_shared<Decoder>(std::move(reader), options));
}

}  // namespace phalanx::data

#include "core/posix/activity.h"

namespace phalanx {
namespace {

// The low bits of the word; the others count how often they were set.
constexpr uint64_t kIdle = 0, kWorks = 1, kNeeds = 2, kWaits = 4;
constexpr uint64_t kStates = 8;

thread_local std::atomic<uint64_t>* word_of_thread = nullptr;
thread_local std::chrono::steady_clock::duration waited{};

uint64_t State() {
  return word_of_thread == nullptr ? kIdle
                                   : word_of_thread->load(std::memory_order_relaxed) % kStates;
}

// The thread is the only one that writes.
void Set(uint64_t state) {
  const uint64_t word = word_of_thread->load(std::memory_order_relaxed);
  word_of_thread->store(word - word % kStates + kStates + state, std::memory_order_relaxed);
}

}  // namespace

ActivityOfThread::ActivityOfThread(std::atomic<uint64_t>* word) {
  word_of_thread = word;
  waited = {};
}

ActivityOfThread::~ActivityOfThread() {
  if (State() != kIdle) Set(kIdle);
  word_of_thread = nullptr;
}

Working::Working() {
  if (word_of_thread != nullptr) Set(kWorks);
}

Working::~Working() {
  if (State() != kIdle) Set(kIdle);
}

void Working::Next() {
  if (State() == kWorks) Set(kWorks);
}

Waiting::Waiting(For what) : before_(State()) {
  if (before_ == kIdle) return;
  if (before_ == kWorks) begin_ = std::chrono::steady_clock::now();
  Set(what == kNeed ? kNeeds : kWaits);
}

Waiting::~Waiting() {
  if (before_ == kIdle || State() == kIdle) return;
  if (before_ == kWorks) waited += std::chrono::steady_clock::now() - begin_;
  Set(before_);
}

double SecondsWaited() { return std::chrono::duration<double>(waited).count(); }

}  // namespace phalanx

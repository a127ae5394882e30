#include "core/base/activity.h"

namespace phalanx {
namespace {

thread_local std::atomic<uint64_t>* word_of_thread = nullptr;

bool Works() {
  return word_of_thread != nullptr && ShowsWork(word_of_thread->load(std::memory_order_relaxed));
}

// The thread is the only one that writes.
void Add(uint64_t count) {
  word_of_thread->store(word_of_thread->load(std::memory_order_relaxed) + count,
                        std::memory_order_relaxed);
}

}  // namespace

ActivityOfThread::ActivityOfThread(std::atomic<uint64_t>* word) { word_of_thread = word; }

ActivityOfThread::~ActivityOfThread() {
  if (Works()) Add(1);
  word_of_thread = nullptr;
}

Working::Working() {
  if (word_of_thread != nullptr) Add(Works() ? 2 : 1);
}

Working::~Working() {
  if (Works()) Add(1);
}

void Working::Next() {
  if (Works()) Add(2);
}

Waiting::Waiting() : ends_work_(Works()) {
  if (ends_work_) Add(1);
}

Waiting::~Waiting() {
  if (ends_work_) Add(1);
}

}  // namespace phalanx

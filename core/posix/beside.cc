#include "core/posix/beside.h"

#include <pthread.h>

#include <deque>

namespace phalanx {
namespace {

struct Part {
  absl::FunctionRef<void(size_t)> run;
  size_t index = 0;
  pthread_t thread{};
};

void* RunPart(void* part) {
  const Part& own = *static_cast<const Part*>(part);
  own.run(own.index);
  return nullptr;
}

}  // namespace

void RunBeside(size_t count, absl::FunctionRef<void(size_t)> run) {
  std::deque<Part> parts;  // which do not move
  for (size_t i = 1; i < count; ++i) {
    Part& part = parts.emplace_back(Part{.run = run, .index = i});
    // std::thread would end the process where there is no room for another one.
    if (pthread_create(&part.thread, nullptr, RunPart, &part) == 0) continue;
    parts.pop_back();
    break;
  }
  run(0);
  for (const Part& part : parts) pthread_join(part.thread, nullptr);
}

}  // namespace phalanx

#include "tests/support/wall_clock.h"

#include <dlfcn.h>
#include <sys/prctl.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace {

std::atomic<int64_t> g_set_by_seconds = 0, g_set_at_each_look = 0;

// gRPC's own threads wait until a time of the wall clock, and the kernel's is not set: they would
// wait for the whole hour.
bool IsOfGrpc() {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  const absl::string_view thread = name;
  return absl::StartsWith(thread, "grpc") || thread == "timer_manager" ||
         thread == "event_engine" || thread == "nexting_thread" || thread == "default-executo" ||
         thread == "resolver-execut";
}

}  // namespace

// Stands before the system's, for libraries too.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = system(clock, time);
  if (clock == CLOCK_REALTIME && result == 0 && !IsOfGrpc()) {
    time->tv_sec += g_set_by_seconds.fetch_add(g_set_at_each_look);
  }
  return result;
}

namespace phalanx::support {

void SetWallClockBy(absl::Duration duration) { g_set_by_seconds += absl::ToInt64Seconds(duration); }

void SetWallClockAtEachLook(absl::Duration duration) {
  g_set_at_each_look = absl::ToInt64Seconds(duration);
}

void ResetWallClock() { g_set_at_each_look = g_set_by_seconds = 0; }

}  // namespace phalanx::support

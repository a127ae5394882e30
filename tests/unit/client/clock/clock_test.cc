// A wall clock that is set while `phalanx run` starts its cluster. This program's own clock_gettime
// stands before the system's, for all libraries in it.
#include "absl/time/clock.h"

#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "client/interrupt.h"
#include "client/local_cluster.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace {

// Each time somebody asks for the wall clock it has been set forward by so much more.
std::atomic<int64_t> g_set_by_seconds = 0, g_set_at_a_time = 0;

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  using Function = int (*)(clockid_t, timespec*);
  static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = system(clock, time);
  if (clock == CLOCK_REALTIME && result == 0) {
    time->tv_sec += g_set_by_seconds.fetch_add(g_set_at_a_time);
  }
  return result;
}

namespace phalanx::client {
namespace {

class Programs {
 public:
  // Ready a moment after its start.
  void Add(const std::string& name, const std::string& ready) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path)
        << "#!/bin/sh\n"
        << "while [ $# -gt 0 ]; do [ \"$1\" = --ready-file ] && ready=$2; shift; done\n"
        << "sleep 0.1; echo '" << ready << "' > $ready.new; mv $ready.new $ready\n"
        << "exec sleep 1000\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  LocalClusterOptions Options() const {
    return {.programs = folder_, .temporary = folder_, .start_timeout = absl::Minutes(1)};
  }

 private:
  const std::string folder_ = support::MakeFolder("clock");
};

TEST(LocalClusterTest, WallClockThatIsSetWhileItStarts_IsNotFollowed) {
  Programs programs;
  programs.Add("phalanx-coordinator", "{\"grpc\": \"127.0.0.1:4321\"}");
  programs.Add("phalanx-worker", "{\"pid\": 1}");
  g_set_at_a_time = 3600;
  const absl::Time before = absl::Now();
  EXPECT_GT(absl::Now() - before, absl::Minutes(59)) << "the test sets the wall clock";
  LocalCluster cluster(programs.Options());
  Stopper stopper;
  const absl::Status status = cluster.Start(stopper);
  g_set_at_a_time = 0;
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace phalanx::client

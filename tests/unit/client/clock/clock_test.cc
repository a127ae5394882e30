// A wall clock that is set while `phalanx run` starts its cluster.
#include "absl/time/clock.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "client/interrupt.h"
#include "client/local_cluster.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/wall_clock.h"

namespace phalanx::client {
namespace {

class Programs {
 public:
  // Ready once it has started.
  void Add(const std::string& name, const std::string& ready) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path)
        << "#!/bin/sh\n"
        << "while [ $# -gt 0 ]; do [ \"$1\" = --ready-file ] && ready=$2; shift; done\n"
        << "echo '" << ready << "' > $ready.new; mv $ready.new $ready\n"
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
  support::SetWallClockAtEachLook(absl::Hours(1));
  const absl::Time before = absl::Now();
  EXPECT_GT(absl::Now() - before, absl::Minutes(59)) << "the test sets the wall clock";
  LocalCluster cluster(programs.Options());
  Stopper stopper;
  const absl::Status status = cluster.Start(stopper);
  support::ResetWallClock();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace phalanx::client

// Files of certificates that are spoilt just when a coordinator of several has to serve anew: it
// waits for sound ones, or else all of them would be gone at the next change of the leader.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/authority.h"
#include "tests/support/etcd.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/tools.h"

namespace phalanx::e2e {
namespace {

TEST(SpoiltFilesTest, CoordinatorThatHasServed_StandsByAndServesOnceTheyAreSound) {
  PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
  const support::Authority authority;
  const transport::TlsFiles files = authority.Coordinator();
  support::EtcdServer etcd;
  const std::string folder = support::MakeFolder("spoilt-files");
  const std::string ready = folder + "/ready.json", log = folder + "/log";
  const std::vector<std::string> argv = {support::Program("phalanx-coordinator"),
                                         "--listen",
                                         "127.0.0.1:0",
                                         "--http",
                                         "127.0.0.1:0",
                                         "--store",
                                         etcd.NewPlace(),
                                         "--tls-ca",
                                         files.ca,
                                         "--tls-certificate",
                                         files.certificate,
                                         "--tls-key",
                                         files.key,
                                         "--ready-file",
                                         ready};
  support::Process coordinator(argv, support::NewMark(), log, log);
  support::AwaitFile(ready, coordinator);
  // Where etcd was slow it stood by first.
  support::AwaitText(log, "\"standby\":false", coordinator);

  const std::string sound = support::ReadFile(files.certificate);
  support::ReplaceFile(files.certificate, "spoilt");
  etcd.Kill();
  support::AwaitText(log, "serving no more", coordinator);
  support::AwaitText(log, "cannot stand by now reason=\"--tls-certificate: ", coordinator);
  etcd.Start();
  support::AwaitText(log, "cannot serve now reason=\"--tls-certificate: ", coordinator);

  std::filesystem::remove(ready);  // written again by whoever stands by or serves
  support::ReplaceFile(files.certificate, sound);
  support::AwaitFile(ready, coordinator);
  EXPECT_FALSE(coordinator.watch().HasEnded());
  coordinator.Signal(SIGTERM);
  EXPECT_EQ(coordinator.WaitExitCode(), 0);
}

}  // namespace
}  // namespace phalanx::e2e

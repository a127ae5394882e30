// Options that phalanx-worker does not take.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"

namespace phalanx::agent {
namespace {

TEST(WorkerCommandTest, RevokedReaders_AreOfAPortThatSpeaksTls) {
  const support::Finished worker =
      support::RunToEnd({support::Program("phalanx-worker"), "--coordinator", "localhost:1",
                         "--state", "/nonexistent/state", "--rank-program", PHALANX_FAKE_RANK,
                         "--metrics", "127.0.0.1:0", "--tls-revoked", "revoked.pem"});
  EXPECT_EQ(worker.exit_code, 2);
  EXPECT_THAT(worker.talk, ::testing::HasSubstr("--tls-revoked: there are no certificates of "
                                                "readers without --metrics-certificate"));
}

TEST(WorkerCommandTest, WrongOptions_AreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--devices", "0"},
                                             {"--node", "a/b"},
                                             {"--label", "x"},
                                             {"--nonsense"},
                                             {"--device", "tpu"},
                                             {"--coordinator", "10.0.0.5:4444"},
                                             {"--plaintext", "--tls-ca", "ca.pem"},
                                             {"--address", "bad host"},
                                             {"--address", "h:1"}}) {
    std::vector<std::string> command = {support::Program("phalanx-worker"),
                                        "--coordinator",
                                        "localhost:1",
                                        "--state",
                                        "/nonexistent/state",
                                        "--rank-program",
                                        PHALANX_FAKE_RANK};
    command.insert(command.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(support::RunToEnd(command).exit_code, 2) << arguments[0];
  }
}

}  // namespace
}  // namespace phalanx::agent

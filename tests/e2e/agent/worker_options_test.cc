// Options of phalanx-worker: what they do, and those that it does not take.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/e2e/agent/worker_process.h"
#include "tests/support/authority.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(WorkerCommandTest, RevokedReaders_AreOfAPortThatSpeaksTls) {
  const support::Finished worker =
      support::RunToEnd({support::Program("phalanx-worker"), "--coordinator", "localhost:1",
                         "--state", "/nonexistent/state", "--rank-program", PHALANX_FAKE_RANK,
                         "--metrics", "127.0.0.1:0", "--tls-revoked", "revoked.pem"});
  EXPECT_EQ(worker.exit_code, 2);
  EXPECT_THAT(worker.talk, HasSubstr("--tls-revoked: there are no certificates of "
                                     "readers without --metrics-certificate"));
}

TEST(WorkerCommandTest, WrongOptions_AreUsageErrors) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--devices", "0"},
                                             {"--node", "a/b"},
                                             {"--label", "x"},
                                             {"--label", "x=\xFF"},
                                             {"--failure-domain", "\xFF"},
                                             {"--grace", "nan"},
                                             {"--threads", "99999999"},
                                             {"--threads", "-1"},
                                             {"--check-interval", "nan"},
                                             {"--nonsense"},
                                             {"--device", "tpu"},
                                             {"--coordinator", "10.0.0.5:4444"},
                                             {"--coordinator", "10.0.0.5:4444", "--plaintext"},
                                             {"--metrics", "0.0.0.0:0"},
                                             {"--metrics", "0.0.0.0:0", "--metrics-plaintext"},
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

// As where a script's variable is not set.
TEST(WorkerCommandTest, FlagsWithAnEmptyValue_AreUsage_ToldAllAtOnce) {
  const auto said = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {support::Program("phalanx-worker"),
                                        "--coordinator",
                                        "127.0.0.1:1",
                                        "--state",
                                        "/nonexistent/state",
                                        "--rank-program",
                                        PHALANX_FAKE_RANK};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const support::Finished refused = support::RunToEnd(command);
    EXPECT_EQ(refused.exit_code, 2) << arguments[0];
    return refused.talk;
  };
  const std::string rest = ": \"\": must have a value, or be left out\n";
  EXPECT_EQ(said({"--tls-ca", ""}), "--tls-ca" + rest);
  EXPECT_EQ(said({"--check-data", ""}), "--check-data" + rest);
  EXPECT_EQ(said({"--check-data="}), "--check-data" + rest);
  EXPECT_EQ(said({"--node=", "x"}), "--node" + rest);
  EXPECT_EQ(said({"--state=", "--node="}), "--state" + rest + "--node" + rest);
  EXPECT_EQ(said({"--node", "", "--read-folder", "/data", "--read-folder", "", "--devices", ""}),
            "--node" + rest + "--devices" + rest + "--read-folder" + rest);
  EXPECT_EQ(said({"--device-memory", "", "--label", ""}),
            "--device-memory" + rest + "--label" + rest);
}

TEST(WorkerCommandTest, PlaintextBeyondLoopback_IsRefusedAlsoWhereItIsAskedForByName) {
  const auto talk = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {support::Program("phalanx-worker"), "--state",
                                        "/nonexistent/state", "--rank-program", PHALANX_FAKE_RANK};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return support::RunToEnd(command).talk;
  };
  EXPECT_THAT(talk({"--coordinator", "127.0.0.1:1,10.0.0.5:4444", "--plaintext"}),
              HasSubstr("--coordinator: 10.0.0.5:4444: plaintext is for loopback alone, so "
                        "--plaintext does not go with it; give --tls-ca, --tls-certificate and "
                        "--tls-key: scripts/make_ca makes them for development"));
  EXPECT_THAT(
      talk({"--coordinator", "127.0.0.1:1", "--metrics", "0.0.0.0:4446", "--metrics-plaintext"}),
      HasSubstr("--metrics: 0.0.0.0:4446: plaintext is for loopback alone, so "
                "--metrics-plaintext does not go with it; give --tls-ca, "
                "--metrics-certificate and --metrics-key"));
}

TEST(WorkerCommandTest, PlaintextOnLoopback_MayBeAskedForByName) {
  FakeCoordinator coordinator;
  const WorkerProcess worker(coordinator.address(),
                             {"--plaintext", "--metrics", "127.0.0.1:0", "--metrics-plaintext"});
  EXPECT_EQ(coordinator.AwaitHello().node(), "here");
}

TEST(WorkerCommandTest, DeviceMemory_OfTheFlag_IsThatOfEveryDevice) {
  FakeCoordinator coordinator;
  const WorkerProcess worker(coordinator.address(), {"--device-memory", "1Mi"});
  const v1::WorkerHello hello = coordinator.AwaitHello();
  EXPECT_THAT(hello.device_memory(), ElementsAre(1 << 20, 1 << 20, 1 << 20, 1 << 20));
}

TEST(WorkerCommandTest, HostMemory_OfTheFlag_IsThatOfTheNode) {
  FakeCoordinator coordinator;
  const WorkerProcess worker(coordinator.address(), {"--host-memory", "3Mi"});
  EXPECT_EQ(coordinator.AwaitHello().host_memory(), 3 << 20);
}

TEST(WorkerCommandTest, Memory_ThatIsNoSize_IsAUsageError) {
  for (const char* flag : {"--device-memory", "--host-memory"}) {
    for (const char* text : {"much", "0", "-1Gi", "1.5Gi"}) {
      const support::Finished finished =
          support::RunToEnd({support::Program("phalanx-worker"), "--coordinator", "127.0.0.1:1",
                             "--state", support::MakeFolder("agent-usage"), flag, text});
      EXPECT_EQ(finished.exit_code, 2) << flag << " " << text;
      EXPECT_THAT(finished.talk, HasSubstr(absl::StrCat(flag, " is \"", text, "\"")));
    }
  }
}

TEST(WorkerCommandTest, ReadyFile_IsThereWhileTheCoordinatorHasLetItIn) {
  const std::string path = support::MakeFolder("agent-ready") + "/ready";
  FakeCoordinator coordinator;
  WorkerProcess worker(coordinator.address(), {"--ready-file", path});
  coordinator.AwaitHello();
  // The first heartbeat leaves after the file was written.
  coordinator.AwaitHeartbeat([](const auto&) { return true; });
  EXPECT_THAT(support::ReadFile(path), StartsWith(absl::StrCat("{\"pid\": ", worker.pid())));
  worker.Signal(SIGTERM);
  coordinator.AwaitClose();
  worker.AwaitEnd();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WorkerCommandTest, ReadyFileThatCannotBeWritten_IsOneErrorThatNamesTheFlag) {
  const std::string folder = support::MakeFolder("agent-unready"), path = folder + "/none/ready";
  const std::string log = folder + "/log";
  FakeCoordinator coordinator;
  support::Process worker({support::Program("phalanx-worker"), "--coordinator",
                           coordinator.address(), "--state", folder + "/state", "--rank-program",
                           PHALANX_FAKE_RANK, "--check-interval", "0", "--ready-file", path},
                          support::NewMark(), log, log);
  support::AwaitText(log, ": No such file or directory\n", worker);
  // It serves all the same: who waits for the file sees that it is not ready.
  coordinator.AwaitHeartbeat([](const auto&) { return true; });
  worker.Signal(SIGTERM);
  coordinator.AwaitClose();
  worker.Wait();
  const std::string talk = support::ReadFile(log);
  EXPECT_THAT(talk, HasSubstr(absl::StrCat("[error] --ready-file: cannot write ", path,
                                           ": No such file or directory\n")));
  EXPECT_EQ(talk.find("[error]", talk.find("[error]") + 1), std::string::npos) << talk;
}

TEST(WorkerCommandTest, NoFolderOfJobs_WithCertificates_IsUsage) {
  const support::Authority authority;
  const transport::TlsFiles files = authority.Worker("here");
  const std::vector<std::string> own = {"--tls-certificate", files.certificate, "--tls-key",
                                        files.key},
                                 joins = {"--join-token-file", files.key};
  for (const std::vector<std::string>& more : {own, joins}) {
    std::vector<std::string> command = {support::Program("phalanx-worker"),
                                        "--coordinator",
                                        "localhost:1",
                                        "--node",
                                        "here",
                                        "--state",
                                        "/nonexistent/state",
                                        "--rank-program",
                                        PHALANX_FAKE_RANK,
                                        "--tls-ca",
                                        files.ca};
    command.insert(command.end(), more.begin(), more.end());
    const support::Finished refused = support::RunToEnd(command);
    EXPECT_EQ(refused.exit_code, 2) << more[0];
    EXPECT_EQ(refused.talk,
              "phalanx-worker: --write-folder is missing: a node with certificates says where jobs "
              "may read and write (--write-folder DIR, --read-folder DIR); / for all that this "
              "user may\n");
  }
}

TEST(WorkerCommandTest, NoFolderOfJobs_OnLoopback_IsWarnedOf) {
  const FakeCoordinator coordinator;
  constexpr char kWarning[] = "has neither --read-folder nor --write-folder";
  for (const std::vector<std::string>& folders : std::vector<std::vector<std::string>>{
           {}, {"--write-folder", "/srv"}, {"--read-folder", "/srv"}}) {
    const std::string log = support::MakeFolder("agent-folders") + "/log";
    std::vector<std::string> command = {support::Program("phalanx-worker"),
                                        "--coordinator",
                                        coordinator.address(),
                                        "--state",
                                        support::MakeFolder("agent-folders-state"),
                                        "--rank-program",
                                        PHALANX_FAKE_RANK};
    command.insert(command.end(), folders.begin(), folders.end());
    const support::Process process(command, support::NewMark(), log, log);
    // A line behind the warning.
    support::AwaitText(log, "session=", process);
    if (folders.empty()) {
      EXPECT_THAT(support::ReadFile(log), HasSubstr(kWarning));
    } else {
      EXPECT_THAT(support::ReadFile(log), Not(HasSubstr(kWarning)));
    }
  }
}

}  // namespace
}  // namespace phalanx::agent

// What `phalanx doctor` says of machines that a test describes, and of this one.
#include "client/doctor.h"

#include <optional>
#include <string>
#include <vector>

#include "client/exit_code.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;
using Verdict = Finding::Verdict;

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.gpu_files = 8;
  facts.driver = {.found = true, .version = "550.54"};
  facts.gpus = 8;
  facts.nccl = {.found = true, .version = "2.18.3"};
  facts.clock_synchronised = true;
  facts.shared_memory_bytes = int64_t{8} << 30;
  facts.limits = {.open_files = 1 << 20,
                  .locked_bytes = kUnlimited,
                  .file_bytes = kUnlimited,
                  .processes = kUnlimited};
  facts.ports_first = 32768;
  facts.ports_last = 60999;
  facts.host = "n1";
  facts.folder = FolderFacts{.path = "/data", .on_network = true, .free_bytes = int64_t{1} << 40};
  return facts;
}

Finding Of(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& finding : findings) {
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no finding about " << check;
  return {};
}

TEST(DoctorTest, GoodMachine_HasNothingToDo) {
  for (const Finding& finding : ExamineMachine(GoodMachine())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.found;
    EXPECT_EQ(finding.next, "") << finding.check;
    EXPECT_NE(finding.found, "") << finding.check;
  }
}

TEST(DoctorTest, MachineWithoutGpus_IsNotBlamedForIt) {
  MachineFacts facts = GoodMachine();
  facts.gpu_files = facts.gpus = 0;
  facts.driver = facts.nccl = {.error = "libnvidia-ml.so.1: cannot open shared object file"};
  facts.shared_memory_bytes = 64 << 20;
  facts.limits.locked_bytes = 64 << 10;
  const std::vector<Finding> findings = ExamineMachine(facts);
  for (const char* check : {"driver", "nccl", "shared memory"}) {
    EXPECT_EQ(Of(findings, check).verdict, Verdict::kSkipped) << check;
  }
  EXPECT_EQ(Of(findings, "limits").verdict, Verdict::kOk);
}

TEST(DoctorTest, GpusWithoutAUsableDriver_AreAProblem) {
  MachineFacts facts = GoodMachine();
  facts.gpus = 0;
  facts.driver = {.found = true, .error = "Driver/library version mismatch"};
  const Finding finding = Of(ExamineMachine(facts), "driver");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("Driver/library version mismatch"));
  EXPECT_THAT(finding.next, HasSubstr("reboot"));
}

TEST(DoctorTest, ContainerWithSomeOfTheGpus_IsToldOf) {
  MachineFacts facts = GoodMachine();
  facts.gpu_files = 2;
  const Finding finding = Of(ExamineMachine(facts), "driver");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("8 GPUs, of which this environment has 2"));
}

TEST(DoctorTest, LowLimits_AreNamedWithWhatToSet) {
  MachineFacts facts = GoodMachine();
  facts.limits = {.open_files = 1024,
                  .locked_bytes = 64 << 10,
                  .file_bytes = int64_t{1} << 30,
                  .processes = 1000};
  const Finding finding = Of(ExamineMachine(facts), "limits");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("open files 1024, locked memory 64.0 KiB"));
  for (const char* unit : {"LimitNOFILE=", "LimitMEMLOCK=", "TasksMax=", "LimitFSIZE="}) {
    EXPECT_THAT(finding.next, HasSubstr(unit));
  }
}

TEST(DoctorTest, SmallSharedMemoryClockAndPorts_AreWarnings) {
  MachineFacts facts = GoodMachine();
  facts.shared_memory_bytes = 64 << 20;
  facts.clock_synchronised = false;
  facts.ports_last = facts.ports_first + 99;
  facts.host_is_loopback = true;
  const std::vector<Finding> findings = ExamineMachine(facts);
  for (const char* check : {"shared memory", "clock", "ports", "host name"}) {
    EXPECT_EQ(Of(findings, check).verdict, Verdict::kWarning) << check;
    EXPECT_NE(Of(findings, check).next, "") << check;
  }
  EXPECT_THAT(Of(findings, "shared memory").found, HasSubstr("/dev/shm has 64.0 MiB"));
  EXPECT_THAT(Of(findings, "ports").found, HasSubstr("only 100"));
}

// Each on a machine that is good otherwise, so that nobody is blamed for another one's fault.
TEST(DoctorTest, EachWrongState_IsSaidInWordsWithWhatToDo) {
  struct Case {
    std::string check;
    Verdict verdict;
    std::string found, next;  // parts of what is said
    void (*spoil)(MachineFacts&);
  };
  using M = MachineFacts&;
  const Case cases[] = {
      {"driver", Verdict::kProblem, "libnvidia-ml.so.1 cannot be used: no such file",
       "container toolkit", [](M m) { m.driver = {.error = "no such file"}; }},
      {"driver", Verdict::kProblem, "it knows no GPU", "nvidia-smi", [](M m) { m.gpus = 0; }},
      {"nccl", Verdict::kWarning, "libnccl.so.2 is not where the loader looks", "install libnccl2",
       [](M m) { m.nccl = {.error = "no such file"}; }},
      {"shared memory", Verdict::kProblem, "there is no /dev/shm", "--shm-size",
       [](M m) { m.shared_memory_bytes = 0; }},
      {"shared memory", Verdict::kWarning, "/dev/shm has 64.0 MiB; NCCL may need 1.0 GiB",
       "remount,size=8g", [](M m) { m.shared_memory_bytes = 64 << 20; }},
      {"limits", Verdict::kWarning, "open files 1024,", "ulimit -Hn 16384",
       [](M m) { m.limits.open_files = 1024; }},
      {"limits", Verdict::kWarning, "locked memory 64.0 KiB", "ulimit -l unlimited",
       [](M m) { m.limits.locked_bytes = 64 << 10; }},
      {"limits", Verdict::kWarning, "processes 100,", "ulimit -u 4096",
       [](M m) { m.limits.processes = 100; }},
      {"limits", Verdict::kWarning, "file size 1.0 GiB", "ulimit -f unlimited",
       [](M m) { m.limits.file_bytes = int64_t{1} << 30; }},
      {"clock", Verdict::kWarning, "not synchronised", "chrony",
       [](M m) { m.clock_synchronised = false; }},
      {"ports", Verdict::kWarning, "ports 40000 to 40009, which other nodes must reach: only 10",
       "net.ipv4.ip_local_port_range",
       [](M m) {
         m.ports_first = 40000;
         m.ports_last = 40009;
       }},
      {"host name", Verdict::kWarning, "\"n1\" gives no address: unknown", "--address",
       [](M m) { m.host_error = "unknown"; }},
      {"host name", Verdict::kWarning, "gives loopback addresses alone", "--address",
       [](M m) { m.host_is_loopback = true; }},
      {"folder", Verdict::kProblem, "/data: Permission denied", "let the user that runs the worker",
       [](M m) { m.folder->error = "Permission denied"; }},
      {"folder", Verdict::kWarning, "/data takes files, 1.0 GiB free", "make room for checkpoints",
       [](M m) { m.folder->free_bytes = int64_t{1} << 30; }},
      {"folder", Verdict::kOk, "on a disk of this machine", "all of them mount at this path",
       [](M m) { m.folder->on_network = false; }},
  };
  for (const Case& one : cases) {
    MachineFacts facts = GoodMachine();
    one.spoil(facts);
    for (const Finding& finding : ExamineMachine(facts)) {
      if (finding.check != one.check) {
        EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << " beside " << one.found;
        continue;
      }
      EXPECT_EQ(finding.verdict, one.verdict) << one.found;
      EXPECT_THAT(finding.found, HasSubstr(one.found));
      EXPECT_THAT(finding.next, HasSubstr(one.next));
    }
  }
}

TEST(DoctorTest, WhatTheKernelDoesNotSay_IsSkipped) {
  MachineFacts facts = GoodMachine();
  facts.clock_synchronised = std::nullopt;
  facts.ports_first = facts.ports_last = 0;
  for (const char* check : {"clock", "ports"}) {
    EXPECT_EQ(Of(ExamineMachine(facts), check).verdict, Verdict::kSkipped) << check;
    EXPECT_THAT(Of(ExamineMachine(facts), check).found, HasSubstr("does not say here")) << check;
  }
}

TEST(DoctorTest, FolderThatCannotBeWritten_IsAProblem) {
  const Finding missing = Of(ExamineMachine(ReadMachine("/nowhere/at/all")), "folder");
  EXPECT_EQ(missing.verdict, Verdict::kProblem);
  EXPECT_EQ(missing.found, "/nowhere/at/all: No such file or directory");
  const std::string folder = support::MakeFolder("doctor");
  const MachineFacts facts = ReadMachine(folder);
  ASSERT_TRUE(facts.folder.has_value());
  EXPECT_EQ(facts.folder->error, "");
  EXPECT_GT(facts.folder->free_bytes, 0);
  support::WriteFile(folder + "/file", "");
  EXPECT_EQ(ReadMachine(folder + "/file").folder->error, "is no folder");
}

TEST(DoctorTest, ThisMachine_IsReadWithoutHarm) {
  const MachineFacts facts = ReadMachine("");
  EXPECT_GT(facts.limits.open_files, 0);
  EXPECT_GE(facts.ports_last, facts.ports_first);
  EXPECT_NE(facts.host, "");
  EXPECT_EQ(facts.gpus == 0, facts.driver.version.empty());
  EXPECT_FALSE(facts.folder.has_value());
}

v1::NodeStatus Node(const std::string& name, absl::Time heartbeat) {
  v1::NodeStatus node;
  node.set_name(name);
  node.set_state(v1::NodeStatus::STATE_READY);
  node.set_devices(8);
  node.set_version("1.0");
  node.mutable_last_heartbeat()->set_seconds(absl::ToUnixSeconds(heartbeat));
  return node;
}

TEST(DoctorTest, Cluster_NodesThatAreAwayAndVersionsThatDiffer) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  std::vector<v1::NodeStatus> nodes = {Node("a", now), Node("b", now - absl::Seconds(1))};
  for (const Finding& finding : ExamineCluster(nodes, "1.0", now)) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.found;
  }
  nodes[1].set_state(v1::NodeStatus::STATE_DISCONNECTED);
  nodes[1].set_version("0.9");
  const std::vector<Finding> findings = ExamineCluster(nodes, "1.0", now);
  EXPECT_EQ(Of(findings, "nodes").verdict, Verdict::kProblem);
  EXPECT_EQ(Of(findings, "nodes").found, "2 with 16 devices; disconnected: b");
  EXPECT_EQ(Of(findings, "versions").found, "this client is 1.0; others: b 0.9");
  EXPECT_EQ(Of(ExamineCluster({}, "1.0", now), "nodes").verdict, Verdict::kProblem);
  EXPECT_EQ(Of(ExamineCluster({}, "1.0", now), "versions").verdict, Verdict::kSkipped);
}

TEST(DoctorTest, Cluster_ClocksThatAreApart_AreToldOf) {
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  const Finding ahead =
      Of(ExamineCluster({Node("a", now + absl::Seconds(90))}, "1.0", now), "clocks");
  EXPECT_EQ(ahead.verdict, Verdict::kWarning);
  EXPECT_EQ(ahead.found, "by this machine's clock the newest heartbeat is 90 s in the future");
}

TEST(DoctorTest, CoordinatorThatDoesNotAnswer_IsAProblemAndTheMachineIsToldOfAllTheSame) {
  Connection nobody({.server = "127.0.0.1:1", .timeout = absl::Milliseconds(200)});
  Captured table, json;
  EXPECT_EQ(Doctor(nobody, {.version = "1.0"}, table.io), kFailure);
  EXPECT_THAT(table.out.str(), HasSubstr("coordinator    problem"));
  EXPECT_THAT(table.out.str(), HasSubstr("\nports "));
  EXPECT_EQ(Doctor(nobody, {.version = "1.0", .format = Format::kJson}, json.io), kFailure);
  EXPECT_THAT(json.out.str(), HasSubstr("\"check\": \"coordinator\""));
  EXPECT_TRUE(wire::ParseYaml(json.out.str()).ok());
}

}  // namespace
}  // namespace phalanx::client

// What is said of machines that a test describes, and of this one.
#include "core/examine/examination.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::examine {
namespace {

using job::Finding;
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
  facts.folders = {{.path = "/data", .on_network = true, .free_bytes = int64_t{1} << 40}};
  return facts;
}

Finding Of(const std::vector<Finding>& findings, const std::string& check) {
  for (const Finding& finding : findings) {
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no finding about " << check;
  return {};
}

TEST(ExaminationTest, GoodMachine_HasNothingToDo) {
  for (const Finding& finding : ExamineMachine(GoodMachine())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.check << ": " << finding.found;
    EXPECT_EQ(finding.next, "") << finding.check;
    EXPECT_NE(finding.found, "") << finding.check;
  }
}

TEST(ExaminationTest, MachineWithoutGpus_IsNotBlamedForIt) {
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

TEST(ExaminationTest, GpusWithoutAUsableDriver_AreAProblem) {
  MachineFacts facts = GoodMachine();
  facts.gpus = 0;
  facts.driver = {.found = true, .error = "Driver/library version mismatch"};
  const Finding finding = Of(ExamineMachine(facts), "driver");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("Driver/library version mismatch"));
  EXPECT_THAT(finding.next, HasSubstr("reboot"));
}

TEST(ExaminationTest, ContainerWithSomeOfTheGpus_IsToldOf) {
  MachineFacts facts = GoodMachine();
  facts.gpu_files = 2;
  const Finding finding = Of(ExamineMachine(facts), "driver");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("8 GPUs, of which this environment has 2"));
}

TEST(ExaminationTest, LowLimits_AreNamedWithWhatToSet) {
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

TEST(ExaminationTest, SmallSharedMemoryClockAndPorts_AreWarnings) {
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
TEST(ExaminationTest, EachWrongState_IsSaidInWordsWithWhatToDo) {
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
       [](M m) { m.folders[0].error = "Permission denied"; }},
      // Words of a reason are no sign of it.
      {"folder", Verdict::kProblem, "/data: No space left on device: Permission denied",
       "let the user that runs the worker",
       [](M m) { m.folders[0].error = "No space left on device: Permission denied"; }},
      {"folder", Verdict::kProblem, "/data: a file in it cannot be synced", "make room on it",
       [](M m) {
         m.folders[0].error = "a file in it cannot be synced";
         m.folders[0].full = true;
       }},
      {"folder", Verdict::kWarning, "/data takes files, 1.0 GiB free", "make room for checkpoints",
       [](M m) { m.folders[0].free_bytes = int64_t{1} << 30; }},
      {"folder", Verdict::kOk, "on a disk of this machine", "all of them mount at this path",
       [](M m) { m.folders[0].on_network = false; }},
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

TEST(ExaminationTest, WhatTheKernelDoesNotSay_IsSkipped) {
  MachineFacts facts = GoodMachine();
  facts.clock_synchronised = std::nullopt;
  facts.ports_first = facts.ports_last = 0;
  for (const char* check : {"clock", "ports"}) {
    EXPECT_EQ(Of(ExamineMachine(facts), check).verdict, Verdict::kSkipped) << check;
    EXPECT_THAT(Of(ExamineMachine(facts), check).found, HasSubstr("does not say here")) << check;
  }
}

TEST(ExaminationTest, FolderThatCannotBeWritten_IsAProblem) {
  const Finding missing = Of(ExamineMachine(ReadMachine({.write = {"/nowhere/at/all"}})), "folder");
  EXPECT_EQ(missing.verdict, Verdict::kProblem);
  EXPECT_EQ(missing.found, "/nowhere/at/all: No such file or directory");
  const std::string folder = support::MakeFolder("doctor");
  const MachineFacts facts = ReadMachine({.write = {folder}});
  ASSERT_EQ(facts.folders.size(), 1u);
  EXPECT_EQ(facts.folders[0].error, "");
  EXPECT_GT(facts.folders[0].free_bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  support::WriteFile(folder + "/file", "");
  EXPECT_EQ(ReadMachine({.write = {folder + "/file"}}).folders[0].error, "is no folder");
}

TEST(ExaminationTest, StateFolderOfAWorker_IsTriedLikeThoseOfJobs) {
  const std::string folder = support::MakeFolder("state");
  const Finding sound = Of(ExamineNode(ReadMachine({.state = folder}), {}), "state folder");
  EXPECT_NE(sound.verdict, Verdict::kProblem);
  EXPECT_THAT(sound.found, HasSubstr(folder + " takes files"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  MachineFacts facts = ReadMachine({.state = folder + "/gone"});
  const Finding gone = Of(ExamineNode(facts, {}), "state folder");
  EXPECT_EQ(gone.verdict, Verdict::kProblem);
  EXPECT_EQ(gone.found, "--state " + folder + "/gone: No such file or directory");
  facts.state->full = true;
  EXPECT_EQ(Of(ExamineNode(facts, {}), "state folder").next,
            "make room on it; until then no job starts on this node");
  facts.state = FolderFacts{.path = folder, .free_bytes = 1 << 20};
  EXPECT_EQ(Of(ExamineNode(facts, {}), "state folder").verdict, Verdict::kWarning);
}

TEST(ExaminationTest, ThisMachine_IsReadWithoutHarm) {
  const MachineFacts facts = ReadMachine({});
  EXPECT_GT(facts.limits.open_files, 0);
  EXPECT_GE(facts.ports_last, facts.ports_first);
  EXPECT_NE(facts.host, "");
  EXPECT_EQ(facts.gpus == 0, facts.driver.version.empty());
  EXPECT_TRUE(facts.folders.empty());
}

TEST(ExaminationTest, FolderThatIsReadAlone_NeedNotBeWritten) {
  const std::string folder = support::MakeFolder("examination-read");
  const MachineFacts facts = ReadMachine({.read = {folder, "/nowhere/at/all"}});
  ASSERT_EQ(facts.folders.size(), 2u);
  EXPECT_EQ(facts.folders[0].error, "");
  EXPECT_FALSE(facts.folders[0].is_written);
  const std::vector<Finding> findings = ExamineMachine(facts);
  EXPECT_THAT(findings[findings.size() - 2].found, HasSubstr(folder + " can be read, on "));
  EXPECT_EQ(findings.back().found, "/nowhere/at/all: No such file or directory");
  EXPECT_THAT(findings.back().next, HasSubstr("read there"));
}

TEST(ExaminationTest, FoldersOfANode_AreOneFinding_AndWhatIsWrongComesFirst) {
  MachineFacts facts = GoodMachine();
  facts.folders.push_back({.path = "/out", .on_network = true, .free_bytes = int64_t{1} << 30});
  facts.folders.push_back({.path = "/gone", .error = "No such file or directory"});
  const Finding folders = Of(ExamineNode(facts, {}), "folders");
  EXPECT_EQ(folders.verdict, Verdict::kProblem);
  EXPECT_EQ(folders.found,
            "/gone: No such file or directory; /out takes files, 1.0 GiB free, on a file system of "
            "the network; /data takes files, 1.0 TiB free, on a file system of the network");
  EXPECT_EQ(folders.next,
            "mount it on this machine, and let the user that runs the worker write there; make "
            "room for checkpoints");
  facts.folders.pop_back();
  EXPECT_EQ(Of(ExamineNode(facts, {}), "folders").verdict, Verdict::kWarning);
  facts.folders.pop_back();
  EXPECT_EQ(Of(ExamineNode(facts, {}), "folders").verdict, Verdict::kOk);
  facts.folders.pop_back();
  EXPECT_EQ(Of(ExamineNode(facts, {}), "folders").verdict, Verdict::kSkipped);
}

TEST(ExaminationTest, MarkOfAFolder_IsTheSameForWhoeverLooks_AndStays) {
  const std::string shared = support::MakeFolder("marked"), other = support::MakeFolder("marked-2");
  const auto mark_of = [](const std::string& folder) {
    return ReadMachine({.write = {folder}, .marked = true}).folders[0].mark;
  };
  const std::string mark = mark_of(shared);
  EXPECT_EQ(mark.size(), 16u);
  EXPECT_EQ(mark_of(shared), mark);
  EXPECT_NE(mark_of(other), mark);
  EXPECT_EQ(support::ReadFile(shared + "/.phalanx-folder"), mark + "\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(shared), {}), 1) << "nothing else";
  EXPECT_EQ(ReadMachine({.write = {shared}}).folders[0].mark, "") << "nobody asks";
  support::WriteFile(other + "/.phalanx-folder", "something else");
  EXPECT_EQ(mark_of(other), "");
  MachineFacts facts = GoodMachine();
  facts.folders[0].mark = mark;
  facts.folders.push_back({.path = "/" + std::string(250, 'a'), .mark = mark});
  EXPECT_EQ(Of(ExamineNode(facts, {}), "same folders").found,
            absl::StrCat("/data is ", mark, " on the network"))
      << "what has no room is left out";
}

// Such as the /srv that is allowed after an installation.
TEST(ExaminationTest, FolderThatIsNotForTheWorkerItself_IsNoTroubleOfANode) {
  MachineFacts facts = GoodMachine();
  facts.folders = {{.path = "/srv", .error = "a file cannot be made in it", .refused = true}};
  const Finding folders = Of(ExamineNode(facts, {}), "folders");
  EXPECT_EQ(folders.verdict, Verdict::kSkipped);
  EXPECT_THAT(folders.found, HasSubstr("jobs may use folders below it"));
  EXPECT_EQ(Of(ExamineMachine(facts), "folder").verdict, Verdict::kProblem) << "somebody names it";
}

TEST(ExaminationTest, FolderOnAFullDisk_NeedsRoom) {
  MachineFacts facts = GoodMachine();
  facts.folders = {
      {.path = "/srv", .error = "a file in it cannot be written: disk full", .full = true}};
  EXPECT_EQ(Of(ExamineMachine(facts), "folder").next, "make room on it");
}

TEST(ExaminationTest, WhatAWorkerDoesNotUse_IsNoTroubleOfItsNode) {
  MachineFacts facts = GoodMachine();
  facts.driver.error = "version mismatch";
  facts.host_error = "no such name";
  const auto of_worker = [&](bool offers_gpus, bool has_address, absl::string_view check) {
    return Of(ExamineNode(facts, {.gpus = offers_gpus ? 1 : 0, .has_address = has_address}),
              std::string(check))
        .verdict;
  };
  EXPECT_EQ(of_worker(true, false, "driver"), Verdict::kProblem);
  EXPECT_EQ(of_worker(false, false, "driver"), Verdict::kSkipped);
  EXPECT_EQ(of_worker(true, false, "host name"), Verdict::kWarning);
  EXPECT_EQ(of_worker(true, true, "host name"), Verdict::kSkipped);
}

TEST(ExaminationTest, WorkerThatOffersGpusWhereThereAreNone_IsAProblemOfItsNode) {
  MachineFacts facts = GoodMachine();
  facts.gpu_files = facts.gpus = 0;
  facts.driver = {.error = "libnvidia-ml.so.1: cannot open shared object file"};
  const Finding finding = Of(ExamineNode(facts, {.gpus = 1}), "driver");
  EXPECT_EQ(finding.verdict, Verdict::kProblem);
  EXPECT_THAT(finding.found, HasSubstr("offers GPUs (--device gpu), and there is none here"));
  EXPECT_THAT(finding.next, HasSubstr("--device cpu"));
  EXPECT_EQ(Of(ExamineNode(facts, {}), "driver").verdict, Verdict::kSkipped);
}

TEST(ExaminationTest, WorkerThatOffersMoreGpusThanThereAre_IsAProblemOfItsNode) {
  MachineFacts facts = GoodMachine();
  facts.gpu_files = facts.gpus = 2;
  const auto of_worker = [&](const WorkerFacts& worker) {
    return Of(ExamineNode(facts, worker), "driver");
  };
  EXPECT_EQ(of_worker({.gpus = 2}).verdict, Verdict::kOk);
  EXPECT_THAT(of_worker({.gpus = 3}).found,
              HasSubstr("offers 3 GPUs (--devices), and there are 2 here"));
  const Finding hidden = of_worker({.gpus = 2, .visible_gpus = 1});
  EXPECT_EQ(hidden.verdict, Verdict::kProblem);
  EXPECT_THAT(hidden.found, HasSubstr("there is 1 here for it (CUDA_VISIBLE_DEVICES)"));
  EXPECT_THAT(hidden.next, HasSubstr("--devices"));
  EXPECT_EQ(of_worker({.gpus = 2, .visible_gpus = 2}).verdict, Verdict::kOk);
  facts.gpu_files = 1;
  EXPECT_EQ(of_worker({.gpus = 2}).verdict, Verdict::kProblem) << "the container has one";
}

TEST(ExaminationTest, Node_IsWithinWhatProcessesTellEachOther) {
  const std::vector<Finding> findings = ExamineNode(GoodMachine(), {});
  EXPECT_LE(findings.size(), static_cast<size_t>(job::kFindingsMax));
  for (const Finding& finding : findings)
    EXPECT_TRUE(job::IsCheckName(finding.check)) << finding.check;
}

}  // namespace
}  // namespace phalanx::examine

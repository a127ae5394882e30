#include "core/examine/examination.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/plan/memory_fit.h"

namespace phalanx::examine {
namespace {

using job::Finding;
using Verdict = Finding::Verdict;

// Round values below which people have had trouble; none of them is a measured need.
constexpr int64_t kOpenFilesMin = 16384;
constexpr int64_t kProcessesMin = 4096;
constexpr int64_t kSharedMemoryMin = int64_t{1} << 30;
constexpr int64_t kLockedMin = int64_t{1} << 30;
constexpr int64_t kFolderFreeMin = int64_t{10} << 30;
constexpr int64_t kStateFreeMin = int64_t{1} << 30;
constexpr int32_t kPortsMin = 4096;

Finding Driver(const MachineFacts& facts) {
  Finding finding{.check = "driver"};
  const bool usable = facts.driver.found && facts.driver.error.empty();
  if (usable && facts.gpus > 0) {
    finding.found = absl::StrCat("NVIDIA driver ", facts.driver.version, " with ", facts.gpus,
                                 facts.gpus == 1 ? " GPU" : " GPUs");
    if (facts.gpu_files >= facts.gpus) return finding;
    finding.verdict = Verdict::kWarning;
    finding.found += absl::StrCat(", of which this environment has ", facts.gpu_files);
    finding.next =
        "give the container all GPUs that its worker is to offer (--gpus), or start the "
        "worker with --devices of those that it has";
    return finding;
  }
  if (facts.gpu_files == 0 && facts.gpus == 0) {
    finding.verdict = Verdict::kSkipped;
    finding.found = "no NVIDIA GPU here: jobs with device: cpu only";
    return finding;
  }
  finding.verdict = Verdict::kProblem;
  finding.found = absl::StrCat(
      "there are GPUs (/dev/nvidia0), and the driver's libnvidia-ml.so.1 "
      "cannot be used: ",
      facts.driver.error.empty() ? "it knows no GPU" : facts.driver.error);
  finding.next =
      "see nvidia-smi: install the driver of the kernel module that is loaded, or reboot after an "
      "upgrade; in a container use NVIDIA's container toolkit";
  return finding;
}

// Of a worker that offers more GPUs than it has.
Finding TooFewGpus(const WorkerFacts& worker, int32_t here) {
  Finding finding{.check = "driver", .verdict = Verdict::kProblem};
  if (here > 0 || worker.visible_gpus.has_value()) {
    finding.found =
        absl::StrCat("this worker offers ", worker.gpus, " GPUs (--devices), and there ",
                     here == 1 ? "is 1" : absl::StrCat("are ", here), " here",
                     worker.visible_gpus.has_value() ? " for it (CUDA_VISIBLE_DEVICES)" : "");
    finding.next = "start the worker with --devices of those that it has, or give it all of them";
    return finding;
  }
  finding.found = "this worker offers GPUs (--device gpu), and there is none here";
  finding.next =
      "load the NVIDIA driver, or give the container the GPUs (nvidia.com/gpu, --gpus); "
      "on a machine without any start the worker with --device cpu";
  return finding;
}

bool HasGpus(const MachineFacts& facts) { return facts.gpu_files > 0 || facts.gpus > 0; }

Finding Nccl(const MachineFacts& facts) {
  Finding finding{.check = "nccl"};
  if (!HasGpus(facts)) {
    finding.verdict = Verdict::kSkipped;
    finding.found = "not needed without GPUs";
  } else if (facts.nccl.found) {
    finding.found = absl::StrCat("NCCL ", facts.nccl.version);
  } else {
    finding.verdict = Verdict::kWarning;
    finding.found = "libnccl.so.2 is not where the loader looks";
    finding.next =
        "if `ldd phalanx-rank` does not find it either, install libnccl2, or name its "
        "folder in LD_LIBRARY_PATH of the worker";
  }
  return finding;
}

Finding ClockFinding(const MachineFacts& facts) {
  Finding finding{.check = "clock", .found = "the kernel keeps it with a time server's"};
  if (!facts.clock_synchronised.has_value()) {
    finding.verdict = Verdict::kSkipped;
    finding.found = "the kernel does not say here whether it is synchronised";
  } else if (!*facts.clock_synchronised) {
    finding.verdict = Verdict::kWarning;
    finding.found = "not synchronised: times of events and logs of several machines will not agree";
    finding.next = "run chrony or systemd-timesyncd on the host (timedatectl shows what runs)";
  }
  return finding;
}

Finding SharedMemory(const MachineFacts& facts) {
  Finding finding{.check = "shared memory"};
  const int64_t bytes = facts.shared_memory_bytes;
  finding.found = bytes == 0 ? std::string("there is no /dev/shm")
                             : absl::StrCat("/dev/shm has ", plan::FormatBytes(bytes));
  if (bytes >= kSharedMemoryMin) return finding;
  if (!HasGpus(facts)) {
    finding.verdict = Verdict::kSkipped;
    finding.found += ": ranks on CPU need none";
    return finding;
  }
  finding.verdict = bytes == 0 ? Verdict::kProblem : Verdict::kWarning;
  finding.found += absl::StrCat("; NCCL may need ", plan::FormatBytes(kSharedMemoryMin));
  finding.next =
      "mount a larger one: --shm-size=8g for a container, an emptyDir of medium Memory "
      "at /dev/shm for a pod, mount -o remount,size=8g /dev/shm for a machine";
  return finding;
}

std::string LimitText(int64_t limit, bool bytes) {
  if (limit == kUnlimited) return "unlimited";
  return bytes ? plan::FormatBytes(limit) : absl::StrCat(limit);
}

Finding Limits(const MachineFacts& facts) {
  Finding finding{.check = "limits"};
  const LimitFacts& limits = facts.limits;
  finding.found = absl::StrCat("open files ", LimitText(limits.open_files, false),
                               ", locked memory ", LimitText(limits.locked_bytes, true),
                               ", processes ", LimitText(limits.processes, false), ", file size ",
                               LimitText(limits.file_bytes, true));
  std::vector<std::string> next;
  if (limits.open_files < kOpenFilesMin) {
    next.push_back(absl::StrCat("ulimit -Hn ", kOpenFilesMin,
                                " (LimitNOFILE= of a unit): each peer of a rank takes one"));
  }
  if (HasGpus(facts) && limits.locked_bytes < kLockedMin) {
    next.push_back("ulimit -l unlimited (LimitMEMLOCK=infinity): InfiniBand pins its buffers");
  }
  if (limits.processes < kProcessesMin) {
    next.push_back(absl::StrCat("ulimit -u ", kProcessesMin, " (TasksMax=): threads count too"));
  }
  if (limits.file_bytes != kUnlimited) {
    next.push_back("ulimit -f unlimited (LimitFSIZE=infinity): checkpoints are large files");
  }
  if (next.empty()) return finding;
  finding.verdict = Verdict::kWarning;
  finding.next = absl::StrCat("for the worker: ", absl::StrJoin(next, "; "));
  return finding;
}

Finding Ports(const MachineFacts& facts) {
  Finding finding{.check = "ports"};
  if (facts.ports_first <= 0 || facts.ports_last < facts.ports_first) {
    finding.verdict = Verdict::kSkipped;
    finding.found = "the kernel does not say here which ports it gives";
    return finding;
  }
  const int32_t count = facts.ports_last - facts.ports_first + 1;
  finding.found = absl::StrCat("ranks listen on ports ", facts.ports_first, " to ",
                               facts.ports_last, ", which other nodes must reach");
  if (count >= kPortsMin) return finding;
  finding.verdict = Verdict::kWarning;
  finding.found += absl::StrCat(": only ", count);
  finding.next = "widen net.ipv4.ip_local_port_range with sysctl";
  return finding;
}

Finding Host(const MachineFacts& facts) {
  Finding finding{.check = "host name"};
  if (!facts.host_error.empty()) {
    finding.verdict = Verdict::kWarning;
    finding.found = absl::StrCat("\"", facts.host, "\" gives no address: ", facts.host_error);
    finding.next =
        "start the worker with --address and one that other nodes reach, or put the "
        "name into DNS or /etc/hosts";
  } else if (facts.host_is_loopback) {
    finding.verdict = Verdict::kWarning;
    finding.found = absl::StrCat("\"", facts.host, "\" gives loopback addresses alone here");
    finding.next =
        "in a cluster of several nodes start the worker with --address and one that "
        "other nodes reach";
  } else {
    finding.found = absl::StrCat("\"", facts.host, "\" gives an address of the network");
  }
  return finding;
}

Finding Folder(const FolderFacts& folder) {
  Finding finding{.check = "folder"};
  if (!folder.error.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat(folder.path, ": ", folder.error);
    finding.next =
        folder.full
            ? "make room on it"
            : absl::StrCat("mount it on this machine, and let the user that runs the worker ",
                           folder.is_written ? "write there" : "read there");
    return finding;
  }
  const char* where =
      folder.on_network ? "on a file system of the network" : "on a disk of this machine";
  std::vector<std::string> next;
  if (folder.is_written) {
    finding.found = absl::StrCat(folder.path, " takes files, ",
                                 plan::FormatBytes(folder.free_bytes), " free, ", where);
    if (folder.free_bytes < kFolderFreeMin) {
      finding.verdict = Verdict::kWarning;
      next.push_back("make room for checkpoints");
    }
  } else {
    finding.found = absl::StrCat(folder.path, " can be read, ", where);
  }
  if (!folder.on_network) {
    next.push_back("jobs on several nodes need one that all of them mount at this path");
  }
  finding.next = absl::StrJoin(next, "; ");
  return finding;
}

// One finding, however many folders: what is wrong with any comes first.
Finding AllFolders(const std::vector<FolderFacts>& folders) {
  Finding all{.check = "folders", .verdict = Verdict::kSkipped};
  if (folders.empty()) {
    all.found = "none is named (--read-folder, --write-folder): jobs may use any";
    return all;
  }
  std::vector<std::string> found, next;
  for (const Verdict verdict :
       {Verdict::kProblem, Verdict::kWarning, Verdict::kOk, Verdict::kSkipped}) {
    for (const FolderFacts& folder : folders) {
      Finding one = Folder(folder);
      if (folder.refused) {
        one.verdict = Verdict::kSkipped;
        one.found += "; jobs may use folders below it";
        one.next.clear();
      }
      if (one.verdict != verdict) continue;
      found.push_back(one.found);
      const bool told = std::find(next.begin(), next.end(), one.next) != next.end();
      if (!one.next.empty() && !told) next.push_back(one.next);
    }
    if (all.verdict == Verdict::kSkipped && !found.empty()) all.verdict = verdict;
  }
  all.found = absl::StrJoin(found, "; ");
  all.next = absl::StrJoin(next, "; ");
  return all;
}

// Logs and data indexes take little of it, but none starts without.
Finding StateFolder(const FolderFacts& folder) {
  Finding finding{.check = job::kStateFolderCheck};
  if (!folder.error.empty()) {
    finding.verdict = Verdict::kProblem;
    finding.found = absl::StrCat("--state ", folder.path, ": ", folder.error);
    finding.next = absl::StrCat(
        folder.full ? "make room on it" : "let the user that runs the worker write there",
        "; until then no job starts on this node");
    return finding;
  }
  finding.found = absl::StrCat("--state ", folder.path, " takes files, ",
                               plan::FormatBytes(folder.free_bytes), " free");
  if (folder.free_bytes < kStateFreeMin) {
    finding.verdict = Verdict::kWarning;
    finding.next = "make room for logs and data indexes";
  }
  return finding;
}

// As many as there is room for, of whole ones.
std::string MarksOf(const std::vector<FolderFacts>& folders) {
  std::string marks;
  for (const FolderFacts& folder : folders) {
    if (folder.mark.empty()) continue;
    const std::string one = absl::StrCat(marks.empty() ? "" : "; ", folder.path, " is ",
                                         folder.mark, folder.on_network ? " on the network" : "");
    if (marks.size() + one.size() <= job::kFoundBytesMax) marks += one;
  }
  return marks;
}

std::vector<Finding> WithoutFolders(const MachineFacts& facts) {
  return {Driver(facts),       Nccl(facts),  SharedMemory(facts), Limits(facts),
          ClockFinding(facts), Ports(facts), Host(facts)};
}

}  // namespace

std::vector<Finding> ExamineMachine(const MachineFacts& facts) {
  std::vector<Finding> findings = WithoutFolders(facts);
  for (const FolderFacts& folder : facts.folders) findings.push_back(Folder(folder));
  return findings;
}

std::vector<Finding> ExamineNode(const MachineFacts& facts, const WorkerFacts& worker) {
  std::vector<Finding> findings = WithoutFolders(facts);
  // Where there are files of GPUs alone, the driver's own finding says why they cannot be used.
  const int32_t here = worker.visible_gpus.value_or(
      facts.gpu_files > 0 ? std::min(facts.gpus, facts.gpu_files) : facts.gpus);
  if (worker.gpus > here && (facts.gpus > 0 || !HasGpus(facts)))
    findings.front() = TooFewGpus(worker, here);
  for (Finding& finding : findings) {
    const bool of_gpus = finding.check == "driver" || finding.check == "nccl";
    const bool unused =
        (of_gpus && worker.gpus == 0) || (finding.check == "host name" && worker.has_address);
    if (!unused || !job::IsTrouble(finding)) continue;
    finding.verdict = Verdict::kSkipped;
    finding.next.clear();
  }
  if (facts.state.has_value()) findings.push_back(StateFolder(*facts.state));
  findings.push_back(AllFolders(facts.folders));
  if (std::string marks = MarksOf(facts.folders); !marks.empty())
    findings.push_back({.check = "same folders", .found = std::move(marks)});
  return findings;
}

}  // namespace phalanx::examine

#include "client/doctor.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/advice.h"
#include "client/exit_code.h"
#include "core/base/terminal_text.h"
#include "core/job/json.h"
#include "core/plan/memory_fit.h"

namespace phalanx::client {
namespace {

using Verdict = Finding::Verdict;

// Round values below which people have had trouble; none of them is a measured need.
constexpr int64_t kOpenFilesMin = 16384;
constexpr int64_t kProcessesMin = 4096;
constexpr int64_t kSharedMemoryMin = int64_t{1} << 30;
constexpr int64_t kLockedMin = int64_t{1} << 30;
constexpr int64_t kFolderFreeMin = int64_t{10} << 30;
constexpr int32_t kPortsMin = 4096;
// Heartbeats come each second or so; what they are late by beside that is the clocks'.
constexpr absl::Duration kClockSkewMax = absl::Seconds(5);
constexpr size_t kNodesNamedMax = 16;
constexpr char kNextAfterSilence[] =
    "see that phalanx-coordinator runs there, listens on an address that this machine reaches "
    "(--listen) and that no firewall is between; phalanx config show tells where the address is "
    "from, and --machine leaves the cluster out";

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
    finding.next = "mount it on this machine, and let the user that runs the worker write there";
    return finding;
  }
  finding.found = absl::StrCat(
      folder.path, " takes files, ", plan::FormatBytes(folder.free_bytes), " free, ",
      folder.on_network ? "on a file system of the network" : "on a disk of this machine");
  std::vector<std::string> next;
  if (folder.free_bytes < kFolderFreeMin) next.push_back("make room for checkpoints");
  if (!folder.on_network) {
    next.push_back("jobs on several nodes need one that all of them mount at this path");
  }
  if (folder.free_bytes < kFolderFreeMin) finding.verdict = Verdict::kWarning;
  finding.next = absl::StrJoin(next, "; ");
  return finding;
}

// "a, b and 3 more".
std::string Names(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNodesNamedMax);
  std::string text =
      absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), ", ");
  if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

job::Tree FindingsTree(const std::vector<Finding>& findings) {
  std::vector<job::Tree> list;
  for (const Finding& finding : findings) {
    list.push_back(
        job::MappingTree({{"check", job::TextTree(finding.check)},
                          {"verdict", job::TextTree(std::string(ToString(finding.verdict)))},
                          {"found", job::TextTree(finding.found)},
                          {"next", job::TextTree(finding.next)}}));
  }
  return job::MappingTree({{"findings", job::ListTree(std::move(list))}});
}

void PrintFindings(const std::vector<Finding>& findings, Format format, Io& io) {
  if (format == Format::kJson || format == Format::kYaml) {
    return PrintTree(FindingsTree(findings), format, io.out);
  }
  const auto is_trouble = [](const Finding& finding) {
    return finding.verdict == Verdict::kProblem || finding.verdict == Verdict::kWarning;
  };
  if (format == Format::kName) {
    for (const Finding& finding : findings) {
      if (is_trouble(finding)) io.out << finding.check << "\n";
    }
    return;
  }
  Table table({"CHECK", "VERDICT", "FOUND"});
  for (const Finding& finding : findings) {
    table.Add({finding.check, std::string(ToString(finding.verdict)), finding.found});
  }
  table.Print(io.out);
  for (const Finding& finding : findings) {
    if (finding.next.empty()) continue;
    io.out << "\n" << finding.check << ": " << TerminalText(finding.next) << "\n";
  }
}

}  // namespace

absl::string_view ToString(Finding::Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
  }
  return "";
}

std::vector<Finding> ExamineMachine(const MachineFacts& facts) {
  std::vector<Finding> findings = {Driver(facts), Nccl(facts),         SharedMemory(facts),
                                   Limits(facts), ClockFinding(facts), Ports(facts),
                                   Host(facts)};
  if (facts.folder.has_value()) findings.push_back(Folder(*facts.folder));
  return findings;
}

std::vector<Finding> ExamineCluster(const std::vector<v1::NodeStatus>& nodes,
                                    const std::string& version, absl::Time now) {
  Finding ready{.check = "nodes"}, versions{.check = "versions"}, clocks{.check = "clocks"};
  std::vector<std::string> away, other;
  int64_t devices = 0;
  absl::Time newest = absl::InfinitePast();
  for (const v1::NodeStatus& node : nodes) {
    devices += node.devices();
    if (node.version() != version) other.push_back(absl::StrCat(node.name(), " ", node.version()));
    if (node.state() != v1::NodeStatus::STATE_READY) {
      away.push_back(node.name());
      continue;
    }
    if (node.has_last_heartbeat()) newest = std::max(newest, ToTime(node.last_heartbeat()));
  }
  ready.found = absl::StrCat(nodes.size(), " with ", devices, " devices");
  if (nodes.empty()) {
    ready.verdict = Verdict::kProblem;
    ready.next =
        "start phalanx-worker on a machine with --coordinator and this coordinator's address";
  } else if (!away.empty()) {
    ready.verdict = Verdict::kProblem;
    absl::StrAppend(&ready.found, "; disconnected: ", Names(away));
    ready.next =
        "see that phalanx-worker runs there and reaches the coordinator; its log says why not";
  }
  versions.found = absl::StrCat("all nodes have ", version, ", as this client");
  if (nodes.empty()) {
    versions.verdict = Verdict::kSkipped;
    versions.found = "no node to compare with";
  } else if (!other.empty()) {
    versions.verdict = Verdict::kWarning;
    versions.found = absl::StrCat("this client is ", version, "; others: ", Names(other));
    versions.next = "finish the upgrade: a coordinator serves this version and the one before";
  }
  if (newest == absl::InfinitePast()) {
    clocks.verdict = Verdict::kSkipped;
    clocks.found = "no node to compare with";
  } else {
    const absl::Duration apart = now - newest;
    clocks.found = "the coordinator's agrees with this machine's";
    if (absl::AbsDuration(apart) > kClockSkewMax) {
      clocks.verdict = Verdict::kWarning;
      clocks.found = absl::StrCat("by this machine's clock the newest heartbeat is ",
                                  absl::ToInt64Seconds(absl::AbsDuration(apart)),
                                  apart < absl::ZeroDuration() ? " s in the future" : " s old");
      clocks.next = "synchronise the clocks of the coordinator's machine and of this one";
    }
  }
  return {std::move(ready), std::move(versions), std::move(clocks)};
}

int Doctor(Connection& connection, const DoctorOptions& options, Io& io) {
  std::vector<Finding> findings = ExamineMachine(ReadMachine(options.folder));
  if (options.cluster) {
    v1::ListNodesResponse response;
    const absl::Status status =
        connection.Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response);
    Finding coordinator{.check = "coordinator",
                        .found = absl::StrCat(connection.server(), " answers")};
    if (!status.ok()) {
      coordinator.verdict = Verdict::kProblem;
      coordinator.found = std::string(status.message());
      const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      coordinator.next = silent ? kNextAfterSilence : NextAfterCall(status);
    }
    findings.push_back(std::move(coordinator));
    if (status.ok()) {
      const std::vector<v1::NodeStatus> nodes(response.nodes().begin(), response.nodes().end());
      std::vector<Finding> cluster = ExamineCluster(nodes, options.version, absl::Now());
      findings.insert(findings.end(), std::make_move_iterator(cluster.begin()),
                      std::make_move_iterator(cluster.end()));
    }
  }
  PrintFindings(findings, options.format, io);
  const bool problem = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.verdict == Verdict::kProblem;
  });
  return problem ? kFailure : kSuccess;
}

}  // namespace phalanx::client

// phalanx-worker: the daemon of one node. Joins a coordinator and runs ranks for it.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/build/build_info.h"
#include "core/job/devices.h"
#include "core/job/scalar.h"
#include "core/posix/file.h"
#include "core/posix/signals.h"
#include "core/posix/unique_fd.h"
#include "core/wire/job_yaml.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "transport/library_log.h"
#include "transport/tls.h"
#include "worker/agent/agent.h"
#include "worker/agent/device_memory.h"
#include "worker/agent/driver_deadline.h"
#include "worker/agent/flags.h"
#include "worker/agent/host_memory.h"
#include "worker/agent/job_folders.h"
#include "worker/agent/join.h"
#include "worker/agent/products.h"
#include "worker/agent/rank_environment.h"

namespace phalanx::agent {
namespace {

constexpr int kBadJobFile = 65;    // EX_DATAERR
constexpr int kNoInput = 66;       // EX_NOINPUT
constexpr int kCannotCreate = 73;  // EX_CANTCREAT
constexpr int kNameTaken = 78;     // EX_CONFIG: another worker has the name of this node

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

std::string OwnFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

// `phalanx validate --check-data`: every violation in a line of its own.
int CheckDataOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, wire::kDocumentBytesMax);
  if (!text.ok()) {
    std::cerr << "--check-data: " << TerminalText(path) << ": " << text.status().message()
              << "; name a job file on a disk\n";
    return kNoInput;
  }
  Document document{.text = *text};
  document.directory = std::filesystem::absolute(path).parent_path().string();
  const DataOutcome outcome = CheckData(document);
  for (const Violation& violation : outcome.violations) {
    std::cout << ToString(violation) << "\n";
  }
  for (const std::string& corrupt : outcome.corrupt_messages) {
    std::cerr << "corrupt sample: " << corrupt << "\n";
  }
  if (outcome.checkpoint.has_value()) {
    for (const std::string& one : outcome.checkpoint->passed_over)
      std::cerr << "passes over " << one << "\n";
    if (outcome.checkpoint->path.empty()) {
      std::cerr << "there is no checkpoint: training would begin with its first step\n";
    } else {
      std::cerr << "would go on behind step " << outcome.checkpoint->step << ", from "
                << outcome.checkpoint->path << "\n";
    }
  }
  if (outcome.status.ok()) return 0;
  if (outcome.violations.empty()) std::cout << outcome.status.message() << "\n";
  return kBadJobFile;
}

// `limit` of each device where there is one; 0: there is none.
std::vector<int64_t> MemoryOfDevices(const AgentOptions& options, int64_t limit) {
  const bool counted = options.devices >= 1 && options.devices <= kDevicesMax;
  if (!counted) return {};  // to be refused
  if (limit > 0) return std::vector<int64_t>(static_cast<size_t>(options.devices), limit);
  if (options.device_kind != "gpu") return {};
  absl::StatusOr<std::vector<int64_t>> memory = GpuMemory(GpusOfEnvironment(options.devices));
  if (memory.ok()) return *std::move(memory);
  spdlog::warn("the memory of the GPUs is not known, and jobs will not be held to it: {}",
               std::string(memory.status().message()));
  return {};
}

// Nothing of CPU slots, and where the driver does not say.
std::vector<std::string> NamesOfDevices(const AgentOptions& options) {
  const bool counted = options.devices >= 1 && options.devices <= kDevicesMax;
  if (!counted || options.device_kind != "gpu") return {};
  absl::StatusOr<std::vector<std::string>> names = GpuNames(GpusOfEnvironment(options.devices));
  if (names.ok()) return *std::move(names);
  spdlog::warn(
      "what the GPUs are called is not known, and layouts are chosen without a profile: {}",
      std::string(names.status().message()));
  return {};
}

// What jobs may ask of the node that its flags do not say.
void AddLabels(AgentOptions& options) {
  if (options.device_kind != "gpu" || options.labels.contains(job::kFp8Label)) return;
  const absl::StatusOr<bool> fp8 = GpusHaveFp8(GpusOfEnvironment(options.devices));
  if (fp8.ok()) {
    options.labels[job::kFp8Label] = *fp8 ? "yes" : "no";
  } else {
    spdlog::warn("whether the GPUs have FP8 is not known, and no job that needs it comes here: {}",
                 std::string(fp8.status().message()));
  }
}

// Nothing where ranks have no table for the devices, or what they have cannot be told.
void AddProducts(AgentOptions& options) {
  if (options.device_kind != "gpu" || options.labels.contains(job::kProductsLabel)) return;
  const absl::StatusOr<std::string> products =
      ProductsOfRanks(options.rank_program, options.device_names);
  if (!products.ok()) {
    spdlog::warn("which algorithms of products ranks have is not known, and libraries choose: {}",
                 std::string(products.status().message()));
  } else if (!products->empty()) {
    options.labels[job::kProductsLabel] = *products;
  }
}

// Whether somebody wants this process to end. Takes nothing from the descriptor.
bool IsSignalled(int signal_fd) {
  pollfd ready{signal_fd, POLLIN, 0};
  return poll(&ready, 1, 0) > 0;
}

std::function<void(const std::string& line)> LogOf(const std::string& node) {
  return [node](const std::string& line) { spdlog::info("node={} {}", node, LineText(line)); };
}

// Of a node whose certificate comes of a token: gets it, or finds it in the state folder, and names
// its files in the options. Errors: as ObtainIdentity and ValidateOptions.
absl::Status JoinCluster(const std::string& token_file, int signal_fd, AgentOptions& options) {
  AgentOptions plain = options;
  plain.tls = {};
  RETURN_IF_ERROR(ValidateOptions(plain));
  if (options.tls.ca.empty()) {
    return absl::InvalidArgumentError(
        "--tls-ca is missing: it says whom the join token may be shown to");
  }
  ASSIGN_OR_RETURN(options.tls, ObtainIdentity({.coordinator = options.coordinator,
                                                .ca = options.tls.ca,
                                                .node = options.node,
                                                .state = options.state,
                                                .token_file = token_file,
                                                .log = LogOf(options.node)},
                                               [signal_fd] { return IsSignalled(signal_fd); }));
  return absl::OkStatus();
}

// Where certificates say who is who, jobs come from others, so somebody says what they may read and
// write here. On loopback, without certificates, everybody may do everything.
absl::Status CheckFolders(const AgentOptions& options) {
  const bool named = !options.folders.read.empty() || !options.folders.write.empty();
  if (named || !options.tls.on()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--write-folder is missing: a node with certificates says where jobs may read and write "
      "(--write-folder DIR, --read-folder DIR); / for all that this user may");
}

// `token_file`: --join-token-file; empty: there is none.
int ServeNode(AgentOptions options, const std::string& token_file) {
  // Before any thread exists: all of them leave these signals to the agent's descriptor.
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  phalanx::LetWritesFail();
  // Whatever ranks leave behind comes to us, as the first process of a container and elsewhere.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const int signal_fd = signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);

  const bool own_certificate = !options.tls.certificate.empty() || !options.tls.key.empty();
  const bool joins = !token_file.empty() ||
                     (!options.tls.ca.empty() && !own_certificate && HasIdentity(options.state));
  if (const absl::Status status = CheckFolders(options); !status.ok()) {
    std::cerr << "phalanx-worker: " << status.message() << "\n";
    return kUsage;
  }
  std::optional<IdentityRenewer> renewer;
  if (joins) {
    if (const absl::Status status = JoinCluster(token_file, signal_fd, options); !status.ok()) {
      std::cerr << "phalanx-worker: " << status.message() << "\n";
      if (absl::IsCancelled(status) && IsSignalled(signal_fd)) return 0;
      return absl::IsInvalidArgument(status) ? kUsage : 1;
    }
    renewer.emplace(options.coordinator, options.tls, LogOf(options.node));
  }

  const std::string indexes = options.state + "/indexes";
  auto agent = Agent::Create(options, [indexes, folders = options.folders](
                                          const PrepareData& order, data::ReadProgress& progress) {
    const absl::StatusOr<JobFolders> of_owner = FoldersOf(folders, order.document.owner);
    if (!of_owner.ok()) return DataOutcome{.status = of_owner.status()};
    const absl::Status paths =
        CheckJobPaths(*of_owner, order.document.text, order.document.directory);
    if (!paths.ok()) return DataOutcome{.status = paths, .violations = ViolationsOf(paths)};
    // What ranks could not be started without.
    const absl::Status environment =
        RankEnvironment(order.document.text, of_owner->secrets).status();
    if (!environment.ok())
      return DataOutcome{.status = environment, .violations = ViolationsOf(environment)};
    return CheckData(order.document, order.choose_checkpoint, indexes, progress,
                     ReadableFolders(*of_owner));
  });
  if (!agent.ok()) {
    std::cerr << "phalanx-worker: " << agent.status().message() << "\n";
    return absl::IsInvalidArgument(agent.status()) ? kUsage : kCannotCreate;
  }
  spdlog::info("node={} device={} devices={} coordinator={} state={} version={} commit={}",
               options.node, options.device_kind, options.devices, options.coordinator,
               options.state, options.version, std::string(BuildCommit()));
  if (options.folders.read.empty() && options.folders.write.empty()) {
    spdlog::warn(
        "node={} has neither --read-folder nor --write-folder: jobs may read and write wherever "
        "this daemon may",
        options.node);
  }
  const absl::Status status = (*agent)->Run(signal_fd);
  if (!status.ok()) std::cerr << "phalanx-worker: " << status.message() << "\n";
  const int exit_code = status.ok() ? 0 : absl::IsAlreadyExists(status) ? kNameTaken : 1;
  if ((*agent)->busy()) {
    // Shards are being read. Indexes are written aside and renamed, so leaving now does no harm.
    spdlog::shutdown();
    std::_Exit(exit_code);
  }
  return exit_code;
}

// What flags say together, or of this machine. Errors: InvalidArgument.
absl::Status CompleteOptions(const Flags& flags, AgentOptions& options) {
  // A range has no say over what is no number.
  if (std::isnan(flags.grace) || std::isnan(flags.check_interval)) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::isnan(flags.grace) ? "--grace" : "--check-interval", " is nan; it must be a number"));
  }
  options.machine.shutdown_grace = absl::Seconds(flags.grace);
  options.metrics.tls.ca = options.tls.ca;
  RETURN_IF_ERROR(transport::CheckPlaintextTo(options.coordinator, "--coordinator", options.tls,
                                              flags.plaintext ? "--plaintext" : ""));
  if (flags.check_interval > 0)
    options.machine.check_interval = absl::Seconds(flags.check_interval);
  RETURN_IF_ERROR(TakeLabels(flags, options));
  ASSIGN_OR_RETURN(const int64_t of_each, SizeOf("--device-memory", flags.device_memory));
  ASSIGN_OR_RETURN(const int64_t of_host, SizeOf("--host-memory", flags.host_memory));
  if (options.threads == 0) {
    const int cpus = static_cast<int>(std::thread::hardware_concurrency());
    options.threads = std::max(1, cpus / std::max(1, options.devices));
  }
  {
    const DriverDeadline deadline;
    options.device_memory = MemoryOfDevices(options, of_each);
    options.device_names = NamesOfDevices(options);
    AddLabels(options);
    AddProducts(options);
  }
  options.host_memory = of_host > 0 ? of_host : AvailableHostMemory();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  AgentOptions& options = flags.options;
  options.node = HostName();
  options.version = PHALANX_VERSION;
#ifdef PHALANX_PROTOCOL_VERSION
  options.protocol_version = PHALANX_PROTOCOL_VERSION;
  options.derivation = 0;  // as little as workers of that version say
#endif
  options.rank_program = OwnFolder() + "/phalanx-rank";
  options.threads = 0;
  options.end_orphans = true;
  if (const std::optional<int> exit_code = ParseFlags(argc, argv, flags)) return *exit_code;
  spdlog::set_default_logger(spdlog::stderr_logger_mt("worker"));
  spdlog::flush_on(spdlog::level::info);
  if (!flags.job_file.empty()) {
    spdlog::set_level(spdlog::level::warn);
    return CheckDataOf(flags.job_file);
  }
  if (const absl::Status status = CompleteOptions(flags, options); !status.ok()) {
    std::cerr << "phalanx-worker: " << status.message() << "\n";
    return kUsage;
  }
  return ServeNode(options, flags.join_token_file);
}

}  // namespace
}  // namespace phalanx::agent

int main(int argc, char** argv) {
  phalanx::HoldStandardStreams();
  phalanx::transport::SilenceGrpcLog();
  return phalanx::agent::Main(argc, argv);
}

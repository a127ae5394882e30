#include "tests/e2e/agent/worker_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/e2e/agent/fake_coordinator.h"
#include "tests/support/paths.h"
#include "tests/support/shards.h"

namespace phalanx::agent {
namespace {

pid_t Spawn(const std::vector<std::string>& command, int output) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (output >= 0) dup2(output, STDOUT_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

v1::JobDocument Job(const std::string& behaviour) {
  static const auto* const folder = new std::string(support::MakeFolder("agent-data"));
  static const support::ShardFiles files =
      support::WriteShards(*folder, {.samples = 8, .shards = 2});
  v1::JobDocument document;
  document.set_directory(*folder);
  document.set_text(absl::StrCat(
      "apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", behaviour, "}\n", R"(spec:
  steps: 5
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 32, layers: 1, heads: 4, mlp_size: 64, block: 8, image_size: 16, patch_size: 8}
      parallel: {ranks: 1}
    - name: language
      architecture: {family: llama, hidden_size: 32, layers: 2, heads: 4, mlp_size: 64, block: 8, vocabulary: )",
      files.vocabulary, R"(, context: 64}
      parallel: {ranks: 1}
  edges:
    - {from: vision, to: language, projector: {type: mlp, hidden_size: 32}}
  batch: {global: 2, micro: 1}
  data: {format: webdataset, shards: "set-{000..001}.tar", validation: "set-001.tar", tokenizer: set.model}
  resources: {device: cpu}
  output: out
)"));
  return document;
}

v1::Command PrepareCommand(int64_t job, const v1::JobDocument& document) {
  v1::Command command;
  command.mutable_prepare_data()->set_job(job);
  *command.mutable_prepare_data()->mutable_document() = document;
  return command;
}

v1::Command AssignCommandOf(int64_t job, int64_t epoch, const v1::JobDocument& document,
                            const std::vector<int32_t>& devices) {
  v1::Command command;
  v1::Assign& assign = *command.mutable_assign();
  assign.set_job(job);
  assign.set_epoch(epoch);
  *assign.mutable_document() = document;
  v1::NodeDevices& node = *assign.mutable_layout()->mutable_placement()->add_nodes();
  node.set_node("here");
  for (const int32_t device : devices) node.add_devices(device);
  return command;
}

v1::Command StopCommandOf(int64_t job, int64_t epoch, double grace_seconds) {
  v1::Command command;
  v1::Stop& stop = *command.mutable_stop();
  stop.set_job(job);
  stop.set_epoch(epoch);
  stop.set_reason("the test is over");
  stop.mutable_grace()->set_seconds(static_cast<int64_t>(grace_seconds));
  const double fraction = grace_seconds - static_cast<double>(stop.grace().seconds());
  stop.mutable_grace()->set_nanos(static_cast<int32_t>(fraction * 1e9));
  return command;
}

ProcessWatch::ProcessWatch(pid_t pid) : pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

bool ProcessWatch::AwaitEnd() const {
  if (!pidfd_.is_open()) return true;  // it was gone before we looked
  pollfd entry{pidfd_.get(), POLLIN, 0};
  return poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1;
}

WorkerProcess::WorkerProcess(const std::string& coordinator, std::vector<std::string> arguments)
    : state_(support::MakeFolder("agent-state")) {
  std::vector<std::string> command = {tests::BinDir() + "/phalanx-worker",
                                      "--coordinator",
                                      coordinator,
                                      "--node",
                                      "here",
                                      "--device",
                                      "cpu",
                                      "--devices",
                                      "4",
                                      "--state",
                                      state_,
                                      "--rank-program",
                                      PHALANX_FAKE_RANK,
                                      "--label",
                                      "zone=a"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  pid_ = Spawn(command, -1);
}

WorkerProcess::~WorkerProcess() {
  if (pid_ == 0) return;
  Signal(SIGKILL);
  AwaitEnd();
}

void WorkerProcess::Signal(int number) const { kill(pid_, number); }

int WorkerProcess::AwaitEnd() {
  if (!ProcessWatch(pid_).AwaitEnd()) {
    std::fprintf(stderr, "phalanx-worker does not end\n");
    std::abort();
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return status;
}

int32_t WorkerProcess::OpenDescriptors() const {
  int32_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fd"))) {
    ++count;
  }
  return count;
}

int32_t WorkerProcess::Children() const {
  int32_t count = 0;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/task"))) {
    std::ifstream file(task.path() / "children");
    count += static_cast<int32_t>(
        std::distance(std::istream_iterator<int>(file), std::istream_iterator<int>()));
  }
  return count;
}

int64_t WorkerProcess::ResidentBytes() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/statm"));
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Finished RunToEnd(const std::vector<std::string>& command) {
  int fds[2];
  if (pipe(fds) != 0) return {-1, ""};
  const UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  const pid_t pid = Spawn(command, write_end.get());
  write_end.reset();
  Finished finished;
  char bytes[4096];
  for (ssize_t n; (n = read(read_end.get(), bytes, sizeof(bytes))) > 0;) {
    finished.output.append(bytes, static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return finished;
}

}  // namespace phalanx::agent

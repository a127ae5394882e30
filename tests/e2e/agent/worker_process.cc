#include "tests/e2e/agent/worker_process.h"

#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/files.h"
#include "tests/support/process.h"
#include "tests/support/shards.h"

namespace phalanx::agent {
namespace {

std::vector<std::string> CommandLine(const std::string& coordinator, const std::string& state,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {support::Program("phalanx-worker"),
                                      "--coordinator",
                                      coordinator,
                                      "--node",
                                      "here",
                                      "--device",
                                      "cpu",
                                      "--devices",
                                      "4",
                                      "--state",
                                      state,
                                      "--rank-program",
                                      PHALANX_FAKE_RANK,
                                      "--label",
                                      "zone=a",
                                      "--check-interval",
                                      "0"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
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

WorkerProcess::WorkerProcess(const std::string& coordinator,
                             const std::vector<std::string>& arguments)
    : state_(support::MakeFolder("agent-state")),
      process_(CommandLine(coordinator, state_, arguments), support::NewMark(), "/dev/stdout",
               "/dev/stderr") {}

int32_t WorkerProcess::OpenDescriptors() const {
  int32_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid(), "/fd"))) {
    ++count;
  }
  return count;
}

int32_t WorkerProcess::Children() const {
  int32_t count = 0;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid(), "/task"))) {
    std::ifstream file(task.path() / "children");
    count += static_cast<int32_t>(
        std::distance(std::istream_iterator<int>(file), std::istream_iterator<int>()));
  }
  return count;
}

bool WorkerProcess::AwaitNoChildren() const {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (Children() > 0) {
    if (absl::Now() > deadline) return false;
    poll(nullptr, 0, 1);
  }
  return true;
}

int64_t WorkerProcess::ResidentBytes() const {
  std::ifstream file(absl::StrCat("/proc/", pid(), "/statm"));
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace phalanx::agent

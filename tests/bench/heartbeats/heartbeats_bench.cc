// What heartbeats cost phalanx-coordinator: each of so many nodes has a connection of its own over
// loopback and sends one in each interval, at so many times of it as daemons do. The processor time
// is the coordinator's alone.
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "coordinator/wire/session_codec.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

constexpr int kSettleSeconds = 5, kSeconds = 20;

// User and system time of a process, in seconds.
double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // Past the name, which may hold anything: utime and stime are words 14 and 15 of the line.
  const std::vector<std::string> words = absl::StrSplit(line.substr(line.rfind(')') + 2), ' ');
  return (std::stod(words.at(11)) + std::stod(words.at(12))) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

class Node {
 public:
  Node(const std::string& address, int number) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    stream_ = stub_->OpenSession(&context_);
    v1::OpenSessionRequest request;
    v1::WorkerHello* hello = request.mutable_hello();
    hello->set_node(absl::StrCat("node-", number));
    hello->set_incarnation(1);
    hello->set_protocol_version(kProtocolVersion);
    hello->set_device_kind("cpu");
    hello->set_devices(8);
    v1::OpenSessionResponse welcome;
    support::Require(stream_->Write(request) && stream_->Read(&welcome), "no welcome");
  }
  ~Node() { context_.TryCancel(); }
  void Heartbeat() {
    v1::OpenSessionRequest request;
    request.mutable_heartbeat();
    support::Require(stream_->Write(request), "the session broke");
  }

 private:
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
};

// Two descriptors a connection, and some: as many as this process may have.
void RaiseDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void HeartbeatsOfNodes(benchmark::State& state) {
  RaiseDescriptors();
  std::string folder = (std::filesystem::temp_directory_path() / "heartbeats-XXXXXX").string();
  support::Require(mkdtemp(folder.data()) != nullptr, "no temporary folder");
  const std::string ready = folder + "/ready.json", log = folder + "/log";
  double cpu = 0, seconds = 0;
  {
    support::Process coordinator(
        {support::Program("phalanx-coordinator"), "--store", folder + "/store", "--listen",
         "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", ready},
        support::NewMark(), log, log);
    support::AwaitFile(ready, coordinator);
    const std::vector<std::string> parts = absl::StrSplit(support::ReadText(ready), '"');
    std::vector<std::unique_ptr<Node>> nodes;
    const auto count = static_cast<int>(state.range(0));
    const auto interval = std::chrono::seconds(state.range(1));
    for (int i = 0; i < count; ++i) nodes.push_back(std::make_unique<Node>(parts.at(3), i));
    auto next = std::chrono::steady_clock::now();
    const auto times = state.range(2);
    const auto beat = [&](int for_seconds) {
      const int64_t beats = int64_t{for_seconds} * times / interval.count();
      for (int64_t i = 0; i < beats; ++i) {
        const int64_t first = i % times * count / times, end = (i % times + 1) * count / times;
        for (int64_t node = first; node < end; ++node) {
          nodes[static_cast<size_t>(node)]->Heartbeat();
        }
        std::this_thread::sleep_until(next += std::chrono::nanoseconds(interval) / times);
      }
    };
    for (auto _ : state) {
      beat(kSettleSeconds);
      const double cpu_before = CpuSeconds(coordinator.pid());
      const absl::Time start = absl::Now();
      beat(kSeconds);
      cpu += CpuSeconds(coordinator.pid()) - cpu_before;
      seconds += absl::ToDoubleSeconds(absl::Now() - start);
    }
  }
  std::filesystem::remove_all(folder);
  state.counters["cores"] = cpu / seconds;
  state.counters["beats_per_s"] = kSeconds * static_cast<double>(state.range(0)) /
                                  static_cast<double>(state.range(1)) / seconds;
}
// Nodes, seconds of the interval, times in it at which heartbeats come: the coordinator's default
// and once a second, together as daemons send them and no two together.
BENCHMARK(HeartbeatsOfNodes)
    ->ArgNames({"nodes", "interval", "times"})
    ->Args({1000, 3, 10})
    ->Args({1000, 1, 10})
    ->Args({1000, 3, 1000})
    ->Args({1000, 1, 1000})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

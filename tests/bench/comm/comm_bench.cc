// Time of one operation among ranks of one host, each a process of its own, as in a job on CPU
// slots.
//
// Rank 0 is this process and counts; the others follow until they are told to stop. Arguments:
// ranks, bytes.
#include <benchmark/benchmark.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/posix/unique_fd.h"
#include "worker/comm/communicator.h"

namespace phalanx::comm {
namespace {

// A folder of files.
class FolderRendezvous final : public Rendezvous {
 public:
  explicit FolderRendezvous(std::string folder)
      : folder_(std::move(folder)), changes_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (inotify_add_watch(changes_.get(), folder_.c_str(), IN_MOVED_TO) < 0) std::abort();
  }
  absl::Status Put(const std::string& key, const std::string& value) override {
    const std::string path = PathOf(key);
    std::ofstream(path + ".new", std::ios::binary) << value;
    std::filesystem::rename(path + ".new", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, Deadline deadline) override {
    while (!std::filesystem::exists(PathOf(key))) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0) return absl::DeadlineExceededError(key + " is not there");
      pollfd changed = {.fd = changes_.get(), .events = POLLIN, .revents = 0};
      poll(&changed, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
      char events[4096];
      while (read(changes_.get(), events, sizeof(events)) > 0) {
      }
    }
    std::ifstream in(PathOf(key), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  std::string PathOf(std::string key) const {
    for (char& c : key) c = c == '/' ? '_' : c;
    return folder_ + "/" + key;
  }
  const std::string folder_;
  const UniqueFd changes_;  // watched from the start, so that no change is missed
};

// One operation of one rank, the same on all.
using Operation = std::function<bool()>;
using Prepare = std::function<Operation(int32_t rank, int32_t world, const std::string& folder)>;

void RunRanks(benchmark::State& state, const Prepare& prepare) {
  const auto world = static_cast<int32_t>(state.range(0));
  std::string folder = (std::filesystem::temp_directory_path() / "comm-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no temporary folder");
  std::vector<pid_t> children;
  for (int32_t rank = 1; rank < world; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Operation operation = prepare(rank, world, folder);
      while (operation()) {
      }
      _exit(0);
    }
    children.push_back(pid);
  }
  {
    Operation operation = prepare(0, world, folder);
    for (int i = 0; i < 20; ++i) operation();
    for (auto _ : state) {
      if (!operation()) return state.SkipWithError("an operation failed");
    }
  }
  for (const pid_t pid : children) kill(pid, SIGKILL);
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  std::filesystem::remove_all(folder);
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

std::shared_ptr<Communicators> Connect(int32_t rank, int32_t world, const std::string& folder,
                                       bool shared_memory) {
  plan::CommunicatorSpec all;
  all.name = "all";
  for (int32_t r = 0; r < world; ++r) all.ranks.push_back(Rank{r});
  FolderRendezvous rendezvous(folder);
  auto connected =
      ConnectGloo({all}, Rank{rank}, world, rendezvous, {.shared_memory = shared_memory});
  if (!connected.ok()) std::abort();
  return std::make_shared<Communicators>(*std::move(connected));
}

template <bool kSharedMemory>
void AllReduce(benchmark::State& state) {
  const int64_t count = state.range(1) / 4;
  RunRanks(state, [&](int32_t rank, int32_t world, const std::string& folder) -> Operation {
    auto data = std::make_shared<std::vector<float>>(count, 0.0f);
    return [=, group = Connect(rank, world, folder, kSharedMemory)] {
      return (*group)[0]->AllReduceSum(data->data(), count, DType::kFp32).ok();
    };
  });
}

void GlooOwnAllReduce(benchmark::State& state) {
  const int64_t count = state.range(1) / 4;
  RunRanks(state, [&](int32_t rank, int32_t world, const std::string& folder) -> Operation {
    auto device = ::gloo::transport::tcp::CreateDevice("127.0.0.1");
    ::gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<::gloo::rendezvous::Context>(rank, world);
    context->connectFullMesh(store, device);
    auto data = std::make_shared<std::vector<float>>(count, 0.0f);
    return [=] {
      ::gloo::AllreduceOptions options(context);
      options.setOutput(data->data(), static_cast<size_t>(count));
      options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
        ::gloo::sum<float>(out, a, b, n);
      });
      try {
        ::gloo::allreduce(options);
      } catch (const std::exception&) {
        return false;
      }
      return true;
    };
  });
}

// A message to the next rank and back: what a pipeline edge costs.
template <bool kSharedMemory>
void PingPong(benchmark::State& state) {
  const int64_t bytes = state.range(1);
  RunRanks(state, [&](int32_t rank, int32_t world, const std::string& folder) -> Operation {
    auto data = std::make_shared<std::vector<char>>(bytes, 0);
    return [=, group = Connect(rank, world, folder, kSharedMemory)] {
      Communicator& all = *(*group)[0];
      const Outgoing out{.peer = 1 - rank, .data = data->data(), .bytes = bytes};
      const Incoming in{.peer = 1 - rank, .data = data->data(), .bytes = bytes};
      if (rank == 1)
        return all.Exchange({}, {in}).ok() && all.Exchange({out}, {}).ok() && all.Flush().ok();
      return all.Exchange({out}, {}).ok() && all.Exchange({}, {in}).ok() && all.Flush().ok();
    };
  });
}

void Sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t bytes : {8, 16 << 10, 128 << 10, 1 << 20}) bench->Args({ranks, bytes});
  }
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(AllReduce<true>)->Name("AllReduce/shared_memory")->Apply(Sizes);
BENCHMARK(AllReduce<false>)->Name("AllReduce/tcp")->Apply(Sizes);
BENCHMARK(GlooOwnAllReduce)->Apply(Sizes);
BENCHMARK(PingPong<true>)
    ->Name("PingPong/shared_memory")
    ->Args({2, 8})
    ->Args({2, 1 << 20})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(PingPong<false>)
    ->Name("PingPong/tcp")
    ->Args({2, 8})
    ->Args({2, 1 << 20})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace phalanx::comm

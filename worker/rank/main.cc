// phalanx-rank: one rank of one job on one device. Started by phalanx-worker, with its end of the
// rank channel and the page of its life as file descriptors 3 and 4; it takes no options. As
// `--check-devices KIND DEVICE,DEVICE... [FAULTS]` it checks devices that no rank uses instead
// (node_check.h), and as `--products DEVICE_NAME` it says which algorithms of products it has
// (product_tables.h).
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "core/posix/activity.h"
#include "core/posix/signals.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/channel/frame_socket.h"
#include "worker/channel/life_page.h"
#include "worker/device/environment.h"
#include "worker/rank/heap.h"
#include "worker/rank/node_check.h"
#include "worker/rank/product_tables.h"
#include "worker/rank/rank_process.h"

using phalanx::channel::kLifePageFd;
using phalanx::channel::LifePage;

namespace {

constexpr auto kBeatInterval = std::chrono::milliseconds(100);

// For as long as the process runs.
void KeepBeating(LifePage& life) {
  std::thread([&life] {
    while (true) {
      life.Beat();
      std::this_thread::sleep_for(kBeatInterval);
    }
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--check-devices") {
    phalanx::device::SetCudaEnvironment();
    phalanx::LetWritesFail();
    // Ranks on other devices of the node go first; under more, a check beside threads that never
    // rest would not get through.
    [[maybe_unused]] const int niceness = nice(5);
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
    const int exit_code = phalanx::rank::CheckNodeMain({argv + 2, argv + argc});
    std::fflush(nullptr);
    std::_Exit(exit_code);  // as below
  }
  if (argc > 1 && std::string(argv[1]) == "--products") {
    const int exit_code = phalanx::rank::ProductsMain({argv + 2, argv + argc});
    std::fflush(nullptr);
    std::_Exit(exit_code);  // as below
  }
  if (argc > 1 || fcntl(phalanx::channel::kRankChannelFd, F_GETFD) < 0) {
    std::fprintf(stderr, "%s is started by phalanx-worker and takes no options\n", argv[0]);
    return 2;
  }
  // Before it says a word: from now on its daemon learns at once of its death.
  absl::StatusOr<LifePage> life = LifePage::Open(kLifePageFd);
  if (life.ok()) {
    close(kLifePageFd);
    life->Hold();
    KeepBeating(*life);
  }
  const phalanx::ActivityOfThread shown(life.ok() ? life->activity() : nullptr);
  const std::string environment = phalanx::device::SetCudaEnvironment();
  phalanx::rank::KeepFreedMemory();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("rank"));
  // `phalanx logs` knows a line's time by it (client/logs.cc).
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v", spdlog::pattern_time_type::utc);
  spdlog::flush_on(spdlog::level::info);
  spdlog::info("environment: {}", environment);
  phalanx::LetWritesFail();
  phalanx::TellOfFaults();
  phalanx::TellWhenAsked();
  // SIGTERM and SIGINT keep their default: the daemon, which orders an end in good order over the
  // channel, then sees by which signal somebody else has ended the process.
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  phalanx::channel::FrameSocket channel(phalanx::channel::kRankChannelFd);
  phalanx::rank::RankProcess process(channel);
  const int exit_code = process.Run();
  std::fflush(nullptr);
  if (life.ok()) life->LetGo();
  // Nothing is left to save, and destructors may wait: for threads of libraries, for storage.
  std::_Exit(exit_code);
}

// phalanx-rank: one rank of one job on one device. Started by phalanx-worker, with its end of the
// rank channel as file descriptor 3; it takes no options.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/posix/signals.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/channel/frame_socket.h"
#include "worker/rank/heap.h"
#include "worker/rank/rank_process.h"

namespace {

// What CUDA reads when it starts. Kernels are loaded before training: loading one later takes a
// lock that a collective can hold for as long as it waits. Each stream has its own hardware queue,
// so that one which waits does not hold up another.
void SetEnvironmentOfCuda() {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

// Ends the channel, which ends the process in good order: shutdown() may be called from a handler.
void OnTerminate(int) { shutdown(phalanx::channel::kRankChannelFd, SHUT_RDWR); }

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 || fcntl(phalanx::channel::kRankChannelFd, F_GETFD) < 0) {
    std::fprintf(stderr, "%s is started by phalanx-worker and takes no options\n", argv[0]);
    return 2;
  }
  SetEnvironmentOfCuda();
  phalanx::rank::KeepFreedMemory();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("rank"));
  spdlog::flush_on(spdlog::level::info);
  phalanx::LetWritesFail();
  struct sigaction action = {};
  action.sa_handler = OnTerminate;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  phalanx::channel::FrameSocket channel(phalanx::channel::kRankChannelFd);
  const int exit_code = phalanx::rank::RankProcess(channel).Run();
  std::fflush(nullptr);
  // Libraries that keep threads of their own have nothing left to save; their destructors may wait.
  std::_Exit(exit_code);
}

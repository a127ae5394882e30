// phalanx-rank: one rank of one job on one device. Started by phalanx-worker, with its end of the
// rank channel as file descriptor 3; it takes no options.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

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
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its writer
  // SIGTERM and SIGINT keep their default: the daemon, which orders an end in good order over the
  // channel, then sees by which signal somebody else has ended the process.
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  phalanx::channel::FrameSocket channel(phalanx::channel::kRankChannelFd);
  phalanx::rank::RankProcess process(channel);
  const int exit_code = process.Run();
  std::fflush(nullptr);
  // Nothing is left to save, and destructors may wait: for threads of libraries, for storage.
  std::_Exit(exit_code);
}

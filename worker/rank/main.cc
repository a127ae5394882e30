// phalanx-rank: one rank of one job on one device. Started by phalanx-worker, with its end of the
// rank channel as file descriptor 3; it takes no options.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/posix/signals.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/channel/frame_socket.h"
#include "worker/device/environment.h"
#include "worker/rank/heap.h"
#include "worker/rank/rank_process.h"

int main(int argc, char** argv) {
  if (argc > 1 || fcntl(phalanx::channel::kRankChannelFd, F_GETFD) < 0) {
    std::fprintf(stderr, "%s is started by phalanx-worker and takes no options\n", argv[0]);
    return 2;
  }
  const std::string environment = phalanx::device::SetCudaEnvironment();
  phalanx::rank::KeepFreedMemory();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("rank"));
  spdlog::flush_on(spdlog::level::info);
  spdlog::info("environment: {}", environment);
  phalanx::LetWritesFail();
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

#include "tests/gpu/ranks.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/device/environment.h"

namespace phalanx::gpu {

namespace {

// PHALANX_GPU_RANKS_A_DEVICE; 1 where it is not set.
int32_t RanksADevice() {
  int32_t ranks = 1;
  const char* text = std::getenv("PHALANX_GPU_RANKS_A_DEVICE");
  return text != nullptr && absl::SimpleAtoi(text, &ranks) ? std::max(ranks, 1) : 1;
}

// Which one it is; 0 where there is none.
int32_t SetDevice(int32_t rank) {
  device::SetCudaEnvironment();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return 0;
  if (RanksADevice() > 1) {
    // NCCL refuses two ranks on one device of a host, so each is a host of its own to it, and they
    // talk over sockets.
    setenv("NCCL_HOSTID", absl::StrCat("rank-", rank).c_str(), /*overwrite=*/1);
    setenv("NCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);
  }
  cudaSetDevice(rank % devices);
  return rank % devices;
}

}  // namespace

int32_t DeviceCount() {
  const pid_t pid = fork();
  if (pid == 0) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    _exit(count);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) * RanksADevice() : 0;
}

std::string FolderRendezvous::PathOf(const std::string& key) const {
  std::string name = prefix_ + key;
  std::replace(name.begin(), name.end(), '/', '_');
  return absl::StrCat(folder_, "/", name);
}

absl::Status FolderRendezvous::Put(const std::string& key, const std::string& value) {
  std::ofstream(PathOf(key) + ".new", std::ios::binary) << value;
  std::filesystem::rename(PathOf(key) + ".new", PathOf(key));
  return absl::OkStatus();
}

absl::StatusOr<std::string> FolderRendezvous::Get(const std::string& key, comm::Deadline deadline) {
  while (!Has(key)) {
    if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError(key);
    poll(nullptr, 0, 1);
  }
  std::ifstream in(PathOf(key), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

bool FolderRendezvous::Has(const std::string& key) const {
  return std::filesystem::exists(PathOf(key));
}

std::vector<std::string> RunRanks(int32_t world, int32_t seconds_max,
                                  const std::function<std::string(const ForkedRank&)>& body) {
  std::string folder = (std::filesystem::temp_directory_path() / "gpu-ranks-XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  const auto report_of = [&folder](int32_t rank) { return absl::StrCat(folder, "/report", rank); };
  std::vector<pid_t> children;
  std::fflush(nullptr);  // children would say it again
  for (int32_t rank = 0; rank < world; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(static_cast<unsigned>(seconds_max));
      const int32_t device = SetDevice(rank);
      std::string report;
      try {
        report = body({rank, world, folder, device});
      } catch (const std::exception& error) {
        report = error.what();
      }
      std::ofstream(report_of(rank)) << report;
      std::fflush(nullptr);
      _exit(0);
    }
    children.push_back(pid);
  }
  std::vector<std::string> reports;
  for (int32_t rank = 0; rank < world; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    std::ifstream in(report_of(rank));
    reports.push_back(WIFSIGNALED(status) ? "killed"
                                          : std::string(std::istreambuf_iterator<char>(in), {}));
  }
  std::filesystem::remove_all(folder);
  return reports;
}

}  // namespace phalanx::gpu

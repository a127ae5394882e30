#include "worker/checkpoint/pinned_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#ifdef PHALANX_WITH_CUDA
#include <cuda_runtime.h>
#endif

namespace phalanx::checkpoint {
namespace {

constexpr int64_t kThreadsMax = 8;

// Of a machine whose processors others use, too.
int64_t Threads() {
  return std::clamp<int64_t>(std::thread::hardware_concurrency() / 4, 1, kThreadsMax);
}

// Whether there is memory for all pages of a piece. EINVAL: a kernel that makes them when they are
// written.
bool Populate(std::byte* piece, int64_t bytes) {
  return madvise(piece, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

}  // namespace

Pinning PinningOf(c10::Device device) {
#ifdef PHALANX_WITH_CUDA
  if (device.is_cuda()) {
    const int index = device.index();
    return {
        .pin =
            [index](std::byte* memory, size_t bytes) {
              const bool pinned =
                  cudaSetDevice(index) == cudaSuccess &&
                  cudaHostRegister(memory, bytes, cudaHostRegisterDefault) == cudaSuccess;
              if (!pinned) cudaGetLastError();
              return pinned;
            },
        .unpin =
            [index](std::byte* memory) {
              if (cudaSetDevice(index) != cudaSuccess || cudaHostUnregister(memory) != cudaSuccess)
                cudaGetLastError();
            }};
  }
#else
  static_cast<void>(device);
#endif
  return {};
}

absl::StatusOr<std::unique_ptr<PinnedMapping>> PinnedMapping::Map(int fd, int64_t bytes,
                                                                  Pinning pinning) {
  std::unique_ptr<PinnedMapping> mapping(new PinnedMapping(bytes, std::move(pinning)));
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, flags, fd, 0);
  struct stat info {};
  if (memory == MAP_FAILED || (fd >= 0 && fstat(fd, &info) != 0)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map a host buffer of ", bytes, " bytes: ", strerror(errno)));
  }
  mapping->memory_ = static_cast<std::byte*>(memory);
  mapping->of_file_ = fd >= 0;
  mapping->device_ = info.st_dev;
  mapping->file_ = info.st_ino;
  return mapping;
}

PinnedMapping::~PinnedMapping() {
  if (memory_ == nullptr) return;
  Unpin([] { return true; });
  munmap(memory_, static_cast<size_t>(bytes_));
}

bool PinnedMapping::Is(int fd, int64_t bytes) const {
  if (fd < 0) return !of_file_ && bytes_ >= bytes;
  struct stat info {};
  return of_file_ && bytes_ == bytes && fstat(fd, &info) == 0 && info.st_dev == device_ &&
         info.st_ino == file_;
}

absl::Status PinnedMapping::MakePages(std::byte* first, int64_t bytes) const {
  if (!of_file_ && pinning_.pin == nullptr) return absl::OkStatus();  // as they are written
  std::atomic<bool> made = true;
  {
    std::vector<std::jthread> threads;
    for (int64_t at = kPieceBytes; at < bytes; at += kPieceBytes) {
      threads.emplace_back([&made, piece = first + at, count = std::min(kPieceBytes, bytes - at)] {
        if (!Populate(piece, count)) made = false;
      });
    }
    if (!Populate(first, std::min(kPieceBytes, bytes))) made = false;
  }
  if (made) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the host has not the memory for a buffer of ", bytes_, " bytes"));
}

absl::Status PinnedMapping::Pin(GoOn go_on) {
  while (done_ < bytes_) {
    std::byte* piece = memory_ + done_;
    const int64_t bytes = std::min(kPieceBytes, bytes_ - done_);
    if (done_ >= populated_) {
      const int64_t ahead = std::min(Threads() * kPieceBytes, bytes_ - done_);
      RETURN_IF_ERROR(MakePages(piece, ahead));
      populated_ = done_ + ahead;
    }
    const auto began = std::chrono::steady_clock::now();
    const bool pinned = pinning_.pin == nullptr || pinning_.pin(piece, static_cast<size_t>(bytes));
    locked_ = std::chrono::steady_clock::now() - began;
    if (!pinned) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the host cannot pin a buffer of ", bytes_, " bytes"));
    }
    done_ += bytes;
    if (!go_on() && done_ < bytes_)
      return absl::CancelledError("the memory is not wanted any more");
  }
  return absl::OkStatus();
}

bool PinnedMapping::Unpin(GoOn go_on) {
  while (done_ > 0) {
    done_ = (done_ - 1) / kPieceBytes * kPieceBytes;
    const auto began = std::chrono::steady_clock::now();
    if (pinning_.unpin != nullptr) pinning_.unpin(memory_ + done_);
    locked_ = std::chrono::steady_clock::now() - began;
    if (!go_on()) return done_ == 0;
  }
  return true;
}

}  // namespace phalanx::checkpoint

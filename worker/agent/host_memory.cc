#include "worker/agent/host_memory.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/checkpoint_io/host_buffer.h"

namespace phalanx::agent {
namespace {

absl::StatusOr<UniqueFd> MakeBuffer(const std::string& name, int64_t bytes) {
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.is_open() || ftruncate(fd.get(), bytes) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make a host buffer of ", bytes, " bytes: ", strerror(errno)));
  }
  return fd;
}

// Absent: there is no such file.
std::optional<int64_t> BytesWritten(const UniqueFd& fd) {
  constexpr int64_t kBlock = 512;  // of st_blocks
  struct stat info {};
  if (!fd.is_open() || fstat(fd.get(), &info) != 0) return std::nullopt;
  return info.st_blocks * kBlock;
}

}  // namespace

MemoryCloser::MemoryCloser() : thread_([this] { Work(); }) {}

MemoryCloser::~MemoryCloser() {
  const MutexLock lock(&mu_);
  stopping_ = true;
  changed_.SignalAll();
}

void MemoryCloser::Close(UniqueFd fd) {
  const int64_t bytes = BytesWritten(fd).value_or(0);
  const MutexLock lock(&mu_);
  files_.push_back({std::move(fd), bytes});
  bytes_ += bytes;
  changed_.SignalAll();
}

int64_t MemoryCloser::bytes() const {
  const MutexLock lock(&mu_);
  return bytes_;
}

void MemoryCloser::Work() {
  pthread_setname_np(pthread_self(), "memory-closer");
  while (true) {
    File file;
    {
      const MutexLock lock(&mu_);
      while (!stopping_ && files_.empty()) changed_.Wait(&mu_);
      if (files_.empty()) return;
      file = std::move(files_.front());
      files_.pop_front();
    }
    file.fd = UniqueFd();
    const MutexLock lock(&mu_);
    bytes_ -= file.bytes;
  }
}

template <typename Predicate>
void HostMemory::FreeIf(Predicate predicate) {
  for (auto entry = buffers_.begin(); entry != buffers_.end();) {
    if (!predicate(entry->first)) {
      ++entry;
      continue;
    }
    Close(std::move(entry->second));
    entry = buffers_.erase(entry);
  }
}

void HostMemory::Close(Buffers buffers) {
  bytes_ -= 2 * buffers.bytes;
  if (closer_->bytes() == 0) once_closed_ = available_();
  for (UniqueFd& fd : buffers.fds) {
    once_closed_ += BytesWritten(fd).value_or(0);
    closer_->Close(std::move(fd));
  }
}

int64_t HostMemory::Left() const {
  int64_t available = available_();
  if (available <= 0) return -1;
  // What is being closed goes piece by piece: it is in one of the two, or in part in both.
  if (const int64_t closing = closer_->bytes(); closing > 0)
    available = std::max(available, std::min(available + closing, once_closed_));
  return std::max<int64_t>(available - Promised(), 0);
}

bool HostMemory::IsEarlier(const Owner& a, const Owner& b) {
  return std::get<0>(a) == std::get<0>(b) && std::get<1>(a) < std::get<1>(b) &&
         std::get<2>(a) == std::get<2>(b);
}

bool HostMemory::HasCopy(const Owner& owner, const Buffers& buffers) {
  for (const UniqueFd& fd : buffers.fds) {
    std::array<std::byte, checkpoint::kHostCopyPage> page;
    if (pread(fd.get(), page.data(), page.size(), 0) != static_cast<ssize_t>(page.size())) continue;
    // Of another epoch: whoever had the buffers before.
    const auto header = checkpoint::HeaderOnPage(page, buffers.bytes);
    if (header.ok() && header->epoch == std::get<1>(owner).value) return true;
  }
  return false;
}

bool HostMemory::TakeOver(const Owner& owner, int64_t bytes, bool useless) {
  auto taken = buffers_.end();
  for (auto entry = buffers_.begin(); entry != buffers_.end(); ++entry) {
    if (!IsEarlier(entry->first, owner) || entry->second.bytes != bytes) continue;
    if (!useless || !HasCopy(entry->first, entry->second)) taken = entry;
  }
  if (taken == buffers_.end()) return false;
  auto buffers = buffers_.extract(taken);
  if (useless) LeaveEmpty(buffers.key());
  buffers.key() = owner;
  buffers_.insert(std::move(buffers));
  return true;
}

void HostMemory::LeaveEmpty(const Owner& owner) {
  Buffers empty{.bytes = checkpoint::kHostCopyPage};
  for (UniqueFd& fd : empty.fds) {
    auto made = MakeBuffer("phalanx-empty", empty.bytes);
    if (!made.ok()) return;
    fd = *std::move(made);
  }
  bytes_ += 2 * empty.bytes;
  buffers_[owner] = std::move(empty);
}

void HostMemory::FreeUseless(JobId job, Epoch before) {
  std::vector<Owner> useless;
  for (const auto& [owner, buffers] : buffers_) {
    const bool earlier = std::get<0>(owner) == job && std::get<1>(owner) < before;
    if (earlier && buffers.bytes > checkpoint::kHostCopyPage && !HasCopy(owner, buffers))
      useless.push_back(owner);
  }
  for (const Owner& owner : useless) {
    Close(std::move(buffers_.extract(owner).mapped()));
    LeaveEmpty(owner);
  }
}

bool HostMemory::HasRoom(int64_t bytes) const {
  const int64_t left = Left();
  return left < 0 || 2 * bytes <= left;
}

absl::StatusOr<std::array<int, 2>> HostMemory::BuffersOf(JobId job, Epoch epoch, int32_t rank,
                                                         int64_t bytes, bool beside) {
  if (bytes < 1 || bytes > std::numeric_limits<int64_t>::max() / 4) {
    return absl::InvalidArgumentError(absl::StrCat("a host buffer of ", bytes, " bytes"));
  }
  const Owner owner(job, epoch, rank);
  if (const auto known = buffers_.find(owner); known != buffers_.end()) {
    if (known->second.bytes == bytes)
      return std::array<int, 2>{known->second.fds[0].get(), known->second.fds[1].get()};
    Close(std::move(known->second));
    buffers_.erase(known);
  }
  if (TakeOver(owner, bytes, /*useless=*/true)) return BuffersOf(job, epoch, rank, bytes);
  if (!beside && !HasRoom(bytes)) FreeUseless(job, epoch);
  if (!beside && !HasRoom(bytes)) {
    if (TakeOver(owner, bytes, /*useless=*/false)) return BuffersOf(job, epoch, rank, bytes);
    FreeIf([&](const Owner& other) { return IsEarlier(other, owner); });
  }
  if (const int64_t left = Left(); left >= 0 && 2 * bytes > left) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank, " needs two host buffers of ", bytes,
                     " bytes for its optimizer state; the node has ", left, " available"));
  }
  Buffers buffers{.bytes = bytes};
  for (UniqueFd& fd : buffers.fds) {
    auto made = MakeBuffer(absl::StrCat("phalanx-", ToString(job), "-rank-", rank), bytes);
    if (!made.ok()) return made.status();
    fd = *std::move(made);
  }
  bytes_ += 2 * bytes;
  const Buffers& kept = buffers_[owner] = std::move(buffers);
  return std::array<int, 2>{kept.fds[0].get(), kept.fds[1].get()};
}

template <typename Predicate>
std::vector<HostMemory::Pair> HostMemory::PairsIf(absl::Span<const int32_t> ranks,
                                                  Predicate predicate) const {
  std::vector<Pair> pairs;
  for (const auto& [owner, buffers] : buffers_) {
    const auto& [job, epoch, rank] = owner;
    if (!predicate(job, epoch) || std::find(ranks.begin(), ranks.end(), rank) == ranks.end())
      continue;
    pairs.push_back({.rank = rank,
                     .epoch = epoch,
                     .bytes = buffers.bytes,
                     .fds = {buffers.fds[0].get(), buffers.fds[1].get()}});
  }
  return pairs;
}

std::vector<HostMemory::Pair> HostMemory::PairsBefore(JobId job, Epoch epoch,
                                                      absl::Span<const int32_t> ranks) const {
  return PairsIf(ranks, [&](JobId of_job, Epoch of) { return of_job == job && of < epoch; });
}

std::vector<HostMemory::Pair> HostMemory::PairsOf(JobId job, Epoch epoch,
                                                  absl::Span<const int32_t> ranks) const {
  return PairsIf(ranks, [&](JobId of_job, Epoch of) { return of_job == job && of == epoch; });
}

int64_t HostMemory::Promised() const {
  int64_t promised = 0;
  for (const auto& [owner, buffers] : buffers_) {
    for (const UniqueFd& fd : buffers.fds)
      promised += std::max<int64_t>(buffers.bytes - BytesWritten(fd).value_or(buffers.bytes), 0);
  }
  return promised;
}

void HostMemory::Free(JobId job) {
  FreeIf([job](const Owner& owner) { return job == JobId{} || std::get<0>(owner) == job; });
}

void HostMemory::FreeBefore(JobId job, Epoch epoch) {
  FreeIf(
      [&](const Owner& owner) { return std::get<0>(owner) == job && std::get<1>(owner) < epoch; });
}

}  // namespace phalanx::agent

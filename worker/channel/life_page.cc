#include "worker/channel/life_page.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace phalanx::channel {
namespace {

constexpr uint64_t kMagic = 0x70686c782d6c6967;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

timespec MonotonicIn(absl::Duration timeout) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + timeout);
}

}  // namespace

struct LifePage::Shared {
  uint64_t magic = kMagic;
  pthread_mutex_t life;
  std::atomic<bool> was_held = false;
  std::atomic<uint64_t> beats = 0, activity = 0;
};

absl::StatusOr<LifePage> LifePage::Map(int fd) {
  void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return SystemError("cannot map the life page");
  return LifePage(static_cast<Shared*>(at));
}

absl::StatusOr<LifePage::Made> LifePage::Make() {
  UniqueFd fd(memfd_create("phalanx-life", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.is_open() || ftruncate(fd.get(), sizeof(Shared)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("cannot make a life page");
  }
  ASSIGN_OR_RETURN(LifePage page, Map(fd.get()));
  new (page.shared_) Shared;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&page.shared_->life, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("no robust mutexes here: ", strerror(error)));
  }
  return Made{std::move(page), std::move(fd)};
}

absl::StatusOr<LifePage> LifePage::Open(int fd) {
  struct stat info {};
  const bool fits = fcntl(fd, F_GET_SEALS) == kSeals && fstat(fd, &info) == 0 &&
                    info.st_size == static_cast<off_t>(sizeof(Shared));
  if (!fits) {
    return absl::FailedPreconditionError(absl::StrCat("descriptor ", fd, " is no life page"));
  }
  ASSIGN_OR_RETURN(LifePage page, Map(fd));
  if (page.shared_->magic != kMagic)
    return absl::FailedPreconditionError("the life page is of another version");
  return page;
}

LifePage::~LifePage() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
}

void LifePage::Hold() {
  pthread_mutex_lock(&shared_->life);
  shared_->was_held.store(true, std::memory_order_release);
}

void LifePage::LetGo() { pthread_mutex_unlock(&shared_->life); }

void LifePage::Beat() { shared_->beats.fetch_add(1, std::memory_order_relaxed); }

uint64_t LifePage::beats() const { return shared_->beats.load(std::memory_order_relaxed); }

std::atomic<uint64_t>* LifePage::activity() { return &shared_->activity; }

uint64_t LifePage::work() const { return shared_->activity.load(std::memory_order_relaxed); }

bool LifePage::was_held() const { return shared_->was_held.load(std::memory_order_acquire); }

LifePage::End LifePage::AwaitEnd(absl::Duration timeout) {
  const timespec until = MonotonicIn(timeout);
  // ENOTRECOVERABLE: it had ended before. Of anything else only a rank that wrote over the page can
  // be the reason; its exit will tell of its end.
  switch (pthread_mutex_clocklock(&shared_->life, CLOCK_MONOTONIC, &until)) {
    case 0:
      pthread_mutex_unlock(&shared_->life);
      return End::kInOrder;
    case EOWNERDEAD:
      pthread_mutex_unlock(&shared_->life);  // nobody gets it any more
      return End::kDied;
    case ETIMEDOUT:
      return End::kNone;
    default:
      return End::kInOrder;
  }
}

}  // namespace phalanx::channel

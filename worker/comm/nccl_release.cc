// What communicators hold is given back to NCCL and CUDA in the background: healthy ones are
// finalized, others aborted, which stops them at once, and freed later
// (docs/decisions/0068-aborted-communicators-are-freed-later.md).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/comm/nccl_communicator.h"

namespace phalanx::comm {
namespace {

constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
constexpr absl::Duration kDrainTimeout = absl::Seconds(5);
constexpr absl::Duration kHeldMax = absl::Seconds(2);  // of what was aborted, before it is freed
constexpr absl::Duration kOpenInterval = absl::Milliseconds(5);
constexpr int kExitWedged = 70;  // EX_SOFTWARE

// Releases that are under way in this process.
struct Releases {
  Mutex mutex;
  CondVar changed;
  int64_t count ABSL_GUARDED_BY(mutex) = 0;
  // Calls of FreeAborted, which what is aborted before waits for.
  int64_t freed ABSL_GUARDED_BY(mutex) = 0;
  int64_t awaited ABSL_GUARDED_BY(mutex) = 0;  // by how many threads: then nothing is held back
  // Since there was none.
  int64_t begun ABSL_GUARDED_BY(mutex) = 0;
  absl::Time since ABSL_GUARDED_BY(mutex);
  absl::Duration held ABSL_GUARDED_BY(mutex);  // the longest wait for FreeAborted, since then
};
Releases& TheReleases() {
  static auto* releases = new Releases;  // outlives every thread
  return *releases;
}

// How often FreeAborted was called.
int64_t BeginRelease() {
  Releases& releases = TheReleases();
  MutexLock lock(&releases.mutex);
  if (releases.count++ == 0) {
    releases.begun = 0;
    releases.since = absl::Now();
    releases.held = absl::ZeroDuration();
  }
  ++releases.begun;
  return releases.freed;
}

void EndRelease() {
  Releases& releases = TheReleases();
  MutexLock lock(&releases.mutex);
  releases.changed.SignalAll();
  if (--releases.count > 0) return;
  // Whoever trains beside it may have waited for the driver, too.
  std::fprintf(stderr, "%s NCCL has given %d communicators back within %s, held back for %s\n",
               absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()).c_str(),
               static_cast<int>(releases.begun),
               absl::FormatDuration(absl::Now() - releases.since).c_str(),
               absl::FormatDuration(releases.held).c_str());
}

void EndWaits(NcclHandle& handle) {
  MutexLock lock(&handle.mutex);
  if (handle.signals != nullptr) handle.signals->EndWaits();
}

// The device may look at signals as long as the stream is not empty. Where that does
// not come to pass they stay for the rest of the process.
void GiveBackSignals(NcclHandle& handle) {
  std::unique_ptr<NcclSignals> signals;
  {
    MutexLock lock(&handle.mutex);
    signals = std::move(handle.signals);
  }
  if (signals == nullptr) return;
  const Deadline deadline = DeadlineIn(kDrainTimeout);
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaStreamQuery(handle.stream)) == cudaErrorNotReady &&
         std::chrono::steady_clock::now() < deadline) {
    signals->EndWaits();
    absl::SleepFor(absl::Microseconds(100));
  }
  if (state != cudaSuccess) (void)signals.release();
}

// Until FreeAborted is called, or has been since `freed`, or somebody waits for releases.
void AwaitFreeing(int64_t freed) {
  const Deadline deadline = DeadlineIn(kHeldMax);
  const absl::Time begin = absl::Now();
  Releases& releases = TheReleases();
  MutexLock lock(&releases.mutex);
  bool expired = false;
  while (releases.freed == freed && releases.awaited == 0 && !expired)
    expired = releases.changed.WaitUntil(&releases.mutex, deadline);
  releases.held = std::max(releases.held, absl::Now() - begin);
}

// `freed`: of Releases, when the communicator was given up.
void Abort(ncclComm_t comm, Mutex* group_abort, int64_t freed) {
  if (group_abort == nullptr) {
    // In a group an abort stops what runs on the device at once, and frees at the group's end.
    const bool grouped = ncclGroupStart() == ncclSuccess;
    ncclCommAbort(comm);
    if (!grouped) return;
    AwaitFreeing(freed);
    ncclGroupEnd();
    return;
  }
  MutexLock lock(group_abort);
  ncclCommAbort(comm);
}

void Release(NcclHandle& handle, bool healthy, int64_t freed) {
  cudaSetDevice(handle.device);
  std::shared_ptr<Mutex> group_abort;
  {
    MutexLock lock(&handle.mutex);
    while (handle.creating) handle.created.Wait(&handle.mutex);
    group_abort = handle.group_abort;
  }
  if (handle.comm != nullptr) {
    ncclResult_t result = ncclRemoteError;
    if (healthy) {
      // Lets the peers take what is still on its way to them.
      result = ncclCommFinalize(handle.comm);
      const Deadline deadline = DeadlineIn(kFinalizeTimeout);
      while (result == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
        absl::SleepFor(absl::Microseconds(100));
        if (ncclCommGetAsyncError(handle.comm, &result) != ncclSuccess) result = ncclInternalError;
      }
    }
    if (result == ncclSuccess) {
      ncclCommDestroy(handle.comm);
    } else {
      Abort(handle.comm, group_abort.get(), freed);
    }
  }
  GiveBackSignals(handle);
  cudaEventDestroy(handle.before);
  cudaEventDestroy(handle.begun);
  cudaEventDestroy(handle.after);
  cudaStreamDestroy(handle.stream);
}

}  // namespace

void ReleaseInBackground(std::shared_ptr<NcclHandle> handle, bool healthy) {
  const int64_t freed = BeginRelease();
  // Calls into NCCL may hang for ever, so one thread makes them and another watches the time.
  std::thread([handle = std::move(handle), healthy, freed] {
    Mutex mutex;
    CondVar changed;
    bool done = false;
    std::thread release([&] {
      Release(*handle, healthy, freed);
      MutexLock lock(&mutex);
      done = true;
      changed.Signal();
    });
    {
      const Deadline deadline = DeadlineIn(handle->release_timeout);
      MutexLock lock(&mutex);
      bool expired = false;
      while (!done && !expired) {
        // What waits for a signal must come to NCCL, which tells it that all is over.
        EndWaits(*handle);
        changed.WaitUntil(&mutex, std::min(deadline, DeadlineIn(kOpenInterval)));
        expired = std::chrono::steady_clock::now() >= deadline;
      }
      if (!done) {
        std::fprintf(
            stderr, "phalanx: NCCL holds a communicator for more than %s: this process is wedged\n",
            absl::FormatDuration(handle->release_timeout).c_str());
        _exit(kExitWedged);
      }
    }
    release.join();
    EndRelease();
  }).detach();
}

void FreeAborted() {
  Releases& releases = TheReleases();
  MutexLock lock(&releases.mutex);
  ++releases.freed;
  releases.changed.SignalAll();
}

bool WaitForNcclReleases(Deadline deadline) {
  Releases& releases = TheReleases();
  MutexLock lock(&releases.mutex);
  ++releases.awaited;
  releases.changed.SignalAll();
  bool expired = false;
  while (releases.count != 0 && !expired)
    expired = releases.changed.WaitUntil(&releases.mutex, deadline);
  --releases.awaited;
  return releases.count == 0;
}

}  // namespace phalanx::comm

// What communicators hold is given back to NCCL and CUDA in the background: healthy ones are
// finalized, others aborted, which stops them at once, and freed when nothing on the device may
// wait for a peer (docs/decisions/0068-aborted-communicators-are-freed-later.md).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/releases.h"

namespace phalanx::comm {
namespace {

constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
constexpr absl::Duration kOpenInterval = absl::Milliseconds(5);
constexpr int kExitWedged = 70;  // EX_SOFTWARE

void EndWaits(NcclHandle& handle) {
  MutexLock lock(&handle.mutex);
  if (handle.signals != nullptr) handle.signals->EndWaits();
}

// Until the device is past everything of the communicator: it may look at signals, and peers may
// wait for it, until then. Whoever watches the time ends the process where that does not come.
bool AwaitStream(NcclHandle& handle) {
  cudaError_t state = cudaErrorNotReady;
  while ((state = cudaStreamQuery(handle.stream)) == cudaErrorNotReady) {
    EndWaits(handle);
    absl::SleepFor(absl::Microseconds(100));
  }
  return state == cudaSuccess;
}

// Where the device may look at them they stay for the rest of the process.
void GiveBackSignals(NcclHandle& handle, bool drained) {
  std::unique_ptr<NcclSignals> signals;
  {
    MutexLock lock(&handle.mutex);
    signals = std::move(handle.signals);
  }
  if (!drained) (void)signals.release();
}

// Lets the peers take what is still on its way to them.
bool Finalize(ncclComm_t comm) {
  ncclResult_t result = ncclCommFinalize(comm);
  const Deadline deadline = DeadlineIn(kFinalizeTimeout);
  while (result == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
    absl::SleepFor(absl::Microseconds(100));
    if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) result = ncclInternalError;
  }
  return result == ncclSuccess;
}

// The steps of a release, for whoever watches the time.
enum class Stage : uint8_t { kStops, kWaits, kFrees, kDone };

void Release(NcclHandle& handle, bool healthy, const std::function<void(Stage)>& enter) {
  cudaSetDevice(handle.device);
  std::shared_ptr<Mutex> group_abort;
  {
    MutexLock lock(&handle.mutex);
    while (handle.creating) handle.created.Wait(&handle.mutex);
    group_abort = handle.group_abort;
  }
  ncclComm_t comm = handle.comm;
  bool grouped = false;
  if (comm != nullptr && group_abort != nullptr) {
    MutexLock lock(group_abort.get());
    ncclCommAbort(std::exchange(comm, nullptr));
  } else if (comm != nullptr && !(healthy && Finalize(comm))) {
    // In a group an abort stops what runs on the device at once, and frees at the group's end.
    grouped = ncclGroupStart() == ncclSuccess;
    ncclCommAbort(std::exchange(comm, nullptr));
  }
  const bool drained = AwaitStream(handle);
  enter(Stage::kWaits);
  const Releases::Turn turn(Releases::OfProcess());
  enter(Stage::kFrees);
  if (grouped) ncclGroupEnd();
  if (comm != nullptr) ncclCommDestroy(comm);
  GiveBackSignals(handle, drained);
  cudaEventDestroy(handle.before);
  cudaEventDestroy(handle.begun);
  cudaEventDestroy(handle.after);
  cudaStreamDestroy(handle.stream);
}

}  // namespace

void ReleaseInBackground(std::shared_ptr<NcclHandle> handle, bool healthy) {
  Releases::OfProcess().Begin();
  // Calls into NCCL may hang for ever, so one thread makes them and another watches the time.
  std::thread([handle = std::move(handle), healthy] {
    Mutex mutex;
    CondVar changed;
    Stage stage = Stage::kStops;
    std::thread release([&] {
      const auto enter = [&](Stage next) {
        MutexLock lock(&mutex);
        stage = next;
        changed.Signal();
      };
      Release(*handle, healthy, enter);
      enter(Stage::kDone);
    });
    {
      MutexLock lock(&mutex);
      Deadline deadline = DeadlineIn(handle->release_timeout);
      for (Stage seen = stage; stage != Stage::kDone;) {
        if (stage == Stage::kWaits) {
          changed.Wait(&mutex);
        } else {
          // What waits for a signal must come to NCCL, which tells it that all is over.
          EndWaits(*handle);
          changed.WaitUntil(&mutex, std::min(deadline, DeadlineIn(kOpenInterval)));
        }
        if (std::exchange(seen, stage) != stage) deadline = DeadlineIn(handle->release_timeout);
        if (stage == Stage::kWaits || std::chrono::steady_clock::now() < deadline) continue;
        std::fprintf(
            stderr, "phalanx: NCCL holds a communicator for more than %s: this process is wedged\n",
            absl::FormatDuration(handle->release_timeout).c_str());
        _exit(kExitWedged);
      }
    }
    release.join();
    const std::string told = Releases::OfProcess().End();
    if (told.empty()) return;
    // Whoever trains beside it may have waited for the driver, too.
    std::fprintf(stderr, "%s NCCL: %s\n",
                 absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()).c_str(),
                 told.c_str());
  }).detach();
}

bool WaitForNcclReleases(Deadline deadline) { return Releases::OfProcess().FreeAll(deadline); }

}  // namespace phalanx::comm

// worker/comm/nccl_communicator.h: a Communicator on one non-blocking NCCL communicator.
//
// A call is enqueued on the communicator's own stream, behind an event of the caller's stream. NCCL
// reports "in progress" until its own thread has put the kernel on the stream; the host polls for
// that, never for the kernel itself.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "core/base/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_signals.h"

namespace phalanx::comm {

// Errors: Unavailable for what a peer or the network did, Internal for the rest.
absl::Status NcclStatus(ncclResult_t result, absl::string_view what);
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// What belongs to NCCL and CUDA. It outlives the Communicator until a background thread has given
// it back. Nothing touches `comm` once `failure` is set, but for that thread, which waits until
// nobody is `creating` it.
struct NcclHandle {
  std::string name;  // which NCCL names as long as it has `comm`
  int device = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t before = nullptr, begun = nullptr, after = nullptr;
  absl::Duration release_timeout;
  Mutex mutex;
  absl::Status failure ABSL_GUARDED_BY(mutex);
  bool released ABSL_GUARDED_BY(mutex) = false;  // its release has begun
  bool creating ABSL_GUARDED_BY(mutex) = false;  // NCCL is about to set `comm`
  CondVar created;
  // Held by whoever aborts one of the communicators that are created in one group, until all are
  // created: NCCL ends such a group at the first abort of it, and lets a second one that comes
  // meanwhile free what the group's threads still use.
  std::shared_ptr<Mutex> group_abort ABSL_GUARDED_BY(mutex);
  std::unique_ptr<NcclSignals> signals ABSL_GUARDED_BY(mutex);  // none: receives begin at once
};
// Gives the handle back in the background: aborted, or finalized if it is healthy.
void ReleaseInBackground(std::shared_ptr<NcclHandle> handle, bool healthy);

class NcclCommunicator final : public Communicator {
 public:
  // `handle` has its stream and events, and a `comm` that is being initialised.
  NcclCommunicator(std::shared_ptr<NcclHandle> handle, std::string name, int32_t rank, int32_t size,
                   const WorldOptions& options);
  ~NcclCommunicator() override;

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  absl::Status AllReduceSum(void* data, int64_t count, DType dtype) override;
  absl::Status AllReduceSums(absl::Span<const Piece> pieces, DType dtype) override;
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count_per_rank,
                                DType dtype) override;
  absl::Status ReduceScatterSums(absl::Span<const Piece> pieces, DType dtype) override;
  absl::Status AllGather(const void* in, void* out, int64_t count_per_rank, DType dtype) override;
  absl::Status AllGathers(absl::Span<const Piece> pieces, DType dtype) override;
  absl::Status Exchange(absl::Span<const Outgoing> sends,
                        absl::Span<const Incoming> receives) override;
  absl::Status Join() override;
  // The same as Join(): a send is complete when the stream has passed it.
  absl::Status Flush() override { return Join(); }
  absl::StatusOr<Point> Mark() override;
  absl::Status Lead() override;
  absl::Status Check() override;
  void Observe(Observer* observer) override { observer_ = observer; }
  void Abort(absl::Status reason) override;

  // Waits until NCCL has done what it was told, from `result` on: initialised, connected or
  // enqueued.
  absl::Status Settle(ncclResult_t result, Deadline deadline, absl::string_view what);
  // From the next message on.
  void SetSignals(std::unique_ptr<NcclSignals> signals);
  // Waits, without blocking the device, until the stream is empty.
  absl::Status Drain(Deadline deadline);

 private:
  cudaStream_t CurrentStream() const;
  absl::Status Enqueue(absl::FunctionRef<ncclResult_t(ncclComm_t, cudaStream_t)> operation,
                       plan::CommunicatorOperation kind, absl::Span<const Outgoing> sends = {},
                       absl::Span<const Incoming> receives = {});
  // It is on the stream.
  void TellEnqueued();
  // Of all pieces in one.
  absl::Status Enqueue(
      absl::Span<const Piece> pieces, plan::CommunicatorOperation kind,
      absl::FunctionRef<ncclResult_t(const Piece&, ncclComm_t, cudaStream_t)> collective);
  absl::Status Named(const absl::Status& status) const;
  // Every later call fails. What it has on the device is left there: whoever aborts it lets go on
  // what stands behind it, of which first nobody may make a record.
  absl::Status Fail(absl::Status reason);

  const std::shared_ptr<NcclHandle> handle_;
  const std::string name_;
  const int32_t rank_;
  const int32_t size_;
  const absl::Duration operation_timeout_;
  const std::function<void*()> current_stream_;
  Observer* observer_ = nullptr;  // of the issuing thread
};

}  // namespace phalanx::comm

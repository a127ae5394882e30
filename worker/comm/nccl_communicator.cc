#include "worker/comm/nccl_communicator.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/job/failure.h"

namespace phalanx::comm {
namespace {

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return ncclUint8;
    case DType::kInt64:
      return ncclInt64;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kFp32:
      return ncclFloat32;
    case DType::kFp64:
      return ncclFloat64;
  }
  return ncclUint8;
}

// What NCCL is told in one, from here to End(): with the first failure of it.
class Group {
 public:
  Group() : first_(ncclGroupStart()) {}
  void Note(ncclResult_t result) {
    if (first_ == ncclSuccess && result != ncclInProgress) first_ = result;
  }
  ncclResult_t End() {
    const ncclResult_t end = ncclGroupEnd();
    return first_ == ncclSuccess ? end : first_;
  }

 private:
  ncclResult_t first_;
};

// NCCL does not say for whom it waits, but it waits for nobody but peers.
absl::Status Silence(absl::string_view text) {
  return job::WithKind(job::FailureKind::kPeerLost, absl::DeadlineExceededError(text));
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result, absl::string_view what) {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": NCCL: ", ncclGetErrorString(result));
  if (result == ncclUnhandledCudaError)
    return job::WithKind(job::FailureKind::kDeviceFailed, absl::InternalError(text));
  const bool peer = result == ncclRemoteError || result == ncclSystemError;
  return peer ? absl::UnavailableError(text) : absl::InternalError(text);
}

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return job::WithKind(
      job::FailureKind::kDeviceFailed,
      absl::InternalError(absl::StrCat(what, ": CUDA: ", cudaGetErrorString(error))));
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclHandle> handle, std::string name,
                                   int32_t rank, int32_t size, const WorldOptions& options)
    : handle_(std::move(handle)),
      name_(std::move(name)),
      rank_(rank),
      size_(size),
      operation_timeout_(options.operation_timeout),
      current_stream_(options.current_stream) {}

NcclCommunicator::~NcclCommunicator() {
  bool healthy = false;
  {
    MutexLock lock(&handle_->mutex);
    if (std::exchange(handle_->released, true)) return;
    healthy = handle_->failure.ok();
  }
  ReleaseInBackground(handle_, healthy);
}

absl::Status NcclCommunicator::Named(const absl::Status& status) const {
  return status.ok() ? status : Annotate(status, absl::StrCat("communicator ", name_));
}

cudaStream_t NcclCommunicator::CurrentStream() const {
  return current_stream_ ? static_cast<cudaStream_t>(current_stream_()) : cudaStreamLegacy;
}

void NcclCommunicator::Abort(absl::Status reason) {
  if (reason.ok()) reason = absl::AbortedError("aborted");
  {
    MutexLock lock(&handle_->mutex);
    if (handle_->failure.ok()) handle_->failure = std::move(reason);
    if (std::exchange(handle_->released, true)) return;
  }
  ReleaseInBackground(handle_, false);
}

absl::Status NcclCommunicator::Fail(absl::Status reason) {
  MutexLock lock(&handle_->mutex);
  if (handle_->failure.ok()) handle_->failure = std::move(reason);
  return handle_->failure;
}

absl::Status NcclCommunicator::Settle(ncclResult_t result, Deadline deadline,
                                      absl::string_view what) {
  while (result == ncclInProgress) {
    {
      MutexLock lock(&handle_->mutex);
      if (!handle_->failure.ok()) return handle_->failure;
      const ncclResult_t asked = ncclCommGetAsyncError(handle_->comm, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (result != ncclInProgress) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      // A device that has failed makes NCCL wait, too.
      const cudaError_t error = cudaStreamQuery(handle_->stream);
      if (error != cudaSuccess && error != cudaErrorNotReady) return Fail(CudaStatus(error, what));
      return Fail(Silence(absl::StrCat(what, ": NCCL is still at it")));
    }
    sched_yield();
  }
  return result == ncclSuccess ? absl::OkStatus() : Fail(NcclStatus(result, what));
}

void NcclCommunicator::SetSignals(std::unique_ptr<NcclSignals> signals) {
  MutexLock lock(&handle_->mutex);
  if (!handle_->released) handle_->signals = std::move(signals);
}

absl::Status NcclCommunicator::Drain(Deadline deadline) {
  for (;;) {
    {
      MutexLock lock(&handle_->mutex);
      if (!handle_->failure.ok()) return handle_->failure;
    }
    const cudaError_t error = cudaStreamQuery(handle_->stream);
    if (error == cudaSuccess) return absl::OkStatus();
    if (error != cudaErrorNotReady) return Fail(CudaStatus(error, "stream"));
    if (std::chrono::steady_clock::now() >= deadline)
      return Fail(Silence("the stream does not end"));
    sched_yield();
  }
}

absl::Status NcclCommunicator::Enqueue(
    absl::FunctionRef<ncclResult_t(ncclComm_t, cudaStream_t)> operation,
    plan::CommunicatorOperation kind, absl::Span<const Outgoing> sends,
    absl::Span<const Incoming> receives) {
  const absl::string_view what = plan::OperationName(kind);
  ncclResult_t result = ncclSuccess;
  absl::Status status;
  {
    // An abort waits for this lock, which is never held while NCCL waits for anyone.
    MutexLock lock(&handle_->mutex);
    if (!handle_->failure.ok()) return Named(handle_->failure);
    status = CudaStatus(cudaEventRecord(handle_->before, CurrentStream()), what);
    if (status.ok())
      status = CudaStatus(cudaStreamWaitEvent(handle_->stream, handle_->before, 0), what);
    if (status.ok()) status = CudaStatus(cudaEventRecord(handle_->begun, handle_->stream), what);
    if (status.ok() && handle_->signals != nullptr)
      status = handle_->signals->Enqueue(handle_->stream, sends, receives);
    if (status.ok() && observer_ != nullptr) observer_->Begins(kind, handle_->stream);
    if (status.ok()) result = operation(handle_->comm, handle_->stream);
  }
  if (!status.ok()) return Named(Fail(std::move(status)));
  RETURN_IF_ERROR(Named(Settle(result, DeadlineIn(operation_timeout_), what)));
  if (observer_ != nullptr) TellEnqueued();
  return absl::OkStatus();
}

void NcclCommunicator::TellEnqueued() {
  // An abort, which gives the stream back, waits for this lock.
  MutexLock lock(&handle_->mutex);
  if (handle_->failure.ok()) observer_->Ends(handle_->stream);
}

absl::Status NcclCommunicator::Enqueue(
    absl::Span<const Piece> pieces, plan::CommunicatorOperation kind,
    absl::FunctionRef<ncclResult_t(const Piece&, ncclComm_t, cudaStream_t)> collective) {
  const auto empty = [](const Piece& piece) { return piece.count_per_rank == 0; };
  if (std::all_of(pieces.begin(), pieces.end(), empty)) return absl::OkStatus();
  return Enqueue(
      [&](ncclComm_t comm, cudaStream_t stream) {
        Group group;
        for (const Piece& piece : pieces) {
          if (!empty(piece)) group.Note(collective(piece, comm, stream));
        }
        return group.End();
      },
      kind);
}

absl::Status NcclCommunicator::AllReduceSum(void* data, int64_t count, DType dtype) {
  return AllReduceSums({{.in = data, .out = data, .count_per_rank = count}}, dtype);
}

absl::Status NcclCommunicator::AllReduceSums(absl::Span<const Piece> pieces, DType dtype) {
  for (const Piece& piece : pieces) {
    if (piece.count_per_rank >= 0 && dtype != DType::kByte) continue;
    return Named(absl::InvalidArgumentError(
        absl::StrCat("all-reduce of ", piece.count_per_rank, " elements, or of bytes")));
  }
  return Enqueue(pieces, plan::CommunicatorOperation::kAllReduce,
                 [&](const Piece& piece, ncclComm_t comm, cudaStream_t stream) {
                   return ncclAllReduce(piece.in, piece.out,
                                        static_cast<size_t>(piece.count_per_rank), TypeOf(dtype),
                                        ncclSum, comm, stream);
                 });
}

absl::Status NcclCommunicator::ReduceScatterSum(const void* in, void* out, int64_t count_per_rank,
                                                DType dtype) {
  return ReduceScatterSums({{.in = in, .out = out, .count_per_rank = count_per_rank}}, dtype);
}

absl::Status NcclCommunicator::ReduceScatterSums(absl::Span<const Piece> pieces, DType dtype) {
  for (const Piece& piece : pieces) {
    if (piece.count_per_rank >= 0 && dtype != DType::kByte) continue;
    return Named(absl::InvalidArgumentError(
        absl::StrCat("reduce-scatter of ", piece.count_per_rank, " elements, or of bytes")));
  }
  return Enqueue(pieces, plan::CommunicatorOperation::kReduceScatter,
                 [&](const Piece& piece, ncclComm_t comm, cudaStream_t stream) {
                   return ncclReduceScatter(piece.in, piece.out,
                                            static_cast<size_t>(piece.count_per_rank),
                                            TypeOf(dtype), ncclSum, comm, stream);
                 });
}

absl::Status NcclCommunicator::AllGather(const void* in, void* out, int64_t count_per_rank,
                                         DType dtype) {
  return AllGathers({{.in = in, .out = out, .count_per_rank = count_per_rank}}, dtype);
}

absl::Status NcclCommunicator::AllGathers(absl::Span<const Piece> pieces, DType dtype) {
  for (const Piece& piece : pieces) {
    if (piece.count_per_rank >= 0) continue;
    return Named(absl::InvalidArgumentError(absl::StrCat("count is ", piece.count_per_rank)));
  }
  return Enqueue(pieces, plan::CommunicatorOperation::kAllGather,
                 [&](const Piece& piece, ncclComm_t comm, cudaStream_t stream) {
                   return ncclAllGather(piece.in, piece.out,
                                        static_cast<size_t>(piece.count_per_rank), TypeOf(dtype),
                                        comm, stream);
                 });
}

absl::Status NcclCommunicator::Exchange(absl::Span<const Outgoing> sends,
                                        absl::Span<const Incoming> receives) {
  bool any = false;
  const auto check = [&](int32_t peer, int64_t bytes) {
    any |= bytes > 0;
    return peer >= 0 && peer < size_ && peer != rank_ && bytes >= 0;
  };
  bool valid = true;
  for (const Outgoing& send : sends) valid &= check(send.peer, send.bytes);
  for (const Incoming& receive : receives) valid &= check(receive.peer, receive.bytes);
  if (!valid) {
    return Named(
        absl::InvalidArgumentError(absl::StrCat("a message with a peer that rank ", rank_, " of ",
                                                size_, " has not, or of a negative size")));
  }
  if (!any) return absl::OkStatus();
  return Enqueue(
      [&](ncclComm_t comm, cudaStream_t stream) {
        Group group;
        for (const Outgoing& send : sends) {
          if (send.bytes == 0) continue;
          group.Note(ncclSend(send.data, static_cast<size_t>(send.bytes), ncclUint8, send.peer,
                              comm, stream));
        }
        for (const Incoming& receive : receives) {
          if (receive.bytes == 0) continue;
          group.Note(ncclRecv(receive.data, static_cast<size_t>(receive.bytes), ncclUint8,
                              receive.peer, comm, stream));
        }
        return group.End();
      },
      plan::CommunicatorOperation::kExchange, sends, receives);
}

absl::Status NcclCommunicator::Join() {
  absl::Status status;
  {
    MutexLock lock(&handle_->mutex);
    if (!handle_->failure.ok()) return Named(handle_->failure);
    status = CudaStatus(cudaEventRecord(handle_->after, handle_->stream), "join");
    if (status.ok())
      status = CudaStatus(cudaStreamWaitEvent(CurrentStream(), handle_->after, 0), "join");
  }
  return status.ok() ? status : Named(Fail(std::move(status)));
}

absl::StatusOr<Communicator::Point> NcclCommunicator::Mark() {
  cudaEvent_t made = nullptr;
  absl::Status status = CudaStatus(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "mark");
  // It may be recorded in a stream that is gone by the time it is waited for.
  const std::shared_ptr<CUevent_st> event(made, [](cudaEvent_t one) { cudaEventDestroy(one); });
  if (status.ok()) {
    MutexLock lock(&handle_->mutex);
    if (!handle_->failure.ok()) return Named(handle_->failure);
    status = CudaStatus(cudaEventRecord(made, handle_->stream), "mark");
  }
  if (!status.ok()) return Named(Fail(std::move(status)));
  return [this, event] {
    return Named(CudaStatus(cudaStreamWaitEvent(CurrentStream(), event.get(), 0), "wait"));
  };
}

absl::Status NcclCommunicator::Lead() {
  absl::Status status;
  {
    MutexLock lock(&handle_->mutex);
    if (!handle_->failure.ok()) return Named(handle_->failure);
    status = CudaStatus(cudaStreamWaitEvent(CurrentStream(), handle_->begun, 0), "lead");
  }
  return status.ok() ? status : Named(Fail(std::move(status)));
}

absl::Status NcclCommunicator::Check() {
  ncclResult_t result = ncclSuccess;
  {
    MutexLock lock(&handle_->mutex);
    if (!handle_->failure.ok()) return Named(handle_->failure);
    const ncclResult_t asked = ncclCommGetAsyncError(handle_->comm, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return Named(Fail(NcclStatus(result, "waiting for the device")));
}

}  // namespace phalanx::comm

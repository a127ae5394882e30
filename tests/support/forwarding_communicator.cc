#include "tests/support/forwarding_communicator.h"

namespace phalanx::support {

int32_t ForwardingCommunicator::rank() const { return inner_->rank(); }
int32_t ForwardingCommunicator::size() const { return inner_->size(); }

absl::Status ForwardingCommunicator::AllReduceSum(void* data, int64_t count, comm::DType dtype) {
  return inner_->AllReduceSum(data, count, dtype);
}

absl::Status ForwardingCommunicator::ReduceScatterSum(const void* in, void* out, int64_t count,
                                                      comm::DType dtype) {
  return inner_->ReduceScatterSum(in, out, count, dtype);
}

absl::Status ForwardingCommunicator::AllGather(const void* in, void* out, int64_t count,
                                               comm::DType dtype) {
  return inner_->AllGather(in, out, count, dtype);
}

absl::Status ForwardingCommunicator::Exchange(absl::Span<const comm::Outgoing> sends,
                                              absl::Span<const comm::Incoming> receives) {
  return inner_->Exchange(sends, receives);
}

absl::Status ForwardingCommunicator::Join() { return inner_->Join(); }
absl::Status ForwardingCommunicator::Flush() { return inner_->Flush(); }
absl::StatusOr<comm::Communicator::Point> ForwardingCommunicator::Mark() { return inner_->Mark(); }
void ForwardingCommunicator::Abort(absl::Status reason) { inner_->Abort(std::move(reason)); }

}  // namespace phalanx::support

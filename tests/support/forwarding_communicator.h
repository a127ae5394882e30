// tests/support/forwarding_communicator.h: a communicator that is another one, for those that do
// something else in some of its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/comm/communicator.h"

namespace phalanx::support {

class ForwardingCommunicator : public comm::Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<comm::Communicator> inner)
      : inner_(std::move(inner)) {}
  int32_t rank() const override;
  int32_t size() const override;
  absl::Status AllReduceSum(void* data, int64_t count, comm::DType dtype) override;
  absl::Status ReduceScatterSum(const void* in, void* out, int64_t count,
                                comm::DType dtype) override;
  absl::Status AllGather(const void* in, void* out, int64_t count, comm::DType dtype) override;
  absl::Status Exchange(absl::Span<const comm::Outgoing> sends,
                        absl::Span<const comm::Incoming> receives) override;
  absl::Status Join() override;
  absl::Status Flush() override;
  absl::StatusOr<Point> Mark() override;
  void Abort(absl::Status reason) override;

 private:
  const std::unique_ptr<comm::Communicator> inner_;
};

}  // namespace phalanx::support

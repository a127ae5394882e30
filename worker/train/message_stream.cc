#include "worker/train/message_stream.h"

#include <utility>

#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "core/base/status.h"

namespace phalanx::train {
namespace {

c10::Stream CurrentStream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

Moment Moment::Now(at::Device device) {
  Moment moment;
  if (device.is_cpu()) return moment;
  moment.event_ = std::make_shared<c10::Event>(device.type());
  moment.event_->record(CurrentStream(device));
  return moment;
}

void Moment::Await() const {
  if (event_ != nullptr) event_->block(CurrentStream(event_->device()));
}

void UseHere(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_cpu()) tensor.record_stream(CurrentStream(tensor.device()));
}

std::optional<c10::Stream> NewStream(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

MessageStream::MessageStream(comm::Communicator* communicator, at::Device device,
                             std::optional<c10::Stream> stream)
    : communicator_(communicator), device_(device), stream_(stream) {}

at::Tensor MessageStream::Buffer(at::IntArrayRef shape, at::ScalarType type) const {
  const c10::OptionalStreamGuard guard(stream_);
  return at::empty(shape, at::TensorOptions().dtype(type).device(device_));
}

absl::StatusOr<Moment> MessageStream::Exchange(Posting posting) {
  const c10::OptionalStreamGuard guard(stream_);
  for (const Moment& need : posting.needs) need.Await();
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  for (Message& send : posting.sends) {
    sends.push_back(
        {send.peer, send.tensor.const_data_ptr(), static_cast<int64_t>(send.tensor.nbytes())});
    if (stream_.has_value()) {
      send.tensor.record_stream(*stream_);
    } else {
      sent_.push_back(std::move(send.tensor));
    }
  }
  for (const Message& receive : posting.receives) {
    receives.push_back({receive.peer, receive.tensor.mutable_data_ptr(),
                        static_cast<int64_t>(receive.tensor.nbytes())});
  }
  RETURN_IF_ERROR(communicator_->Exchange(sends, receives));
  RETURN_IF_ERROR(communicator_->Join());
  return Moment::Now(device_);
}

absl::Status MessageStream::Finish() {
  if (communicator_ == nullptr || stream_.has_value()) return absl::OkStatus();
  const absl::Status flushed = communicator_->Flush();
  sent_.clear();
  return flushed;
}

}  // namespace phalanx::train

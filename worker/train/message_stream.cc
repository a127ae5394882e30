#include "worker/train/message_stream.h"

#include <algorithm>
#include <iterator>
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

bool Moment::Passed() const { return event_ == nullptr || event_->query(); }

bool IsNamedElsewhere(const at::Tensor& tensor) {
  return tensor.use_count() > 1 || tensor.storage().use_count() > 1;
}

void HeldMemory::Hold(std::vector<at::Tensor> tensors, Moment until) {
  if (!tensors.empty()) entries_.push_back({std::move(tensors), std::move(until)});
}

void HeldMemory::LetGo() {
  while (!entries_.empty() && entries_.front().until.Passed()) entries_.pop_front();
}

device::OwnedStream TakeStream(at::Device device, device::StreamPriority priority) {
  if (device.is_cpu()) return {};
  return device::TakeStream(priority);
}

MessageStream::MessageStream(comm::Communicator* communicator, at::Device device,
                             std::optional<c10::Stream> stream)
    : communicator_(communicator), device_(device), stream_(stream) {}

at::Tensor MessageStream::Buffer(at::IntArrayRef shape, at::ScalarType type) {
  const c10::OptionalStreamGuard guard(stream_);
  at::Tensor buffer = at::empty(shape, at::TensorOptions().dtype(type).device(device_));
  if (stream_.has_value()) buffers_.push_back(buffer);
  return buffer;
}

void MessageStream::Collect() {
  const auto unnamed = std::partition(buffers_.begin(), buffers_.end(), IsNamedElsewhere);
  if (unnamed != buffers_.end()) {
    received_.Hold({std::make_move_iterator(unnamed), std::make_move_iterator(buffers_.end())},
                   Moment::Now(device_));
    buffers_.erase(unnamed, buffers_.end());
  }
  received_.LetGo();
  sent_.LetGo();
}

absl::StatusOr<Moment> MessageStream::Exchange(Posting posting) {
  if (stream_.has_value()) Collect();
  const c10::OptionalStreamGuard guard(stream_);
  for (const Moment& need : posting.needs) need.Await();
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  std::vector<at::Tensor> sent;
  for (Message& send : posting.sends) {
    comm::Outgoing& out = sends.emplace_back();
    out.peer = send.peer;
    out.data = send.tensor.const_data_ptr();
    out.bytes = static_cast<int64_t>(send.tensor.nbytes());
    if (stream_.has_value()) {
      sent.push_back(std::move(send.tensor));
    } else {
      out.keep = std::make_shared<const at::Tensor>(std::move(send.tensor));
    }
  }
  for (const Message& receive : posting.receives) {
    receives.push_back({receive.peer, receive.tensor.mutable_data_ptr(),
                        static_cast<int64_t>(receive.tensor.nbytes())});
  }
  RETURN_IF_ERROR(communicator_->Exchange(sends, receives));
  RETURN_IF_ERROR(communicator_->Join());
  const Moment done = Moment::Now(device_);
  sent_.Hold(std::move(sent), done);
  return done;
}

Moment MessageStream::ExchangeWithNobody(Posting posting) {
  if (stream_.has_value()) Collect();
  const c10::OptionalStreamGuard guard(stream_);
  for (Message& receive : posting.receives) receive.tensor.zero_();
  return Moment::Now(device_);
}

absl::Status MessageStream::Finish() {
  if (communicator_ == nullptr || stream_.has_value()) return absl::OkStatus();
  return communicator_->Flush();
}

}  // namespace phalanx::train

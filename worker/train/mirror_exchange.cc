#include "worker/train/mirror_exchange.h"

#include <utility>

#include "core/base/status.h"

namespace phalanx::train {

std::vector<MirrorExchange::Message> MirrorExchange::MessagesOf(
    const std::vector<plan::MirrorPeer>& peers, at::Device device, int64_t* packed) {
  std::vector<Message> messages;
  for (const plan::MirrorPeer& peer : peers) {
    Message message{.peer = peer.peer,
                    .elements = peer.runs.front(),
                    .packed = peer.runs.size() > 1,
                    .runs = PackedRuns(peer.runs, device)};
    if (message.packed) {
      message.elements = {*packed, message.runs.elements()};
      *packed += message.elements.count;
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

MirrorExchange::MirrorExchange(const plan::ReducedBucket& bucket, at::Device device,
                               at::ScalarType type, ReductionScratch& scratch)
    : scratch_(scratch),
      sends_(MessagesOf(bucket.to_mirrors, device, &sent_packed_)),
      receives_(MessagesOf(bucket.from_primaries, device, &received_packed_)) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  scratch.Reserve(sent_packed_ * size, received_packed_ * size);
}

void MirrorExchange::Add(at::Tensor& gradients, std::vector<comm::Outgoing>& sends,
                         std::vector<comm::Incoming>& receives) const {
  const auto size = static_cast<int64_t>(gradients.element_size());
  const at::Tensor given = scratch_.Given(sent_packed_, gradients.scalar_type());
  const at::Tensor taken = scratch_.Taken(received_packed_, gradients.scalar_type());
  const auto place = [&](const Message& message, const at::Tensor& packed) {
    const at::Tensor& buffer = message.packed ? packed : gradients;
    return static_cast<char*>(buffer.mutable_data_ptr()) + message.elements.first * size;
  };
  for (const Message& message : sends_)
    sends.push_back({message.peer, place(message, given), message.elements.count * size});
  for (const Message& message : receives_)
    receives.push_back({message.peer, place(message, taken), message.elements.count * size});
}

absl::Status MirrorExchange::Run(at::Tensor& gradients, comm::Communicator& data) const {
  if (sends_.empty() && receives_.empty()) return absl::OkStatus();
  const at::Tensor given = scratch_.Given(sent_packed_, gradients.scalar_type());
  const at::Tensor taken = scratch_.Taken(received_packed_, gradients.scalar_type());
  for (const Message& message : sends_) {
    if (message.packed) {
      message.runs.Pack(gradients, given.narrow(0, message.elements.first, message.elements.count));
    }
  }
  std::vector<comm::Outgoing> sends;
  std::vector<comm::Incoming> receives;
  Add(gradients, sends, receives);
  RETURN_IF_ERROR(data.Exchange(sends, receives));
  // What is sent and received in place stays untouched until the step is decided. Packed elements
  // make room for the next ones.
  if (gradients.is_cpu() || packs()) RETURN_IF_ERROR(data.Flush());
  for (const Message& message : receives_) {
    if (!message.packed) continue;
    message.runs.Unpack(taken.narrow(0, message.elements.first, message.elements.count), gradients);
  }
  return absl::OkStatus();
}

}  // namespace phalanx::train

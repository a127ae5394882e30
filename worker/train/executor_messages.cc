// The messages of Executor: what travels along a link, and between whom.
//
// Inside a module a rank passes its whole activation to the rank of the same tensor coordinate.
// Along an edge each destination tensor rank receives one slice of the rows of every lane pair and
// the destination's tensor group gathers; gradients go the same way back, without summing, since
// every tensor rank of the consumer already holds the complete gradient. The validity of samples
// travels as a second message of fp32 flags beside each activation. What a rank sends to itself
// (colocated modules, consecutive parts of one rank) is handed over without a copy.
#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/status.h"
#include "worker/train/executor.h"

namespace phalanx::train {
std::vector<int64_t> Executor::LinkShape(int32_t index, const Microbatch& microbatch,
                                         plan::UnitRange part, const Batches& batches) const {
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const job::Architecture& to = plan_.module_spec(link.to.module).architecture;
  if (link.edge >= 0) return {batches.RowsOf(link.from.module, microbatch, part), to.hidden_size};
  if (job::TraitsOf(to).encoder()) {
    return {batches.LayerRowsOf(link.to.module, microbatch, part), to.hidden_size};
  }
  const SequenceShape shape = batches.ShapeOf(microbatch, part);
  return {shape.batch, shape.length, to.hidden_size};
}

absl::StatusOr<Moment> Executor::Exchange(absl::Span<const BoundInstruction> messages,
                                          const StepContext& context) {
  MessageStream::Posting posting;
  for (const BoundInstruction& message : messages) PostMessages(message, context, posting);
  deliveries_.clear();
  if (posting.empty()) return Moment();
  const bool forward = schedule::IsForwardMessage(messages.front().op);
  const bool receives = !posting.receives.empty();
  MessageStream& stream = forward ? *forward_ : *backward_;
  Moment done;
  if (context.alone) {
    done = stream.ExchangeWithNobody(std::move(posting));
  } else {
    ASSIGN_OR_RETURN(done, stream.Exchange(std::move(posting)));
  }
  for (const BoundInstruction& message : messages) {
    if (receives && schedule::IsReceive(message.op)) FlightOf(message).arrived.push_back(done);
  }
  return done;
}

void Executor::PostMessages(const BoundInstruction& instruction, const StepContext& context,
                            Posting& posting) {
  using schedule::Op;
  if (instruction.messages.empty()) return;
  switch (instruction.op) {
    case Op::kSendForward:
      return PostSendForward(instruction, context, posting);
    case Op::kReceiveForward:
      return PostReceiveForward(instruction, context, posting);
    case Op::kSendBackward:
      return PostSendBackward(instruction, context, posting);
    default:
      return PostReceiveBackward(instruction, context, posting);
  }
}

void Executor::PostSendForward(const BoundInstruction& instruction, const StepContext& context,
                               Posting& posting) {
  const Microbatch& microbatch = MicrobatchOf(instruction, context);
  const plan::Link& link = LinkOf(instruction);
  const Part& part = PartOf(instruction);
  const Batches& batches = *context.batches;
  const plan::UnitRange lane = instruction.lane;
  Flight& flight = FlightOf(instruction);
  size_t output = 0;  // edges have an output each
  if (link.edge >= 0) {
    output = static_cast<size_t>(
        std::find(part.links_out.begin(), part.links_out.end(), instruction.link) -
        part.links_out.begin());
  }
  for (const BoundMessage& message : instruction.messages) {
    const plan::UnitRange samples = message.samples;
    Delivery delivery;
    if (flight.ran) {
      delivery.payload = flight.output.hidden[output];
      if (link.edge >= 0) {
        const int64_t before =
            batches.RowsOf(link.from.module, microbatch, {lane.first, samples.first - lane.first});
        const int64_t rows = batches.RowsOf(link.from.module, microbatch, samples);
        const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
        delivery.payload = delivery.payload.narrow(0, before + slice.first, slice.count);
      }
    }
    if (flags_travel_)
      delivery.flags = flight.valid.narrow(0, samples.first - lane.first, samples.count);
    if (message.peer == BoundMessage::kSelf) {
      deliveries_[message.place] = std::move(delivery);
      continue;
    }
    for (at::Tensor& tensor : {std::ref(delivery.payload), std::ref(delivery.flags)}) {
      if (tensor.defined() && tensor.numel() > 0)
        posting.sends.push_back({message.peer, std::move(tensor)});
    }
  }
  posting.needs.push_back(flight.ready);
  if (--flight.sends_left == 0) flight.output.hidden.clear();
}

void Executor::PostReceiveForward(const BoundInstruction& instruction, const StepContext& context,
                                  Posting& posting) {
  const plan::Link& link = LinkOf(instruction);
  std::vector<Arrival>& arrivals = FlightOf(instruction).arriving[instruction.link];
  for (const BoundMessage& message : instruction.messages) {
    Arrival& arrival =
        arrivals.emplace_back(Arrival{.samples = message.samples, .slices = message.slices});
    std::vector<int64_t> shape = LinkShape(instruction.link, MicrobatchOf(instruction, context),
                                           message.samples, *context.batches);
    if (link.edge >= 0) {
      arrival.rows = shape[0];
      shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    }
    if (message.peer == BoundMessage::kSelf) {
      Delivery& delivery = deliveries_[message.place];
      arrival.own.push_back(delivery.payload.defined() ? std::move(delivery.payload)
                                                       : forward_->Buffer(shape, options_.compute));
      arrival.flags = std::move(delivery.flags);
      continue;
    }
    arrival.own.push_back(forward_->Buffer(shape, options_.compute));
    if (arrival.own[0].numel() > 0) posting.receives.push_back({message.peer, arrival.own[0]});
    if (flags_travel_) {
      arrival.flags = forward_->Buffer({message.samples.count}, at::kFloat);
      posting.receives.push_back({message.peer, arrival.flags});
    }
  }
}

void Executor::PostSendBackward(const BoundInstruction& instruction, const StepContext& context,
                                Posting& posting) {
  const Microbatch& microbatch = MicrobatchOf(instruction, context);
  const plan::Link& link = LinkOf(instruction);
  const Part& part = PartOf(instruction);
  const Batches& batches = *context.batches;
  const plan::UnitRange lane = instruction.lane;
  Flight& flight = FlightOf(instruction);
  if (!flight.ran) return;
  const model::StageOutput& gradients = flight.input_gradients;
  // Rows of several edges stand one after the other, in the order of the links.
  int64_t edge_offset = 0;
  for (int32_t other : part.links_in) {
    if (other == instruction.link) break;
    const plan::Link& before = plan_.links[static_cast<size_t>(other)];
    if (before.edge >= 0) edge_offset += batches.RowsOf(before.from.module, microbatch, lane);
  }
  for (const BoundMessage& message : instruction.messages) {
    const plan::UnitRange samples = message.samples;
    at::Tensor payload;
    if (link.edge < 0) {
      if (!gradients.hidden.empty()) payload = gradients.hidden[0];
    } else if (gradients.rows.defined()) {
      const int64_t before =
          batches.RowsOf(link.from.module, microbatch, {lane.first, samples.first - lane.first});
      const int64_t rows = batches.RowsOf(link.from.module, microbatch, samples);
      const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
      payload = gradients.rows.narrow(0, edge_offset + before + slice.first, slice.count);
    }
    if (!payload.defined() || payload.numel() == 0) continue;
    if (message.peer == BoundMessage::kSelf) {
      deliveries_[message.place].payload = std::move(payload);
    } else {
      posting.sends.push_back({message.peer, std::move(payload)});
    }
  }
  posting.needs.push_back(flight.ready);
  if (--flight.sends_left == 0) flight.input_gradients = {};
}

void Executor::PostReceiveBackward(const BoundInstruction& instruction, const StepContext& context,
                                   Posting& posting) {
  const plan::Link& link = LinkOf(instruction);
  Flight& flight = FlightOf(instruction);
  if (!flight.ran) return;
  std::vector<Arrival>& pairs = flight.arriving_gradients[instruction.link];
  for (const BoundMessage& message : instruction.messages) {
    std::vector<int64_t> shape = LinkShape(instruction.link, MicrobatchOf(instruction, context),
                                           message.samples, *context.batches);
    if (pairs.empty() || pairs.back().samples.first != message.samples.first) {
      pairs.push_back({.samples = message.samples, .rows = shape[0], .slices = message.slices});
    }
    if (message.peer == BoundMessage::kElsewhere) continue;
    if (link.edge >= 0) shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    at::Tensor payload;
    if (message.peer == BoundMessage::kSelf) payload = deliveries_[message.place].payload;
    if (!payload.defined()) {
      payload = backward_->Buffer(shape, options_.compute);
      if (payload.numel() > 0) posting.receives.push_back({message.peer, payload});
    }
    pairs.back().own.push_back(std::move(payload));
  }
}

}  // namespace phalanx::train

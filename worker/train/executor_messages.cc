// The messages of Executor: what travels along a link, and between whom.
//
// A message carries an interval of the rows of a pair of lanes (plan::RowsOfMessage). A rank
// receives its slice of the rows of each pair, from one peer or several; where it needs them all,
// its tensor group gathers. Gradients go the same way back, without summing, since what consumers
// hold of a gradient is complete. The validity of samples travels as a second message of fp32 flags
// beside activations. What a rank sends to itself (colocated modules, consecutive parts of one
// rank) is handed over without a message.
#include <functional>
#include <utility>

#include "core/base/status.h"
#include "worker/train/executor.h"

namespace phalanx::train {

int64_t Executor::RowsOfLink(int32_t index, const Microbatch& microbatch, plan::UnitRange samples,
                             const Batches& batches) const {
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  if (link.edge >= 0) return batches.RowsOf(link.from.module, microbatch, samples);
  if (job::TraitsOf(plan_.module_spec(link.to.module).architecture).encoder())
    return batches.LayerRowsOf(link.to.module, microbatch, samples);
  const SequenceShape shape = batches.ShapeOf(microbatch, samples);
  return shape.batch * shape.length;
}

at::Tensor Executor::PayloadOf(const BoundInstruction& instruction, const StepContext& context,
                               const plan::LinkMessage& message, const at::Tensor& rows,
                               int64_t first) const {
  if (!rows.defined()) return {};
  const Microbatch& microbatch = MicrobatchOf(instruction, context);
  const int64_t lane = instruction.lane.first;
  const int64_t before =
      RowsOfLink(instruction.link, microbatch, {lane, message.first - lane}, *context.batches);
  const int64_t count =
      RowsOfLink(instruction.link, microbatch, message.samples(), *context.batches);
  const plan::UnitRange carried = plan::RowsOfMessage(message, count);
  if (carried.count == 0) return {};
  int64_t has = 0;  // the first of the pair's rows that this rank has
  if (plan_.IsSliced(LinkOf(instruction))) {
    const bool forward = schedule::IsForwardMessage(instruction.op);
    has = plan::SliceOf(count, forward ? message.from_slices : message.to_slices,
                        forward ? message.from_slice : message.to_slice)
              .first;
  }
  return rows.narrow(0, first + before + carried.first - has, carried.count);
}

Executor::Arrival& Executor::ArrivalOf(const BoundInstruction& instruction,
                                       const StepContext& context, const plan::LinkMessage& message,
                                       std::vector<Arrival>& arrivals) const {
  if (!arrivals.empty() && arrivals.back().samples == message.samples()) return arrivals.back();
  Arrival arrival{.samples = message.samples(),
                  .rows = RowsOfLink(instruction.link, MicrobatchOf(instruction, context),
                                     message.samples(), *context.batches)};
  const bool forward = schedule::IsForwardMessage(instruction.op);
  arrival.slices = forward ? message.to_slices : message.from_slices;
  arrival.have =
      plan::SliceOf(arrival.rows, arrival.slices, forward ? message.to_slice : message.from_slice);
  return arrivals.emplace_back(std::move(arrival));
}

void Executor::PostRows(const BoundInstruction& instruction, const BoundMessage& message,
                        Arrival& arrival, Posting& posting) {
  const plan::UnitRange carried = plan::RowsOfMessage(message.of, arrival.rows);
  if (carried.count == 0) return;
  const int64_t first = carried.first - arrival.have.first;
  if (message.peer == BoundMessage::kSelf) {
    arrival.handed = std::move(deliveries_[message.place].payload);
    arrival.handed_first = first;
    return;
  }
  if (!arrival.buffer.defined()) {
    MessageStream& stream = schedule::IsForwardMessage(instruction.op) ? *forward_ : *backward_;
    arrival.buffer =
        stream.Buffer({arrival.have.count, WidthOf(instruction.link)}, options_.compute);
  }
  posting.receives.push_back({message.peer, arrival.buffer.narrow(0, first, carried.count)});
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
  Flight& flight = FlightOf(instruction);
  at::Tensor rows;
  if (flight.ran) rows = flight.output.hidden[static_cast<size_t>(instruction.link_index)];
  for (const BoundMessage& message : instruction.messages) {
    Delivery delivery{.payload = PayloadOf(instruction, context, message.of, rows, 0)};
    if (flags_travel_ && message.of.flags) {
      delivery.flags =
          flight.valid.narrow(0, message.of.first - instruction.lane.first, message.of.count);
    }
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
  std::vector<Arrival>& arrivals = FlightOf(instruction).arriving[instruction.link];
  for (const BoundMessage& message : instruction.messages) {
    Arrival& arrival = ArrivalOf(instruction, context, message.of, arrivals);
    PostRows(instruction, message, arrival, posting);
    if (!flags_travel_ || !message.of.flags) continue;
    if (message.peer == BoundMessage::kSelf) {
      arrival.flags = std::move(deliveries_[message.place].flags);
      continue;
    }
    arrival.flags = forward_->Buffer({message.of.count}, at::kFloat);
    posting.receives.push_back({message.peer, arrival.flags});
  }
}

void Executor::PostSendBackward(const BoundInstruction& instruction, const StepContext& context,
                                Posting& posting) {
  Flight& flight = FlightOf(instruction);
  if (!flight.ran) return;
  const Part& part = PartOf(instruction);
  const at::Tensor rows =
      part.first ? flight.input_gradients.rows : flight.input_gradients.hidden.at(0);
  // Rows of several links stand one after the other.
  int64_t first = 0;
  for (int32_t i = 0; i < instruction.link_index; ++i) {
    first += RowsOfLink(part.links_in[static_cast<size_t>(i)], MicrobatchOf(instruction, context),
                        instruction.lane, *context.batches);
  }
  for (const BoundMessage& message : instruction.messages) {
    at::Tensor payload = PayloadOf(instruction, context, message.of, rows, first);
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
  Flight& flight = FlightOf(instruction);
  if (!flight.ran) return;
  std::vector<Arrival>& arrivals = flight.arriving_gradients[instruction.link];
  for (const BoundMessage& message : instruction.messages)
    PostRows(instruction, message, ArrivalOf(instruction, context, message.of, arrivals), posting);
}

}  // namespace phalanx::train

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
namespace {

comm::Outgoing Out(int32_t peer, const at::Tensor& tensor) {
  return {peer, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())};
}
comm::Incoming In(int32_t peer, at::Tensor& tensor) {
  return {peer, tensor.mutable_data_ptr(), static_cast<int64_t>(tensor.nbytes())};
}

}  // namespace

std::vector<int64_t> Executor::LinkShape(int32_t index, const Microbatch& microbatch,
                                         plan::UnitRange part, const Batches& batches) const {
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const job::Architecture& to = plan_.module_spec(link.to_module).architecture;
  if (link.edge >= 0) return {batches.RowsOf(link.from_module, microbatch, part), to.hidden_size};
  if (job::TraitsOf(to).encoder()) {
    return {batches.LayerRowsOf(link.to_module, microbatch, part), to.hidden_size};
  }
  const SequenceShape shape = batches.ShapeOf(microbatch, part);
  return {shape.batch, shape.length, to.hidden_size};
}

void Executor::PostMessages(const schedule::Instruction& instruction, const StepContext& context,
                            Posting& posting) {
  using schedule::Op;
  switch (instruction.op) {
    case Op::kSendForward:
      return PostSendForward(instruction.link, instruction.microbatch, context, posting);
    case Op::kReceiveForward:
      return PostReceiveForward(instruction.link, instruction.microbatch, context, posting);
    case Op::kSendBackward:
      return PostSendBackward(instruction.link, instruction.microbatch, context, posting);
    default:
      return PostReceiveBackward(instruction.link, instruction.microbatch, context, posting);
  }
}

void Executor::PostSendForward(int32_t index, int32_t number, const StepContext& context,
                               Posting& posting) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = SourceOf(link);
  const Batches& batches = *context.batches;
  Flight& flight = FlightOf(part, number);
  const plan::UnitRange lane =
      plan::LaneSamples(plan_, link.from_module, part.place.dp, microbatch.positions);
  size_t output = 0;  // edges have an output each
  if (link.edge >= 0) {
    output = static_cast<size_t>(std::find(part.links_out.begin(), part.links_out.end(), index) -
                                 part.links_out.begin());
  }
  const std::vector<plan::LinkMessage> messages =
      plan::LinkMessages(plan_, index, microbatch.positions);
  for (size_t i = 0; i < messages.size(); ++i) {
    const plan::LinkMessage& message = messages[i];
    if (message.from != rank_ || message.count == 0) continue;
    Delivery delivery;
    if (flight.ran) {
      delivery.payload = flight.output.hidden[output];
      if (link.edge >= 0) {
        const int64_t before =
            batches.RowsOf(link.from_module, microbatch, {lane.first, message.first - lane.first});
        const int64_t rows =
            batches.RowsOf(link.from_module, microbatch, {message.first, message.count});
        const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
        delivery.payload = delivery.payload.narrow(0, before + slice.first, slice.count);
      }
    }
    if (flags_travel_) {
      delivery.flags = flight.valid.defined()
                           ? flight.valid.narrow(0, message.first - lane.first, message.count)
                           : at::ones({message.count}, sums_.options().dtype(at::kFloat));
    }
    if (message.to == rank_) {
      deliveries_[static_cast<int64_t>(i)] = std::move(delivery);
      continue;
    }
    const int32_t peer = PeerIn(true, message.to);
    for (at::Tensor& tensor : {std::ref(delivery.payload), std::ref(delivery.flags)}) {
      if (!tensor.defined() || tensor.numel() == 0) continue;
      Keep(tensor = tensor.contiguous());
      posting.sends.push_back(Out(peer, tensor));
    }
  }
}

void Executor::PostReceiveForward(int32_t index, int32_t number, const StepContext& context,
                                  Posting& posting) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = DestinationOf(link);
  Flight& flight = FlightOf(part, number);
  if (plan::LaneSamples(plan_, link.to_module, part.place.dp, microbatch.positions).count == 0)
    return;
  const at::TensorOptions data = sums_.options().dtype(options_.compute);
  const at::TensorOptions fp32 = sums_.options().dtype(at::kFloat);
  std::vector<Arrival>& arrivals = flight.arriving[index];
  const std::vector<plan::LinkMessage> messages =
      plan::LinkMessages(plan_, index, microbatch.positions);
  for (size_t i = 0; i < messages.size(); ++i) {
    const plan::LinkMessage& message = messages[i];
    if (message.to != rank_ || message.count == 0) continue;
    Arrival arrival{.message = message};
    std::vector<int64_t> shape =
        LinkShape(index, microbatch, {message.first, message.count}, *context.batches);
    if (link.edge >= 0) {
      arrival.rows = shape[0];
      shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    }
    if (message.from == rank_) {
      Delivery& delivery = deliveries_[static_cast<int64_t>(i)];
      arrival.payload =
          delivery.payload.defined() ? std::move(delivery.payload) : at::empty(shape, data);
      arrival.flags = std::move(delivery.flags);
      arrivals.push_back(std::move(arrival));
      continue;
    }
    arrival.payload = at::empty(shape, data);
    const int32_t peer = PeerIn(true, message.from);
    if (arrival.payload.numel() > 0) posting.receives.push_back(In(peer, arrival.payload));
    if (flags_travel_) {
      arrival.flags = at::empty({message.count}, fp32);
      posting.receives.push_back(In(peer, arrival.flags));
      Keep(arrival.flags);
    }
    Keep(arrival.payload);
    arrivals.push_back(std::move(arrival));
  }
}

void Executor::PostSendBackward(int32_t index, int32_t number, const StepContext& context,
                                Posting& posting) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = DestinationOf(link);
  const Batches& batches = *context.batches;
  Flight& flight = FlightOf(part, number);
  if (!flight.ran) return;
  const plan::UnitRange lane =
      plan::LaneSamples(plan_, link.to_module, part.place.dp, microbatch.positions);
  // Rows of several edges stand one after the other, in the order of the links.
  int64_t edge_offset = 0;
  for (int32_t other : part.links_in) {
    if (other == index) break;
    const plan::Link& before = plan_.links[static_cast<size_t>(other)];
    if (before.edge >= 0) edge_offset += batches.RowsOf(before.from_module, microbatch, lane);
  }
  const std::vector<plan::LinkMessage> messages =
      plan::LinkMessages(plan_, index, microbatch.positions);
  for (size_t i = 0; i < messages.size(); ++i) {
    const plan::LinkMessage& message = messages[i];
    if (message.to != rank_ || message.count == 0) continue;
    at::Tensor payload;
    if (link.edge < 0) {
      payload =
          flight.input_gradients.hidden.empty() ? at::Tensor() : flight.input_gradients.hidden[0];
    } else if (flight.input_gradients.rows.defined()) {
      const int64_t before =
          batches.RowsOf(link.from_module, microbatch, {lane.first, message.first - lane.first});
      const int64_t rows =
          batches.RowsOf(link.from_module, microbatch, {message.first, message.count});
      const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
      payload =
          flight.input_gradients.rows.narrow(0, edge_offset + before + slice.first, slice.count);
    }
    if (!payload.defined() || payload.numel() == 0) continue;
    if (message.from == rank_) {
      deliveries_[static_cast<int64_t>(i)].payload = payload;
      continue;
    }
    Keep(payload = payload.contiguous());
    posting.sends.push_back(Out(PeerIn(false, message.from), payload));
  }
}

void Executor::PostReceiveBackward(int32_t index, int32_t number, const StepContext& context,
                                   Posting& posting) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = SourceOf(link);
  Flight& flight = FlightOf(part, number);
  if (!flight.ran) return;
  const at::TensorOptions data = sums_.options().dtype(options_.compute);
  std::vector<ArrivingGradients>& pairs = flight.arriving_gradients[index];
  const plan::RankList lane_ranks =
      plan_.TensorGroup(link.from_module, part.place.dp, link.from_stage, part.place.cp);
  const std::vector<plan::LinkMessage> messages =
      plan::LinkMessages(plan_, index, microbatch.positions);
  for (size_t i = 0; i < messages.size(); ++i) {
    const plan::LinkMessage& message = messages[i];
    // Every rank of this lane notes the pair, whether a slice of it comes here or not.
    if (message.count == 0 ||
        std::find(lane_ranks.begin(), lane_ranks.end(), message.from) == lane_ranks.end()) {
      continue;
    }
    if (link.edge < 0 && message.from != rank_) continue;
    std::vector<int64_t> shape =
        LinkShape(index, microbatch, {message.first, message.count}, *context.batches);
    if (pairs.empty() || pairs.back().first != message.first) {
      pairs.push_back({.first = message.first, .rows = shape[0], .slices = message.slices});
    }
    if (message.from != rank_) continue;
    if (link.edge >= 0) shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    at::Tensor payload;
    if (message.to == rank_) payload = deliveries_[static_cast<int64_t>(i)].payload;
    if (!payload.defined()) {
      payload = at::empty(shape, data);
      if (payload.numel() > 0) posting.receives.push_back(In(PeerIn(false, message.to), payload));
      Keep(payload);
    }
    pairs.back().own.push_back(payload);
  }
}

}  // namespace phalanx::train

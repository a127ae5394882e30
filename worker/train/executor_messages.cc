// The messages of Executor: what travels along a link, and between whom.
//
// Inside a module a rank passes its whole activation to the rank of the same tensor coordinate. Along
// an edge each destination tensor rank receives one slice of the rows of every lane pair and the
// destination's tensor group gathers; gradients go the same way back, without summing, since every
// tensor rank of the consumer already holds the complete gradient. The validity of samples travels as
// a second message of fp32 flags beside each activation.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
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

std::vector<int64_t> Executor::LinkShape(int32_t index, const Microbatch& microbatch, plan::UnitRange part,
                                         const Batches& batches) const {
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const job::Architecture& to = plan_.module_spec(link.to_module).architecture;
  if (link.edge >= 0) return {RowsOf(microbatch, part, batches), to.hidden_size};
  if (link.to_module == plan_.spec.language) {
    const SequenceShape shape = batches.ShapeOf(microbatch, part);
    return {shape.batch, shape.length, to.hidden_size};
  }
  // Inside an encoder the class row is there too.
  return {batches.ItemsOf(microbatch, part), batches.rows_per_item() + 1, to.hidden_size};
}

absl::Status Executor::SendForward(int32_t index, int32_t number, const StepContext& context) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = PartOf(link.from_module);
  Flight& flight = FlightOf(link.from_module, number);
  const plan::UnitRange lane = plan::LaneSamples(plan_, link.from_module, part.place.dp, microbatch.positions);
  size_t output = 0;  // edges have an output each
  if (link.edge >= 0) {
    output = static_cast<size_t>(std::find(part.links_out.begin(), part.links_out.end(), index) -
                                 part.links_out.begin());
  }
  std::vector<comm::Outgoing> sends;
  for (const plan::LinkMessage& message : plan::LinkMessages(plan_, index, microbatch.positions)) {
    if (message.from != rank_ || message.count == 0) continue;
    const int32_t peer = PeerIn(true, message.to);
    if (flight.ran) {
      at::Tensor payload = flight.output.hidden[output];
      if (link.edge >= 0) {
        const int64_t before =
            RowsOf(microbatch, {lane.first, message.first - lane.first}, *context.batches);
        const int64_t rows = RowsOf(microbatch, {message.first, message.count}, *context.batches);
        const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
        payload = payload.narrow(0, before + slice.first, slice.count);
      }
      Keep(payload = payload.contiguous());
      if (payload.numel() > 0) sends.push_back(Out(peer, payload));
    }
    if (flags_travel_) {
      at::Tensor flags = flight.valid.defined() ? flight.valid.narrow(0, message.first - lane.first, message.count)
                                                : at::ones({message.count}, sums_.options().dtype(at::kFloat));
      Keep(flags = flags.contiguous());
      sends.push_back(Out(peer, flags));
    }
  }
  if (sends.empty()) return absl::OkStatus();
  return forward_->Exchange(sends, {});
}

absl::Status Executor::ReceiveForward(int32_t index, int32_t number, const StepContext& context) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = PartOf(link.to_module);
  Flight& flight = FlightOf(link.to_module, number);
  const plan::UnitRange lane = plan::LaneSamples(plan_, link.to_module, part.place.dp, microbatch.positions);
  if (lane.count == 0) return absl::OkStatus();
  const at::TensorOptions data = sums_.options().dtype(options_.compute);
  const at::TensorOptions fp32 = sums_.options().dtype(at::kFloat);
  std::vector<Arrival>& arrivals = flight.arriving[index];
  std::vector<comm::Incoming> receives;
  for (const plan::LinkMessage& message : plan::LinkMessages(plan_, index, microbatch.positions)) {
    if (message.to != rank_ || message.count == 0) continue;
    const plan::UnitRange samples{message.first, message.count};
    Arrival arrival{.message = message};
    std::vector<int64_t> shape = LinkShape(index, microbatch, samples, *context.batches);
    if (link.edge >= 0) {
      arrival.rows = shape[0];
      shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    }
    arrival.payload = at::empty(shape, data);
    const int32_t peer = PeerIn(true, message.from);
    if (arrival.payload.numel() > 0) receives.push_back(In(peer, arrival.payload));
    if (flags_travel_) {
      arrival.flags = at::empty({message.count}, fp32);
      receives.push_back(In(peer, arrival.flags));
      Keep(arrival.flags);
    }
    Keep(arrival.payload);
    arrivals.push_back(std::move(arrival));
  }
  if (receives.empty()) return absl::OkStatus();
  return forward_->Exchange({}, receives);
}

absl::Status Executor::TakeForward(const Part& part, Flight& flight) {
  if (flight.arriving.empty()) return absl::OkStatus();
  const int32_t before = timer_->Mark();
  RETURN_IF_ERROR(forward_->Join());
  timer_->Add(StepTimer::Kind::kCommInsideCompute, before, timer_->Mark());
  for (auto& [index, arrivals] : flight.arriving) {
    const plan::Link& link = plan_.links[static_cast<size_t>(index)];
    std::vector<at::Tensor> rows, flags;
    for (Arrival& arrival : arrivals) {
      if (flags_travel_) flags.push_back(arrival.flags);
      if (link.edge < 0) {
        flight.received[index] = arrival.payload;
      } else if (arrival.rows > 0) {
        ASSIGN_OR_RETURN(at::Tensor gathered,
                         GatherSlices(part.tensor, {arrival.payload}, arrival.rows, arrival.message.slices,
                                      plan_.module_spec(link.to_module).architecture.hidden_size));
        rows.push_back(std::move(gathered));
      }
    }
    if (!rows.empty()) flight.received[index] = rows.size() == 1 ? rows[0] : at::cat(rows);
    if (!flags.empty()) {
      at::Tensor valid = flags.size() == 1 ? flags[0] : at::cat(flags);
      flight.valid = flight.valid.defined() ? flight.valid * valid : valid;
    }
  }
  flight.arriving.clear();
  return absl::OkStatus();
}

absl::Status Executor::SendBackward(int32_t index, int32_t number, const StepContext& context) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = PartOf(link.to_module);
  Flight& flight = FlightOf(link.to_module, number);
  if (!flight.ran) return absl::OkStatus();
  const plan::UnitRange lane = plan::LaneSamples(plan_, link.to_module, part.place.dp, microbatch.positions);
  std::vector<comm::Outgoing> sends;
  // Rows of several edges stand one after the other, in the order of the links.
  int64_t edge_offset = 0;
  for (int32_t other : part.links_in) {
    if (other == index) break;
    if (plan_.links[static_cast<size_t>(other)].edge >= 0) edge_offset += RowsOf(microbatch, lane, *context.batches);
  }
  for (const plan::LinkMessage& message : plan::LinkMessages(plan_, index, microbatch.positions)) {
    if (message.to != rank_ || message.count == 0) continue;
    at::Tensor payload;
    if (link.edge < 0) {
      payload = flight.input_gradients.hidden.empty() ? at::Tensor() : flight.input_gradients.hidden[0];
    } else if (flight.input_gradients.rows.defined()) {
      const int64_t before = RowsOf(microbatch, {lane.first, message.first - lane.first}, *context.batches);
      const int64_t rows = RowsOf(microbatch, {message.first, message.count}, *context.batches);
      const plan::UnitRange slice = plan::EvenSplit(rows, message.slices, message.slice);
      payload = flight.input_gradients.rows.narrow(0, edge_offset + before + slice.first, slice.count);
    }
    if (!payload.defined() || payload.numel() == 0) continue;
    Keep(payload = payload.contiguous());
    sends.push_back(Out(PeerIn(false, message.from), payload));
  }
  if (sends.empty()) return absl::OkStatus();
  return backward_->Exchange(sends, {});
}

absl::Status Executor::ReceiveBackward(int32_t index, int32_t number, const StepContext& context) {
  const Microbatch& microbatch = (*context.microbatches)[static_cast<size_t>(number)];
  const plan::Link& link = plan_.links[static_cast<size_t>(index)];
  const Part& part = PartOf(link.from_module);
  Flight& flight = FlightOf(link.from_module, number);
  if (!flight.ran) return absl::OkStatus();
  const at::TensorOptions data = sums_.options().dtype(options_.compute);
  std::vector<ArrivingGradients>& pairs = flight.arriving_gradients[index];
  std::vector<comm::Incoming> receives;
  const plan::RankList lane_ranks =
      plan_.TensorGroup(link.from_module, part.place.dp, link.from_stage, part.place.cp);
  for (const plan::LinkMessage& message : plan::LinkMessages(plan_, index, microbatch.positions)) {
    // Every rank of this lane notes the pair, whether a slice of it comes here or not.
    if (message.count == 0 ||
        std::find(lane_ranks.begin(), lane_ranks.end(), message.from) == lane_ranks.end()) {
      continue;
    }
    if (link.edge < 0 && message.from != rank_) continue;
    const plan::UnitRange samples{message.first, message.count};
    std::vector<int64_t> shape = LinkShape(index, microbatch, samples, *context.batches);
    if (pairs.empty() || pairs.back().first != message.first) {
      pairs.push_back({.first = message.first, .rows = shape[0], .slices = message.slices});
    }
    if (message.from != rank_) continue;
    if (link.edge >= 0) shape[0] = plan::EvenSplit(shape[0], message.slices, message.slice).count;
    at::Tensor payload = at::empty(shape, data);
    if (payload.numel() > 0) receives.push_back(In(PeerIn(false, message.to), payload));
    Keep(payload);
    pairs.back().own.push_back(payload);
  }
  return receives.empty() ? absl::OkStatus() : backward_->Exchange({}, receives);
}

absl::Status Executor::TakeBackward(const Part& part, Flight& flight) {
  if (flight.arriving_gradients.empty()) return absl::OkStatus();
  const int32_t before = timer_->Mark();
  if (backward_ != nullptr) RETURN_IF_ERROR(backward_->Join());
  timer_->Add(StepTimer::Kind::kCommInsideCompute, before, timer_->Mark());
  for (auto& [index, pairs] : flight.arriving_gradients) {
    const plan::Link& link = plan_.links[static_cast<size_t>(index)];
    if (link.edge < 0) {
      flight.received_gradients[index] = pairs.at(0).own.at(0);
      continue;
    }
    std::vector<at::Tensor> rows;
    for (ArrivingGradients& pair : pairs) {
      if (pair.rows == 0) continue;
      ASSIGN_OR_RETURN(at::Tensor gathered,
                       GatherSlices(part.tensor, pair.own, pair.rows, pair.slices,
                                    plan_.module_spec(link.to_module).architecture.hidden_size));
      rows.push_back(std::move(gathered));
    }
    if (!rows.empty()) flight.received_gradients[index] = rows.size() == 1 ? rows[0] : at::cat(rows);
  }
  flight.arriving_gradients.clear();
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Executor::GatherSlices(comm::Communicator* group, const std::vector<at::Tensor>& own,
                                                  int64_t rows, int32_t slices, int64_t hidden) {
  const int32_t width = group == nullptr ? 1 : group->size();
  if (width == 1) {
    if (own.size() == 1) return own[0];
    return at::cat(own);
  }
  // Equal blocks for the collective: `each` slices a rank, each padded to the longest.
  const int64_t each = (slices + width - 1) / width;
  const int64_t longest = plan::EvenSplit(rows, slices, 0).count;
  at::Tensor all = at::empty({width, each, longest, hidden}, sums_.options().dtype(options_.compute));
  at::Tensor mine = all.select(0, group->rank());
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].numel() > 0) mine.select(0, static_cast<int64_t>(i)).narrow(0, 0, own[i].size(0)).copy_(own[i]);
  }
  RETURN_IF_ERROR(group->AllGather(mine.const_data_ptr(), all.mutable_data_ptr(), each * longest * hidden,
                                   CommDType(options_.compute)));
  RETURN_IF_ERROR(group->Join());
  Keep(all);
  std::vector<at::Tensor> parts;
  for (int32_t slice = 0; slice < slices; ++slice) {
    const int64_t count = plan::EvenSplit(rows, slices, slice).count;
    if (count > 0) parts.push_back(all[slice % width][slice / width].narrow(0, 0, count));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace phalanx::train

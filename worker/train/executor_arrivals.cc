// Arrivals of Executor: messages that a pass has waited for become its input. What comes in slices
// is gathered over the tensor group here, inside the pass, where all its ranks meet.
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/train/executor.h"

namespace phalanx::train {

absl::Status Executor::TakeForward(const Part& part, Flight& flight) {
  if (flight.arriving.empty()) return absl::OkStatus();
  const int32_t before = timer_->Mark();
  if (forward_ != nullptr) RETURN_IF_ERROR(forward_->Join());
  timer_->Add(StepTimer::Kind::kWait, before, timer_->Mark());
  for (auto& [index, arrivals] : flight.arriving) {
    const plan::Link& link = plan_.links[static_cast<size_t>(index)];
    std::vector<at::Tensor> rows, flags;
    for (Arrival& arrival : arrivals) {
      if (flags_travel_) flags.push_back(arrival.flags);
      if (link.edge < 0) {
        flight.received[index] = arrival.payload;
      } else if (arrival.rows > 0) {
        ASSIGN_OR_RETURN(
            at::Tensor gathered,
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

absl::Status Executor::TakeBackward(const Part& part, Flight& flight) {
  if (flight.arriving_gradients.empty()) return absl::OkStatus();
  const int32_t before = timer_->Mark();
  if (backward_ != nullptr) RETURN_IF_ERROR(backward_->Join());
  timer_->Add(StepTimer::Kind::kWait, before, timer_->Mark());
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
    if (!rows.empty())
      flight.received_gradients[index] = rows.size() == 1 ? rows[0] : at::cat(rows);
  }
  flight.arriving_gradients.clear();
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Executor::GatherSlices(comm::Communicator* group,
                                                  const std::vector<at::Tensor>& own, int64_t rows,
                                                  int32_t slices, int64_t hidden) {
  const int32_t width = group == nullptr ? 1 : group->size();
  if (width == 1) {
    if (own.size() == 1) return own[0];
    return at::cat(own);
  }
  // Equal blocks for the collective: `each` slices a rank, each padded to the longest.
  const int64_t each = (slices + width - 1) / width;
  const int64_t longest = plan::EvenSplit(rows, slices, 0).count;
  at::Tensor all =
      at::empty({width, each, longest, hidden}, sums_.options().dtype(options_.compute));
  at::Tensor mine = all.select(0, group->rank());
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].numel() > 0)
      mine.select(0, static_cast<int64_t>(i)).narrow(0, 0, own[i].size(0)).copy_(own[i]);
  }
  RETURN_IF_ERROR(group->AllGather(mine.const_data_ptr(), all.mutable_data_ptr(),
                                   each * longest * hidden, CommDType(options_.compute)));
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

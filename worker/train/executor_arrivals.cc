// Arrivals of Executor: messages that a pass has waited for become its input. What comes in slices
// is gathered over the tensor group here, inside the pass, where all its ranks meet.
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/train/executor.h"

namespace phalanx::train {

// The current stream waits for what the flight has asked for.
void Executor::AwaitArrivals(Flight& flight) {
  const int32_t before = timer_->Mark();
  for (const Moment& moment : flight.arrived) moment.Await();
  flight.arrived.clear();
  timer_->Add(StepTimer::Kind::kWait, before, timer_->Mark());
}

// The rows of an edge, pair by pair; undefined where there are none.
absl::StatusOr<at::Tensor> Executor::JoinRows(const Part& part, int64_t hidden,
                                              const std::vector<Arrival>& pairs) {
  std::vector<at::Tensor> rows;
  for (const Arrival& pair : pairs) {
    if (pair.rows == 0) continue;
    ASSIGN_OR_RETURN(at::Tensor gathered,
                     GatherSlices(part.tensor, pair.own, pair.rows, pair.slices, hidden));
    rows.push_back(std::move(gathered));
  }
  if (rows.empty()) return at::Tensor();
  return rows.size() == 1 ? rows[0] : at::cat(rows);
}

int64_t Executor::WidthOf(int32_t link) const {
  const int32_t to = plan_.links[static_cast<size_t>(link)].to.module;
  return plan_.module_spec(to).architecture.hidden_size;
}

absl::Status Executor::TakeForward(const Part& part, Flight& flight) {
  if (flight.arriving.empty()) return absl::OkStatus();
  AwaitArrivals(flight);
  for (const auto& [index, arrivals] : flight.arriving) {
    if (plan_.links[static_cast<size_t>(index)].edge < 0) {
      if (!arrivals.empty()) flight.received[index] = arrivals.back().own[0];
    } else {
      ASSIGN_OR_RETURN(flight.received[index], JoinRows(part, WidthOf(index), arrivals));
    }
    if (!flags_travel_ || arrivals.empty()) continue;
    std::vector<at::Tensor> flags;
    for (const Arrival& arrival : arrivals) flags.push_back(arrival.flags);
    const at::Tensor valid = flags.size() == 1 ? flags[0] : at::cat(flags);
    flight.valid = flight.valid.defined() ? flight.valid * valid : valid;
  }
  flight.arriving.clear();
  return absl::OkStatus();
}

absl::Status Executor::TakeBackward(const Part& part, Flight& flight) {
  if (flight.arriving_gradients.empty()) return absl::OkStatus();
  AwaitArrivals(flight);
  for (const auto& [index, pairs] : flight.arriving_gradients) {
    if (plan_.links[static_cast<size_t>(index)].edge < 0) {
      flight.received_gradients[index] = pairs.at(0).own.at(0);
    } else {
      ASSIGN_OR_RETURN(flight.received_gradients[index], JoinRows(part, WidthOf(index), pairs));
    }
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
  std::vector<at::Tensor> parts;
  for (int32_t slice = 0; slice < slices; ++slice) {
    const int64_t count = plan::EvenSplit(rows, slices, slice).count;
    if (count > 0) parts.push_back(all[slice % width][slice / width].narrow(0, 0, count));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

}  // namespace phalanx::train

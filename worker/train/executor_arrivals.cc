// Arrivals of Executor: messages that a pass has waited for become its input. What comes in slices
// is gathered over the tensor group here, inside the pass, where all its ranks meet.
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "worker/model/tensor_group.h"
#include "worker/train/executor.h"

namespace phalanx::train {

// The current stream waits for what the flight has asked for.
void Executor::AwaitArrivals(Flight& flight) {
  const int32_t before = timer_->Mark();
  for (const Moment& moment : flight.arrived) moment.Await();
  flight.arrived.clear();
  timer_->Add(StepTimer::Kind::kWait, before, timer_->Mark());
}

absl::StatusOr<at::Tensor> Executor::JoinRows(const Part& part, int32_t link,
                                              const std::vector<Arrival>& pairs) {
  const bool sliced = plan_.IsSliced(plan_.links[static_cast<size_t>(link)]);
  std::vector<at::Tensor> rows;
  for (const Arrival& pair : pairs) {
    if (pair.rows == 0) continue;
    const at::TensorOptions options = sums_.options().dtype(options_.compute);
    at::Tensor slice = pair.buffer;
    if (pair.handed.defined() && pair.handed.size(0) == pair.have.count) {
      slice = pair.handed;
    } else if (pair.handed.defined()) {
      slice.narrow(0, pair.handed_first, pair.handed.size(0)).copy_(pair.handed);
    } else if (!slice.defined()) {
      if (pair.have.count > 0) return absl::InternalError("rows of a link have not arrived");
      slice = at::empty({0, WidthOf(link)}, options);
    }
    if (pair.slices > 1 && !sliced) {
      RETURN_IF_ERROR(model::TensorGroup(part.tensor).GatherRows(slice, pair.rows, &slice));
    }
    rows.push_back(std::move(slice));
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
    ASSIGN_OR_RETURN(flight.received[index], JoinRows(part, index, arrivals));
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
    ASSIGN_OR_RETURN(flight.received_gradients[index], JoinRows(part, index, pairs));
  }
  flight.arriving_gradients.clear();
  return absl::OkStatus();
}

}  // namespace phalanx::train

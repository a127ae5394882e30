#include "tests/sim/scale/host.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "coordinator/runtime/planning.h"

namespace phalanx::scale {
namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

Host::Host(sim::Timeline& timeline, coordinator::CoordinatorOptions options)
    : timeline_(timeline), machine_(std::move(options)) {}

void Host::Feed(coordinator::Event event) {
  inbox_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  while (!inbox_.empty()) {
    const coordinator::Event next = std::move(inbox_.front());
    inbox_.pop_front();
    StepMachine(next);
  }
  stepping_ = false;
  Arm();
}

void Host::Submit(coordinator::JobRequestPtr request) {
  Feed(coordinator::SubmitRequested{coordinator::Token{++token_}, std::move(request), ""});
}

void Host::StepMachine(const coordinator::Event& event) {
  const Stopwatch watch;
  const std::vector<coordinator::Action> actions = machine_.Step(timeline_.now(), event);
  times_.machine += watch.seconds();
  ++times_.events;
  for (const coordinator::Action& action : actions) Carry(action);
  if (machine_.last_record() == stored_) return;
  stored_ = machine_.last_record();
  inbox_.push_front(coordinator::RecordStored{stored_});
}

void Host::Carry(const coordinator::Action& action) {
  using namespace coordinator;  // NOLINT: the many kinds of action
  if (const auto* command = std::get_if<SendCommand>(&action)) return send(*command);
  if (const auto* view = std::get_if<PublishJob>(&action)) return publish(*view->job);
  if (const auto* dropped = std::get_if<DropPlan>(&action)) {
    plans_.erase(dropped->number);
  } else if (const auto* order = std::get_if<ComputePlan>(&action)) {
    plans_.insert(order->number);
    timeline_.After(absl::ZeroDuration(), [this, order = *order] { Plan(order); });
  }
}

// Whatever comes at the same instant has come: of losses that come together the last plan alone is
// made.
void Host::Plan(const coordinator::ComputePlan& order) {
  if (plans_.erase(order.number) == 0) {
    return Feed(coordinator::PlanComputed{order.number, absl::CancelledError("not wanted")});
  }
  const Stopwatch watch;
  absl::StatusOr<coordinator::PlanSummary> plan = coordinator::PlanJobOf(order);
  if (order.layout.has_value()) times_.planning.push_back(watch.seconds());
  Feed(coordinator::PlanComputed{order.number, std::move(plan)});
}

// One timer waits for the next deadline; a later one is looked at when the earlier has come.
void Host::Arm() {
  const Instant next = std::max(machine_.NextDeadline(), timeline_.now());
  if (next >= armed_ || next == absl::InfiniteFuture()) return;
  armed_ = next;
  timeline_.At(next, [this, next] {
    if (armed_ != next) return;
    armed_ = absl::InfiniteFuture();
    if (machine_.NextDeadline() > timeline_.now()) return Arm();
    Feed(coordinator::DeadlineReached{timeline_.now()});
  });
}

}  // namespace phalanx::scale

#include "coordinator/machine/held_actions.h"

#include <iterator>
#include <utility>

namespace phalanx::coordinator {
namespace {

int64_t BytesOf(const Held& held) {
  size_t bytes = sizeof(Held);
  const Action* action = std::get_if<Action>(&held);
  if (action == nullptr) return static_cast<int64_t>(bytes);
  if (const auto* job = std::get_if<PublishJob>(action)) {
    bytes += sizeof(JobView) + job->job->reason.size() + job->job->plan_digest.size();
    if (job->job->failure.has_value()) bytes += job->job->failure->message.size();
  } else if (const auto* event = std::get_if<PublishEvent>(action)) {
    bytes += event->event.type.size() + event->event.message.size();
  } else if (const auto* evaluated = std::get_if<PublishEvaluation>(action)) {
    for (const Caption& caption : evaluated->evaluation->captions) {
      bytes += caption.sample.size() + caption.truth.size() + caption.decoded.size();
    }
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

void HeldActions::Add(uint64_t record_number, Held held) {
  ++count_;
  bytes_ += BytesOf(held);
  by_record_[record_number].push_back(std::move(held));
}

size_t HeldActions::CountFor(uint64_t record_number) const {
  const auto found = by_record_.find(record_number);
  return found == by_record_.end() ? 0 : found->second.size();
}

void HeldActions::Replace(uint64_t record_number, size_t index, Held held) {
  Held& place = by_record_.at(record_number).at(index);
  bytes_ += BytesOf(held) - BytesOf(place);
  place = std::move(held);
}

std::vector<Held> HeldActions::Take(uint64_t stored) {
  std::vector<Held> taken;
  while (!by_record_.empty() && by_record_.begin()->first <= stored) {
    std::vector<Held>& ready = by_record_.begin()->second;
    count_ -= ready.size();
    for (const Held& held : ready) bytes_ -= BytesOf(held);
    std::move(ready.begin(), ready.end(), std::back_inserter(taken));
    by_record_.erase(by_record_.begin());
  }
  return taken;
}

}  // namespace phalanx::coordinator

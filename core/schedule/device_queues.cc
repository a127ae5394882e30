#include "core/schedule/device_queues.h"

#include <algorithm>

namespace phalanx::schedule {
namespace {

bool IsMessageQueue(size_t queue) {
  return queue == kForwardMessages || queue == kBackwardMessages;
}

}  // namespace

DeviceQueues::DeviceQueues(const StepIndex& index, bool paced)
    : index_(index), paced_(paced), members_(index.first().size() - 1) {}

void DeviceQueues::Enqueue(int32_t member, const std::vector<char>& done) {
  if (!paced_) return;  // all of it is
  const auto m = static_cast<size_t>(member);
  const size_t first = index_.first()[m], size = index_.first()[m + 1] - first;
  size_t& enqueued = Of(member).enqueued;
  for (; enqueued < size; ++enqueued) {
    if (enqueued == 0) continue;
    const size_t last = first + enqueued - 1;
    if (IsPass(index_.At(static_cast<int64_t>(last)).op) && done[last] == 0) break;
  }
  for (const size_t queue : {kForwardMessages, kBackwardMessages}) EnqueueMessages(member, queue);
}

bool DeviceQueues::IsEnqueued(int32_t member, int64_t id) const {
  return id <
         static_cast<int64_t>(index_.first()[static_cast<size_t>(member)] + Of(member).enqueued);
}

// In the order of the program, and behind that sends of which the passes are enqueued, and one
// receive that has not come yet (worker/train/messages_ahead.h).
void DeviceQueues::EnqueueMessages(int32_t member, size_t queue) {
  const auto at = [&](size_t place) { return index_.Queued(member, queue, place); };
  size_t& end = Of(member).messages[queue];
  size_t& in_order = Of(member).in_order[queue];
  while (at(in_order) != kNoInstruction && IsEnqueued(member, at(in_order))) ++in_order;
  size_t place = std::max(in_order, Of(member).heads[queue]);
  end = std::max(end, place);
  for (bool receives = false; at(place) != kNoInstruction;) {
    const size_t next = OperationEnd(member, queue, place);
    bool made = true, receive = false;
    for (; place < next; ++place) {
      receive |= IsReceive(index_.At(at(place)).op);
      index_.ForNeeds(member, index_.At(at(place)),
                      [&](int64_t id) { made &= id != kNoInstruction && IsEnqueued(member, id); });
    }
    if (!made || (receive && receives)) return;
    receives |= receive;
    end = std::max(end, next);
  }
}

size_t DeviceQueues::OperationEnd(int32_t member, size_t queue, size_t place) const {
  const int64_t ticket = index_.At(index_.Queued(member, queue, place)).ticket;
  for (int64_t next; (next = index_.Queued(member, queue, ++place)) != kNoInstruction;) {
    if (index_.At(next).ticket != ticket || ticket == 0) break;
  }
  return place;
}

int64_t DeviceQueues::Head(int32_t member, size_t queue, size_t ahead) const {
  const size_t place = Of(member).heads[queue] + ahead;
  const int64_t id = index_.Queued(member, queue, place);
  if (!paced_) return id;
  if (IsMessageQueue(queue)) return place < Of(member).messages[queue] ? id : kNoInstruction;
  return id != kNoInstruction && IsEnqueued(member, id) ? id : kNoInstruction;
}

size_t DeviceQueues::HeadSize(int32_t member, size_t queue) const {
  const size_t head = Of(member).heads[queue];
  return OperationEnd(member, queue, head) - head;
}

}  // namespace phalanx::schedule

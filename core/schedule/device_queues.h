// core/schedule/device_queues.h: what the host of each member has given its device, queue by queue.
//
// Internal to execution. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/schedule/step_index.h"

namespace phalanx::schedule {

class DeviceQueues {
 public:
  // `paced`: the host enqueues nothing but messages behind a pass that is not done. `index`
  // outlives it.
  DeviceQueues(const StepIndex& index, bool paced);

  // The host goes on as far as it may. `done`: of each instruction, by its number.
  void Enqueue(int32_t member, const std::vector<char>& done);
  // The instruction at the head of a queue, `ahead` behind it, or kNoInstruction past what is
  // enqueued.
  int64_t Head(int32_t member, size_t queue, size_t ahead = 0) const;
  // How many messages at the head of a queue are one operation: those with one ticket.
  size_t HeadSize(int32_t member, size_t queue) const;
  void Pop(int32_t member, size_t queue, size_t count = 1) { Of(member).heads[queue] += count; }

 private:
  struct Member {
    std::array<size_t, kQueues> heads = {};  // places
    // Of a host that is paced: how much of its program is enqueued in order, and of each message
    // queue the ends of that and of all that is enqueued.
    size_t enqueued = 0;
    std::array<size_t, kQueues> in_order = {}, messages = {};
  };
  const Member& Of(int32_t member) const { return members_[static_cast<size_t>(member)]; }
  Member& Of(int32_t member) { return members_[static_cast<size_t>(member)]; }
  bool IsEnqueued(int32_t member, int64_t id) const;
  void EnqueueMessages(int32_t member, size_t queue);
  size_t OperationEnd(int32_t member, size_t queue, size_t place) const;

  const StepIndex& index_;
  const bool paced_;
  std::vector<Member> members_;
};

}  // namespace phalanx::schedule

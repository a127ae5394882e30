#include "core/schedule/step_index.h"

#include "core/plan/check.h"

namespace phalanx::schedule {

StepIndex::StepIndex(const Pipeline& pipeline, const Wiring& wiring,
                     const std::vector<const Program*>& programs)
    : pipeline_(pipeline),
      wiring_(wiring),
      programs_(programs),
      microbatches_(static_cast<size_t>(wiring.microbatches)) {
  NumberInstructions();
  LayOutSlots();
  queued_.resize(instructions_.size());
  for (size_t member = 0; member < programs_.size(); ++member) {
    FillQueues(member);
    auto id = static_cast<int64_t>(first_[member]);
    for (const Instruction& instruction : *programs_[member]) {
      Enter(static_cast<int32_t>(member), instruction, id++);
    }
  }
}

void StepIndex::NumberInstructions() {
  size_t count = 0;
  for (const Program* program : programs_) {
    first_.push_back(count);
    count += program->size();
  }
  first_.push_back(count);
  instructions_.reserve(count);
  for (const Program* program : programs_) {
    for (const Instruction& instruction : *program) instructions_.push_back(&instruction);
  }
}

void StepIndex::LayOutSlots() {
  seats_.resize(programs_.size());
  size_t slots = 0;
  const auto lay_out = [&](int32_t link, bool at_to, const LinkEnd& end) {
    message_base_.push_back(slots);
    for (size_t i = 0; i < end.members.size(); ++i) {
      seats_[static_cast<size_t>(end.members[i])].push_back({link, at_to, static_cast<int32_t>(i)});
    }
    slots += 2 * end.members.size() * microbatches_;
  };
  for (size_t link = 0; link < wiring_.from.size(); ++link) {
    lay_out(static_cast<int32_t>(link), false, wiring_.from[link]);
    lay_out(static_cast<int32_t>(link), true, wiring_.to[link]);
  }
  message_at_.assign(slots, kNoInstruction);
  size_t parts_before = 0;
  for (const std::vector<int32_t>& parts : wiring_.parts_of) {
    part_base_.push_back(parts_before);
    pass_base_.push_back(kPassOps * parts_before * microbatches_);
    parts_before += parts.size();
  }
  last_weights_.assign(parts_before, kNoInstruction);
  update_at_.assign(kUpdateOps * parts_before, kNoInstruction);
  pass_at_.assign(kPassOps * parts_before * microbatches_, kNoInstruction);
  for (size_t member = 0; member < wiring_.parts_of.size(); ++member) {
    for (size_t i = 0; i < wiring_.parts_of[member].size(); ++i) {
      const Part& part = PartAt(static_cast<int32_t>(member), i);
      if (part.tied >= 0) folds_[{static_cast<int32_t>(member), part.module}] = kNoInstruction;
    }
  }
}

void StepIndex::FillQueues(size_t member) {
  std::array<size_t, kQueues> next = {};
  for (const Instruction& instruction : *programs_[member]) ++next[QueueOf(instruction.op)];
  std::array<size_t, kQueues + 1> first = {first_[member]};
  for (size_t queue = 0; queue < kQueues; ++queue) {
    first[queue + 1] = first[queue] + next[queue];
    next[queue] = first[queue];
  }
  queue_first_.push_back(first);
  auto id = static_cast<int64_t>(first_[member]);
  for (const Instruction& instruction : *programs_[member]) {
    queued_[next[QueueOf(instruction.op)]++] = id++;
  }
}

void StepIndex::Enter(int32_t member, const Instruction& instruction, int64_t id) {
  if (IsMessage(instruction.op)) {
    const bool backward = IsBackwardMessage(instruction.op);
    message_at_[MessageSlot(SeatOf(member, instruction), backward, instruction.microbatch)] = id;
  } else if (IsPass(instruction.op)) {
    const size_t position = PositionOf(member, instruction.module, instruction.chunk);
    pass_at_[PassSlot(member, position, instruction.op, instruction.microbatch)] = id;
    if (instruction.op == Op::kBackwardWeight)
      last_weights_[part_base_[static_cast<size_t>(member)] + position] = id;
  } else if (instruction.op == Op::kFold) {
    folds_[{member, instruction.module}] = id;
  } else if (IsUpdate(instruction.op)) {
    update_at_[UpdateSlot(member, PositionOf(member, instruction.module, instruction.chunk),
                          instruction.op)] = id;
  }
}

size_t StepIndex::PositionOf(int32_t member, int32_t module, int32_t chunk) const {
  const std::vector<int32_t>& parts = wiring_.parts_of[static_cast<size_t>(member)];
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = pipeline_.parts[static_cast<size_t>(parts[i])];
    if (part.module == module && part.chunk == chunk) return i;
  }
  return parts.size();
}

int32_t StepIndex::PeerCount(int32_t member, const Instruction& message) const {
  const Seat& seat = SeatOf(member, message);
  const PeerLists& lists = PeersOf(seat, message.microbatch);
  const auto i = static_cast<size_t>(seat.position);
  return lists.offsets[i + 1] - lists.offsets[i];
}

const StepIndex::Seat& StepIndex::SeatAt(int32_t member, int32_t link, bool at_to) const {
  const Seat* found = nullptr;
  for (const Seat& seat : seats_[static_cast<size_t>(member)]) {
    if (seat.link == link && seat.at_to == at_to) found = &seat;
  }
  PHALANX_CHECK(found != nullptr, "a link of another member");
  return *found;
}

}  // namespace phalanx::schedule

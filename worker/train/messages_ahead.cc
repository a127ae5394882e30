#include "worker/train/messages_ahead.h"

#include <algorithm>

namespace phalanx::train {

MessagesAhead::MessagesAhead(absl::Span<const BoundInstruction> program) : program_(program) {
  for (size_t i = 0; i < program.size(); i += static_cast<size_t>(program[i].exchange)) {
    if (schedule::IsMessage(program[i].op))
      exchanges_[schedule::IsForwardMessage(program[i].op)].push_back(i);
  }
}

std::optional<size_t> MessagesAhead::Next(bool forward, size_t at, bool arrived) const {
  if (next_[forward] == exchanges_[forward].size()) return std::nullopt;
  const size_t first = exchanges_[forward][next_[forward]];
  const auto exchange = program_.subspan(first, static_cast<size_t>(program_[first].exchange));
  const bool may =
      std::all_of(exchange.begin(), exchange.end(), [&](const BoundInstruction& message) {
        return message.behind < static_cast<int32_t>(at) &&
               (arrived || !schedule::IsReceive(message.op));
      });
  return may ? std::optional<size_t>(first) : std::nullopt;
}

bool MessagesAhead::IsEnqueued(bool forward, size_t at) const {
  return next_[forward] == exchanges_[forward].size() || at < exchanges_[forward][next_[forward]];
}

}  // namespace phalanx::train

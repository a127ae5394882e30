#include "client/late_note.h"

#include <utility>

namespace phalanx::client {

LateNote::LateNote(Io& io, std::string text, absl::Duration delay) {
  if (!io.terminal) return;
  if (delay <= absl::ZeroDuration()) {
    io.talk << text << "\n" << std::flush;
    return;
  }
  thread_ = std::jthread([this, &io, text = std::move(text), delay] {
    if (!done_.WaitForNotificationWithTimeout(delay)) io.talk << text << "\n" << std::flush;
  });
}

LateNote::~LateNote() { done_.Notify(); }

}  // namespace phalanx::client

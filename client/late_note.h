// client/late_note.h: a word about work that takes longer than people expect.
#pragma once

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/format.h"

namespace phalanx::client {

// Writes `text` as a line on io.talk if it still lives after `delay` (zero: at once) and that is a
// terminal. Nobody else writes there meanwhile.
class LateNote {
 public:
  LateNote(Io& io, std::string text, absl::Duration delay);
  ~LateNote();

 private:
  absl::Notification done_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::client

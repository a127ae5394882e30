// worker/model/slots.h: what a stage keeps of the microbatches in flight.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace phalanx::model {

// State by slot, in the order empty -> forward done -> input gradient done -> empty. A pass out of
// order is the caller's bug and answered with Internal. Not thread-safe.
template <typename State>
class Slots {
 public:
  enum class Pass : uint8_t { kForward, kBackwardInput };

  // A fresh state for a slot that holds none.
  absl::Status Open(int32_t slot, State** state) {
    const auto [entry, inserted] = slots_.try_emplace(slot);
    if (!inserted) return absl::InternalError(absl::StrCat("slot ", slot, " is in use"));
    *state = &entry->second.state;
    return absl::OkStatus();
  }
  // The state of a slot whose last pass was `pass`, which now becomes the one after it.
  absl::Status Advance(int32_t slot, Pass pass, State** state) {
    const auto entry = slots_.find(slot);
    if (entry == slots_.end() || entry->second.pass != pass) {
      return absl::InternalError(absl::StrCat("slot ", slot, " is not ready for this pass"));
    }
    entry->second.pass = Pass::kBackwardInput;
    *state = &entry->second.state;
    return absl::OkStatus();
  }
  void Close(int32_t slot) { slots_.erase(slot); }

 private:
  struct Entry {
    Pass pass = Pass::kForward;
    State state;
  };
  std::map<int32_t, Entry> slots_;
};

}  // namespace phalanx::model

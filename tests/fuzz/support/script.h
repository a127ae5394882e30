// tests/fuzz/support/script.h: an input that is a row of messages of several kinds, one after the
// other, so that one can ask for what another has made.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/prng.h"
#include "google/protobuf/message.h"

namespace phalanx::fuzz {

inline constexpr size_t kStepsMax = 48;

struct Step {
  size_t kind = 0;
  std::string bytes;  // of the message
};

// Any bytes: of each step a byte with its kind modulo `kinds`, two of the length of its message,
// little-endian, and that. What is cut short has what there is.
std::vector<Step> ReadScript(absl::string_view bytes, size_t kinds);
std::string WriteScript(absl::Span<const Step> steps);

// The same script with a step more, less, in another place, or of another message. `kinds`: an
// empty message of each, nullptr where any bytes will do.
std::string MutatedScript(absl::string_view bytes,
                          absl::Span<const google::protobuf::Message* const> kinds, Prng& prng);

// What was answered, so that a later message can name it: a text "$0" stands for the newest word of
// an answer, "$1" for the one before it. Not thread-safe.
class Answers {
 public:
  // Remembers the names, ids and tokens of a message.
  void Learn(const google::protobuf::Message& answer);
  void Add(std::string word);
  // Puts words in the place of what stands for them.
  void Recall(google::protobuf::Message& message) const;

 private:
  std::deque<std::string> words_;  // newest first
};

}  // namespace phalanx::fuzz

// tests/fuzz/support/messages.h: random messages of any kind.
#pragma once

#include <string>
#include <vector>

#include "core/base/prng.h"
#include "google/protobuf/message.h"

namespace phalanx::fuzz {

// Sets some of the fields, down to `depth` messages within one another, to values that are
// ordinary, extreme, or words that some field knows.
void Fill(google::protobuf::Message& message, Prng& prng, int depth = 4);

// Changes one field somewhere in the message: to another value, to none, or in the text that it
// has.
void Mutate(google::protobuf::Message& message, Prng& prng);

// So many of the type, serialized.
template <typename Message>
std::vector<std::string> Serialized(int count, uint64_t seed = 1) {
  std::vector<std::string> all;
  Prng prng(seed);
  for (int i = 0; i < count; ++i) {
    Message message;
    Fill(message, prng);
    all.push_back(message.SerializeAsString());
  }
  return all;
}

}  // namespace phalanx::fuzz

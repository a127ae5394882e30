// core/base/random_word.h: a number that nobody else has drawn, from the system's randomness. For
// shells alone: pure code draws from a Prng.
#pragma once

#include <cstdint>
#include <random>

namespace phalanx {

// Never 0.
inline uint64_t RandomWord() {
  std::random_device device;
  uint64_t word = 0;
  while (word == 0) word = (static_cast<uint64_t>(device()) << 32) | device();
  return word;
}

}  // namespace phalanx

// core/base/prng.h: randomness as a pure function, the same on every machine and compiler.
//
// Two forms. Hash64 and friends are counter-based: a value is a function of (seed, stream, index)
// and of nothing else, so initial weights and sample orders do not depend on a layout. Prng is a
// sequence for simulations and jitter. Neither uses the standard library's distributions, which
// differ between implementations.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace phalanx {

// A bijection on 64-bit words that scrambles well (the finaliser of SplitMix64).
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t Hash64(uint64_t seed, uint64_t stream, uint64_t index) {
  return Mix64(Mix64(Mix64(seed) ^ stream) ^ index);
}

// A stream number for a name: FNV-1a, so that it is the same everywhere.
constexpr uint64_t StreamOf(absl::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Approximately normal with mean 0 and variance 1, |value| < 3.47: the sum of the four 16-bit
// halves of a hash, scaled. Integers up to the last product, so every device gets the same bits.
constexpr double UnitNormal(uint64_t hash) {
  const int64_t sum =
      static_cast<int64_t>(hash & 0xFFFF) + static_cast<int64_t>((hash >> 16) & 0xFFFF) +
      static_cast<int64_t>((hash >> 32) & 0xFFFF) + static_cast<int64_t>(hash >> 48);
  // Four uniform values on {0..65535}: mean 2 * 65535, variance 4 * (2^32 - 1) / 12.
  constexpr double kScale = 1.0 / 37837.22644777;
  return static_cast<double>(sum - 2 * 65535) * kScale;
}

// Not thread-safe.
class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(Mix64(seed)) {}
  uint64_t Next() { return Mix64(state_++); }
  // Uniform on [0, bound), bound > 0. The bias of the multiply-shift is below 2^-32 for small
  // bounds.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
  }
  // Uniform on [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  __extension__ using Wide = unsigned __int128;

  uint64_t state_;
};

}  // namespace phalanx

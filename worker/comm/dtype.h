// worker/comm/dtype.h: sums of arrays in a fixed order, the arithmetic of the CPU communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "worker/comm/communicator.h"

namespace phalanx::comm {

inline float Bf16ToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}
// Rounds to nearest, ties to even; a NaN stays one.
uint16_t FloatToBf16(float value);

// The sum of several arrays of one length, added one after the other: the order of Add() is the
// order of summation, so equal arrays in equal order give equal bits. Not thread-safe.
class Accumulator {
 public:
  // Starts over at `count` elements; memory is kept for the next time. `dtype` is not kByte.
  void Reset(DType dtype, int64_t count);
  void Add(const void* values);  // [count]
  // Stores the sum, which needs at least one Add(). `out` may be one of the arrays.
  void Store(void* out) const;

 private:
  DType dtype_ = DType::kFp32;
  int64_t count_ = 0;
  bool empty_ = true;
  // The sum in max(fp32, dtype).
  std::unique_ptr<std::byte[]> storage_;
  int64_t capacity_ = 0;  // bytes
};

}  // namespace phalanx::comm

// worker/data/item_memory.h: memory into which items are decoded, and which is used again.
//
// A device copies from memory that it knows (pinned), which takes long to make and holds up whoever
// launches work meanwhile. So blocks that are let go are given out again, and where none is left as
// many are made as there are: reading ahead soon has what it needs at a time and as much again, so
// that a rank which comes to more samples finds room. Where that has failed kFailuresMax times no
// more are asked for: each try holds others up, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"

namespace phalanx::data {

// As which decoded values are kept.
enum class ValueType : uint8_t { kFp32, kBf16 };
inline size_t BytesOfValue(ValueType type) { return type == ValueType::kBf16 ? 2 : 4; }
// Rounded to nearest, ties to even, as devices do.
uint16_t RoundToBf16(float value);

// Thread-safe.
class ItemMemory {
 public:
  static constexpr int kFailuresMax = 3;
  // So many bytes, at a multiple of 256; nullptr: there are none. On any thread, one call at a
  // time, throws nothing.
  using Allocate = std::function<std::shared_ptr<std::byte>(size_t bytes)>;
  ItemMemory(ValueType type, Allocate allocate);

  ValueType type() const { return type_; }
  // `values` in a block of its own, at a multiple of 256 bytes; nullptr: there is no memory. It
  // goes back when the last owner lets it go, which may be after the ItemMemory, on any thread.
  std::shared_ptr<const std::byte> Store(absl::Span<const float> values);

 private:
  // Of one size, in bytes.
  struct Blocks {
    std::vector<std::byte*> free;
    size_t made = 0;
  };
  // Lives as long as there are blocks outside.
  struct Pool {
    Mutex mu;
    std::map<size_t, Blocks> blocks ABSL_GUARDED_BY(mu);
    std::vector<std::shared_ptr<std::byte>> chunks ABSL_GUARDED_BY(mu);
    int failures ABSL_GUARDED_BY(mu) = 0;  // of Allocate
    Mutex growing;                         // held by who makes blocks; before `mu`
  };
  static std::byte* Pop(Pool& pool, size_t bytes);
  bool MayGrow() const;
  void Grow(size_t bytes);

  const ValueType type_;
  const Allocate allocate_;
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
};

}  // namespace phalanx::data

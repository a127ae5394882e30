#include "worker/data/item_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace phalanx::data {
namespace {

constexpr size_t kAlignment = 256;
// Made at once: making it holds others up for some milliseconds.
constexpr size_t kChunkBytes = size_t{16} << 20;

}  // namespace

uint16_t RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? 0x7fffu : rounded >> 16);
}

ItemMemory::ItemMemory(ValueType type, Allocate allocate)
    : type_(type), allocate_(std::move(allocate)) {}

std::byte* ItemMemory::Pop(Pool& pool, size_t bytes) {
  const MutexLock lock(&pool.mu);
  std::vector<std::byte*>& free = pool.blocks[bytes].free;
  if (free.empty()) return nullptr;
  std::byte* const block = free.back();
  free.pop_back();
  return block;
}

bool ItemMemory::MayGrow() const {
  const MutexLock lock(&pool_->mu);
  return pool_->failures < kFailuresMax;
}

void ItemMemory::Grow(size_t bytes) {
  const size_t of_chunk = std::max<size_t>(1, kChunkBytes / bytes);
  size_t wanted = 0;
  {
    const MutexLock lock(&pool_->mu);
    wanted = std::max(of_chunk, pool_->blocks[bytes].made);
  }
  while (wanted > 0) {
    const size_t count = std::min(wanted, of_chunk);
    const std::shared_ptr<std::byte> chunk = allocate_(count * bytes);
    const MutexLock lock(&pool_->mu);
    if (chunk == nullptr) {
      ++pool_->failures;
      return;
    }
    Blocks& blocks = pool_->blocks[bytes];
    for (size_t i = count; i-- > 0;) blocks.free.push_back(chunk.get() + i * bytes);
    blocks.made += count;
    pool_->chunks.push_back(chunk);
    wanted -= count;
  }
}

std::shared_ptr<const std::byte> ItemMemory::Store(absl::Span<const float> values) {
  const size_t used = values.size() * BytesOfValue(type_);
  const size_t bytes = std::max(kAlignment, (used + kAlignment - 1) / kAlignment * kAlignment);
  std::byte* memory = Pop(*pool_, bytes);
  if (memory == nullptr && MayGrow()) {
    const MutexLock lock(&pool_->growing);
    memory = Pop(*pool_, bytes);  // somebody else may have made some meanwhile
    if (memory == nullptr && MayGrow()) {
      Grow(bytes);
      memory = Pop(*pool_, bytes);
    }
  }
  if (memory == nullptr) return nullptr;
  const std::shared_ptr<std::byte> block(memory, [pool = pool_, bytes](std::byte* back) {
    const MutexLock lock(&pool->mu);
    pool->blocks[bytes].free.push_back(back);
  });
  if (type_ == ValueType::kFp32) {
    std::memcpy(memory, values.data(), used);
  } else {
    auto* const to = reinterpret_cast<uint16_t*>(memory);
    std::transform(values.begin(), values.end(), to, RoundToBf16);
  }
  return block;
}

}  // namespace phalanx::data

#include "worker/comm/dtype.h"

#include <cmath>

namespace phalanx::comm {
namespace {

template <typename T>
void AddArray(T* sum, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

}  // namespace

int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return 1;
    case DType::kBf16:
      return 2;
    case DType::kFp32:
      return 4;
    case DType::kInt64:
    case DType::kFp64:
      return 8;
  }
  return 0;
}

uint16_t FloatToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);  // keep it quiet, not 0
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

void Accumulator::Reset(DType dtype, int64_t count) {
  dtype_ = dtype;
  count_ = count;
  empty_ = true;
  const int64_t width = dtype == DType::kBf16 ? 4 : SizeOf(dtype);
  if (capacity_ >= count * width) return;
  capacity_ = count * width;
  storage_.reset(new std::byte[static_cast<size_t>(capacity_)]);
}

void Accumulator::Add(const void* values) {
  if (count_ == 0) return;
  void* sum = storage_.get();
  if (dtype_ == DType::kBf16) {
    auto* wide = static_cast<float*>(sum);
    const auto* narrow = static_cast<const uint16_t*>(values);
    if (empty_) {
      for (int64_t i = 0; i < count_; ++i) wide[i] = Bf16ToFloat(narrow[i]);
    } else {
      for (int64_t i = 0; i < count_; ++i) wide[i] += Bf16ToFloat(narrow[i]);
    }
  } else if (empty_) {
    std::memcpy(sum, values, static_cast<size_t>(count_ * SizeOf(dtype_)));
  } else if (dtype_ == DType::kInt64) {
    AddArray(static_cast<uint64_t*>(sum), static_cast<const uint64_t*>(values), count_);
  } else if (dtype_ == DType::kFp32) {
    AddArray(static_cast<float*>(sum), static_cast<const float*>(values), count_);
  } else if (dtype_ == DType::kFp64) {
    AddArray(static_cast<double*>(sum), static_cast<const double*>(values), count_);
  }
  empty_ = false;
}

void Accumulator::Store(void* out) const {
  if (count_ == 0) return;
  if (dtype_ != DType::kBf16) {
    std::memcpy(out, storage_.get(), static_cast<size_t>(count_ * SizeOf(dtype_)));
    return;
  }
  const auto* wide = reinterpret_cast<const float*>(storage_.get());
  auto* narrow = static_cast<uint16_t*>(out);
  for (int64_t i = 0; i < count_; ++i) narrow[i] = FloatToBf16(wide[i]);
}

}  // namespace phalanx::comm

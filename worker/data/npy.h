// worker/data/npy.h: NumPy's array files, as far as targets need them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::data {

// More of a member's beginning than a header of ours can be.
inline constexpr int64_t kNpyHeaderBytesMax = int64_t{1} << 12;

// A little-endian fp32 or fp64 array [rows, columns] in C order.
struct NpyShape {
  int64_t rows = 0, columns = 0;
  int64_t value_bytes = 4;   // 4 or 8
  int64_t header_bytes = 0;  // values follow
  int64_t values_bytes() const { return rows * columns * value_bytes; }
};

// From the first bytes of a file of `file_bytes`, at least kNpyHeaderBytesMax of them or all.
// Versions 1 to 3 of the format. Errors: InvalidArgument, a phrase, for whatever is no such array
// or is not as long as its shape says.
absl::StatusOr<NpyShape> ReadNpyHeader(absl::string_view bytes, int64_t file_bytes);

// Values as fp32, [rows * columns]; `bytes` are the values alone. False: some value is not finite.
bool ReadNpyValues(absl::string_view bytes, int64_t value_bytes, std::vector<float>& to);

}  // namespace phalanx::data

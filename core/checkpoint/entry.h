// core/checkpoint/entry.h: what a part file of a checkpoint holds, and its header.
//
// A part file is a safetensors file (docs/checkpoints.md). Each of its tensors is an *entry*: one
// kind of state of a rectangle of a logical tensor (core/plan/parameters.h). Entries lie one behind
// the other, in the order of the header, which has their digests; so the digest of the header
// stands for the whole file.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace phalanx::checkpoint {

inline constexpr absl::string_view kFormat = "phalanx-1";

// Of an entry; rectangles are cut so that none has more, and so a reader needs no more memory.
inline constexpr int64_t kEntryElementsMax = int64_t{4} << 20;
// The data of a part file begins at a multiple of it.
inline constexpr int64_t kDataAlignment = 64;
inline constexpr int64_t kHeaderBytesMax = int64_t{64} << 20;

struct Rectangle {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  int64_t row_end() const { return row + rows; }
  int64_t col_end() const { return col + cols; }
  int64_t elements() const { return rows * cols; }
  bool empty() const { return rows <= 0 || cols <= 0; }
  friend bool operator==(const Rectangle&, const Rectangle&) = default;
};
Rectangle Intersection(const Rectangle& a, const Rectangle& b);

// Of what trains, master and moments; of what does not, weights in the compute type.
enum class Kind : uint8_t { kMaster, kFirstMoment, kSecondMoment, kWeight };
inline constexpr size_t kKinds = 4;
absl::string_view ToString(Kind kind);  // "master", "m", "v", "weight"

enum class DType : uint8_t { kBf16, kF32, kF64 };
int64_t BytesOf(DType dtype);
absl::string_view ToString(DType dtype);  // "BF16", "F32", "F64"

struct Entry {
  std::string module, tensor;  // tensor: its name in the module
  Kind kind = Kind::kWeight;
  Rectangle where;          // in the logical tensor
  bool transposed = false;  // it lies column by column
  DType dtype = DType::kF32;
  int64_t offset = 0;   // bytes, from the begin of the file's data
  uint64_t digest = 0;  // Digest64 of its bytes

  // As it lies: so many lines of so many elements.
  int64_t lines() const { return transposed ? where.cols : where.rows; }
  int64_t line() const { return transposed ? where.rows : where.cols; }
  int64_t bytes() const { return where.elements() * BytesOf(dtype); }
  friend bool operator==(const Entry&, const Entry&) = default;
};
// "language/model.norm.weight@0,0#master": module, tensor, first row and column, kind; before the
// kind ^T where it is transposed.
std::string NameOf(const Entry& entry);
// nullopt for what NameOf does not write. The size of the rectangle stays 0.
std::optional<Entry> ParseName(absl::string_view name);

// Gives the entries their offsets, one behind the other in their order; returns the bytes of all.
// Entries of wider types should come first: then each begins at a multiple of its element's size.
int64_t PlaceEntries(absl::Span<Entry> entries);

// Whose part file it is.
struct PartInfo {
  std::string store;  // of the coordinator that gave the job its number
  int64_t job = 0, epoch = 0, step = 0;
  int32_t rank = 0;
  friend bool operator==(const PartInfo&, const PartInfo&) = default;
};

struct PartHeader {
  PartInfo info;
  std::vector<Entry> entries;  // by offset
};

// The first bytes of the file, up to its data. How many they are does not depend on digests, so
// data can be written before its digests are known. Entries have their places (PlaceEntries). One
// of more than kHeaderBytesMax, some 400,000 entries, is not read again.
std::string WriteHeader(const PartHeader& header);

// Bytes of the header that begins so; 8 bytes are enough. Errors: InvalidArgument.
absl::StatusOr<int64_t> HeaderBytes(absl::string_view first_bytes);
// What WriteHeader wrote; what it does not write is refused by name. Errors: InvalidArgument.
absl::StatusOr<PartHeader> ReadHeader(absl::string_view bytes);

}  // namespace phalanx::checkpoint

// Headers of part files: safetensors' own, in the one form that entries have.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/fields.h"
#include "core/job/json.h"
#include "core/job/report.h"
#include "core/job/scalar.h"

namespace phalanx::checkpoint {
namespace {

using job::Tree;

constexpr int64_t kLengthBytes = 8;  // the number before the text
constexpr size_t kEntryDigestDigits = 16;
constexpr absl::string_view kAbout = "__metadata__";
// An entry has eight values or fewer.
constexpr size_t kHeaderNodesMax = 8'000'000;

absl::Status Lie(const std::string& entry, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("entry ", entry, ": ", rule));
}

// An integer that safetensors has as a string.
int64_t IntegerOf(Fields& fields, absl::string_view name, int64_t low, int64_t high) {
  const std::optional<int64_t> number = job::ParseInteger(fields.Text(name));
  if (number.has_value() && *number >= low && *number <= high) return *number;
  fields.Fail(name, absl::StrCat("must be an integer from ", low, " to ", high, ", in quotes"));
  return 0;
}

// The digests, one behind the other.
absl::StatusOr<std::string> ReadAbout(const Tree& tree, PartInfo* info) {
  constexpr int64_t kMax = int64_t{1} << 62;
  absl::Status first;
  Fields fields(tree, std::string(kAbout), &first);
  if (fields.Text("format") != kFormat) {
    fields.Fail("format", absl::StrCat("this release reads ", kFormat));
  }
  info->store = fields.Text("store");
  info->job = IntegerOf(fields, "job", 1, kMax);
  info->epoch = IntegerOf(fields, "epoch", 1, kMax);
  info->step = IntegerOf(fields, "step", 1, kMax);
  info->rank = static_cast<int32_t>(IntegerOf(fields, "rank", 0, int64_t{1} << 30));
  std::string digests = fields.Text("digests");
  fields.Finish();
  if (!first.ok()) return first;
  return digests;
}

// Two integers of at most 2^62; false for anything else.
bool ReadPair(const Tree& list, std::array<int64_t, 2>* pair) {
  if (list.items.size() != 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    const std::optional<int64_t> number = job::ParseInteger(list.items[i].scalar);
    if (!number.has_value() || list.items[i].quoted || *number < 0 || *number > int64_t{1} << 62) {
      return false;
    }
    (*pair)[i] = *number;
  }
  return true;
}

// `offset`: where it has to begin.
absl::StatusOr<Entry> ReadEntry(const std::string& name, const Tree& tree, int64_t offset) {
  std::optional<Entry> entry = ParseName(name);
  const std::string shown = job::JsonString(absl::string_view(name).substr(0, 200));
  if (!entry.has_value()) return Lie(shown, "must be named MODULE/TENSOR@ROW,COL#KIND");
  absl::Status first;
  Fields fields(tree, absl::StrCat("entry ", shown), &first);
  const std::string dtype = fields.Text("dtype");
  std::array<int64_t, 2> shape{}, range{};
  constexpr absl::string_view kPair = "must be two integers from 0 on";
  if (!ReadPair(fields.List("shape"), &shape)) fields.Fail("shape", kPair);
  if (!ReadPair(fields.List("data_offsets"), &range)) fields.Fail("data_offsets", kPair);
  fields.Finish();
  constexpr std::array<DType, 3> kTypes = {DType::kBf16, DType::kF32, DType::kF64};
  const auto type = std::find_if(kTypes.begin(), kTypes.end(),
                                 [&](DType candidate) { return ToString(candidate) == dtype; });
  if (type == kTypes.end()) fields.Fail("dtype", "must be BF16, F32 or F64");
  if (shape[0] < 1 || shape[1] < 1 || shape[0] > kEntryElementsMax / shape[1]) {
    fields.Fail("shape", absl::StrCat("must hold from 1 to ", kEntryElementsMax, " elements"));
  }
  RETURN_IF_ERROR(first);
  entry->dtype = *type;
  entry->where.rows = shape[entry->transposed ? 1 : 0];
  entry->where.cols = shape[entry->transposed ? 0 : 1];
  entry->offset = range[0];
  if (range[0] != offset || range[1] - range[0] != entry->bytes()) {
    fields.Fail("data_offsets", absl::StrCat("must be ", offset, " and ", offset + entry->bytes(),
                                             ", as its shape and those before say"));
    return first;
  }
  return *std::move(entry);
}

absl::Status ReadDigests(absl::string_view digests, std::vector<Entry>* entries) {
  if (digests.size() != entries->size() * kEntryDigestDigits) {
    return absl::InvalidArgumentError(absl::StrCat(kAbout, ".digests: has ", digests.size(),
                                                   " characters; must have ", kEntryDigestDigits,
                                                   " for each of ", entries->size(), " entries"));
  }
  for (size_t i = 0; i < entries->size(); ++i) {
    const absl::string_view text = digests.substr(i * kEntryDigestDigits, kEntryDigestDigits);
    uint64_t& digest = (*entries)[i].digest;
    if (!absl::SimpleHexAtoi(text, &digest) ||
        absl::StrCat(absl::Hex(digest, absl::kZeroPad16)) != text) {
      return absl::InvalidArgumentError(absl::StrCat(kAbout, ".digests: of entry ", i, ": ",
                                                     job::JsonString(text), ": must be ",
                                                     kEntryDigestDigits, " hexadecimal digits"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string WriteHeader(const PartHeader& header) {
  const PartInfo& info = header.info;
  std::string text = absl::StrCat("{\"", kAbout, "\":{\"format\":\"", kFormat,
                                  "\",\"store\":", job::JsonString(info.store), ",\"job\":\"",
                                  info.job, "\",\"epoch\":\"", info.epoch, "\",\"step\":\"",
                                  info.step, "\",\"rank\":\"", info.rank, "\",\"digests\":\"");
  for (const Entry& entry : header.entries) {
    absl::StrAppend(&text, absl::Hex(entry.digest, absl::kZeroPad16));
  }
  absl::StrAppend(&text, "\"}");
  for (const Entry& entry : header.entries) {
    absl::StrAppend(&text, ",", job::JsonString(NameOf(entry)), ":{\"dtype\":\"",
                    ToString(entry.dtype), "\",\"shape\":[", entry.lines(), ",", entry.line(),
                    "],\"data_offsets\":[", entry.offset, ",", entry.offset + entry.bytes(), "]}");
  }
  text += "}";
  const auto alignment = static_cast<size_t>(kDataAlignment), prefix = size_t{kLengthBytes};
  text.resize((text.size() + prefix + alignment - 1) / alignment * alignment - prefix, ' ');
  std::string bytes;
  for (size_t i = 0; i < prefix; ++i) {
    bytes += static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  }
  return bytes + text;
}

absl::StatusOr<int64_t> HeaderBytes(absl::string_view first_bytes) {
  if (first_bytes.size() < size_t{kLengthBytes}) {
    return absl::InvalidArgumentError("ends within its header");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < size_t{kLengthBytes}; ++i) {
    length |= uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (length > static_cast<uint64_t>(kHeaderBytesMax) ||
      (length + kLengthBytes) % kDataAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("is no part file: its header would have ", length,
                     " bytes; must have at most ", kHeaderBytesMax, ", and be a multiple of ",
                     kDataAlignment, " with the ", kLengthBytes, " before it"));
  }
  return static_cast<int64_t>(length) + kLengthBytes;
}

absl::StatusOr<PartHeader> ReadHeader(absl::string_view bytes) {
  ASSIGN_OR_RETURN(const int64_t length, HeaderBytes(bytes));
  if (static_cast<int64_t>(bytes.size()) < length) {
    return absl::InvalidArgumentError("ends within its header");
  }
  const absl::string_view text =
      bytes.substr(size_t{kLengthBytes}, static_cast<size_t>(length - kLengthBytes));
  absl::StatusOr<Tree> tree = job::ParseJson(text, kHeaderNodesMax);
  if (!tree.ok()) return Annotate(tree.status(), "its header");
  if (text.front() != '{' || tree->entries.empty() || tree->entries[0].key != kAbout) {
    return absl::InvalidArgumentError(
        absl::StrCat("its header: ", job::ShowValue(*tree), ": must begin with ", kAbout));
  }
  PartHeader header;
  ASSIGN_OR_RETURN(const std::string digests, ReadAbout(tree->entries[0].value, &header.info));
  std::set<absl::string_view> names;
  int64_t offset = 0;
  for (size_t i = 1; i < tree->entries.size(); ++i) {
    const auto& [name, value] = tree->entries[i];
    ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, value, offset));
    if (!names.insert(name).second) return Lie(job::JsonString(name), "stands twice");
    offset += entry.bytes();
    header.entries.push_back(std::move(entry));
  }
  if (header.entries.empty()) return absl::InvalidArgumentError("has no entries");
  RETURN_IF_ERROR(ReadDigests(digests, &header.entries));
  return header;
}

}  // namespace phalanx::checkpoint

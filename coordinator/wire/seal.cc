#include "coordinator/wire/seal.h"

#include <zlib.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kHeaderBytes = 8;

void AppendLittleEndian(uint32_t value, std::string& out) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

uint32_t LittleEndianAt(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  }
  return value;
}

uint32_t Checksum(absl::string_view payload, uint64_t number, uint32_t schema) {
  std::array<uint8_t, 12> head;
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<uint8_t>(number >> (8 * i));
  for (size_t i = 0; i < 4; ++i) head[8 + i] = static_cast<uint8_t>(schema >> (8 * i));
  const uLong start = crc32_z(0, head.data(), head.size());
  return static_cast<uint32_t>(
      crc32_z(start, reinterpret_cast<const Bytef*>(payload.data()), payload.size()));
}

}  // namespace

std::string Seal(absl::string_view payload, uint64_t number, uint32_t schema) {
  std::string sealed;
  sealed.reserve(kHeaderBytes + payload.size());
  AppendLittleEndian(schema, sealed);
  AppendLittleEndian(Checksum(payload, number, schema), sealed);
  sealed.append(payload.data(), payload.size());
  return sealed;
}

absl::StatusOr<absl::string_view> Unseal(absl::string_view sealed, uint64_t number) {
  if (sealed.size() < kHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("has ", sealed.size(), " bytes, fewer than its head alone: it is damaged"));
  }
  const uint32_t schema = LittleEndianAt(sealed, 0);
  const uint32_t stored = LittleEndianAt(sealed, 4);
  const absl::string_view payload = sealed.substr(kHeaderBytes);
  const uint32_t computed = Checksum(payload, number, schema);
  if (stored != computed) {
    return absl::DataLossError(absl::StrFormat(
        "has the checksum %08x, but its bytes give %08x: it is damaged", stored, computed));
  }
  if (schema > kStoreSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat("has schema version ", schema, "; this coordinator knows ", kStoreSchema,
                     ": a newer coordinator wrote it, start that one"));
  }
  return payload;
}

}  // namespace phalanx::coordinator

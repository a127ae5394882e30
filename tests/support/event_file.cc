#include "tests/support/event_file.h"

#include <cstring>
#include <filesystem>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace phalanx::support {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // protobuf's wire types

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    value = (value << 8) | static_cast<unsigned char>(bytes[i - 1]);
  return value;
}

// One field after another of a message. Any of its parts may lie beyond the end: ok() is false
// then.
class Fields {
 public:
  explicit Fields(absl::string_view bytes) : left_(bytes) {}
  bool Next() {
    if (left_.empty() || !ok_) return false;
    const uint64_t key = Varint();
    number_ = static_cast<int>(key >> 3);
    type_ = static_cast<int>(key & 7);
    if (type_ == kVarint) {
      varint_ = Varint();
    } else if (type_ == kFixed64 || type_ == kFixed32) {
      bytes_ = Cut(type_ == kFixed64 ? 8 : 4);
    } else if (type_ == kBytes) {
      bytes_ = Cut(Varint());
    } else {
      ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }
  bool Is(int number, int type) const { return number_ == number && type_ == type; }
  uint64_t varint() const { return varint_; }
  absl::string_view bytes() const { return bytes_; }
  template <typename Float>
  Float real() const {
    Float value;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    return value;
  }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const absl::string_view byte = Cut(1);
      if (!ok_) return 0;
      value |= static_cast<uint64_t>(byte[0] & 0x7F) << shift;
      if ((byte[0] & 0x80) == 0) return value;
    }
    ok_ = false;
    return 0;
  }
  absl::string_view Cut(uint64_t size) {
    if (size > left_.size()) ok_ = false;
    if (!ok_) return "";
    const absl::string_view cut = left_.substr(0, size);
    left_.remove_prefix(size);
    return cut;
  }

  absl::string_view left_, bytes_;
  int number_ = 0, type_ = 0;
  uint64_t varint_ = 0;
  bool ok_ = true;
};

// Summary.Value: tag = 1, simple_value = 2.
bool ReadValue(absl::string_view bytes, std::map<std::string, float>& values) {
  Fields fields(bytes);
  std::string tag;
  std::optional<float> value;
  while (fields.Next()) {
    if (fields.Is(1, kBytes)) tag = std::string(fields.bytes());
    if (fields.Is(2, kFixed32)) value = fields.real<float>();
  }
  return fields.ok() && value.has_value() && !tag.empty() && values.emplace(tag, *value).second;
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, whose values are 1, and
// session_log = 7, whose status is 1: START is 1.
std::optional<TensorBoardEvent> ReadEvent(absl::string_view bytes) {
  TensorBoardEvent event;
  Fields fields(bytes);
  while (fields.Next()) {
    if (fields.Is(1, kFixed64)) event.wall_time = fields.real<double>();
    if (fields.Is(2, kVarint)) event.step = static_cast<int64_t>(fields.varint());
    if (fields.Is(3, kBytes)) event.file_version = std::string(fields.bytes());
    if (fields.Is(7, kBytes)) {
      Fields session(fields.bytes());
      while (session.Next()) event.starts |= session.Is(1, kVarint) && session.varint() == 1;
      if (!session.ok()) return std::nullopt;
    }
    if (!fields.Is(5, kBytes)) continue;
    Fields summary(fields.bytes());
    while (summary.Next()) {
      if (summary.Is(1, kBytes) && !ReadValue(summary.bytes(), event.values)) return std::nullopt;
    }
    if (!summary.ok()) return std::nullopt;
  }
  if (!fields.ok()) return std::nullopt;
  return event;
}

bool ChecksumFits(absl::string_view bytes, absl::string_view stored) {
  const uint32_t crc = Crc32c(bytes);
  return LittleEndian(stored) == static_cast<uint32_t>(((crc >> 15) | (crc << 17)) + 0xA282EAD8u);
}

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
  }
  return ~crc;
}

absl::StatusOr<std::vector<TensorBoardEvent>> ReadEvents(absl::string_view file) {
  std::vector<TensorBoardEvent> events;
  for (size_t at = 0; at < file.size();) {
    const auto broken = [at](absl::string_view what) {
      return absl::DataLossError(absl::StrCat("the record at byte ", at, ": ", what));
    };
    const absl::string_view record = file.substr(at);
    if (record.size() < 12) return broken("is cut off");
    if (!ChecksumFits(record.substr(0, 8), record.substr(8, 4)))
      return broken("the checksum of its length does not fit");
    const uint64_t size = LittleEndian(record.substr(0, 8));
    if (size > record.size() - 12 || record.size() - 12 - size < 4) return broken("is cut off");
    const absl::string_view bytes = record.substr(12, size);
    if (!ChecksumFits(bytes, record.substr(12 + size, 4)))
      return broken("the checksum of its bytes does not fit");
    std::optional<TensorBoardEvent> event = ReadEvent(bytes);
    if (!event.has_value()) return broken("is no event");
    events.push_back(*std::move(event));
    at += 12 + size + 4;
  }
  return events;
}

std::string EventFileOf(const std::string& folder) {
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!absl::StartsWith(entry.path().filename().string(), "events.out.tfevents.")) continue;
    if (!found.empty()) return "";
    found = entry.path().string();
  }
  return found;
}

}  // namespace phalanx::support

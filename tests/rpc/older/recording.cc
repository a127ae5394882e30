#include "tests/rpc/older/recording.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace phalanx::older {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kHeadBytes = 2 + kLengthBytes;

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  std::string text = {static_cast<char>(frame.session), static_cast<char>(frame.kind)};
  for (size_t i = 0; i < kLengthBytes; ++i)
    text.push_back(static_cast<char>(frame.bytes.size() >> (8 * i) & 0xff));
  return absl::StrCat(text, frame.bytes);
}

std::vector<Frame> DecodeFrames(absl::string_view bytes) {
  std::vector<Frame> frames;
  while (!bytes.empty()) {
    support::Require(bytes.size() >= kHeadBytes, "the recording ends within the head of a frame");
    size_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i)
      length |= static_cast<size_t>(static_cast<uint8_t>(bytes[2 + i])) << (8 * i);
    support::Require(bytes.size() >= kHeadBytes + length, "the recording ends within a frame");
    frames.push_back({.session = static_cast<uint8_t>(bytes[0]),
                      .kind = static_cast<Kind>(bytes[1]),
                      .bytes = std::string(bytes.substr(kHeadBytes, length))});
    bytes.remove_prefix(kHeadBytes + length);
  }
  return frames;
}

support::ShardOptions DataOptions() {
  return {.samples = 30, .images_min = 0, .images_max = 0, .words = 4};
}

std::string PathOf(const std::string& name) {
  return absl::StrCat(tests::SourceDir(), "/tests/rpc/older/", name);
}

std::vector<Frame> RecordedFrames() {
  return DecodeFrames(support::ReadFile(PathOf("sessions.bin")));
}

}  // namespace phalanx::older

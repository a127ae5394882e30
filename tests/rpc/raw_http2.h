// tests/rpc/raw_http2.h: HTTP/2 byte by byte, for those who stop in the midst of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace phalanx::coordinator {

inline constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string Frame(uint8_t type, uint8_t flags, uint8_t stream, absl::string_view payload) {
  const auto byte = [](size_t value) { return std::string(1, static_cast<char>(value & 0xFF)); };
  return absl::StrCat(byte(payload.size() >> 16), byte(payload.size() >> 8), byte(payload.size()),
                      byte(type), byte(flags), std::string(3, '\0'), byte(stream), payload);
}
inline std::string Settings() { return Frame(4, 0, 0, ""); }
// The beginning of a call of gRPC, on stream 1: its headers, each written out.
inline std::string Headers(absl::string_view path) {
  std::string block;
  for (const auto& [name, value] : std::vector<std::pair<absl::string_view, absl::string_view>>{
           {":method", "POST"},
           {":scheme", "http"},
           {":path", path},
           {":authority", "x"},
           {"te", "trailers"},
           {"content-type", "application/grpc"}}) {
    absl::StrAppend(&block, std::string(1, '\0'), std::string(1, static_cast<char>(name.size())),
                    name, std::string(1, static_cast<char>(value.size())), value);
  }
  return Frame(1, 4, 1, block);
}
// A part of a message of `bytes` bytes, on stream 1.
inline std::string PartOfMessage(uint32_t bytes, absl::string_view part) {
  std::string message(1, '\0');
  for (int shift = 24; shift >= 0; shift -= 8)
    message.push_back(static_cast<char>((bytes >> shift) & 0xFF));
  return Frame(0, 0, 1, absl::StrCat(message, part));
}

// Whether a frame of that type, with those flags at least, is whole among what a server sent.
inline bool HasFrame(absl::string_view sent, uint8_t type, uint8_t flags = 0) {
  constexpr size_t kHead = 9;
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(sent[at]); };
  while (sent.size() >= kHead) {
    const size_t bytes = kHead + (size_t{byte(0)} << 16 | size_t{byte(1)} << 8 | size_t{byte(2)});
    if (sent.size() < bytes) return false;
    if (byte(3) == type && (byte(4) & flags) == flags) return true;
    sent.remove_prefix(bytes);
  }
  return false;
}
// The first status in what a server sent, as "14", if it is written out; empty: there is none.
inline std::string StatusIn(absl::string_view sent) {
  constexpr absl::string_view kName = "grpc-status";
  const size_t at = sent.find(kName);
  if (at == absl::string_view::npos) return "";
  sent.remove_prefix(at + kName.size());
  if (sent.empty() || sent.size() <= static_cast<uint8_t>(sent[0])) return "";
  return std::string(sent.substr(1, static_cast<uint8_t>(sent[0])));
}

// What stops in the midst of something, each at another place, with its name.
inline std::vector<std::pair<std::string, std::string>> Drips() {
  const std::string opened = absl::StrCat(kPreface, Settings());
  const std::string called = absl::StrCat(opened, Headers("/phalanx.v1.JobService/SubmitJob"));
  return {{"nothing", ""},
          {"half a preface", std::string(kPreface.substr(0, 10))},
          {"half of the settings' head", absl::StrCat(kPreface, Settings().substr(0, 5))},
          {"half of a frame's head", called.substr(0, opened.size() + 5)},
          {"half of a call's headers", called.substr(0, opened.size() + 30)},
          {"a call without a message", called},
          {"half a message", absl::StrCat(called, PartOfMessage(1000, "abc"))},
          {"half a frame of a message",
           absl::StrCat(called, PartOfMessage(1000, std::string(1000, 'a')).substr(0, 100))},
          {"a message of 4 GiB", absl::StrCat(called, PartOfMessage(0xFFFFFFFF, "abc"))}};
}

}  // namespace phalanx::coordinator

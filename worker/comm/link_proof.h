// worker/comm/link_proof.h: what ends of a connection say to prove that they know a secret.
//
// Functions of their arguments and of the system's randomness; safe to call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::comm {

// Of a secret, of what each end draws, and of a proof.
inline constexpr size_t kLinkWordBytes = 32;
std::string DrawLinkWord();

// "PHXLINK1", the two ranks as 32 bits each, lowest byte first, and a drawn word.
struct LinkHello {
  int32_t caller = 0;
  int32_t listener = 0;
  std::string drawn;
};
inline constexpr size_t kLinkHelloBytes = 8 + 4 + 4 + kLinkWordBytes;
std::string ToText(const LinkHello& hello);
// Of kLinkHelloBytes; nothing where they are no hello.
std::optional<LinkHello> ParseLinkHello(absl::string_view text);

// Of which end, over the hello and what the listener has drawn.
enum class LinkEnd : uint8_t { kListener, kCaller };
std::string LinkProof(absl::string_view secret, LinkEnd end, absl::string_view hello,
                      absl::string_view drawn);
// Takes as long wherever they differ.
bool IsSameProof(absl::string_view a, absl::string_view b);

}  // namespace phalanx::comm

// transport/secret.h: random words that nobody guesses, and what may be kept of them.
//
// Functions of their arguments and of the system's randomness; safe to call from any thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::transport {

// `bytes` random ones, from OpenSSL's generator, which ends the process where it has no entropy.
std::string RandomBytes(size_t bytes);
// 32 bytes.
std::string Sha256(absl::string_view text);
// Takes as long wherever two texts of one length differ.
bool IsSameSecret(absl::string_view a, absl::string_view b);

}  // namespace phalanx::transport

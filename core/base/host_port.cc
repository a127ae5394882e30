#include "core/base/host_port.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace phalanx {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, int port_min) {
  constexpr int kPortMax = 65535;
  const size_t colon = text.rfind(':');
  HostPort address;
  if (colon != absl::string_view::npos && colon != 0) {
    const absl::string_view digits = text.substr(colon + 1);
    const bool number = std::all_of(digits.begin(), digits.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    if (number && absl::SimpleAtoi(digits, &address.port) && address.port >= port_min &&
        address.port <= kPortMax) {
      address.host = std::string(text.substr(0, colon));
      return address;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::Utf8SafeCHexEscape(text),
                                                 "\": must be HOST:PORT with a port from ",
                                                 port_min, " to ", kPortMax));
}

}  // namespace phalanx

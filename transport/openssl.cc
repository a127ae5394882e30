#include "transport/openssl.h"

#include <ctime>

namespace phalanx::transport {

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace phalanx::transport

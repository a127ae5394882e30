#include "coordinator/etcd/place.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/status.h"

namespace phalanx::coordinator {
namespace {

constexpr absl::string_view kScheme = "etcd://";
constexpr size_t kPrefixBytesMax = 253;

bool IsPrefix(absl::string_view prefix) {
  if (prefix.empty() || prefix.size() > kPrefixBytesMax) return false;
  for (const absl::string_view part : absl::StrSplit(prefix, '/')) {
    const bool sound = !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("._-", c);
    });
    if (!sound) return false;
  }
  return true;
}

}  // namespace

bool IsEtcdPlace(absl::string_view store) { return absl::StartsWith(store, kScheme); }

absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view store) {
  const absl::string_view rest = absl::StripPrefix(store, kScheme);
  const size_t slash = rest.find('/');
  const absl::string_view prefix =
      slash == absl::string_view::npos ? "" : absl::StripSuffix(rest.substr(slash + 1), "/");
  if (!IsPrefix(prefix)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", store, "\": must be etcd://HOST:PORT[,HOST:PORT...]/PREFIX, PREFIX of ",
                     "at most ", kPrefixBytesMax, " letters, digits and . _ - between slashes"));
  }
  EtcdPlace place{.prefix = absl::StrCat("/", prefix, "/")};
  ASSIGN_OR_RETURN(place.members, ParseHostPorts(rest.substr(0, slash), 1));
  return place;
}

}  // namespace phalanx::coordinator

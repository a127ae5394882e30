// coordinator/etcd/place.h: where a store on etcd lies, as people write it:
// etcd://HOST:PORT/PREFIX, with several members of one cluster between commas. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::coordinator {

struct EtcdPlace {
  std::vector<std::string> members;  // HOST:PORT each
  std::string prefix;                // "/PREFIX/": every key of ours begins with it
};

// Whether it is meant for ParseEtcdPlace, not for a folder.
bool IsEtcdPlace(absl::string_view store);

// PREFIX is 1 to 253 bytes of letters, digits and "._-" in parts between slashes. Errors:
// InvalidArgument, with the text and the rule.
absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view store);

}  // namespace phalanx::coordinator

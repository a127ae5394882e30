#include "core/base/node_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace phalanx {

bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= kNodeNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

}  // namespace phalanx

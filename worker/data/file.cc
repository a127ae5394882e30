#include "worker/data/file.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/data/normalizer.h"

namespace phalanx::data {

std::string GoneSinceIndexed(const std::string& path, const absl::Status& error) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    return absl::StrCat(path, " is gone since it was indexed");
  }
  return absl::StrCat(path, " ", error.message());
}

std::string Printable(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = ValidCharacterBytes(text);
    const unsigned char first = static_cast<unsigned char>(text[0]);
    if (bytes == 0 || first < 0x20 || first == 0x7F) {
      absl::StrAppend(&result, "\\x", absl::Hex(first, absl::kZeroPad2));
      text.remove_prefix(1);
    } else {
      absl::StrAppend(&result, text.substr(0, bytes));
      text.remove_prefix(bytes);
    }
  }
  return result;
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace phalanx::data

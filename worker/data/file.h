// worker/data/file.h: files of a data set, and how messages name them and what they say.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/posix/file.h"

namespace phalanx::data {

// Of a file that was indexed and cannot be opened now, for `error`: one sentence, with the path.
std::string GoneSinceIndexed(const std::string& path, const absl::Status& error);
// The part after the last slash.
std::string BaseName(const std::string& path);
// `text` as a message may hold it: control characters and what is no UTF-8 are written \xHH.
std::string Printable(absl::string_view text);

}  // namespace phalanx::data

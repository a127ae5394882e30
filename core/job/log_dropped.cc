#include "core/job/log_dropped.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace phalanx::job {

std::string LogDroppedText(int64_t bytes, int32_t rank, int64_t rate) {
  return absl::StrCat(bytes, " bytes of the log of rank ", rank,
                      " were dropped: it writes more than ", rate,
                      " a second (phalanx-worker --log-rate)");
}

std::string LogNotWrittenText(int64_t bytes, int32_t rank, int error) {
  const std::string why =
      error == 0 ? "the file cannot be made; the log of phalanx-worker there says why"
                 : absl::StrCat(std::generic_category().message(error),
                                error == ENOSPC || error == EDQUOT ? "; make room there" : "");
  return absl::StrCat(bytes, " bytes of the log of rank ", rank,
                      " were dropped: its node cannot write them below --state: ", why);
}

int64_t BytesDropped(absl::string_view text) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(text.substr(0, text.find(' ')), &bytes) && bytes > 0 ? bytes : 0;
}

}  // namespace phalanx::job

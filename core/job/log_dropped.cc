#include "core/job/log_dropped.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace phalanx::job {

std::string LogDroppedText(int64_t bytes, int32_t rank, int64_t rate) {
  return absl::StrCat(bytes, " bytes of the log of rank ", rank,
                      " were dropped: it writes more than ", rate,
                      " a second (phalanx-worker --log-rate)");
}

std::string LogNotWrittenText(int64_t bytes, int32_t rank, absl::string_view why) {
  return absl::StrCat(bytes, " bytes of the log of rank ", rank,
                      " were dropped: its node cannot write them below --state: ", why,
                      "; make room there");
}

int64_t BytesDropped(absl::string_view text) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(text.substr(0, text.find(' ')), &bytes) && bytes > 0 ? bytes : 0;
}

}  // namespace phalanx::job

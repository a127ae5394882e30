// coordinator/wire/record_codec.h: journal records as bytes and back.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/machine/records.h"

namespace phalanx::coordinator {

// The same record gives the same bytes.
std::string EncodeRecord(const Record& record);

// Errors: DataLoss if the bytes are no record that this version knows.
absl::StatusOr<Record> DecodeRecord(absl::string_view bytes);

}  // namespace phalanx::coordinator

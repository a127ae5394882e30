// tests/support/event_file.h: TensorBoard's event files, read as TensorBoard's own reader does.
//
// Written from the published format (TFRecord, CRC-32C, tensorflow/core/util/event.proto), and with
// nothing of what writes them here: neither the framing nor the generated messages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::support {

uint32_t Crc32c(absl::string_view bytes);

struct TensorBoardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool starts = false;                  // what earlier files have from this step on is done again
  std::map<std::string, float> values;  // by tag
};

// Errors: DataLoss, saying at which byte: a record that is cut off, a checksum that does not fit,
// or bytes that are no event.
absl::StatusOr<std::vector<TensorBoardEvent>> ReadEvents(absl::string_view file);

// The only event file of a folder; "" where there is none or more than one.
std::string EventFileOf(const std::string& folder);

}  // namespace phalanx::support

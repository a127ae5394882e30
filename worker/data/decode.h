// worker/data/decode.h: the decoders behind DecodeImage (image.h), which chooses between them.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/image.h"

namespace phalanx::data {

absl::StatusOr<Image> DecodePng(absl::string_view bytes);
absl::StatusOr<Image> DecodeJpeg(absl::string_view bytes, int32_t size);

}  // namespace phalanx::data

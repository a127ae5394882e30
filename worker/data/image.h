// worker/data/image.h: PNG and JPEG files to normalised pixels.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/job/family.h"

namespace phalanx::data {

// 8-bit RGB, rows from the top. [height, width, 3]
struct Image {
  int32_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

// Decodes what the first bytes say it is: PNG of any colour type, depth and interlacing
// (transparency over white), baseline or progressive JPEG (grey, YCbCr, RGB, CMYK, YCCK). `size` is
// the side that the caller will resize to: a JPEG far larger is decoded at half, quarter or eighth
// scale, never below twice `size`; 0: full scale. Colour profiles, gamma and orientation marks are
// not applied. Memory is bounded by kImagePixelsMax and is not taken for more pixels than `bytes`
// can hold (PNG). Errors: InvalidArgument, a phrase, for whatever does not decode completely.
absl::StatusOr<Image> DecodeImage(absl::string_view bytes, int32_t size);

// Squashes to a square of `size`: where a side shrinks, output pixels average what they cover;
// where it grows, they interpolate linearly between pixel centres. Then (value / 255 - mean) /
// deviation of each colour. [3, size, size] into `to`, which is resized. The same bits on every
// machine.
void ResizeAndNormalize(const Image& image, int32_t size, const job::PixelScale& scale,
                        std::vector<float>& to);

}  // namespace phalanx::data

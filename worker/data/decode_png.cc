#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/data/data_set.h"
#include "worker/data/decode.h"

namespace phalanx::data {
namespace {

// Deflate cannot pack more than 1032 bytes into one.
constexpr uint64_t kInflationMax = 1040;
constexpr uint32_t kSideMax = 1u << 20;

struct Reading {
  absl::string_view rest;
  char message[128] = {};
};

// libpng reports errors by jumping, so nothing with a destructor may live between the jump and
// DecodePng.
[[noreturn]] void OnError(png_structp png, png_const_charp message) {
  Reading* reading = static_cast<Reading*>(png_get_error_ptr(png));
  std::strncpy(reading->message, message, sizeof(reading->message) - 1);
  png_longjmp(png, 1);
}

void OnWarning(png_structp, png_const_charp) {}

void OnRead(png_structp png, png_bytep to, size_t bytes) {
  Reading* reading = static_cast<Reading*>(png_get_io_ptr(png));
  if (bytes > reading->rest.size()) png_error(png, "the file ends early");
  std::memcpy(to, reading->rest.data(), bytes);
  reading->rest.remove_prefix(bytes);
}

// Asks for 8-bit RGBA whatever the file holds.
void SetTransforms(png_structp png, png_infop info) {
  const int colour = png_get_color_type(png, info);
  png_set_scale_16(png);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY || colour == PNG_COLOR_TYPE_GRAY_ALPHA) {
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_gray_to_rgb(png);
  }
  if (png_get_valid(png, info, PNG_INFO_tRNS) != 0) png_set_tRNS_to_alpha(png);
  png_set_add_alpha(png, 0xFF, PNG_FILLER_AFTER);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
}

// `rgba` and `rows` belong to the caller, so that an error leaks nothing.
bool ReadPng(png_structp png, png_infop info, Reading& reading, Image& image,
             std::vector<uint8_t>& rgba, std::vector<png_bytep>& rows) {
  const uint64_t file_bytes = reading.rest.size();
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  png_set_read_fn(png, &reading, &OnRead);
  png_set_user_limits(png, kSideMax, kSideMax);
  png_set_chunk_malloc_max(png, 8 << 20);
  png_set_chunk_cache_max(png, 128);
  png_read_info(png, info);
  const uint64_t width = png_get_image_width(png, info);
  const uint64_t height = png_get_image_height(png, info);
  if (width * height > static_cast<uint64_t>(kImagePixelsMax))
    png_error(png, "it declares too many pixels");
  if (png_get_rowbytes(png, info) * height > kInflationMax * file_bytes) {
    png_error(png, "it declares more pixels than the file can hold");
  }
  SetTransforms(png, info);
  if (png_get_rowbytes(png, info) != width * 4) png_error(png, "unknown pixel format");
  rgba.resize(width * height * 4);
  rows.resize(height);
  for (uint64_t y = 0; y < height; ++y) rows[y] = rgba.data() + y * width * 4;
  png_read_image(png, rows.data());
  png_read_end(png, nullptr);
  image.width = static_cast<int32_t>(width);
  image.height = static_cast<int32_t>(height);
  return true;
}

}  // namespace

absl::StatusOr<Image> DecodePng(absl::string_view bytes) {
  Reading reading{bytes};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, &OnError, &OnWarning);
  if (png == nullptr) return absl::ResourceExhaustedError("no memory for a PNG decoder");
  png_infop info = png_create_info_struct(png);
  Image image;
  std::vector<uint8_t> rgba;
  std::vector<png_bytep> rows;
  const bool complete = info != nullptr && ReadPng(png, info, reading, image, rgba, rows);
  png_destroy_read_struct(&png, &info, nullptr);
  if (!complete)
    return absl::InvalidArgumentError(absl::StrCat("is a damaged PNG: ", reading.message));
  const size_t pixels = rgba.size() / 4;
  image.rgb.resize(pixels * 3);
  for (size_t i = 0; i < pixels; ++i) {
    const uint32_t alpha = rgba[i * 4 + 3];
    for (size_t c = 0; c < 3; ++c) {
      const uint32_t over = rgba[i * 4 + c] * alpha + 255 * (255 - alpha);
      image.rgb[i * 3 + c] = static_cast<uint8_t>((over + 127) / 255);
    }
  }
  return image;
}

}  // namespace phalanx::data

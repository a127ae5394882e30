// jpeglib.h needs <cstdio> before it, jerror.h needs jpeglib.h.
// clang-format off
#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "absl/strings/str_cat.h"
#include "worker/data/data_set.h"
#include "worker/data/decode.h"

namespace phalanx::data {
namespace {

// A progressive file may repeat scans to cost time without bound.
constexpr int kScansMax = 100;

struct ErrorState {
  jpeg_error_mgr manager;  // first: the library hands back a pointer to it
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = {};
};

// libjpeg reports errors by jumping, so nothing with a destructor may live between the jump and
// DecodeJpeg.
[[noreturn]] void Fail(j_common_ptr info) {
  ErrorState* state = reinterpret_cast<ErrorState*>(info->err);
  (*info->err->format_message)(info, state->message);
  std::longjmp(state->jump, 1);
}

// Warnings tell of data that was lost, but for two that do not touch pixels.
void OnMessage(j_common_ptr info, int level) {
  if (level >= 0) return;
  if (info->err->msg_code == JWRN_EXTRANEOUS_DATA || info->err->msg_code == JWRN_ADOBE_XFORM)
    return;
  Fail(info);
}

void OnProgress(j_common_ptr info) {
  if (!info->is_decompressor) return;
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kScansMax) {
    info->err->msg_code = JERR_CANT_SUSPEND;
    Fail(info);
  }
}

// The strongest reduction that leaves both sides at least twice `size`.
unsigned ScaleDenominator(const jpeg_decompress_struct& info, int32_t size) {
  if (size <= 0) return 1;
  unsigned denominator = 8;
  while (denominator > 1 && (info.image_width / denominator < 2u * static_cast<unsigned>(size) ||
                             info.image_height / denominator < 2u * static_cast<unsigned>(size))) {
    denominator /= 2;
  }
  return denominator;
}

bool ReadJpeg(jpeg_decompress_struct& info, ErrorState& state, absl::string_view bytes,
              int32_t size, Image& image, std::vector<uint8_t>& pixels) {
  jpeg_progress_mgr progress = {};
  if (setjmp(state.jump) != 0) return false;
  jpeg_create_decompress(&info);
  progress.progress_monitor = &OnProgress;
  info.progress = &progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  const int64_t declared = int64_t{info.image_width} * info.image_height;
  if (declared > kImagePixelsMax) ERREXIT1(&info, JERR_IMAGE_TOO_BIG, JPEG_MAX_DIMENSION);
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : JCS_RGB;
  info.dct_method = JDCT_ISLOW;  // the same bits with and without vector instructions
  info.scale_num = 1;
  info.scale_denom = ScaleDenominator(info, size);
  jpeg_start_decompress(&info);
  const size_t row_bytes = size_t{info.output_width} * static_cast<size_t>(info.output_components);
  pixels.resize(row_bytes * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + row_bytes * info.output_scanline;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  image.width = static_cast<int32_t>(info.output_width);
  image.height = static_cast<int32_t>(info.output_height);
  return true;
}

// Without a profile: what each ink lets through. Adobe's files hold the inks inverted.
void ConvertCmyk(const std::vector<uint8_t>& cmyk, bool inverted, std::vector<uint8_t>& rgb) {
  const size_t pixels = cmyk.size() / 4;
  rgb.resize(pixels * 3);
  for (size_t i = 0; i < pixels; ++i) {
    const auto light = [&](size_t ink) -> uint32_t {
      return inverted ? cmyk[i * 4 + ink] : 255u - cmyk[i * 4 + ink];
    };
    for (size_t c = 0; c < 3; ++c)
      rgb[i * 3 + c] = static_cast<uint8_t>((light(c) * light(3) + 127) / 255);
  }
}

}  // namespace

absl::StatusOr<Image> DecodeJpeg(absl::string_view bytes, int32_t size) {
  ErrorState state;
  jpeg_decompress_struct info = {};
  info.err = jpeg_std_error(&state.manager);
  state.manager.error_exit = &Fail;
  state.manager.emit_message = &OnMessage;
  Image image;
  std::vector<uint8_t> pixels;
  const bool complete = ReadJpeg(info, state, bytes, size, image, pixels);
  const bool four = complete && info.out_color_space == JCS_CMYK;
  const bool inverted = complete && info.saw_Adobe_marker;
  info.progress = nullptr;
  jpeg_destroy_decompress(&info);
  if (!complete)
    return absl::InvalidArgumentError(absl::StrCat("is a damaged JPEG: ", state.message));
  if (four) {
    ConvertCmyk(pixels, inverted, image.rgb);
  } else {
    image.rgb = std::move(pixels);
  }
  return image;
}

}  // namespace phalanx::data

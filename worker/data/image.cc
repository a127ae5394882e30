#include "worker/data/image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/strings/match.h"
#include "worker/data/decode.h"

namespace phalanx::data {
namespace {

// Output position i is the sum of weights[k] * input[first + k].
struct Taps {
  int32_t first = 0;
  std::vector<float> weights;
};

std::vector<Taps> TapsOf(int32_t from, int32_t to) {
  std::vector<Taps> taps(static_cast<size_t>(to));
  const double scale = static_cast<double>(from) / to;
  for (int32_t i = 0; i < to; ++i) {
    Taps& tap = taps[static_cast<size_t>(i)];
    if (from <= to) {
      const double centre = std::clamp((i + 0.5) * scale - 0.5, 0.0, from - 1.0);
      tap.first = std::min(static_cast<int32_t>(centre), std::max(from - 2, 0));
      const double part = centre - tap.first;
      tap.weights = {static_cast<float>(1.0 - part)};
      if (from > 1) tap.weights.push_back(static_cast<float>(part));
      continue;
    }
    const double begin = i * scale;
    const double end = std::min((i + 1) * scale, static_cast<double>(from));
    tap.first = static_cast<int32_t>(begin);
    for (int32_t j = tap.first; j < from && j < end; ++j) {
      const double covered = std::min(end, j + 1.0) - std::max(begin, static_cast<double>(j));
      tap.weights.push_back(static_cast<float>(covered / scale));
    }
  }
  return taps;
}

}  // namespace

absl::StatusOr<Image> DecodeImage(absl::string_view bytes, int32_t size) {
  if (absl::StartsWith(bytes, "\x89PNG")) return DecodePng(bytes);
  if (absl::StartsWith(bytes, "\xFF\xD8")) return DecodeJpeg(bytes, size);
  if (bytes.empty()) return absl::InvalidArgumentError("is empty");
  return absl::InvalidArgumentError("is neither PNG nor JPEG");
}

void ResizeAndNormalize(const Image& image, int32_t size, const job::PixelScale& scale,
                        std::vector<float>& to) {
  const size_t side = static_cast<size_t>(size);
  const size_t width = static_cast<size_t>(image.width);
  const std::vector<Taps> columns = TapsOf(image.width, size);
  const std::vector<Taps> rows = TapsOf(image.height, size);
  to.assign(3 * side * side, 0.0f);
  std::vector<float> line(3 * width);  // the output row at the input's width
  for (size_t y = 0; y < side; ++y) {
    std::fill(line.begin(), line.end(), 0.0f);
    for (size_t k = 0; k < rows[y].weights.size(); ++k) {
      const float weight = rows[y].weights[k];
      const uint8_t* from = image.rgb.data() + (static_cast<size_t>(rows[y].first) + k) * width * 3;
      for (size_t x = 0; x < 3 * width; ++x) line[x] += weight * static_cast<float>(from[x]);
    }
    for (size_t x = 0; x < side; ++x) {
      std::array<float, 3> sum = {0, 0, 0};
      const float* from = line.data() + static_cast<size_t>(columns[x].first) * 3;
      for (const float weight : columns[x].weights) {
        for (size_t c = 0; c < 3; ++c) sum[c] += weight * from[c];
        from += 3;
      }
      for (size_t c = 0; c < 3; ++c) {
        to[(c * side + y) * side + x] = (sum[c] / 255.0f - scale.mean[c]) / scale.deviation[c];
      }
    }
  }
}

}  // namespace phalanx::data

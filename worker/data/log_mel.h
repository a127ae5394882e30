// worker/data/log_mel.h: sound samples to the log-mel features that Whisper's encoder reads.
//
// As Hugging Face's WhisperFeatureExtractor computes them: samples at 16 kHz, cut or padded with
// zeros to frames * 160; windows of 400 samples (Hann, periodic) every 160, the first centred on
// sample 0, the ends reflected; power spectrum of 201 bins; mel filters of Slaney's scale and area,
// 0 to 8,000 hertz; x = log10(max(1e-10, .)); then (max(x, max over all x - 8) + 4) / 4.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace phalanx::data {

// Immutable; safe to use from any thread.
class LogMel {
 public:
  // mel_bins >= 1, frames >= 2.
  LogMel(int64_t mel_bins, int64_t frames);

  int64_t samples() const { return frames_ * 160; }
  // [mel_bins, frames] into `to`, which is resized. Sums are fp64.
  void Compute(absl::Span<const float> samples, std::vector<float>& to) const;

 private:
  // Weights of one filter for the bins [first, first + weights.size()).
  struct Filter {
    size_t first = 0;
    std::vector<double> weights;
  };

  const int64_t mel_bins_, frames_;
  std::vector<Filter> filters_;
};

}  // namespace phalanx::data

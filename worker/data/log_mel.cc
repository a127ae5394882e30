#include "worker/data/log_mel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>

#include "worker/data/fourier.h"

namespace phalanx::data {
namespace {

constexpr size_t kHop = 160;
constexpr double kHertzMax = 8000;
constexpr double kPowerMin = 1e-10;
constexpr double kLogRange = 8;

// Slaney's scale: linear up to 1,000 hertz, logarithmic above.
constexpr double kLinearHertz = 1000, kLinearMels = 15;
const double kMelsPerLog = 27 / std::log(6.4);
double MelOfHertz(double hertz) {
  if (hertz < kLinearHertz) return hertz * kLinearMels / kLinearHertz;
  return kLinearMels + std::log(hertz / kLinearHertz) * kMelsPerLog;
}
double HertzOfMel(double mel) {
  if (mel < kLinearMels) return mel * kLinearHertz / kLinearMels;
  return kLinearHertz * std::exp((mel - kLinearMels) / kMelsPerLog);
}

const std::array<double, kWindow>& HannWindow() {
  static const std::array<double, kWindow> window = [] {
    std::array<double, kWindow> values;
    for (size_t i = 0; i < kWindow; ++i) {
      values[i] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / kWindow);
    }
    return values;
  }();
  return window;
}

// `total` samples, zeros after those given, with half a window of reflections at either end.
std::vector<float> Padded(absl::Span<const float> samples, size_t total) {
  constexpr size_t kHalf = kWindow / 2;
  std::vector<float> padded(total + kWindow, 0.0f);
  std::copy_n(samples.begin(), std::min(samples.size(), total), padded.begin() + kHalf);
  for (size_t i = 1; i <= kHalf; ++i) {
    padded[kHalf - i] = padded[kHalf + i];
    padded[kHalf + total - 1 + i] = padded[kHalf + total - 1 - i];
  }
  return padded;
}

}  // namespace

LogMel::LogMel(int64_t mel_bins, int64_t frames) : mel_bins_(mel_bins), frames_(frames) {
  const double mel_max = MelOfHertz(kHertzMax);
  const auto edge = [&](int64_t i) {
    return HertzOfMel(mel_max * static_cast<double>(i) / static_cast<double>(mel_bins + 1));
  };
  for (int64_t bin = 0; bin < mel_bins; ++bin) {
    const double low = edge(bin), centre = edge(bin + 1), high = edge(bin + 2);
    Filter filter;
    for (size_t k = 0; k < kBins; ++k) {
      const double hertz = kHertzMax * static_cast<double>(k) / (kBins - 1);
      const double height =
          std::min((hertz - low) / (centre - low), (high - hertz) / (high - centre));
      if (height <= 0) continue;
      if (filter.weights.empty()) filter.first = k;
      filter.weights.push_back(height * 2 / (high - low));
    }
    filters_.push_back(std::move(filter));
  }
}

void LogMel::Compute(absl::Span<const float> samples, std::vector<float>& to) const {
  const size_t frames = static_cast<size_t>(frames_);
  const std::vector<float> padded = Padded(samples, frames * kHop);
  const size_t sounding = static_cast<size_t>(
      std::find_if(padded.rbegin(), padded.rend(), [](float x) { return x != 0; }).base() -
      padded.begin());
  const std::array<double, kWindow>& window = HannWindow();
  // Silence, until a window that is not silent says otherwise.
  const float floor = static_cast<float>(std::log10(kPowerMin));
  to.assign(static_cast<size_t>(mel_bins_) * frames, floor);
  const auto windows = std::make_unique<Windows>();
  const auto power = std::make_unique<Spectra>();
  for (size_t first = 0; first < frames && first * kHop < sounding; first += kLanes) {
    const size_t lanes = std::min(kLanes, frames - first);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float* from = padded.data() + (first + std::min(lane, lanes - 1)) * kHop;
      for (size_t i = 0; i < kWindow; ++i) (*windows)[i][lane] = window[i] * from[i];
    }
    PowerSpectra(*windows, *power);
    for (size_t bin = 0; bin < filters_.size(); ++bin) {
      const Filter& filter = filters_[bin];
      Lanes sum = {};
      for (size_t k = 0; k < filter.weights.size(); ++k) {
        const Lanes& values = (*power)[filter.first + k];
        for (size_t lane = 0; lane < kLanes; ++lane) sum[lane] += filter.weights[k] * values[lane];
      }
      for (size_t lane = 0; lane < lanes; ++lane) {
        to[bin * frames + first + lane] =
            static_cast<float>(std::log10(std::max(kPowerMin, sum[lane])));
      }
    }
  }
  const double lowest = *std::max_element(to.begin(), to.end()) - kLogRange;
  for (float& value : to) {
    value = static_cast<float>((std::max<double>(value, lowest) + 4) / 4);
  }
}

}  // namespace phalanx::data

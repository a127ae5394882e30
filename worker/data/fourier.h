// worker/data/fourier.h: power spectra of windows of 400 real samples, several at a time.
#pragma once

#include <array>
#include <cstddef>

namespace phalanx::data {

inline constexpr size_t kWindow = 400;            // samples
inline constexpr size_t kBins = kWindow / 2 + 1;  // of a spectrum
inline constexpr size_t kLanes = 8;               // windows that one call transforms

// One value of each window: the innermost loops run over windows, which vectorises.
using Lanes = std::array<double, kLanes>;
using Windows = std::array<Lanes, kWindow>;
using Spectra = std::array<Lanes, kBins>;

// |X[k]|^2 of each window, X the discrete Fourier transform. Thread-safe.
void PowerSpectra(const Windows& windows, Spectra& power);

}  // namespace phalanx::data

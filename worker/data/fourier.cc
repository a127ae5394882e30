#include "worker/data/fourier.h"

#include <cmath>
#include <complex>
#include <numbers>
#include <utility>

namespace phalanx::data {
namespace {

// Pairs of real samples are one complex value, so the transform has half the points.
constexpr size_t kPoints = kWindow / 2;
constexpr std::array<size_t, 4> kRadices = {5, 5, 4, 2};
static_assert(kRadices[0] * kRadices[1] * kRadices[2] * kRadices[3] == kPoints);

struct ComplexLanes {
  Lanes re, im;
};
using Points = std::array<ComplexLanes, kPoints>;

// exp(-2 pi i k / kWindow)
using Roots = std::array<std::complex<double>, kWindow>;
const Roots& RootsOfUnity() {
  static const Roots roots = [] {
    Roots values;
    for (size_t k = 0; k < kWindow; ++k) {
      values[k] = std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(k) / kWindow);
    }
    return values;
  }();
  return roots;
}

// to += from * root
void AddProduct(ComplexLanes& to, const ComplexLanes& from, std::complex<double> root) {
  const double re = root.real(), im = root.imag();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    to.re[lane] += from.re[lane] * re - from.im[lane] * im;
    to.im[lane] += from.re[lane] * im + from.im[lane] * re;
  }
}

// One pass of Stockham's transform: every `count`-th value of `from` belongs to one transform that
// has grown to `done` points; `radix` of them are joined into one of done * radix points.
void Pass(const Points& from, Points& to, size_t radix, size_t done) {
  const Roots& roots = RootsOfUnity();
  const size_t count = kPoints / (done * radix);  // transforms after the pass
  const size_t step = kWindow / (done * radix);   // of the roots of done * radix points
  for (size_t k = 0; k < done; ++k) {
    for (size_t p = 0; p < radix; ++p) {
      const size_t bin = k + p * done;
      for (size_t t = 0; t < count; ++t) {
        ComplexLanes sum = from[k * count * radix + t];
        for (size_t q = 1; q < radix; ++q) {
          AddProduct(sum, from[k * count * radix + q * count + t], roots[q * bin * step % kWindow]);
        }
        to[bin * count + t] = sum;
      }
    }
  }
}

}  // namespace

void PowerSpectra(const Windows& windows, Spectra& power) {
  static_assert(kRadices.size() % 2 == 0, "the result of the last pass is in the first buffer");
  Points first, second;
  for (size_t i = 0; i < kPoints; ++i) first[i] = {windows[2 * i], windows[2 * i + 1]};
  Points *from = &first, *to = &second;
  size_t done = 1;
  for (const size_t radix : kRadices) {
    Pass(*from, *to, radix, done);
    std::swap(from, to);
    done *= radix;
  }
  // X[k] = (Z[k] + conj Z[-k]) / 2 - i w^k (Z[k] - conj Z[-k]) / 2.
  const Roots& roots = RootsOfUnity();
  for (size_t k = 0; k < kBins; ++k) {
    const ComplexLanes& z = first[k % kPoints];
    const ComplexLanes& mirrored = first[(kPoints - k) % kPoints];
    const std::complex<double> root = roots[k];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double even_re = z.re[lane] + mirrored.re[lane];
      const double even_im = z.im[lane] - mirrored.im[lane];
      const double odd_re = z.im[lane] + mirrored.im[lane];
      const double odd_im = mirrored.re[lane] - z.re[lane];
      const double re = even_re + odd_re * root.real() - odd_im * root.imag();
      const double im = even_im + odd_re * root.imag() + odd_im * root.real();
      power[k][lane] = (re * re + im * im) / 4;
    }
  }
}

}  // namespace phalanx::data

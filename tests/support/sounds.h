// tests/support/sounds.h: small sound and array files for tests, made on the spot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx::support {

enum class SoundFormat : uint8_t { kWav8, kWav16, kWav24, kWavFloat, kWavMuLaw, kFlac };
struct SoundOptions {
  SoundFormat format = SoundFormat::kWav16;
  int32_t rate = 16000;  // hertz
  int32_t channels = 1;
};
// Values in [-1, 1], the channels of a frame after each other.
std::string EncodeSound(const SoundOptions& options, const std::vector<float>& values);
// `count` values of a sine of this frequency and height 0.5.
std::vector<float> Tone(double hertz, int64_t count, int32_t rate = 16000);

// An array file of NumPy's, version 1, fp32, [rows, columns].
std::string EncodeNpy(int64_t rows, int64_t columns, const std::vector<float>& values);
// The same with any header and any bytes after it.
std::string EncodeNpy(const std::string& dictionary, const std::string& values);

}  // namespace phalanx::support

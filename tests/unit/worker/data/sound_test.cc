// Decoding of WAV and FLAC: formats, channels, rates, limits, damage.
#include "worker/data/sound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/support/sounds.h"
#include "worker/data/data_set.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeSound;
using ::phalanx::support::SoundFormat;
using ::phalanx::support::SoundOptions;
using ::phalanx::support::Tone;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kAll = 1 << 20;

std::vector<float> Decoded(absl::string_view bytes, int64_t samples_max = kAll) {
  auto sound = DecodeSound(bytes, samples_max);
  EXPECT_TRUE(sound.ok()) << sound.status();
  return sound.ok() ? *std::move(sound) : std::vector<float>();
}

std::string SoundFault(absl::string_view bytes) {
  const auto sound = DecodeSound(bytes, kAll);
  return sound.ok() ? "" : std::string(sound.status().message());
}

// Mean square of the difference, over that of `expected`, away from the ends.
double Error(const std::vector<float>& values, const std::vector<float>& expected) {
  double error = 0, size = 0;
  for (size_t i = 400; i + 400 < std::min(values.size(), expected.size()); ++i) {
    error += std::pow(values[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  return error / size;
}

TEST(SoundTest, EveryFormat_GivesItsSamples) {
  const std::vector<float> tone = Tone(440, 3000);
  for (const auto& [format, tolerance] : {std::pair{SoundFormat::kWav8, 1e-2},
                                          {SoundFormat::kWav16, 1e-4},
                                          {SoundFormat::kWav24, 1e-6},
                                          {SoundFormat::kWavFloat, 0.0},
                                          {SoundFormat::kWavMuLaw, 2e-2},
                                          {SoundFormat::kFlac, 1e-4}}) {
    const std::vector<float> sound = Decoded(EncodeSound({.format = format}, tone));
    ASSERT_EQ(sound.size(), tone.size());
    for (size_t i = 0; i < sound.size(); ++i) ASSERT_NEAR(sound[i], tone[i], tolerance) << i;
  }
}

TEST(SoundTest, Channels_AreAveraged) {
  const std::vector<float> sound = Decoded(
      EncodeSound({.format = SoundFormat::kWavFloat, .channels = 2}, {0.5f, 0.25f, -1.0f, 0.5f}));
  EXPECT_THAT(sound, ::testing::ElementsAre(0.375f, -0.25f));
}

TEST(SoundTest, AnotherRate_IsResampled) {
  const std::vector<float> expected = Tone(440, 16000);
  for (const int32_t rate : {8000, 11025, 22050, 44100, 48000}) {
    const std::vector<float> sound =
        Decoded(EncodeSound({.format = SoundFormat::kFlac, .rate = rate}, Tone(440, rate, rate)));
    EXPECT_NEAR(static_cast<double>(sound.size()), 16000, 1) << rate;
    EXPECT_LT(Error(sound, expected), 1e-5) << rate;
  }
}

TEST(SoundTest, WhatIsAboveHalfTheRate_DoesNotFoldBack) {
  const std::vector<float> sound = Decoded(
      EncodeSound({.format = SoundFormat::kWavFloat, .rate = 48000}, Tone(12000, 48000, 48000)));
  for (size_t i = 400; i + 400 < sound.size(); ++i) ASSERT_NEAR(sound[i], 0, 1e-4);
}

TEST(SoundTest, NoMoreThanAskedFor_IsReturned) {
  const std::vector<float> whole = Tone(440, 48000, 48000);
  const std::string at_rate = EncodeSound({}, Tone(440, 16000));
  EXPECT_THAT(Decoded(at_rate, 1000), SizeIs(1000));
  const std::string faster = EncodeSound({.rate = 48000}, whole);
  const std::vector<float> all = Decoded(faster), start = Decoded(faster, 1000);
  ASSERT_THAT(start, SizeIs(1000));
  for (size_t i = 0; i < start.size(); ++i) ASSERT_NEAR(start[i], all[i], 1e-6) << i;
}

TEST(SoundTest, WhatIsNoSound_IsRefused) {
  EXPECT_EQ(SoundFault(""), "is neither a WAV nor a FLAC file");
  EXPECT_EQ(SoundFault("OggS and more"), "is neither a WAV nor a FLAC file");
  EXPECT_EQ(SoundFault(std::string("RIFF\x04\0\0\0WAVE", 12)), "is a damaged WAV: has no data");
  EXPECT_EQ(SoundFault("fLaC"), "is a damaged FLAC");
  EXPECT_EQ(SoundFault(EncodeSound({}, {})), "has 0 samples a channel; must have 1 to 1073741824");
}

TEST(SoundTest, Truncated_IsRefused) {
  const std::vector<float> tone = Tone(440, 20000);
  const std::string wav = EncodeSound({}, tone);
  EXPECT_EQ(SoundFault(wav.substr(0, wav.size() - 2)),
            "is a truncated WAV: has 39998 of 40000 bytes of samples");
  const std::string flac = EncodeSound({.format = SoundFormat::kFlac}, tone);
  EXPECT_EQ(SoundFault(flac.substr(0, flac.size() / 2)), "is a damaged FLAC");
}

TEST(SoundTest, DamagedFlacFrame_IsRefused) {
  std::string flac = EncodeSound({.format = SoundFormat::kFlac}, Tone(440, 20000));
  for (size_t i = 0; i < 8; ++i) flac[flac.size() / 2 + i] ^= 0x55;
  EXPECT_EQ(SoundFault(flac), "is a damaged FLAC");
}

TEST(SoundTest, BeyondTheLimits_IsRefusedByItsHeader) {
  EXPECT_EQ(SoundFault(EncodeSound({.channels = 9}, std::vector<float>(90))),
            "has 9 channels; must have 1 to 8");
  EXPECT_EQ(SoundFault(EncodeSound({.rate = 999}, Tone(10, 100))),
            "has 999 samples a second; must have 1000 to 384000");
}

TEST(SoundTest, ValuesThatAreNotFinite_AreRefused) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(SoundFault(EncodeSound({.format = SoundFormat::kWavFloat}, {0.0f, value})),
              "has samples that are not finite");
  }
}

}  // namespace
}  // namespace phalanx::data

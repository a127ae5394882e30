// Log-mel features equal to those of Hugging Face's extractor (fixtures/make_log_mel.py).
#include "worker/data/log_mel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <memory>
#include <numbers>

#include "core/base/prng.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/sounds.h"
#include "worker/data/fourier.h"
#include "worker/data/npy.h"
#include "worker/data/sound.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::ReadFile;
using ::phalanx::support::Tone;
using ::testing::Each;
using ::testing::FloatNear;
using ::testing::SizeIs;

const std::string kFixtures = tests::SourceDir() + "/tests/unit/worker/data/fixtures/";

// The features of the fixture's first samples, against the file.
void ExpectFixture(const std::string& name, int64_t samples) {
  const std::string file = ReadFile(kFixtures + "log_mel_" + name + ".npy");
  const auto shape = ReadNpyHeader(file, static_cast<int64_t>(file.size()));
  ASSERT_TRUE(shape.ok()) << shape.status();
  std::vector<float> expected;
  ASSERT_TRUE(
      ReadNpyValues(absl::string_view(file).substr(static_cast<size_t>(shape->header_bytes)),
                    shape->value_bytes, expected));
  const auto sound = DecodeSound(ReadFile(kFixtures + "sound.wav"), samples);
  ASSERT_TRUE(sound.ok()) << sound.status();
  std::vector<float> features;
  LogMel(shape->rows, shape->columns).Compute(*sound, features);
  ASSERT_EQ(features.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    worst = std::max(worst, std::abs(features[i] - expected[i]));
  }
  EXPECT_LE(worst, 1e-5f);
}

TEST(LogMelTest, SoundShorterThanTheFrames_IsPadded) { ExpectFixture("padded", 11200); }
TEST(LogMelTest, SoundLongerThanTheFrames_IsCut) { ExpectFixture("cut", 20800); }

TEST(LogMelTest, Silence_IsTheFloorEverywhere) {
  std::vector<float> features;
  LogMel(8, 4).Compute({}, features);
  EXPECT_THAT(features, SizeIs(32));
  EXPECT_THAT(features, Each(FloatNear((-10.0f + 4) / 4, 1e-6f)));
}

TEST(LogMelTest, Tone_IsLoudestInItsBin) {
  std::vector<float> features;
  const LogMel log_mel(40, 20);
  log_mel.Compute(Tone(1000, log_mel.samples()), features);
  size_t loudest = 0;
  for (size_t bin = 0; bin < 40; ++bin) {
    if (features[bin * 20 + 10] > features[loudest * 20 + 10]) loudest = bin;
  }
  // 1,000 hertz are 15 mels of 45.2; filter b is centred at 45.2 (b + 1) / 41.
  EXPECT_EQ(loudest, 13u);
}

TEST(FourierTest, PowerSpectra_AreThoseOfTheDefinition) {
  Prng prng(3);
  const auto windows = std::make_unique<Windows>();
  const auto power = std::make_unique<Spectra>();
  for (Lanes& lanes : *windows) {
    for (double& value : lanes) value = UnitNormal(prng.Next());
  }
  PowerSpectra(*windows, *power);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t k = 0; k < kBins; ++k) {
      std::complex<double> sum = 0;
      for (size_t n = 0; n < kWindow; ++n) {
        sum +=
            (*windows)[n][lane] *
            std::polar(1.0, -2 * std::numbers::pi * static_cast<double>(k * n % kWindow) / kWindow);
      }
      ASSERT_NEAR((*power)[k][lane], std::norm(sum), 1e-9) << "bin " << k << " lane " << lane;
    }
  }
}

}  // namespace
}  // namespace phalanx::data

// Hostile shards, pictures, sounds, targets and tokenizers, from a seed: whatever the bytes, there
// is an answer, and it takes no more memory than the limits of data_set.h allow.
//
// PHALANX_FUZZ_SEED and PHALANX_FUZZ_ROUNDS (default 1 and 400) reach further. A failing round is
// named by its seed.

#include "tests/support/shards.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/prng.h"
#include "tests/support/files.h"
#include "tests/support/sounds.h"
#include "worker/data/data_set.h"
#include "worker/data/image.h"
#include "worker/data/log_mel.h"
#include "worker/data/npy.h"
#include "worker/data/sound.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeJpeg;
using ::phalanx::support::EncodeNpy;
using ::phalanx::support::EncodePng;
using ::phalanx::support::EncodeSound;
using ::phalanx::support::MakeFolder;
using ::phalanx::support::SoundFormat;
using ::phalanx::support::TarBuilder;
using ::phalanx::support::TokenizerModel;
using ::phalanx::support::Tone;
using ::phalanx::support::WriteFile;

uint64_t Setting(const char* name, uint64_t otherwise) {
  uint64_t value = 0;
  const char* text = std::getenv(name);
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Address space that a wild allocation would overrun. Sanitizers need all of it for themselves.
void LimitMemory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit{uint64_t{2} << 30, uint64_t{2} << 30};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

// Flips, overwrites, cuts out, repeats and truncates.
void Mutate(std::string& bytes, Prng& prng) {
  for (uint64_t n = 1 + prng.Below(6); n > 0 && !bytes.empty(); --n) {
    const size_t at = prng.Below(bytes.size());
    const size_t length = std::min<size_t>(1 + prng.Below(64), bytes.size() - at);
    switch (prng.Below(7)) {
      case 0:
        bytes[at] ^= static_cast<char>(1 << prng.Below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(prng.Next());
        break;
      case 2:
        for (size_t i = 0; i < length; ++i) bytes[at + i] = prng.Below(2) == 0 ? '\xFF' : '\0';
        break;
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(at, bytes.substr(prng.Below(bytes.size()), length));
        break;
      case 5:
        bytes[at] = "0123456789xLg"[prng.Below(13)];
        break;
      default:
        if (prng.Below(4) == 0) bytes.resize(at);
    }
  }
}

// Makes the checksums of tar headers right again, so that what they say is believed.
void MendTar(std::string& bytes) {
  for (size_t at = 0; at + 512 <= bytes.size(); at += 512) {
    if (bytes.compare(at + 257, 5, "ustar") != 0) continue;
    bytes.replace(at + 148, 8, "        ");
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[at + i]);
    bytes.replace(at + 148, 6, absl::StrFormat("%06o", sum));
    bytes[at + 154] = '\0';
  }
}

// The same for the chunks of a PNG.
void MendPng(std::string& bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(bytes[at + i]);
    if (length > bytes.size() - at - 12) return;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = at + 4; i < at + 8 + length; ++i) {
      crc ^= static_cast<unsigned char>(bytes[i]);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) ? 0xEDB88320u : 0);
    }
    for (size_t i = 0; i < 4; ++i)
      bytes[at + 8 + length + i] = static_cast<char>(~crc >> (24 - 8 * i));
    at += 12 + length;
  }
}

class ShardFuzz : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { LimitMemory(); }
  const uint64_t seed_ = Setting("PHALANX_FUZZ_SEED", 1);
  const uint64_t rounds_ = Setting("PHALANX_FUZZ_ROUNDS", 400);
  const std::string folder_ = MakeFolder("fuzz");
};

TEST_F(ShardFuzz, Shards_AreIndexedAndReadOrRefused) {
  const std::string png = EncodePng({}, {1, 2, 3});
  const std::string shard = TarBuilder()
                                .File("a.txt", "<image> red sky")
                                .File("a.0.png", png)
                                .Directory("d/")
                                .LongFile("d/" + std::string(120, 'k') + ".txt", "blue tile")
                                .SymbolicLink("d/l.txt", "a.txt")
                                .File("b.jpg", EncodeJpeg({}, {9, 8, 7}))
                                .File("b.target.npy", EncodeNpy(1, 2, {1, 2}))
                                .File("b.1.wav", EncodeSound({}, Tone(440, 200)))
                                .File("b.txt", "green<audio>")
                                .Finish();
  const DataSetSpec spec{.shards = {folder_ + "/s.tar"},
                         .tokenizer = folder_ + "/t.model",
                         .encoders = {support::ImageEncoder(4), support::SoundEncoder(3, 4)},
                         .targets = true,
                         .target_hidden = 2,
                         .context = 32,
                         .vocabulary = 64};
  WriteFile(spec.tokenizer, TokenizerModel());
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds_; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    Prng prng(Hash64(seed_, 1, round));
    std::string bytes = shard;
    Mutate(bytes, prng);
    if (prng.Below(2) == 0) MendTar(bytes);
    WriteFile(spec.shards[0], bytes);
    const absl::StatusOr<Index> index = Index::Build(spec);
    if (!index.ok()) {
      EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    const auto loader =
        Loader::Create(*index, spec, {.threads = 0, .modules = {0, 1}, .targets = true});
    ASSERT_TRUE(loader.ok());
    for (int64_t i = 0; i < index->size(); ++i) {
      const auto sample = (*loader)->Take(i);
      ASSERT_TRUE(sample.ok()) << sample.status();
      ASSERT_EQ(static_cast<int32_t>((*sample)->tokens.size()), index->shape(i).positions);
    }
  }
  // Both outcomes must be common, or the fuzzing tests nothing.
  EXPECT_GT(accepted, rounds_ / 20);
  EXPECT_LT(accepted, rounds_ - rounds_ / 20);
}

TEST_F(ShardFuzz, Pictures_AreDecodedOrRefused) {
  std::vector<std::string> pictures = {
      EncodePng({.width = 24, .height = 24}, {1, 2, 3}),
      EncodePng({.width = 24, .height = 24, .channels = 4, .interlaced = true}, {1, 2, 3, 4}),
      EncodePng({.width = 24, .height = 24, .depth = 4, .palette = true}, {1, 2, 3}),
      EncodePng({.width = 24, .height = 24, .channels = 2, .depth = 16}, {1, 2}),
      EncodeJpeg({.width = 24, .height = 24}, {1, 2, 3}),
      EncodeJpeg({.width = 24, .height = 24, .progressive = true}, {1, 2, 3}),
      EncodeJpeg({.width = 24, .height = 24, .channels = 4}, {1, 2, 3, 4})};
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds_ * 20; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    Prng prng(Hash64(seed_, 2, round));
    std::string bytes = pictures[round % pictures.size()];
    Mutate(bytes, prng);
    if (prng.Below(2) == 0) MendPng(bytes);
    const absl::StatusOr<Image> image = DecodeImage(bytes, 8);
    if (!image.ok()) {
      EXPECT_EQ(image.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    ASSERT_EQ(image->rgb.size(),
              static_cast<size_t>(image->width) * static_cast<size_t>(image->height) * 3);
    std::vector<float> pixels;
    ResizeAndNormalize(*image, 8, support::ImageEncoder(4).pixels, pixels);
  }
  EXPECT_GT(accepted, rounds_ / 20);
}

TEST_F(ShardFuzz, Sounds_AreDecodedOrRefused) {
  const std::vector<float> tone = Tone(440, 1500);
  const std::vector<std::string> sounds = {
      EncodeSound({.format = SoundFormat::kWav8}, tone),
      EncodeSound({.format = SoundFormat::kWav16, .channels = 2}, tone),
      EncodeSound({.format = SoundFormat::kWav24, .rate = 44100}, tone),
      EncodeSound({.format = SoundFormat::kWavFloat}, tone),
      EncodeSound({.format = SoundFormat::kWavMuLaw, .rate = 8000}, tone),
      EncodeSound({.format = SoundFormat::kFlac}, tone),
      EncodeSound({.format = SoundFormat::kFlac, .rate = 48000, .channels = 3}, tone)};
  const LogMel log_mel(8, 20);
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds_ * 20; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    Prng prng(Hash64(seed_, 4, round));
    std::string bytes = sounds[round % sounds.size()];
    // Headers are a small part of a file; without them, damage to samples alone would be tried.
    std::string header = bytes.substr(0, 128);
    Mutate(prng.Below(2) == 0 ? header : bytes, prng);
    if (bytes.size() > 128) bytes = header + bytes.substr(128);
    const auto sound = DecodeSound(bytes, log_mel.samples());
    if (!sound.ok()) {
      EXPECT_EQ(sound.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    ASSERT_LE(static_cast<int64_t>(sound->size()), log_mel.samples());
    std::vector<float> features;
    log_mel.Compute(*sound, features);
    for (const float value : features) ASSERT_TRUE(std::isfinite(value));
  }
  EXPECT_GT(accepted, rounds_);
  EXPECT_LT(accepted, rounds_ * 19);
}

TEST_F(ShardFuzz, Targets_AreReadOrRefused) {
  const std::string whole = EncodeNpy(3, 2, {1, 2, 3, 4, 5, 6});
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds_ * 20; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    Prng prng(Hash64(seed_, 5, round));
    std::string bytes = whole;
    Mutate(bytes, prng);
    const auto shape = ReadNpyHeader(bytes, static_cast<int64_t>(bytes.size()));
    if (!shape.ok()) {
      EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    ++accepted;
    ASSERT_EQ(shape->header_bytes + shape->values_bytes(), static_cast<int64_t>(bytes.size()));
    std::vector<float> values;
    ReadNpyValues(absl::string_view(bytes).substr(static_cast<size_t>(shape->header_bytes)),
                  shape->value_bytes, values);
    ASSERT_EQ(static_cast<int64_t>(values.size()), shape->rows * shape->columns);
  }
  EXPECT_GT(accepted, rounds_ / 20);
  EXPECT_LT(accepted, rounds_ * 19);
}

TEST_F(ShardFuzz, Tokenizers_AreLoadedOrRefused) {
  const std::string model = TokenizerModel();
  const std::string path = folder_ + "/t.model";
  uint64_t accepted = 0;
  for (uint64_t round = 0; round < rounds_; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", seed_, " round ", round));
    Prng prng(Hash64(seed_, 3, round));
    std::string bytes = model;
    Mutate(bytes, prng);
    WriteFile(path, bytes);
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(path);
    if (!tokenizer.ok()) continue;
    ++accepted;
    std::string text = "red sky \xF0\x9F\x98\x80 tile";
    Mutate(text, prng);
    for (const int32_t token : (*tokenizer)->Encode(text)) ASSERT_LT(token, (*tokenizer)->size());
    (*tokenizer)->Decode({0, 1, 2, 3, 1 << 30, -1});
  }
  EXPECT_GT(accepted, rounds_ / 20);
}

}  // namespace
}  // namespace phalanx::data

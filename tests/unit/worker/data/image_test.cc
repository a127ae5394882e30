// Decoding and resizing of pictures of one colour, whose right answer is known.
#include "worker/data/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/support/shards.h"
#include "worker/data/data_set.h"

namespace phalanx::data {
namespace {

using ::phalanx::support::EncodeJpeg;
using ::phalanx::support::EncodePng;
using ::phalanx::support::JpegOptions;
using ::phalanx::support::PngOptions;
using ::testing::HasSubstr;

constexpr job::PixelScale kClip = job::TraitsOf(job::Family::kClipVision).pixels;

std::string ImageFault(absl::string_view bytes) {
  const absl::StatusOr<Image> image = DecodeImage(bytes, 0);
  return image.ok() ? "" : std::string(image.status().message());
}

// Every pixel is `expected`, to `tolerance` levels.
void ExpectColour(absl::string_view bytes, int32_t width, int32_t height,
                  const std::vector<int>& expected, int tolerance) {
  const absl::StatusOr<Image> image = DecodeImage(bytes, 0);
  ASSERT_TRUE(image.ok()) << image.status();
  ASSERT_EQ(image->width, width);
  ASSERT_EQ(image->height, height);
  ASSERT_EQ(image->rgb.size(), static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  for (size_t i = 0; i < image->rgb.size(); ++i)
    ASSERT_NEAR(image->rgb[i], expected[i % 3], tolerance) << i;
}

uint32_t BigEndian(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// The PNG with another width and height in its header, whose checksum is made right again.
std::string WithDimensions(std::string png, uint32_t width, uint32_t height) {
  for (size_t i = 0; i < 4; ++i) {
    png[16 + i] = static_cast<char>(width >> (24 - 8 * i));
    png[20 + i] = static_cast<char>(height >> (24 - 8 * i));
  }
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t at = 12; at < 29; ++at) {
    crc ^= static_cast<unsigned char>(png[at]);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) ? 0xEDB88320u : 0);
  }
  crc = ~crc;
  for (size_t i = 0; i < 4; ++i) png[29 + i] = static_cast<char>(crc >> (24 - 8 * i));
  return png;
}

TEST(ImageTest, Png_EveryColourTypeAndDepthGivesRgb) {
  for (const bool interlaced : {false, true}) {
    for (const int32_t depth : {8, 16}) {
      const auto encode = [&](int32_t channels, std::vector<uint8_t> value) {
        return EncodePng({.width = 9,
                          .height = 5,
                          .channels = channels,
                          .depth = depth,
                          .interlaced = interlaced},
                         value);
      };
      ExpectColour(encode(1, {90}), 9, 5, {90, 90, 90}, 0);
      ExpectColour(encode(2, {90, 255}), 9, 5, {90, 90, 90}, 0);
      ExpectColour(encode(3, {10, 20, 30}), 9, 5, {10, 20, 30}, 0);
      ExpectColour(encode(4, {10, 20, 30, 255}), 9, 5, {10, 20, 30}, 0);
    }
    for (const int32_t depth : {1, 2, 4}) {
      ExpectColour(
          EncodePng(
              {.width = 9, .height = 5, .channels = 1, .depth = depth, .interlaced = interlaced},
              {255}),
          9, 5, {255, 255, 255}, 0);
    }
    for (const int32_t depth : {1, 2, 4, 8}) {
      ExpectColour(
          EncodePng(
              {.width = 9, .height = 5, .depth = depth, .palette = true, .interlaced = interlaced},
              {10, 20, 30}),
          9, 5, {10, 20, 30}, 0);
    }
  }
}

TEST(ImageTest, PngWithAlpha_IsLaidOverWhite) {
  ExpectColour(EncodePng({.channels = 4}, {10, 20, 30, 0}), 16, 16, {255, 255, 255}, 0);
  ExpectColour(EncodePng({.channels = 4}, {0, 100, 200, 51}), 16, 16, {204, 224, 244}, 0);
  ExpectColour(EncodePng({.channels = 2}, {0, 102}), 16, 16, {153, 153, 153}, 0);
  ExpectColour(EncodePng({.depth = 4, .palette = true, .palette_alpha = 51}, {0, 100, 200}), 16, 16,
               {204, 224, 244}, 0);
}

TEST(ImageTest, Jpeg_EveryColourSpaceGivesRgb) {
  for (const bool progressive : {false, true}) {
    const auto encode = [&](int32_t channels, std::vector<uint8_t> value) {
      return EncodeJpeg(
          {.width = 19, .height = 11, .channels = channels, .progressive = progressive}, value);
    };
    ExpectColour(encode(1, {90}), 19, 11, {90, 90, 90}, 2);
    ExpectColour(encode(3, {200, 20, 30}), 19, 11, {200, 20, 30}, 3);
    // Adobe's CMYK is inverted: 255 is no ink.
    ExpectColour(encode(4, {255, 255, 255, 255}), 19, 11, {255, 255, 255}, 3);
    ExpectColour(encode(4, {255, 0, 0, 255}), 19, 11, {255, 0, 0}, 3);
    ExpectColour(encode(4, {255, 255, 255, 128}), 19, 11, {128, 128, 128}, 3);
  }
}

TEST(ImageTest, LargeJpeg_IsDecodedAtAFractionOfItsSize) {
  const std::string bytes = EncodeJpeg({.width = 640, .height = 520}, {200, 20, 30});
  const auto width = [&](int32_t size) { return DecodeImage(bytes, size)->width; };
  EXPECT_EQ(width(0), 640);
  EXPECT_EQ(width(300), 640);
  EXPECT_EQ(width(130), 320);
  EXPECT_EQ(width(64), 160);
  EXPECT_EQ(width(8), 80);
}

TEST(ImageTest, TruncatedAnywhere_IsDamaged) {
  for (const std::string& bytes :
       {EncodePng({.width = 40, .height = 40}, {1, 2, 3}),
        EncodePng({.width = 40, .height = 40, .interlaced = true}, {1, 2, 3}),
        EncodeJpeg({.width = 40, .height = 40}, {1, 2, 3}),
        EncodeJpeg({.width = 40, .height = 40, .progressive = true}, {1, 2, 3})}) {
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_NE(ImageFault(absl::string_view(bytes).substr(0, length)), "")
          << length << " of " << bytes.size();
    }
    EXPECT_EQ(ImageFault(bytes), "");
  }
}

TEST(ImageTest, PngWithFlippedByte_IsDamaged) {
  const std::string bytes = EncodePng({.width = 40, .height = 40}, {1, 2, 3});
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] ^= 0x10;
    EXPECT_NE(ImageFault(damaged), "") << i;
  }
}

TEST(ImageTest, OtherBytes_AreNoPicture) {
  EXPECT_EQ(ImageFault(""), "is empty");
  EXPECT_EQ(ImageFault("GIF89a"), "is neither PNG nor JPEG");
}

TEST(ImageTest, HugePng_IsRefusedBeforeMemoryIsTaken) {
  const std::string png = EncodePng({}, {1, 2, 3});
  EXPECT_THAT(ImageFault(WithDimensions(png, 60000, 60000)), HasSubstr("too many pixels"));
  EXPECT_THAT(ImageFault(WithDimensions(png, 0x7FFFFFFF, 1)), HasSubstr("damaged PNG"));
  EXPECT_THAT(ImageFault(WithDimensions(png, 5000, 5000)),
              HasSubstr("more pixels than the file can hold"));
  EXPECT_THAT(ImageFault(WithDimensions(png, 0, 16)), HasSubstr("damaged PNG"));
  ASSERT_EQ(BigEndian(WithDimensions(png, 16, 16), 29),
            BigEndian(png, 29));  // the helper's checksum is right
}

TEST(ImageTest, HugeJpeg_IsRefused) {
  std::string bytes = EncodeJpeg({}, {1, 2, 3});
  const size_t frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (size_t i = 0; i < 4; ++i) bytes[frame + 5 + i] = static_cast<char>(0xFA);
  EXPECT_THAT(ImageFault(bytes), HasSubstr("damaged JPEG"));
}

TEST(ResizeTest, OneColour_StaysThatColour) {
  for (const int32_t size : {1, 7, 16, 40}) {
    std::vector<float> pixels;
    const absl::StatusOr<Image> image =
        DecodeImage(EncodePng({.width = 16, .height = 9}, {255, 0, 51}), size);
    ASSERT_TRUE(image.ok());
    ResizeAndNormalize(*image, size, kClip, pixels);
    const size_t plane = static_cast<size_t>(size) * static_cast<size_t>(size);
    ASSERT_EQ(pixels.size(), 3 * plane);
    for (size_t i = 0; i < plane; ++i) {
      ASSERT_NEAR(pixels[i], (1.0f - 0.48145466f) / 0.26862954f, 1e-4);
      ASSERT_NEAR(pixels[plane + i], (0.0f - 0.4578275f) / 0.26130258f, 1e-4);
      ASSERT_NEAR(pixels[2 * plane + i], (0.2f - 0.40821073f) / 0.27577711f, 1e-4);
    }
  }
}

// Grey levels of an output of [size, size], normalisation undone.
std::vector<float> Resized(const std::vector<uint8_t>& levels, int32_t width, int32_t height,
                           int32_t size) {
  Image image{width, height, {}};
  for (const uint8_t level : levels) image.rgb.insert(image.rgb.end(), 3, level);
  std::vector<float> pixels;
  ResizeAndNormalize(image, size, kClip, pixels);
  pixels.resize(static_cast<size_t>(size) * static_cast<size_t>(size));
  for (float& pixel : pixels) pixel = (pixel * 0.26862954f + 0.48145466f) * 255.0f;
  return pixels;
}

void ExpectLevels(const std::vector<float>& levels, const std::vector<float>& expected) {
  ASSERT_EQ(levels.size(), expected.size());
  for (size_t i = 0; i < levels.size(); ++i) EXPECT_NEAR(levels[i], expected[i], 0.01) << i;
}

TEST(ResizeTest, Shrinking_AveragesTheCoveredArea) {
  ExpectLevels(Resized({0, 100, 200, 40, 20, 80, 60, 100}, 4, 2, 2), {50, 120, 50, 80});
  // 3 to 2: an output column covers one and a half input columns.
  ExpectLevels(Resized({30, 60, 120, 30, 60, 120}, 3, 2, 2), {40, 100, 40, 100});
}

TEST(ResizeTest, Growing_InterpolatesBetweenCentres) {
  ExpectLevels(Resized({0, 100, 0, 100}, 2, 2, 4),
               {0, 25, 75, 100, 0, 25, 75, 100, 0, 25, 75, 100, 0, 25, 75, 100});
  ExpectLevels(Resized({80}, 1, 1, 3), std::vector<float>(9, 80));
}

TEST(ResizeTest, OneAxisMayShrinkWhileTheOtherGrows) {
  ExpectLevels(Resized({0, 100, 200, 40}, 4, 1, 2), {50, 120, 50, 120});
}

}  // namespace
}  // namespace phalanx::data

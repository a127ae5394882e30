// tests/support/shards.h: small data sets for tests: tar shards, pictures and a tokenizer, made on
// the spot from a seed, without any tool of the machine.
//
// WriteShards makes a set that can be learned: each picture has one of eight colours, each sound
// one of four pitches, and the text names them; targets are drawn from the seed. The rest are the
// parts that it is made of, for tests that need a set out of order; sounds.h has more of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/data_set.h"

namespace phalanx::support {

struct ShardOptions {
  int32_t samples = 32;  // over all shards
  int32_t shards = 2;
  int32_t images_min = 1, images_max = 1;  // of a sample, drawn from the seed
  int32_t image_side = 16;
  int32_t sounds_min = 0, sounds_max = 0;  // of a sample, after its images
  int32_t sound_samples = 1600;            // of each, at 16 kHz
  int32_t target_rows = 0;                 // 0: no targets
  int32_t target_hidden = 8;
  int32_t words = 2;  // after the last item
  uint64_t seed = 1;
  std::string name = "set";  // set-000.tar, set-001.tar, ..., set.model
};
struct ShardFiles {
  std::vector<std::string> shards;  // absolute paths
  std::string tokenizer;
  int32_t vocabulary = 0;  // pieces of the tokenizer
};
// Modules that read items: module 0 images of `size` pixels a side, CLIP's colours; module 1
// sounds.
data::Encoder ImageEncoder(int64_t rows, int64_t size = 8, int32_t module = 0);
data::Encoder SoundEncoder(int64_t rows, int64_t mel_bins = 8, int64_t frames = 6,
                           int32_t module = 1);

// Writes into `folder`, which exists. Samples are 000000, 000001, ..., dealt out in runs.
ShardFiles WriteShards(const std::string& folder, const ShardOptions& options);

// Bytes of a tar file in the making.
class TarBuilder {
 public:
  TarBuilder& File(absl::string_view name, absl::string_view content);
  // With a pax header in front, so that the name may be of any length.
  TarBuilder& LongFile(absl::string_view name, absl::string_view content);
  TarBuilder& Directory(absl::string_view name);
  TarBuilder& SymbolicLink(absl::string_view name, absl::string_view target);
  // One header without content: `declared` is the size it states.
  TarBuilder& Header(absl::string_view name, char type, uint64_t declared,
                     absl::string_view link = "");
  // Without the end-of-archive mark.
  const std::string& bytes() const { return bytes_; }
  std::string Finish() const;

 private:
  std::string bytes_;
};

struct PngOptions {
  int32_t width = 16, height = 16;
  int32_t channels = 3;         // 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA
  int32_t depth = 8;            // 1, 2, 4 (grey or palette), 8, 16
  bool palette = false;         // with channels 3: 4 colours
  uint8_t palette_alpha = 255;  // below 255: with a transparency chunk
  bool interlaced = false;
};
struct JpegOptions {
  int32_t width = 16, height = 16;
  int32_t channels = 3;  // 1 grey, 3 YCbCr, 4 CMYK as Adobe writes it
  bool progressive = false;
};
// A picture of one colour. `value` holds one number of [0, 255] a channel; for palettes, RGB.
std::string EncodePng(const PngOptions& options, const std::vector<uint8_t>& value);
std::string EncodeJpeg(const JpegOptions& options, const std::vector<uint8_t>& value);

// A unigram model: 0 is <unk>, 1 is </s>, then the words of WriteShards, letters and a space.
// `filler` adds so many pieces that no text contains.
std::string TokenizerModel(int32_t filler = 0);

}  // namespace phalanx::support

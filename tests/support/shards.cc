#include "tests/support/shards.h"

#include <jpeglib.h>
#include <png.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/prng.h"
#include "tests/support/files.h"
#include "tests/support/sounds.h"
#include "worker/data/tokenizer_model.pb.h"

namespace phalanx::support {
namespace {

constexpr std::array<absl::string_view, 8> kColours = {"black", "red",     "green",  "blue",
                                                       "cyan",  "magenta", "yellow", "white"};
constexpr std::array<absl::string_view, 4> kNouns = {"square", "tile", "field", "sky"};

// A number of [low, high].
int32_t Draw(Prng& prng, int32_t low, int32_t high) {
  return low + static_cast<int32_t>(prng.Below(static_cast<uint64_t>(high - low + 1)));
}

std::vector<uint8_t> ColourValue(size_t colour) {
  static constexpr uint8_t kBits[8] = {0, 1, 2, 4, 6, 5, 3, 7};
  std::vector<uint8_t> value;
  for (int c = 0; c < 3; ++c) value.push_back((kBits[colour] >> c) & 1 ? 230 : 25);
  return value;
}

void Check(bool condition, absl::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "tests/support/shards: %s\n", std::string(what).c_str());
  std::abort();
}

std::string Padded(absl::string_view content) {
  std::string bytes(content);
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

void AppendPng(png_structp png, png_bytep bytes, size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), count);
}

// One row of equal pixels, packed as PNG packs them.
std::vector<uint8_t> PngRow(const PngOptions& options, const std::vector<uint8_t>& value) {
  std::vector<uint8_t> row;
  if (options.depth >= 8) {
    for (int32_t x = 0; x < options.width; ++x) {
      for (int32_t c = 0; c < (options.palette ? 1 : options.channels); ++c) {
        const uint8_t sample = options.palette ? 1 : value[static_cast<size_t>(c)];
        row.insert(row.end(), static_cast<size_t>(options.depth / 8), sample);
      }
    }
    return row;
  }
  const int32_t sample = options.palette ? 1 : value[0] >> (8 - options.depth);
  row.resize(static_cast<size_t>((options.width * options.depth + 7) / 8));
  for (int32_t x = 0; x < options.width; ++x) {
    const int32_t bit = x * options.depth;
    row[static_cast<size_t>(bit / 8)] |=
        static_cast<uint8_t>(sample << (8 - options.depth - bit % 8));
  }
  return row;
}

}  // namespace

data::Encoder ImageEncoder(int64_t rows, int64_t size, int32_t module) {
  return {.module = module,
          .kind = data::ItemKind::kImage,
          .rows = rows,
          .image_size = size,
          .pixels = job::TraitsOf(job::Family::kClipVision).pixels};
}

data::Encoder SoundEncoder(int64_t rows, int64_t mel_bins, int64_t frames, int32_t module) {
  return {.module = module,
          .kind = data::ItemKind::kSound,
          .rows = rows,
          .mel_bins = mel_bins,
          .frames = frames};
}

ShardFiles WriteShards(const std::string& folder, const ShardOptions& options) {
  Prng prng(options.seed);
  ShardFiles files;
  int32_t next = 0;
  for (int32_t shard = 0; shard < options.shards; ++shard) {
    TarBuilder tar;
    const int32_t end =
        static_cast<int32_t>(int64_t{options.samples} * (shard + 1) / options.shards);
    for (; next < end; ++next) {
      const std::string key = absl::StrFormat("%06d", next);
      const int32_t images = Draw(prng, options.images_min, options.images_max);
      std::string marks, text;
      for (int32_t image = 0; image < images; ++image) {
        const size_t colour = prng.Below(kColours.size());
        const PngOptions png{.width = options.image_side, .height = options.image_side};
        tar.File(absl::StrCat(key, ".", image, ".png"), EncodePng(png, ColourValue(colour)));
        absl::StrAppend(&marks, "<image>");
        absl::StrAppend(&text, " ", kColours[colour]);
      }
      const int32_t items =
          images +
          (options.sounds_max == 0 ? 0 : Draw(prng, options.sounds_min, options.sounds_max));
      for (int32_t sound = images; sound < items; ++sound) {
        const size_t noun = prng.Below(kNouns.size());
        tar.File(
            absl::StrCat(key, ".", sound, ".wav"),
            EncodeSound({}, Tone(300.0 * static_cast<double>(noun + 1), options.sound_samples)));
        absl::StrAppend(&marks, "<audio>");
        absl::StrAppend(&text, " ", kNouns[noun]);
      }
      if (options.target_rows > 0) {
        std::vector<float> target(static_cast<size_t>(options.target_rows * options.target_hidden));
        for (float& value : target) value = static_cast<float>(UnitNormal(prng.Next()));
        tar.File(absl::StrCat(key, ".target.npy"),
                 EncodeNpy(options.target_rows, options.target_hidden, target));
      }
      for (int32_t word = items; word < options.words; ++word) {
        absl::StrAppend(&text, " ", kNouns[prng.Below(kNouns.size())]);
      }
      tar.File(absl::StrCat(key, ".txt"), marks + text);
    }
    files.shards.push_back(absl::StrFormat("%s/%s-%03d.tar", folder, options.name, shard));
    WriteFile(files.shards.back(), tar.Finish());
  }
  files.tokenizer = absl::StrCat(folder, "/", options.name, ".model");
  const std::string model = TokenizerModel();
  WriteFile(files.tokenizer, model);
  data::tokenizer_model::Model parsed;
  Check(parsed.ParseFromString(model), "own model does not parse");
  files.vocabulary = parsed.pieces_size();
  return files;
}

TarBuilder& TarBuilder::Header(absl::string_view name, char type, uint64_t declared,
                               absl::string_view link) {
  std::string header(512, '\0');
  const auto put = [&header](size_t at, absl::string_view text) {
    header.replace(at, text.size(), text.data(), text.size());
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", declared));
  put(136, "00000000000");
  put(148, "        ");
  header[156] = type;
  put(157, link.substr(0, 100));
  put(257, absl::string_view("ustar\00000", 8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, absl::string_view(absl::StrFormat("%06o", sum) + std::string("\0 ", 2)));
  bytes_.append(header);
  return *this;
}

TarBuilder& TarBuilder::File(absl::string_view name, absl::string_view content) {
  Header(name, '0', content.size());
  bytes_.append(Padded(content));
  return *this;
}

TarBuilder& TarBuilder::LongFile(absl::string_view name, absl::string_view content) {
  // "LENGTH path=NAME\n", where LENGTH counts itself.
  const std::string body = absl::StrCat(" path=", name, "\n");
  size_t length = body.size() + 1;
  while (absl::StrCat(length).size() + body.size() != length) ++length;
  const std::string record = absl::StrCat(length, body);
  Header("pax", 'x', record.size());
  bytes_.append(Padded(record));
  return File(name.substr(0, 100), content);
}

TarBuilder& TarBuilder::Directory(absl::string_view name) { return Header(name, '5', 0); }

TarBuilder& TarBuilder::SymbolicLink(absl::string_view name, absl::string_view target) {
  return Header(name, '2', 0, target);
}

std::string TarBuilder::Finish() const { return bytes_ + std::string(1024, '\0'); }

std::string EncodePng(const PngOptions& options, const std::vector<uint8_t>& value) {
  static constexpr int kTypes[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA,
                                   PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(png, &bytes, &AppendPng, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(options.width),
               static_cast<png_uint_32>(options.height), options.depth,
               options.palette ? PNG_COLOR_TYPE_PALETTE : kTypes[options.channels],
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_color palette[2] = {{0, 0, 0}, {0, 0, 0}};
  if (options.palette) {
    palette[1] = {value[0], value[1], value[2]};
    png_set_PLTE(png, info, palette, 2);
    const png_byte alpha[2] = {0, options.palette_alpha};
    if (options.palette_alpha < 255) png_set_tRNS(png, info, alpha, 2, nullptr);
  }
  png_write_info(png, info);
  std::vector<uint8_t> row = PngRow(options, value);
  std::vector<png_bytep> rows(static_cast<size_t>(options.height), row.data());
  png_set_interlace_handling(png);
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

std::string EncodeJpeg(const JpegOptions& options, const std::vector<uint8_t>& value) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = static_cast<JDIMENSION>(options.width);
  info.image_height = static_cast<JDIMENSION>(options.height);
  info.input_components = options.channels;
  info.in_color_space = options.channels == 1   ? JCS_GRAYSCALE
                        : options.channels == 3 ? JCS_RGB
                                                : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (options.channels == 4) info.write_Adobe_marker = TRUE;
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row;
  for (int32_t x = 0; x < options.width; ++x)
    row.insert(row.end(), value.begin(), value.begin() + options.channels);
  for (int32_t y = 0; y < options.height; ++y) {
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<char*>(buffer), size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

std::string TokenizerModel(int32_t filler) {
  data::tokenizer_model::Model model;
  const auto add = [&model](absl::string_view text, float score,
                            data::tokenizer_model::Piece::Type type) {
    data::tokenizer_model::Piece* piece = model.add_pieces();
    piece->set_piece(std::string(text));
    piece->set_score(score);
    piece->set_type(type);
  };
  add("<unk>", 0, data::tokenizer_model::Piece::UNKNOWN);
  add("</s>", 0, data::tokenizer_model::Piece::CONTROL);
  for (const absl::string_view word : kColours)
    add(absl::StrCat("\xE2\x96\x81", word), -2, data::tokenizer_model::Piece::NORMAL);
  for (const absl::string_view word : kNouns)
    add(absl::StrCat("\xE2\x96\x81", word), -2, data::tokenizer_model::Piece::NORMAL);
  add("\xE2\x96\x81", -3, data::tokenizer_model::Piece::NORMAL);
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    add(absl::string_view(&letter, 1), -4, data::tokenizer_model::Piece::NORMAL);
  }
  for (int32_t i = 0; i < filler; ++i) {
    add(absl::StrCat("#", i, "#"), -20, data::tokenizer_model::Piece::NORMAL);
  }
  return model.SerializeAsString();
}

}  // namespace phalanx::support

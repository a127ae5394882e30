#include "tests/support/sounds.h"

#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace phalanx::support {
namespace {

int FormatOf(SoundFormat format) {
  switch (format) {
    case SoundFormat::kWav8:
      return SF_FORMAT_WAV | SF_FORMAT_PCM_U8;
    case SoundFormat::kWav16:
      return SF_FORMAT_WAV | SF_FORMAT_PCM_16;
    case SoundFormat::kWav24:
      return SF_FORMAT_WAV | SF_FORMAT_PCM_24;
    case SoundFormat::kWavFloat:
      return SF_FORMAT_WAV | SF_FORMAT_FLOAT;
    case SoundFormat::kWavMuLaw:
      return SF_FORMAT_WAV | SF_FORMAT_ULAW;
    case SoundFormat::kFlac:
      return SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
  }
  return 0;
}

// A file in memory that libsndfile writes.
struct MemoryFile {
  std::string bytes;
  size_t at = 0;
};

sf_count_t Length(void* file) {
  return static_cast<sf_count_t>(static_cast<MemoryFile*>(file)->bytes.size());
}

sf_count_t Seek(sf_count_t offset, int whence, void* file) {
  MemoryFile& memory = *static_cast<MemoryFile*>(file);
  const sf_count_t base = whence == SEEK_SET   ? 0
                          : whence == SEEK_CUR ? static_cast<sf_count_t>(memory.at)
                                               : Length(file);
  memory.at = static_cast<size_t>(base + offset);
  return base + offset;
}

sf_count_t Read(void* to, sf_count_t count, void* file) {
  MemoryFile& memory = *static_cast<MemoryFile*>(file);
  const size_t size = std::min(static_cast<size_t>(count), memory.bytes.size() - memory.at);
  std::memcpy(to, memory.bytes.data() + memory.at, size);
  memory.at += size;
  return static_cast<sf_count_t>(size);
}

sf_count_t Write(const void* from, sf_count_t count, void* file) {
  MemoryFile& memory = *static_cast<MemoryFile*>(file);
  const size_t size = static_cast<size_t>(count);
  memory.bytes.resize(std::max(memory.bytes.size(), memory.at + size));
  std::memcpy(memory.bytes.data() + memory.at, from, size);
  memory.at += size;
  return count;
}

sf_count_t Tell(void* file) { return static_cast<sf_count_t>(static_cast<MemoryFile*>(file)->at); }

}  // namespace

std::string EncodeSound(const SoundOptions& options, const std::vector<float>& values) {
  MemoryFile memory;
  SF_VIRTUAL_IO io = {Length, Seek, Read, Write, Tell};
  SF_INFO info = {};
  info.samplerate = options.rate;
  info.channels = options.channels;
  info.format = FormatOf(options.format);
  SNDFILE* file = sf_open_virtual(&io, SFM_WRITE, &info, &memory);
  const sf_count_t count = static_cast<sf_count_t>(values.size());
  if (file == nullptr || sf_write_float(file, values.data(), count) != count ||
      sf_close(file) != 0) {
    std::fprintf(stderr, "tests/support/sounds: cannot encode\n");
    std::abort();
  }
  return memory.bytes;
}

std::vector<float> Tone(double hertz, int64_t count, int32_t rate) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(
        0.5 * std::sin(2 * std::numbers::pi * hertz * static_cast<double>(i) / rate));
  }
  return values;
}

std::string EncodeNpy(int64_t rows, int64_t columns, const std::vector<float>& values) {
  return EncodeNpy(absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ",
                                columns, "), }"),
                   std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size()));
}

std::string EncodeNpy(const std::string& dictionary, const std::string& values) {
  std::string header = dictionary;
  header.append(63 - (10 + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xFF));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  return bytes + header + values;
}

}  // namespace phalanx::support

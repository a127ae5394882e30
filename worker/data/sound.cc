#include "worker/data/sound.h"

#include <samplerate.h>
#include <sndfile.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/data/data_set.h"

namespace phalanx::data {
namespace {

constexpr int64_t kBlockFrames = 4096;
// Input frames that the resampler's filter reaches beyond the last one kept, at kSampleRate.
constexpr int64_t kFilterFrames = 256;

// A file in memory, as libsndfile asks for it.
struct MemoryFile {
  absl::string_view bytes;
  sf_count_t at = 0;
};

sf_count_t Length(void* file) {
  return static_cast<sf_count_t>(static_cast<MemoryFile*>(file)->bytes.size());
}

sf_count_t Seek(sf_count_t offset, int whence, void* file) {
  MemoryFile& memory = *static_cast<MemoryFile*>(file);
  const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? memory.at : Length(file);
  // Offsets come from hostile headers: neither overflow nor leave the file.
  if (offset < -base || offset > Length(file) - base) return -1;
  return memory.at = base + offset;
}

sf_count_t Read(void* to, sf_count_t count, void* file) {
  MemoryFile& memory = *static_cast<MemoryFile*>(file);
  count = std::clamp<sf_count_t>(count, 0, Length(file) - memory.at);
  std::memcpy(to, memory.bytes.data() + memory.at, static_cast<size_t>(count));
  memory.at += count;
  return count;
}

sf_count_t Tell(void* file) { return static_cast<MemoryFile*>(file)->at; }

// libsndfile reads a WAV file that ends early as if it were whole.
absl::Status CheckWholeWav(absl::string_view bytes) {
  for (size_t at = 12; bytes.size() - at >= 8;) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at + 4, sizeof(size));
    const size_t left = bytes.size() - at - 8;
    if (bytes.substr(at, 4) == "data") {
      if (size <= left) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("is a truncated WAV: has ", left, " of ", size, " bytes of samples"));
    }
    const size_t padded = size_t{size} + size % 2;
    if (padded > left) break;
    at += 8 + padded;
  }
  return absl::InvalidArgumentError("is a damaged WAV: has no data");
}

bool IsKnownFormat(int format) {
  static constexpr std::array kWav = {SF_FORMAT_PCM_U8, SF_FORMAT_PCM_16, SF_FORMAT_PCM_24,
                                      SF_FORMAT_PCM_32, SF_FORMAT_FLOAT,  SF_FORMAT_DOUBLE,
                                      SF_FORMAT_ULAW,   SF_FORMAT_ALAW};
  const int type = format & SF_FORMAT_TYPEMASK, values = format & SF_FORMAT_SUBMASK;
  if (type == SF_FORMAT_FLAC) return true;
  return (type == SF_FORMAT_WAV || type == SF_FORMAT_WAVEX) &&
         std::find(kWav.begin(), kWav.end(), values) != kWav.end();
}

absl::Status CheckHeader(const SF_INFO& info, absl::string_view kind) {
  if (!IsKnownFormat(info.format)) {
    return absl::InvalidArgumentError(absl::StrCat("is a ", kind, " of a format that is not read"));
  }
  const auto fault = [](absl::string_view what, int64_t value, int64_t low, int64_t high) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", value, " ", what, "; must have ", low, " to ", high));
  };
  if (info.channels < 1 || info.channels > kSoundChannelsMax) {
    return fault("channels", info.channels, 1, kSoundChannelsMax);
  }
  if (info.samplerate < kSoundRateMin || info.samplerate > kSoundRateMax) {
    return fault("samples a second", info.samplerate, kSoundRateMin, kSoundRateMax);
  }
  if (info.frames < 1 || info.frames > kSoundFramesMax) {
    return fault("samples a channel", info.frames, 1, kSoundFramesMax);
  }
  return absl::OkStatus();
}

// The first `frames` of an open file, channels averaged.
absl::StatusOr<std::vector<float>> ReadMono(SNDFILE* file, int64_t frames, int32_t channels,
                                            absl::string_view kind) {
  std::vector<float> mono;
  std::vector<float> block(static_cast<size_t>(kBlockFrames * channels));
  while (static_cast<int64_t>(mono.size()) < frames) {
    const int64_t wanted = std::min(kBlockFrames, frames - static_cast<int64_t>(mono.size()));
    const sf_count_t read = sf_readf_float(file, block.data(), wanted);
    if (read != wanted || sf_error(file) != SF_ERR_NO_ERROR) {
      return absl::InvalidArgumentError(absl::StrCat("is a damaged ", kind));
    }
    for (size_t i = 0; i < static_cast<size_t>(read * channels);
         i += static_cast<size_t>(channels)) {
      float sum = 0;
      for (size_t c = 0; c < static_cast<size_t>(channels); ++c) sum += block[i + c];
      mono.push_back(sum / static_cast<float>(channels));
    }
  }
  if (!std::all_of(mono.begin(), mono.end(), [](float value) { return std::isfinite(value); })) {
    return absl::InvalidArgumentError("has samples that are not finite");
  }
  return mono;
}

absl::StatusOr<std::vector<float>> Resample(const std::vector<float>& from, int32_t rate) {
  SRC_DATA data = {};
  data.src_ratio = static_cast<double>(kSampleRate) / rate;
  std::vector<float> to(
      static_cast<size_t>(std::ceil(static_cast<double>(from.size()) * data.src_ratio)) + 1);
  data.data_in = from.data();
  data.input_frames = static_cast<long>(from.size());
  data.data_out = to.data();
  data.output_frames = static_cast<long>(to.size());
  if (const int error = src_simple(&data, SRC_SINC_MEDIUM_QUALITY, 1); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot be resampled: ", src_strerror(error)));
  }
  to.resize(static_cast<size_t>(data.output_frames_gen));
  return to;
}

}  // namespace

absl::StatusOr<std::vector<float>> DecodeSound(absl::string_view bytes, int64_t samples_max) {
  const bool wav =
      absl::StartsWith(bytes, "RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WAVE";
  if (!wav && !absl::StartsWith(bytes, "fLaC")) {
    return absl::InvalidArgumentError("is neither a WAV nor a FLAC file");
  }
  const absl::string_view kind = wav ? "WAV" : "FLAC";
  if (wav) RETURN_IF_ERROR(CheckWholeWav(bytes));
  MemoryFile memory{bytes};
  SF_VIRTUAL_IO io = {Length, Seek, Read, nullptr, Tell};
  SF_INFO info = {};
  const std::unique_ptr<SNDFILE, int (*)(SNDFILE*)> file(
      sf_open_virtual(&io, SFM_READ, &info, &memory), sf_close);
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat("is a damaged ", kind));
  RETURN_IF_ERROR(CheckHeader(info, kind));

  int64_t frames = samples_max;
  if (info.samplerate != kSampleRate) {
    frames = (samples_max + kFilterFrames) * info.samplerate / kSampleRate + kFilterFrames;
  }
  frames = std::min<int64_t>(frames, info.frames);
  ASSIGN_OR_RETURN(std::vector<float> mono, ReadMono(file.get(), frames, info.channels, kind));
  if (info.samplerate != kSampleRate) {
    ASSIGN_OR_RETURN(mono, Resample(mono, info.samplerate));
  }
  if (static_cast<int64_t>(mono.size()) > samples_max)
    mono.resize(static_cast<size_t>(samples_max));
  return mono;
}

}  // namespace phalanx::data

// worker/data/sound.h: WAV and FLAC files to samples.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::data {

inline constexpr int32_t kSampleRate = 16000;  // of what DecodeSound returns, hertz

// Decodes what the first bytes say it is: WAV of integer (8, 16, 24, 32 bits), float, double,
// mu-law or A-law samples, or FLAC; at kSoundRateMin to kSoundRateMax hertz, with 1 to
// kSoundChannelsMax channels and 1 to kSoundFramesMax frames, all as its header says. Channels are
// averaged; another rate than kSampleRate is resampled. Full scale is [-1, 1]. At most the first
// `samples_max` samples: no more of the file is decoded, and no memory is taken for more than was.
// Errors: InvalidArgument, a phrase, for whatever does not decode completely so far, is truncated,
// or has a sample that is not finite.
absl::StatusOr<std::vector<float>> DecodeSound(absl::string_view bytes, int64_t samples_max);

}  // namespace phalanx::data

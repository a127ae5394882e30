// core/checkpoint/names.h: names of checkpoints and of the files in them (docs/checkpoints.md).
//
//   step-00000050.epoch-3/          a published checkpoint
//     rank-00000.safetensors ...    its part files
//     manifest.json
//
// Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace phalanx::checkpoint {

inline constexpr absl::string_view kManifestFile = "manifest.json";

// In the order in which checkpoints were written.
struct CheckpointName {
  int64_t step = 0;   // the last one that it holds
  int64_t epoch = 0;  // that wrote it
  friend auto operator<=>(const CheckpointName&, const CheckpointName&) = default;
};

std::string ToString(const CheckpointName& name);
// nullopt for what ToString does not write.
std::optional<CheckpointName> ParseCheckpointName(absl::string_view text);

std::string PartFileName(int32_t rank);
// nullopt for what PartFileName does not write.
std::optional<int32_t> ParsePartFileName(absl::string_view text);

}  // namespace phalanx::checkpoint

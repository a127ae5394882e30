// core/checkpoint/names.h: names of checkpoints and of the files in them (docs/checkpoints.md).
//
//   step-00000050.epoch-3/          a published checkpoint
//   step-00000050.epoch-3.2/        likewise, of a job that came later to a name that was taken
//     rank-00000.safetensors ...    its part files
//     manifest.json
//   .step-00000050.epoch-3.STORE-job-7/     a draft; .publishing-step-.. while it is published,
//                                           .deleted-step-.. what is being deleted
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
// Of the checkpoint in that folder.
std::string ManifestPath(const std::string& checkpoint);

// In the order in which checkpoints were written.
struct CheckpointName {
  int64_t step = 0;   // the last one that it holds
  int64_t epoch = 0;  // that wrote it
  int64_t copy = 0;   // 2, 3, ...: those before it are other jobs'; 0: there was none
  friend auto operator<=>(const CheckpointName&, const CheckpointName&) = default;
};

std::string ToString(const CheckpointName& name);
// nullopt for what ToString does not write.
std::optional<CheckpointName> ParseCheckpointName(absl::string_view text);

// The folder in which a checkpoint is written before it is published: its name says whose it is, so
// that neither another job nor an older epoch of the job writes into it. Names of stores are those
// of manifests.
std::string DraftName(const CheckpointName& name, absl::string_view store, int64_t job);
// nullopt for what is no name of a draft of that job.
std::optional<CheckpointName> ParseDraftName(absl::string_view text, absl::string_view store,
                                             int64_t job);

std::string PartFileName(int32_t rank);
// nullopt for what PartFileName does not write.
std::optional<int32_t> ParsePartFileName(absl::string_view text);

}  // namespace phalanx::checkpoint

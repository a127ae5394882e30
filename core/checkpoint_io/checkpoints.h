// core/checkpoint_io/checkpoints.h: published checkpoints in a folder: which there are, whether
// they are sound, and which one to go on from.
//
// What writes is part_writer.h and publish.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/names.h"
#include "core/job/job_spec.h"

namespace phalanx::checkpoint {

struct ListedCheckpoint {
  CheckpointName name;
  std::string path;
  absl::Time written = absl::InfinitePast();  // when its manifest was; unknown where there is none
  absl::StatusOr<Manifest> manifest;          // as ReadManifestOf, and of another step or epoch
};
// Newest first: by step, then by epoch. Only manifests are read. `below`, here and in what follows:
// as in folders.h, also of each file that is opened. Errors: NotFound if there is no folder,
// PermissionDenied, Unavailable; InvalidArgument if it leads out of `below`.
absl::StatusOr<std::vector<ListedCheckpoint>> ListCheckpoints(
    const std::string& folder, const std::vector<std::string>& below = {});

// Errors: NotFound if `checkpoint` is no folder or has no manifest, PermissionDenied, Unavailable;
// DataLoss if the manifest is damaged, cannot be read, or leads out of `below`.
absl::StatusOr<Manifest> ReadManifestOf(const std::string& checkpoint,
                                        const std::vector<std::string>& below = {});

struct VerifyOptions {
  int32_t threads = 1;  // that read part files, each one entry at a time
  // After each entry: the bytes verified so far. One call at a time, on any of the threads. An
  // error ends the verification, which returns it.
  std::function<absl::Status(int64_t bytes)> on_bytes;
  // Below one of which all that is opened lies, whoever lays links meanwhile; none: anywhere.
  std::vector<std::string> folders;
};
inline constexpr size_t kDamageMax = 20;
// Reads every byte of the parts, then compares what they hold with the model that the manifest
// describes. Holds the checkpoint's lock (lock.h) meanwhile. Errors: DataLoss, with a line for each
// thing that is wrong, by file and entry, the first kDamageMax of them; NotFound if it is being
// deleted; what on_bytes returns.
absl::Status VerifyCheckpoint(const std::string& checkpoint, const Manifest& manifest,
                              const VerifyOptions& options);

struct Checkpoint {
  std::string path;
  Manifest manifest;
};
inline constexpr size_t kPassedOverMax = 16;
struct Choice {
  std::optional<Checkpoint> checkpoint;  // the newest that is sound and of the job's model
  // Newer ones: "step-00000060.epoch-3: ..."; of more than kPassedOverMax the last line counts
  // those that are not named: "and 270 more".
  std::vector<std::string> passed_over;
};
// No folder is one without checkpoints. One that is deleted before it was verified is not passed
// over: the folder is looked at again. Errors: as of ListCheckpoints, NotFound where checkpoints
// are deleted again and again; what on_bytes returns.
absl::StatusOr<Choice> ChooseCheckpoint(const std::string& folder, const job::JobSpec& spec,
                                        const VerifyOptions& options);

// As checkpoint.resume_from of the job says, which is given: `latest` is the newest of
// checkpoint.directory that is sound and of the job's model, if there is one; a path is that
// checkpoint. Relative paths start from `directory`. Errors: CheckpointInvalid with violations of
// spec.checkpoint.resume_from, CheckpointUnavailable (core/job/failure.h); what on_bytes returns.
absl::StatusOr<Choice> ChooseToResume(const job::JobSpec& spec, const std::string& directory,
                                      const VerifyOptions& options);

}  // namespace phalanx::checkpoint

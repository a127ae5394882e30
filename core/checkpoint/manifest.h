// core/checkpoint/manifest.h: what a checkpoint says of itself: manifest.json.
//
// The files of its parts with their digests, how far training was, and of which model. The text
// ends with a digest of its own, so a manifest that is read is one that Phalanx wrote.
//
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/violation.h"
#include "core/checkpoint/entry.h"
#include "core/job/job_spec.h"
#include "core/job/tree.h"

namespace phalanx::checkpoint {

inline constexpr size_t kManifestBytesMax = size_t{64} << 20;

// What has to be the same in a job that goes on from the checkpoint.
struct Model {
  struct Module {
    std::string name;
    bool trains = true;
    // By field, as a job file has it: {"hidden_size", "192"}, {"tied_head", "false"}, ...
    std::vector<std::pair<std::string, std::string>> architecture;
    friend bool operator==(const Module&, const Module&) = default;
  };
  struct Projector {
    std::string from, to;  // modules
    int64_t hidden_size = 0;
    bool trains = true;
    friend bool operator==(const Projector&, const Projector&) = default;
  };
  job::Precision compute = job::Precision::kFp32;
  std::vector<Module> modules;
  std::vector<Projector> projectors;
  friend bool operator==(const Model&, const Model&) = default;
};
Model ModelOf(const job::JobSpec& spec);
absl::string_view NameOf(job::Precision compute);  // "bf16", "fp32", "fp64"
// Of entries of that kind.
DType DTypeOf(Kind kind, job::Precision compute);

// The decision of the last step that the checkpoint holds.
struct Decision {
  enum class Verdict : uint8_t { kCommitted, kSkipped, kEmpty } verdict = Verdict::kCommitted;
  double loss = 0, gradient_norm = 0, gradient_scale = 0, counted_tokens = 0, corrupt_samples = 0;
  int64_t tokens = 0, images = 0, sounds = 0;
};
absl::string_view ToString(Decision::Verdict verdict);  // "committed", "skipped", "empty"

// A part file.
struct PartFile {
  std::string file;  // PartFileName of its rank
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  int64_t entries = 0;
  std::string digest;  // Digest of its header, which has those of its entries
  friend bool operator==(const PartFile&, const PartFile&) = default;
};

// Of what the files are called, how long they are and what is in them.
std::string DigestOf(absl::Span<const PartFile> parts);

struct Manifest {
  std::string job;     // its name
  std::string store;   // of the coordinator that gave it its number
  int64_t number = 0;  // of the job in that store
  int64_t epoch = 0, step = 0;
  uint64_t seed = 0;
  std::string data_digest;  // of the index of the data
  Decision decision;
  int64_t updates = 0;           // committed steps so far
  int64_t skipped_in_a_row = 0;  // up to `step`
  Model model;
  std::vector<PartFile> parts;  // by rank

  int64_t bytes() const;    // of all parts
  int64_t entries() const;  // likewise
};

// As the document that WriteManifest writes, without its digest.
job::Tree TreeOf(const Manifest& manifest);
std::string WriteManifest(const Manifest& manifest);
// Errors: InvalidArgument with the first thing that is wrong, by path, value and rule.
absl::StatusOr<Manifest> ReadManifest(absl::string_view text);

// Why a job cannot go on from a checkpoint; empty if it can. `name`: how the user named it. What
// may differ: all of the layout, `block`, `context`, data, batch, optimizer, and more steps.
std::vector<Violation> Incompatible(const job::JobSpec& spec, const std::string& name,
                                    const Manifest& manifest);

}  // namespace phalanx::checkpoint

// core/wire/job_yaml.h: job files as text.
//
// YAML (and so JSON) to the neutral tree of core/job/tree.h, and back. Input may come from anybody:
// its size, depth and the number of nodes that aliases blow it up to are bounded, and whatever the
// text is, the answer is a tree or violations. Columns count characters.
//
// Thread-safe: functions of their arguments.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/job/job_reader.h"
#include "core/job/tree.h"

namespace phalanx::wire {

// Of a document, and of the scalars and keys that its aliases repeat, all together.
inline constexpr size_t kDocumentBytesMax = 1 << 20;
inline constexpr int kDocumentDepthMax = 32;
// Scalars, sequences and mappings, copies made by aliases included.
inline constexpr size_t kDocumentNodesMax = 100'000;

// Exactly one document. An empty text is a null tree.
// Errors: InvalidArgument with one violation, which names line and column in its rule.
absl::StatusOr<job::Tree> ParseYaml(absl::string_view text);

// Block style, short lists of scalars in one line. ParseYaml reads it back as the same tree, but
// for positions.
std::string EmitYaml(const job::Tree& tree);

// The whole way from text to spec.
// Errors: InvalidArgument with every violation (core/job/job_reader.h).
absl::StatusOr<job::ReadJob> ReadJobFile(absl::string_view text, job::Purpose purpose);

}  // namespace phalanx::wire

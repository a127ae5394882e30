// worker/data/normalizer.h: text to the form that a sentencepiece model's pieces are made of.
//
// Replaces by the model's table of longest prefixes (a double-array trie inside the model file),
// turns spaces into U+2581, drops spaces at the ends and repeated ones, puts one in front, as the
// model says. Bytes that are no UTF-8 become U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::data {

inline constexpr absl::string_view kSpaceSymbol = "\xE2\x96\x81";

// Bytes of the UTF-8 character at the front of `text`, from its first byte alone; at most what is
// left. `text` is not empty.
size_t CharacterBytes(absl::string_view text);

// Bytes of the well-formed UTF-8 character at the front of `text`, 0 if there is none. `text` is
// not empty.
size_t ValidCharacterBytes(absl::string_view text);

struct NormalizerOptions {
  bool dummy_prefix = true;
  bool whitespace_as_suffix = false;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// Immutable; safe to read from any thread.
class Normalizer {
 public:
  // `table` is the model's precompiled_charsmap, may be empty; `verbatim` are strings that pass
  // unchanged. Errors: InvalidArgument if the table's sizes contradict each other.
  static absl::StatusOr<Normalizer> Create(absl::string_view table,
                                           std::vector<std::string> verbatim,
                                           const NormalizerOptions& options);
  std::string Normalize(absl::string_view text) const;
  // Bytes of the longest verbatim string at the front of `text`; 0 for none.
  size_t VerbatimBytes(absl::string_view text) const;

 private:
  // What the front of `text` becomes, and how many bytes of it that takes.
  std::pair<absl::string_view, size_t> NormalizePrefix(absl::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;  // each ends with a zero byte
  std::vector<std::string> verbatim_;
  NormalizerOptions options_;
};

}  // namespace phalanx::data

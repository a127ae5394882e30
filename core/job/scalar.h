// core/job/scalar.h: how a value is written in a job file, and read back.
//
// Text to value and value to text, with no locale and no surprise: `true` is a boolean, `yes` is a
// word. Every Format function writes what its Parse function reads back as the same value. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace phalanx::job {

// What one brace pattern may expand to at most.
inline constexpr int64_t kExpansionMax = 65536;
// Bytes of a pattern.
inline constexpr size_t kPatternMax = 1024;
// Bytes of all names together, of one pattern or of the list that a field has.
inline constexpr size_t kExpansionBytesMax = size_t{8} << 20;

// Decimal digits with an optional sign; nullopt for anything else and beyond 64 bits.
std::optional<int64_t> ParseInteger(absl::string_view text);
std::optional<uint64_t> ParseUnsigned(absl::string_view text);
// An integer, or one with a binary suffix: 16Gi is 16 * 2^30. Ki, Mi, Gi, Ti.
std::optional<int64_t> ParseSize(absl::string_view text);
// Any decimal or scientific notation, .inf and .nan included (ranges refuse those).
std::optional<double> ParseNumber(absl::string_view text);
std::optional<bool> ParseBoolean(absl::string_view text);
// 30s, 2h, 1h30m, 250ms: a number needs its unit.
std::optional<absl::Duration> ParseDuration(absl::string_view text);

std::string FormatNumber(double value);
std::string FormatDuration(absl::Duration value);

// True if unquoted `text` would be read as a number, a boolean or null: as a string it needs
// quotes.
bool NeedsQuotes(absl::string_view text);

// "emoji-{000..003}.tar" -> emoji-000.tar ... emoji-003.tar; "{train,extra}.tar" -> two names.
// Several braces multiply, the last one varying fastest. Numbers keep the width of the longer end.
// Errors: InvalidArgument for an unclosed or nested brace, a range that runs backwards, a pattern
// beyond kPatternMax, or names that are more than kExpansionMax or longer than kExpansionBytesMax.
absl::StatusOr<std::vector<std::string>> ExpandBraces(absl::string_view pattern);

// The candidate that `word` was most likely meant to be; nullopt when none is near. Near: at most a
// third of its letters changed, or one the beginning of the other.
std::optional<absl::string_view> NearestName(absl::string_view word,
                                             absl::Span<const absl::string_view> candidates);

}  // namespace phalanx::job

// core/job/json.h: JSON text (RFC 8259) and the neutral tree of core/job/tree.h.
//
// Trees of what a document is to say are made of values: a number and a boolean are bare, a text is
// quoted whatever it looks like.
//
// Text may come from anybody: how deep and how large a tree it becomes is bounded. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/job/tree.h"

namespace phalanx::job {

inline constexpr int kJsonDepthMax = 32;

Tree ScalarTree(std::string text, bool quoted);
Tree TextTree(std::string text);
Tree NumberTree(int64_t number);
Tree NumberTree(double number);
Tree FlagTree(bool flag);
Tree ListTree(std::vector<Tree> items);
Tree MappingTree(std::vector<Tree::Entry> entries);

// `text` in quotes.
std::string JsonString(absl::string_view text);

// With two spaces of indentation; unquoted scalars that JSON does not have become strings.
std::string EmitJson(const Tree& tree);

// Strings become quoted scalars, numbers and booleans unquoted ones; repeated keys are kept, and
// positions are unknown. Errors: InvalidArgument for a text that is no JSON or no UTF-8, is nested
// deeper than kJsonDepthMax or has more than `nodes_max` values.
absl::StatusOr<Tree> ParseJson(absl::string_view text, size_t nodes_max);

}  // namespace phalanx::job

// core/job/tree.h: a parsed document before anyone asked what it means.
//
// Neutral between YAML and JSON, so that core/job validates without a parser and keeps what a
// parser's own types would lose: unknown keys, duplicate keys, positions, and how a scalar was
// written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx::job {

struct Tree {
  struct Entry;
  enum class Kind : uint8_t { kNull, kScalar, kSequence, kMapping } kind = Kind::kNull;
  std::string scalar;          // kScalar: the text
  bool quoted = false;         // kScalar: written in quotes, hence a string whatever it looks like
  std::vector<Tree> items;     // kSequence
  std::vector<Entry> entries;  // kMapping, in the document's order, duplicates kept
  int32_t line = 0;            // from 1; 0: unknown
  int32_t column = 0;
};
struct Tree::Entry {
  std::string key;
  Tree value;
};

}  // namespace phalanx::job

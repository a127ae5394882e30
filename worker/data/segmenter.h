// worker/data/segmenter.h: normalised text to pieces, by the two algorithms of sentencepiece
// models.
//
// Unigram: the run of pieces with the highest sum of scores (Viterbi); a character that no piece
// covers is unknown. BPE: starting from characters, the pair whose union has the highest score is
// joined first, the leftmost among equals. Both give what the reference implementation gives, ties
// and rounding included, so that a model trained with its tokens reads ours.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace phalanx::data {

enum class PieceType : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Pieces by string, and as a trie. Immutable once filled; safe to read from any thread.
class Vocabulary {
 public:
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  // Text may hold neither two equal pieces nor an empty one.
  explicit Vocabulary(std::vector<Piece> pieces);

  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }
  const Piece& piece(int32_t id) const { return pieces_[static_cast<size_t>(id)]; }
  int32_t unknown() const { return unknown_; }
  float score_min() const { return score_min_; }
  float score_max() const { return score_max_; }
  // Among pieces that text may contain (normal, user-defined, unused); -1 for none.
  int32_t Find(absl::string_view text) const;
  // Calls `found(id, bytes)` for every such piece that `text` starts with, shortest first.
  template <typename Found>
  void ForEachPrefix(absl::string_view text, Found&& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child =
          children_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[i]));
      if (child == children_.end()) return;
      node = child->second;
      if (piece_at_[node] >= 0) found(piece_at_[node], i + 1);
    }
  }

 private:
  std::vector<Piece> pieces_;
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // (node, byte) -> node
  std::vector<int32_t> piece_at_;                     // of each node; -1 for none
  int32_t unknown_ = -1;
  float score_min_ = 0, score_max_ = 0;
};

struct Segment {
  absl::string_view text;
  int32_t id = 0;
};

std::vector<Segment> SegmentUnigram(const Vocabulary& vocabulary, absl::string_view normalized);
// `verbatim_bytes` tells the length of the user-defined symbol at the front, 0 for none.
std::vector<Segment> SegmentBpe(const Vocabulary& vocabulary, absl::string_view normalized,
                                const std::function<size_t(absl::string_view)>& verbatim_bytes);

}  // namespace phalanx::data

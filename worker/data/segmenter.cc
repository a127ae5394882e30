#include "worker/data/segmenter.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "worker/data/normalizer.h"

namespace phalanx::data {
namespace {

constexpr float kUnknownPenalty = 10.0f;

// The BPE work on one text.
class PairMerger {
 public:
  PairMerger(const Vocabulary& vocabulary, absl::string_view text,
             const std::function<size_t(absl::string_view)>& verbatim_bytes)
      : vocabulary_(vocabulary) {
    while (!text.empty()) {
      const size_t verbatim = verbatim_bytes(text);
      const size_t bytes = verbatim > 0 ? verbatim : CharacterBytes(text);
      const int32_t index = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({text.substr(0, bytes), index - 1, index + 1, verbatim > 0});
      text.remove_prefix(bytes);
    }
    if (!symbols_.empty()) symbols_.back().next = -1;
  }

  std::vector<Segment> Run() {
    for (int32_t i = 1; i < static_cast<int32_t>(symbols_.size()); ++i) Propose(i - 1, i);
    while (!agenda_.empty()) {
      const Pair top = agenda_.top();
      agenda_.pop();
      Symbol& left = At(top.left);
      Symbol& right = At(top.right);
      if (left.text.empty() || right.text.empty() ||
          left.text.size() + right.text.size() != top.bytes) {
        continue;  // one of them has been joined since
      }
      left.text = Joined(left.text, right.text);
      left.next = right.next;
      if (right.next >= 0) At(right.next).previous = top.left;
      right.text = {};
      Propose(left.previous, top.left);
      Propose(top.left, left.next);
    }
    std::vector<Segment> segments;
    for (int32_t i = symbols_.empty() ? -1 : 0; i >= 0; i = At(i).next) Emit(At(i).text, segments);
    return segments;
  }

 private:
  struct Symbol {
    absl::string_view text;
    int32_t previous, next;
    bool frozen;
  };
  struct Pair {
    int32_t left, right;
    float score;
    size_t bytes;
    bool operator<(const Pair& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  Symbol& At(int32_t index) { return symbols_[static_cast<size_t>(index)]; }
  // They are neighbours in one buffer.
  static absl::string_view Joined(absl::string_view left, absl::string_view right) {
    return absl::string_view(left.data(), left.size() + right.size());
  }

  void Propose(int32_t left, int32_t right) {
    if (left < 0 || right < 0 || At(left).frozen || At(right).frozen) return;
    const absl::string_view text = Joined(At(left).text, At(right).text);
    const int32_t id = vocabulary_.Find(text);
    if (id < 0) return;
    const Vocabulary::Piece& piece = vocabulary_.piece(id);
    agenda_.push({left, right, piece.score, text.size()});
    if (piece.type == PieceType::kUnused) parts_[text] = {At(left).text, At(right).text};
  }

  // An unused piece is a step on the way to longer ones, never a result: it falls apart again.
  void Emit(absl::string_view text, std::vector<Segment>& segments) const {
    std::vector<absl::string_view> rest = {text};
    while (!rest.empty()) {
      const absl::string_view next = rest.back();
      rest.pop_back();
      const int32_t id = vocabulary_.Find(next);
      const auto parts = parts_.find(next);
      if (id >= 0 && vocabulary_.piece(id).type == PieceType::kUnused && parts != parts_.end()) {
        rest.push_back(parts->second.second);
        rest.push_back(parts->second.first);
      } else {
        segments.push_back({next, id >= 0 ? id : vocabulary_.unknown()});
      }
    }
  }

  const Vocabulary& vocabulary_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Pair> agenda_;
  absl::flat_hash_map<absl::string_view, std::pair<absl::string_view, absl::string_view>> parts_;
};

}  // namespace

Vocabulary::Vocabulary(std::vector<Piece> pieces) : pieces_(std::move(pieces)), piece_at_{-1} {
  score_min_ = std::numeric_limits<float>::max();
  score_max_ = std::numeric_limits<float>::lowest();
  for (int32_t id = 0; id < size(); ++id) {
    const Piece& piece = this->piece(id);
    if (piece.type == PieceType::kUnknown) unknown_ = id;
    if (piece.type == PieceType::kNormal) {
      score_min_ = std::min(score_min_, piece.score);
      score_max_ = std::max(score_max_, piece.score);
    }
    if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined &&
        piece.type != PieceType::kUnused) {
      continue;
    }
    uint32_t node = 0;
    for (const char c : piece.text) {
      const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
      const auto [child, added] =
          children_.try_emplace(key, static_cast<uint32_t>(piece_at_.size()));
      if (added) piece_at_.push_back(-1);
      node = child->second;
    }
    piece_at_[node] = id;
  }
}

int32_t Vocabulary::Find(absl::string_view text) const {
  uint32_t node = 0;
  for (const char c : text) {
    const auto child = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c));
    if (child == children_.end()) return -1;
    node = child->second;
  }
  return piece_at_[node];
}

std::vector<Segment> SegmentUnigram(const Vocabulary& vocabulary, absl::string_view normalized) {
  struct Ending {
    int32_t id = -1;
    float score = 0;
    int64_t start = -1;
  };
  std::vector<Ending> endings(normalized.size() + 1);
  const float unknown_score = vocabulary.score_min() - kUnknownPenalty;
  for (size_t start = 0; start < normalized.size();) {
    const float before = endings[start].score;
    const size_t character = CharacterBytes(normalized.substr(start));
    bool covered = false;
    // Sums in double, kept in float: ties and near-ties fall as in the reference implementation.
    const auto offer = [&](int32_t id, size_t bytes, double score) {
      Ending& ending = endings[start + bytes];
      const double total = score + before;
      if (ending.start >= 0 && total <= ending.score) return;
      ending = {id, static_cast<float>(total), static_cast<int64_t>(start)};
    };
    vocabulary.ForEachPrefix(normalized.substr(start), [&](int32_t id, size_t bytes) {
      const Vocabulary::Piece& piece = vocabulary.piece(id);
      if (piece.type == PieceType::kUnused) return;
      offer(id, bytes,
            piece.type == PieceType::kUserDefined
                ? static_cast<double>(static_cast<float>(bytes) * vocabulary.score_max()) - 0.1
                : static_cast<double>(piece.score));
      covered = covered || bytes == character;
    });
    if (!covered) offer(vocabulary.unknown(), character, unknown_score);
    start += character;
  }
  std::vector<Segment> segments;
  for (size_t end = normalized.size(); end > 0;) {
    const size_t start = static_cast<size_t>(endings[end].start);
    segments.push_back({normalized.substr(start, end - start), endings[end].id});
    end = start;
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

std::vector<Segment> SegmentBpe(const Vocabulary& vocabulary, absl::string_view normalized,
                                const std::function<size_t(absl::string_view)>& verbatim_bytes) {
  return PairMerger(vocabulary, normalized, verbatim_bytes).Run();
}

}  // namespace phalanx::data

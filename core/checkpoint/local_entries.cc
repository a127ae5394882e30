#include "core/checkpoint/local_entries.h"

#include <algorithm>
#include <utility>

namespace phalanx::checkpoint {
namespace {

using plan::LocalMatrix;
using plan::Piece;
using plan::UnitRange;

// Elements [elements) of a matrix in row order as rectangles of it: a part of a row, whole rows, a
// part of a row, as far as there are such.
std::vector<Rectangle> RectanglesOf(const UnitRange& elements, int64_t cols) {
  std::vector<Rectangle> rectangles;
  for (int64_t at = elements.first; at < elements.end();) {
    const int64_t row = at / cols, col = at % cols, left = elements.end() - at;
    Rectangle next{.row = row, .col = col, .rows = 1, .cols = std::min(cols - col, left)};
    if (col == 0 && left >= cols) next.rows = left / cols;
    rectangles.push_back(next);
    at += next.elements();
  }
  return rectangles;
}

// What of its local matrix a piece is.
Rectangle LocalOf(const LocalMatrix& matrix, const Piece& piece) {
  return {.row = piece.local_row, .col = 0, .rows = piece.rows, .cols = matrix.cols};
}

// Where a rectangle of the local matrix, within the piece, lies in its logical tensor.
Rectangle LogicalOf(const LocalMatrix& matrix, const Piece& piece, const Rectangle& local) {
  Rectangle logical = local;
  logical.row += piece.logical_row - piece.local_row;
  if (matrix.transposed) {
    std::swap(logical.row, logical.col);
    std::swap(logical.rows, logical.cols);
  }
  return logical;
}

// Turns rectangles of local matrices into entries.
class Collector {
 public:
  Collector(const plan::StageParameters& parameters, const std::string& module, Copies copies)
      : parameters_(parameters), module_(module), copies_(copies) {}

  void AddRun(const UnitRange& run) {
    const auto& matrices = parameters_.matrices;
    auto matrix = std::upper_bound(matrices.begin(), matrices.end(), run.first,
                                   [](int64_t first, const LocalMatrix& other) {
                                     return first < other.offset + other.rows * other.cols;
                                   });
    for (; matrix != matrices.end() && matrix->offset < run.end(); ++matrix) {
      const int64_t first = std::max(run.first - matrix->offset, int64_t{0});
      const int64_t end = std::min(run.end() - matrix->offset, matrix->rows * matrix->cols);
      const int64_t begin = position_ + matrix->offset - run.first;  // of the matrix
      for (const Rectangle& held : RectanglesOf({first, end - first}, matrix->cols)) {
        for (const Piece& piece : matrix->pieces) {
          if (copies_ == Copies::kAll || piece.primary) AddPiece(*matrix, piece, held, begin);
        }
      }
    }
    position_ += run.count;
  }

  std::vector<LocalEntry> Take() { return std::move(entries_); }

 private:
  void AddPiece(const LocalMatrix& matrix, const Piece& piece, const Rectangle& held,
                int64_t begin) {
    const Rectangle local = Intersection(held, LocalOf(matrix, piece));
    if (!local.empty()) AddCut(matrix, piece, local, begin);
  }

  void AddCut(const LocalMatrix& matrix, const Piece& piece, Rectangle local, int64_t begin) {
    if (local.elements() > kEntryElementsMax) {
      Rectangle second = local;
      int64_t& size = local.rows > 1 ? local.rows : local.cols;
      int64_t& rest = local.rows > 1 ? second.rows : second.cols;
      (local.rows > 1 ? second.row : second.col) += size / 2;
      rest -= size / 2;
      size /= 2;
      AddCut(matrix, piece, local, begin);
      AddCut(matrix, piece, second, begin);
      return;
    }
    LocalEntry made{.position = begin + local.row * matrix.cols + local.col, .stride = matrix.cols};
    made.entry.module = module_;
    made.entry.tensor = parameters_.logical[static_cast<size_t>(piece.logical)].name;
    made.entry.where = LogicalOf(matrix, piece, local);
    made.entry.transposed = matrix.transposed;
    entries_.push_back(std::move(made));
  }

  const plan::StageParameters& parameters_;
  const std::string& module_;
  const Copies copies_;
  int64_t position_ = 0;  // where the next run begins
  std::vector<LocalEntry> entries_;
};

Steps StepsOf(const Entry& entry, int64_t first, int64_t stride, const Rectangle& part) {
  Steps steps{.first = first, .row = stride, .col = 1};
  if (entry.transposed) std::swap(steps.row, steps.col);
  steps.first += (part.row - entry.where.row) * steps.row;
  steps.first += (part.col - entry.where.col) * steps.col;
  return steps;
}

}  // namespace

std::vector<LocalEntry> EntriesOf(const plan::StageParameters& parameters,
                                  const std::string& module, absl::Span<const UnitRange> runs,
                                  Copies copies) {
  Collector collector(parameters, module, copies);
  for (const UnitRange& run : runs) collector.AddRun(run);
  return collector.Take();
}

Steps StepsIn(const Entry& entry, const Rectangle& part) {
  return StepsOf(entry, 0, entry.line(), part);
}

Steps StepsIn(const LocalEntry& local, const Rectangle& part) {
  return StepsOf(local.entry, local.position, local.stride, part);
}

}  // namespace phalanx::checkpoint

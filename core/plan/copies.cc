#include "core/plan/copies.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "core/plan/units.h"

namespace phalanx::plan {
namespace {

// Where a piece lies that is cut alike on all of its holders.
using PieceKey = std::tuple<std::string, int64_t, int64_t>;  // tensor, first row, rows

struct HeldPiece {
  int64_t offset = 0, count = 0;
  bool primary = false, partial = false;
};

// Pieces of rows of what trains that other tensor ranks hold too.
std::map<PieceKey, HeldPiece> SharedPieces(const StageParameters& parameters) {
  std::map<PieceKey, HeldPiece> pieces;
  for (const LocalMatrix& matrix : parameters.matrices) {
    if (!matrix.trains) continue;
    for (const Piece& piece : matrix.pieces) {
      const bool partial = piece.holding == Holding::kPartial;
      if (!partial && piece.holding != Holding::kDuplicate) continue;
      const LogicalTensor& tensor = parameters.logical[static_cast<size_t>(piece.logical)];
      pieces[{tensor.name, piece.logical_row, piece.rows}] = {
          .offset = matrix.offset + piece.local_row * matrix.cols,
          .count = piece.rows * matrix.cols,
          .primary = piece.primary,
          .partial = partial};
    }
  }
  return pieces;
}

// Runs that follow each other at both ends are one.
void Append(CopyRun run, std::vector<CopyRun>& runs) {
  if (!runs.empty()) {
    CopyRun& last = runs.back();
    if (last.folds == run.folds && last.lead_offset + last.count == run.lead_offset &&
        last.offset + last.count == run.offset) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

// The vocabulary rows that a tensor rank has of one end of the embedding.
struct VocabularyEnd {
  Place place;
  int64_t offset = 0, cols = 0;  // in its flat buffers
  UnitRange rows;
};

// Of each tensor rank of a slot that has some.
std::vector<VocabularyEnd> EndsOf(const Plan& plan, Place place, int32_t chunk, MatrixRole role) {
  std::vector<VocabularyEnd> ends;
  place.width = plan.Width(place.module, place.dp, place.pp);
  for (place.tp = 0; place.tp < place.width; ++place.tp) {
    const StageParameters parameters = ParametersOf(plan, place, chunk);
    const LocalMatrix* matrix = parameters.Find(role);
    if (matrix == nullptr || matrix->pieces.empty()) continue;
    const Piece& piece = matrix->pieces.front();
    ends.push_back({.place = place,
                    .offset = matrix->offset,
                    .cols = matrix->cols,
                    .rows = {piece.logical_row, piece.rows}});
  }
  return ends;
}

}  // namespace

std::vector<Copy> CopiesInSlot(const Plan& plan, const Place& place, int32_t chunk) {
  std::vector<Copy> copies;
  if (place.width == 1) return copies;
  std::vector<Place> places;
  std::vector<std::map<PieceKey, HeldPiece>> held;
  for (int32_t tp = 0; tp < place.width; ++tp) {
    places.push_back(place);
    places.back().tp = tp;
    held.push_back(SharedPieces(ParametersOf(plan, places.back(), chunk)));
  }
  for (size_t lead = 0; lead < held.size(); ++lead) {
    for (size_t follower = 0; follower < held.size(); ++follower) {
      if (follower == lead) continue;
      Copy copy{
          .lead = places[lead], .follower = places[follower], .lead_chunk = chunk, .chunk = chunk};
      std::vector<CopyRun> runs;
      for (const auto& [key, mine] : held[lead]) {
        if (!mine.primary) continue;
        const auto theirs = held[follower].find(key);
        if (theirs == held[follower].end()) continue;
        runs.push_back({.lead_offset = mine.offset,
                        .offset = theirs->second.offset,
                        .count = mine.count,
                        .folds = mine.partial});
      }
      std::sort(runs.begin(), runs.end(),
                [](const CopyRun& a, const CopyRun& b) { return a.lead_offset < b.lead_offset; });
      for (const CopyRun& run : runs) Append(run, copy.runs);
      if (!copy.runs.empty()) copies.push_back(std::move(copy));
    }
  }
  return copies;
}

std::vector<Copy> TiedCopies(const Plan& plan, const Place& place) {
  const ModulePlan& module = plan.modules[static_cast<size_t>(place.module)];
  const job::Module& spec = plan.module_spec(place.module);
  std::vector<Copy> copies;
  if (!spec.architecture.tied_head || spec.frozen || module.order.count() == 1) return copies;
  Place lead = place, follower = place;
  lead.pp = module.StageAt(0);
  follower.pp = module.LastStage();
  const int32_t last_chunk = module.ChunkAt(module.order.count() - 1);
  const std::vector<VocabularyEnd> heads = EndsOf(plan, follower, last_chunk, MatrixRole::kHead);
  for (const VocabularyEnd& embedding : EndsOf(plan, lead, 0, MatrixRole::kEmbedding)) {
    for (const VocabularyEnd& head : heads) {
      const int64_t first = std::max(embedding.rows.first, head.rows.first);
      const int64_t end = std::min(embedding.rows.end(), head.rows.end());
      if (first >= end) continue;
      copies.push_back({.lead = embedding.place,
                        .follower = head.place,
                        .lead_chunk = 0,
                        .chunk = last_chunk,
                        .runs = {{.lead_offset = embedding.offset +
                                                 (first - embedding.rows.first) * embedding.cols,
                                  .offset = head.offset + (first - head.rows.first) * head.cols,
                                  .count = (end - first) * head.cols,
                                  .folds = true}}});
    }
  }
  return copies;
}

}  // namespace phalanx::plan

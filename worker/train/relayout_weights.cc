// Weights that do not train come to lie in another layout.
#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/train/parcels.h"
#include "worker/train/relayout.h"

namespace phalanx::train {
namespace {

// Calls visit(elements of the flat buffer, rows) for what it has of some rows.
template <typename Visit>
void ForRows(const FrozenRows& all, const std::string& tensor, const plan::UnitRange& rows,
             Visit visit) {
  const auto found = all.find(tensor);
  if (found == all.end()) return;
  for (const FrozenPiece& piece : found->second) {
    const int64_t first = std::max(piece.rows.first, rows.first);
    const int64_t end = std::min(piece.rows.end(), rows.end());
    if (first >= end) continue;
    visit(plan::UnitRange{piece.offset + (first - piece.rows.first) * piece.cols,
                          (end - first) * piece.cols},
          plan::UnitRange{first, end - first});
  }
}

int64_t ColsOf(const FrozenRows& rows, const std::string& tensor) {
  const auto found = rows.find(tensor);
  return found == rows.end() ? 0 : found->second.front().cols;
}

}  // namespace

at::Tensor Relayout::PackRows(const PartWeightTransfers& part, Rank to) {
  std::vector<at::Tensor> pieces = {
      at::empty({0}, at::TensorOptions().device(options_.device).dtype(options_.compute))};
  for (const WeightTransfer& transfer : part.transfers) {
    if (transfer.from != rank_ || transfer.to != to) continue;
    // Of the first flat buffer that has them all: where there are two, they are two layouts'.
    for (const LooseFlat& flat : loose_.FlatsOf(part.part)) {
      int64_t rows = 0;
      const size_t before = pieces.size();
      ForRows(flat.rows, transfer.tensor, transfer.rows,
              [&](const plan::UnitRange& elements, const plan::UnitRange& range) {
                pieces.push_back(flat.weights.narrow(0, elements.first, elements.count));
                rows += range.count;
              });
      if (rows == transfer.rows.count) break;
      pieces.resize(before);
    }
  }
  const at::Tensor values = at::cat(pieces);
  at::Tensor bytes = EmptyParcel(values.numel(), options_.compute);
  ValuesAt(bytes, 0, values.numel(), options_.compute).copy_(values);
  return bytes;
}

absl::Status Relayout::MoveWeights(const PartWeightTransfers& part) {
  RETURN_IF_ERROR(CheckStop());
  const auto found = part_of_.find(part.part);
  const bool makes = found != part_of_.end() && !staying_.contains(part.part);
  const FrozenRows needed =
      found == part_of_.end() ? FrozenRows() : FrozenRowsOf(found->second->parameters());
  std::vector<Parcel> sends, receives;
  for (const Rank to : PeersOf(part.transfers, &WeightTransfer::from, &WeightTransfer::to, rank_))
    sends.push_back({to, PackRows(part, to)});
  for (const Rank from :
       PeersOf(part.transfers, &WeightTransfer::to, &WeightTransfer::from, rank_)) {
    int64_t elements = 0;
    for (const WeightTransfer& transfer : part.transfers) {
      if (transfer.to == rank_ && transfer.from == from)
        elements += transfer.rows.count * ColsOf(needed, transfer.tensor);
    }
    receives.push_back({from, EmptyParcel(elements, options_.compute),
                        absl::StrCat("weights of ", NameOf(part.part))});
  }
  RETURN_IF_ERROR(Exchange(sends, receives));
  if (makes) RETURN_IF_ERROR(MakeFlat(part, needed, receives));
  RETURN_IF_ERROR(Confirm(sends, receives));
  std::vector<LooseFlat>& flats = loose_.FlatsOf(part.part);
  if (makes) flats.erase(flats.begin(), std::prev(flats.end()));
  return absl::OkStatus();
}

absl::Status Relayout::MakeFlat(const PartWeightTransfers& part, const FrozenRows& needed,
                                const std::vector<Parcel>& received) {
  const PartState& outline = *part_of_.at(part.part);
  LooseFlat made{
      .width = outline.place().width,
      .tp = outline.place().tp,
      .parameters = outline.parameters(),
      .rows = needed,
      .weights = at::zeros({outline.parameters().elements},
                           at::TensorOptions().device(options_.device).dtype(options_.compute))};
  std::map<std::string, std::vector<plan::UnitRange>> there;
  // `values` has rows from `first` on.
  const auto take = [&](const std::string& tensor, const plan::UnitRange& range, int64_t first,
                        const at::Tensor& values) {
    ForRows(needed, tensor, range, [&](const plan::UnitRange& to, const plan::UnitRange& rows) {
      const int64_t from = (rows.first - first) * ColsOf(needed, tensor);
      made.weights.narrow(0, to.first, to.count).copy_(values.narrow(0, from, to.count));
      there[tensor].push_back(rows);
    });
  };
  for (const LooseFlat& flat : loose_.FlatsOf(part.part)) {
    for (const auto& [tensor, pieces] : flat.rows) {
      for (const FrozenPiece& piece : pieces) {
        take(tensor, piece.rows, piece.rows.first,
             flat.weights.narrow(0, piece.offset, piece.rows.count * piece.cols));
      }
    }
  }
  for (const Parcel& parcel : received) {
    int64_t at = 0;
    for (const WeightTransfer& transfer : part.transfers) {
      if (transfer.to != rank_ || transfer.from != parcel.peer) continue;
      const at::Tensor values =
          ValuesAt(parcel.bytes, at, transfer.rows.count * ColsOf(needed, transfer.tensor),
                   options_.compute);
      at += static_cast<int64_t>(values.nbytes());
      take(transfer.tensor, transfer.rows, transfer.rows.first, values);
    }
  }
  for (const auto& [tensor, pieces] : needed) {
    SortAndJoin(&there[tensor]);
    for (const FrozenPiece& piece : pieces) {
      const auto covers = [&piece](const plan::UnitRange& rows) {
        return rows.first <= piece.rows.first && piece.rows.end() <= rows.end();
      };
      if (std::any_of(there[tensor].begin(), there[tensor].end(), covers)) continue;
      return absl::InternalError(absl::StrCat("rank ", rank_.value, " is not given all of ", tensor,
                                              " of ", NameOf(part.part)));
    }
  }
  loose_.FlatsOf(part.part).push_back(std::move(made));
  return absl::OkStatus();
}

}  // namespace phalanx::train

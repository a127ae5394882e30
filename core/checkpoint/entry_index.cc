#include "core/checkpoint/entry_index.h"

#include <algorithm>
#include <queue>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/names.h"

namespace phalanx::checkpoint {
namespace {

std::string RowsOf(int64_t first, int64_t end) {
  return end - first == 1 ? absl::StrCat("row ", first)
                          : absl::StrCat("rows ", first, "-", end - 1);
}

std::string KeyOf(const std::string& module, const std::string& tensor) {
  return absl::StrCat(module, "/", tensor);
}

template <typename Matrix>
std::string SizeOf(const Matrix& matrix) {
  return absl::StrCat("[", matrix.rows, ", ", matrix.cols, "]");
}

// The first rows of `where` that `found`, which do not overlap, do not cover.
std::pair<int64_t, int64_t> FirstGap(const Rectangle& where, const std::vector<FoundEntry>& found) {
  std::map<int64_t, int64_t> changes;  // of the covered columns, at each row
  changes[where.row] = changes[where.row_end()] = 0;
  for (const FoundEntry& one : found) {
    changes[one.part.row] += one.part.cols;
    changes[one.part.row_end()] -= one.part.cols;
  }
  int64_t covered = 0, first = -1;
  for (const auto& [row, change] : changes) {
    covered += change;
    const bool whole = covered == where.cols || row == where.row_end();
    if (whole && first >= 0) return {first, row};
    if (!whole && first < 0) first = row;
  }
  return {where.row, where.row_end()};
}

}  // namespace

absl::Status EntryIndex::CheckOnce(absl::Span<const PartHeader> files, const Items& items) {
  // A sweep over the rows: items that reach the present row, by their first column, do not overlap,
  // so a new one need only be compared with its neighbours.
  std::map<int64_t, const Item*> present;
  const auto ends_later = [](const Item* a, const Item* b) {
    return a->where.row_end() > b->where.row_end();
  };
  std::priority_queue<const Item*, std::vector<const Item*>, decltype(ends_later)> ends(ends_later);
  for (const Item& item : items.by_row) {
    for (; !ends.empty() && ends.top()->where.row_end() <= item.where.row; ends.pop()) {
      present.erase(ends.top()->where.col);
    }
    const auto next = present.lower_bound(item.where.col);
    const Item* other = nullptr;
    if (next != present.end() && next->first < item.where.col_end()) other = next->second;
    if (next != present.begin() && std::prev(next)->second->where.col_end() > item.where.col) {
      other = std::prev(next)->second;
    }
    if (other != nullptr) {
      const auto file_of = [&](const Item& one) -> const PartHeader& {
        return files[static_cast<size_t>(one.file)];
      };
      const Rectangle both = Intersection(item.where, other->where);
      const Entry& entry = file_of(item).entries[static_cast<size_t>(item.entry)];
      return absl::InvalidArgumentError(absl::StrCat(
          KeyOf(entry.module, entry.tensor), "#", ToString(entry.kind), ": ",
          PartFileName(file_of(*other).info.rank), " and ", PartFileName(file_of(item).info.rank),
          " both have ", RowsOf(both.row, both.row_end())));
    }
    present.emplace(item.where.col, &item);
    ends.push(&item);
  }
  return absl::OkStatus();
}

absl::StatusOr<EntryIndex> EntryIndex::Create(absl::Span<const PartHeader> files) {
  EntryIndex index;
  for (size_t file = 0; file < files.size(); ++file) {
    for (size_t i = 0; i < files[file].entries.size(); ++i) {
      const Entry& entry = files[file].entries[i];
      Tensor& tensor = index.tensors_[KeyOf(entry.module, entry.tensor)];
      tensor.rows = std::max(tensor.rows, entry.where.row_end());
      tensor.cols = std::max(tensor.cols, entry.where.col_end());
      tensor.kinds[static_cast<size_t>(entry.kind)].by_row.push_back(
          {entry.where, static_cast<int32_t>(file), static_cast<int32_t>(i)});
    }
  }
  for (auto& [name, tensor] : index.tensors_) {
    for (Items& items : tensor.kinds) {
      std::stable_sort(items.by_row.begin(), items.by_row.end(), [](const Item& a, const Item& b) {
        return std::pair(a.where.row, a.where.col) < std::pair(b.where.row, b.where.col);
      });
      RETURN_IF_ERROR(CheckOnce(files, items));
      int64_t reach = 0;
      for (const Item& item : items.by_row) {
        reach = std::max(reach, item.where.row_end());
        items.reach.push_back(reach);
      }
    }
  }
  return index;
}

absl::StatusOr<std::vector<FoundEntry>> EntryIndex::Find(const std::string& module,
                                                         const std::string& tensor, Kind kind,
                                                         const Rectangle& where) const {
  std::vector<FoundEntry> found;
  int64_t elements = 0;
  const auto known = tensors_.find(KeyOf(module, tensor));
  if (known != tensors_.end()) {
    const Items& items = known->second.kinds[static_cast<size_t>(kind)];
    // The first item that may reach beyond the first row.
    const auto reach = std::upper_bound(items.reach.begin(), items.reach.end(), where.row);
    for (auto item = items.by_row.begin() + (reach - items.reach.begin());
         item != items.by_row.end() && item->where.row < where.row_end(); ++item) {
      const Rectangle part = Intersection(item->where, where);
      if (part.empty()) continue;
      found.push_back({item->file, item->entry, part});
      elements += part.elements();
    }
  }
  if (elements == where.elements()) return found;
  const auto [first, end] = FirstGap(where, found);
  return absl::NotFoundError(absl::StrCat(KeyOf(module, tensor), "#", ToString(kind),
                                          ": no file has all of ", RowsOf(first, end)));
}

absl::Status EntryIndex::CheckTensor(const ModelTensor& wanted) const {
  const std::string name = KeyOf(wanted.module, wanted.tensor);
  const auto known = tensors_.find(name);
  if (known == tensors_.end() && !wanted.required) return absl::OkStatus();
  const std::string model = absl::StrCat(name, ": the model has ", SizeOf(wanted), ", the files ");
  if (known == tensors_.end()) return absl::NotFoundError(model + "have none of it");
  const Tensor& held = known->second;
  if (held.rows != wanted.rows || held.cols != wanted.cols)
    return absl::InvalidArgumentError(absl::StrCat(model, "have ", SizeOf(held)));
  for (size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if ((kind == Kind::kWeight) != wanted.trains || held.kinds[i].by_row.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, wanted.trains ? ": trains in the model" : ": is frozen in the model",
                     ", so it may have no #", ToString(kind)));
  }
  for (size_t i = 0; i < kKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    if ((kind == Kind::kWeight) == wanted.trains) continue;
    RETURN_IF_ERROR(
        Find(wanted.module, wanted.tensor, kind, {0, 0, wanted.rows, wanted.cols}).status());
  }
  return absl::OkStatus();
}

absl::Status EntryIndex::CheckWhole(absl::Span<const ModelTensor> tensors) const {
  std::set<std::string> known;
  for (const ModelTensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckTensor(tensor));
    known.insert(KeyOf(tensor.module, tensor.tensor));
  }
  for (const auto& [name, tensor] : tensors_) {
    if (known.count(name) != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the model has no such tensor, the files have ", SizeOf(tensor)));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint

// core/checkpoint/entry_index.h: who has which rectangle of a checkpoint.
//
// Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/model_tensors.h"

namespace phalanx::checkpoint {

// A part of what was asked for, and the entry that has it.
struct FoundEntry {
  int32_t file = 0;   // of those that the index was made of
  int32_t entry = 0;  // of its header
  Rectangle part;
};

// Immutable; safe to read from any thread.
class EntryIndex {
 public:
  // Errors: InvalidArgument where something stands twice, with the tensor, the rows and both files.
  static absl::StatusOr<EntryIndex> Create(absl::Span<const PartHeader> files);

  // What of the rectangle stands where, without gaps. Errors: NotFound, with the rows that stand in
  // no file.
  absl::StatusOr<std::vector<FoundEntry>> Find(const std::string& module, const std::string& tensor,
                                               Kind kind, const Rectangle& where) const;

  // Exactly these tensors stand here, each whole: its master and moments, or its weights, and
  // nothing else. Errors: NotFound, InvalidArgument, with the tensor, what the model asks for and
  // what the files have.
  absl::Status CheckWhole(absl::Span<const ModelTensor> tensors) const;

 private:
  struct Item {
    Rectangle where;
    int32_t file = 0, entry = 0;
  };
  struct Items {
    std::vector<Item> by_row;
    std::vector<int64_t> reach;  // the last row's end of all items up to each; so it never falls
  };
  struct Tensor {
    std::array<Items, kKinds> kinds;
    int64_t rows = 0, cols = 0;  // as far as anything stands
  };

  absl::Status CheckTensor(const ModelTensor& wanted) const;
  static absl::Status CheckOnce(absl::Span<const PartHeader> files, const Items& items);

  std::map<std::string, Tensor> tensors_;  // "MODULE/TENSOR"
};

}  // namespace phalanx::checkpoint

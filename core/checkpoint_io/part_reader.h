// core/checkpoint_io/part_reader.h: a part file of a checkpoint, open.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/manifest.h"
#include "core/posix/file.h"

namespace phalanx::checkpoint {

// Safe to read from any thread.
class PartReader {
 public:
  // `checkpoint`: the folder; `part`: one of the manifest's; `below`: as in folders.h, of the file.
  // Errors: DataLoss, with the file's name, if it is not there, cannot be read, leads out of
  // `below`, or is not what the manifest says.
  static absl::StatusOr<PartReader> Open(const std::string& checkpoint, const Manifest& manifest,
                                         const PartFile& part,
                                         const std::vector<std::string>& below = {});

  const PartHeader& header() const { return header_; }
  // The bytes of an entry. Errors: DataLoss, with the names of file and entry, if they cannot be
  // read or have another digest.
  absl::Status Read(size_t entry, std::string& bytes) const;

 private:
  PartReader(File file, std::string name, int64_t data, PartHeader header)
      : file_(std::move(file)), name_(std::move(name)), data_(data), header_(std::move(header)) {}

  File file_;
  std::string name_;
  int64_t data_;  // where it begins
  PartHeader header_;
};

}  // namespace phalanx::checkpoint

// worker/data/tar_reader.h: where the members of a tar shard lie.
//
// Headers are read with libarchive (ustar, pax, GNU, old tar); contents are then read at their
// offsets without it. Only plain files are listed: directories, links, devices and sparse files are
// not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/file.h"
#include "worker/data/read_progress.h"

namespace phalanx::data {

struct TarMember {
  std::string name;  // as in the archive, without a leading "./"
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Errors: InvalidArgument, a phrase that goes after the shard's name ("is truncated: ..."), if the
// file is empty, compressed, no tar, damaged, or ends before its end-of-archive mark.
// `progress`, if given, grows with every header; called off: Cancelled.
absl::StatusOr<std::vector<TarMember>> ListTar(const File& file, ReadProgress* progress = nullptr);

}  // namespace phalanx::data

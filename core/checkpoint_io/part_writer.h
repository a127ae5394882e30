// core/checkpoint_io/part_writer.h: writes the part file of one rank.
//
// The file has its name once it is complete and on the disk; until then it stands beside it. What
// is written is hashed on the way, nothing is read back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/manifest.h"

namespace phalanx::checkpoint {

// What goes to the disk in one call.
inline constexpr int64_t kWriteBytes = int64_t{8} << 20;

// Where the elements of an entry are: its line `i` begins `i` * stride elements behind the first.
struct EntrySource {
  const void* first = nullptr;
  int64_t stride = 0;
};

struct PartWrite {
  std::string draft;  // the checkpoint's draft folder; made if it is not there
  PartInfo info;
  std::vector<Entry> entries;        // those of wider types first; without offsets and digests
  std::vector<EntrySource> sources;  // parallel to them
  // Before each call that writes. An error ends the write, as one of the disk does. May be null.
  std::function<absl::Status()> before_block;
  std::vector<std::string> folders;  // below one of which the draft lies; none: anywhere
};

// Errors: Unavailable, with the path and the system's reason; InvalidArgument, by its field, where
// the draft leads out of the folders by now; what before_block returns. Nothing is left of the file
// then.
absl::StatusOr<PartFile> WritePartFile(PartWrite write);
// What a rank has written of a draft that is given up goes, and with the last part the draft.
// `folders`: as PartWrite::folders.
void RemovePartFile(const std::string& draft, int32_t rank,
                    const std::vector<std::string>& folders = {});

}  // namespace phalanx::checkpoint

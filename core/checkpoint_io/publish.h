// core/checkpoint_io/publish.h: makes a checkpoint of a draft whose parts are all written, and
// takes away those that are not to be kept.
//
// Whoever calls it was told to, for this step and epoch, by the one that knows that every rank has
// written its part and that no later epoch has begun.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"

namespace phalanx::checkpoint {

struct Publication {
  std::string directory;     // checkpoint.directory
  Manifest manifest;         // without parts: they are those in the draft
  std::string parts_digest;  // DigestOf what the ranks said of their parts
  int32_t keep = 1;          // of this job's checkpoints the newest so many stay
  std::string in_use;        // a checkpoint that stays besides; may be empty
  // Below one of which the directory lies, and what is read in it; none: anywhere.
  std::vector<std::string> folders;
};

struct Published {
  std::string path;
  std::vector<std::string> left;  // what should have gone and did not: "PATH: reason"
};

// What is published already is left as it is, and so is another's that has the name: then the
// checkpoint gets the next one (names.h). It waits for ranks that give up their parts of the draft,
// 10 s at most, and not once `stop` is requested. Errors: Unavailable, with the path and the
// system's reason, or that the draft is locked; FailedPrecondition if the parts are not those that
// the ranks wrote, or a later epoch of the job has written there; AlreadyExists if kCopiesMax names
// are taken; InvalidArgument, by its field, where the directory leads out of the folders by now.
inline constexpr int64_t kCopiesMax = 100;
absl::StatusOr<Published> Publish(const Publication& publication, const std::stop_token& stop = {});

}  // namespace phalanx::checkpoint

// worker/agent/job_folders.h: where jobs of this node may read and write.
//
// Whoever runs the node names folders; what a job reads (shards, tokenizer, a checkpoint to go on
// from) lies below one of either kind, what it writes (output, checkpoints) below one that may be
// written. A path is judged by where it leads on this node: `..` and links are followed, also links
// to what is not there yet. Jobs run no code of their own, so nothing of theirs makes a link
// between the look and the use; others may, so what is opened is judged again when it is open, by
// the daemon and by ranks (core/posix/below.h): files that are read (File::Open), and folders that
// are written in (HeldFolder).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace phalanx::agent {

struct JobFolders {
  // Absolute. Both empty: jobs may read and write wherever the daemon may. A whole part of a path
  // may be kOwnerPart: each owner of jobs has a folder then, that of others is not for them.
  std::vector<std::string> read, write;
  std::string secrets;  // rank_environment.h; likewise, absolute or not; empty: none
};
inline constexpr absl::string_view kOwnerPart = "{owner}";

// Of jobs of `owner` (JobRequest::owner; empty: not known). Errors: FailedPrecondition, where a
// folder is of an owner: who has no name, or one that no folder can have.
absl::StatusOr<JobFolders> FoldersOf(const JobFolders& folders, const std::string& owner);
// What all owners have of a path: up to kOwnerPart, or all of it.
std::string CommonPart(const std::string& folder);

// Below which jobs may read; none: anywhere.
std::vector<std::string> ReadableFolders(const JobFolders& folders);

// Errors: InvalidArgument, with the flag, for a folder that is not absolute (but for secrets), or
// has kOwnerPart in a longer part.
absl::Status CheckJobFolders(const JobFolders& folders);

// Errors: those of wire::ReadJobFile; InvalidArgument with a violation for each path that leads out
// of the folders or has a control character; of many shards the first few. Thread-safe.
absl::Status CheckJobPaths(const JobFolders& folders, const std::string& document,
                           absl::string_view directory);

// Where an absolute path leads: no `.`, `..`, or link is left in it; what is not there is taken as
// a folder would be. Errors: InvalidArgument: more than 40 links, or a part that may not be looked
// at.
absl::StatusOr<std::string> WhereLeads(absl::string_view path);

}  // namespace phalanx::agent

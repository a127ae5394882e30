// client/job_file.h: a job file from disk or standard input, checked before anything is sent.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/format.h"
#include "core/job/job_reader.h"
#include "phalanx/v1/common.pb.h"

namespace phalanx::client {

struct JobFile {
  v1::JobDocument document;  // the text, and the absolute folder that its paths start from
  job::ReadJob job;
};

// `path` "-" is standard input, whose paths start from the working folder.
// Errors: NotFound or PermissionDenied for a file that cannot be read; InvalidArgument with every
// violation.
absl::StatusOr<JobFile> LoadJobFile(const std::string& path, job::Purpose purpose);

// Whether the planner finds a layout where a module's parallel is auto, on nodes of 8 devices of
// unknown memory. A search may take seconds, and says so on io.talk. OK for every other job.
// Errors: InvalidArgument with violations.
absl::Status CheckOpenLayout(const JobFile& file, Io& io);

// The document with spec.output replaced by the absolute path `output`.
absl::StatusOr<std::string> WithOutput(const std::string& text, const std::string& output);

// The document with another metadata.name. Errors: InvalidArgument, if it has no metadata.
absl::StatusOr<std::string> WithName(const std::string& text, const std::string& name);

// Whether a part of the path is "..".
bool GoesUp(const std::filesystem::path& path);

// Absolute and without "." and "..", whether or not it exists. One that has a ".." has no links
// either: the folder above a link's name is not that above what it leads to.
std::string AbsolutePath(const std::string& path);

}  // namespace phalanx::client

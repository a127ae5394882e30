#include "client/job_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/late_note.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "core/posix/unique_fd.h"
#include "core/wire/job_yaml.h"
#include "core/wire/resolved_job.h"

namespace phalanx::client {
namespace {

// What a file has until it ends: a document that is cut may be another one, and sound. One byte
// more than is allowed, so that the reader sees a document that is too long as such.
absl::StatusOr<std::string> ReadToEnd(int descriptor, const std::string& path) {
  std::string text(wire::kDocumentBytesMax + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t got = read(descriptor, text.data() + bytes, text.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::NotFoundError(
          absl::StrCat(LineText(path), ": cannot be read: ", std::strerror(errno)));
    }
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  text.resize(bytes);
  return text;
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  if (path == "-") return ReadToEnd(STDIN_FILENO, path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(LineText(path), ": is a folder"));
  }
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    const std::string message = absl::StrCat(LineText(path), ": ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
  }
  return ReadToEnd(file.get(), path);
}

// The document with the text `value` as SECTION.FIELD.
absl::StatusOr<std::string> WithField(const std::string& text, absl::string_view section,
                                      absl::string_view field, const std::string& value) {
  ASSIGN_OR_RETURN(job::Tree tree, wire::ParseYaml(text));
  for (auto& [name, part] : tree.entries) {
    if (name != section) continue;
    const auto found = std::find_if(part.entries.begin(), part.entries.end(),
                                    [field](const auto& entry) { return entry.key == field; });
    if (found != part.entries.end()) {
      found->value = job::TextTree(value);
    } else {
      part.entries.push_back({std::string(field), job::TextTree(value)});
    }
    return wire::EmitYaml(tree);
  }
  return absl::InvalidArgumentError(absl::StrCat("the document has no ", section));
}

}  // namespace

bool GoesUp(const std::filesystem::path& path) {
  return std::find(path.begin(), path.end(), "..") != path.end();
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) absolute = path;
  // What is above a link is above what it leads to.
  if (GoesUp(absolute)) {
    const std::filesystem::path led = std::filesystem::weakly_canonical(absolute, error);
    if (!error) absolute = led;
  }
  std::string normal = absolute.lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

absl::StatusOr<JobFile> LoadJobFile(const std::string& path, job::Purpose purpose) {
  JobFile file;
  ASSIGN_OR_RETURN(std::string text, ReadAll(path));
  ASSIGN_OR_RETURN(file.job, wire::ReadJobFile(text, purpose));
  file.document.set_text(std::move(text));
  const std::string folder =
      path == "-" ? std::string(".") : std::filesystem::path(path).parent_path().string();
  file.document.set_directory(AbsolutePath(folder.empty() ? "." : folder));
  return file;
}

absl::Status CheckOpenLayout(const JobFile& file, Io& io) {
  if (!file.job.spec.HasOpenLayout()) return absl::OkStatus();
  const LateNote note(io, "searching: laying the job out and simulating steps ...",
                      absl::Seconds(1));
  return wire::Resolve(file.document.text(), file.job, job::Purpose::kSubmit, {}).status();
}

absl::StatusOr<std::string> WithOutput(const std::string& text, const std::string& output) {
  return WithField(text, "spec", "output", output);
}

absl::StatusOr<std::string> WithName(const std::string& text, const std::string& name) {
  return WithField(text, "metadata", "name", name);
}

}  // namespace phalanx::client

#include "worker/agent/job_folders.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/path_fields.h"
#include "core/wire/job_yaml.h"

namespace phalanx::agent {
namespace {

constexpr int kLinksMax = 40;
constexpr size_t kPathsNamedMax = 4;

bool LiesIn(absl::string_view path, absl::string_view folder) {
  if (folder == "/") return true;
  return absl::ConsumePrefix(&path, folder) && (path.empty() || path.front() == '/');
}

// The target, if `path` is a link; empty: it is none, or is not there.
absl::StatusOr<std::string> LinkAt(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t bytes = readlink(path.c_str(), target, sizeof(target));
  if (bytes >= 0) return std::string(target, static_cast<size_t>(bytes));
  if (errno == EINVAL || errno == ENOENT || errno == ENOTDIR) return std::string();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
}

class Judge {
 public:
  Judge(const JobFolders& folders, absl::string_view directory)
      : folders_(folders), directory_(directory) {}

  // Whether the path may be used so; else its violation is noted.
  bool Lets(const job::PathField& field, const std::string& path) {
    const bool reads = field.use == job::PathUse::kRead;
    const std::string rule =
        Broken(path, reads ? ReadableFolders(folders_) : folders_.write, reads ? "read" : "write");
    if (!rule.empty()) violations_.push_back({.field = field.field, .value = path, .rule = rule});
    return rule.empty();
  }
  absl::Status Verdict() const { return ViolationsStatus(violations_); }

 private:
  // The rule that the path breaks; empty: none.
  std::string Broken(const std::string& path, const std::vector<std::string>& allowed,
                     absl::string_view verb) const {
    if (std::any_of(path.begin(), path.end(),
                    [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }))
      return "must have no control characters";
    if (folders_.read.empty() && folders_.write.empty()) return "";
    if (allowed.empty()) return absl::StrCat("must not be given: jobs ", verb, " nothing here");
    const std::string whole = ResolvePath(directory_, path);
    if (whole.empty() || whole.front() != '/')
      return "must be absolute: the job's folder is not known here";
    const absl::StatusOr<std::string> led = WhereLeads(whole);
    if (!led.ok()) return absl::StrCat("cannot be followed: ", led.status().message());
    for (const std::string& folder : allowed) {
      const absl::StatusOr<std::string> there = WhereLeads(folder);
      if (there.ok() && LiesIn(*led, *there)) return "";
    }
    return absl::StrCat("leads to ", *led, "; jobs of this node ", verb, " only in ",
                        absl::StrJoin(allowed, ", "));
  }

  const JobFolders& folders_;
  const absl::string_view directory_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<std::string> ReadableFolders(const JobFolders& folders) {
  std::vector<std::string> readable = folders.read;
  readable.insert(readable.end(), folders.write.begin(), folders.write.end());
  return readable;
}

absl::StatusOr<std::string> WhereLeads(absl::string_view path) {
  std::deque<std::string> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  std::string led;  // "/a/b"; empty: the root
  int links = 0;
  while (!parts.empty()) {
    const std::string part = std::move(parts.front());
    parts.pop_front();
    if (part == ".") continue;
    if (part == "..") {
      led.resize(std::min(led.size(), led.rfind('/')));
      continue;
    }
    const std::string next = absl::StrCat(led, "/", part);
    ASSIGN_OR_RETURN(const std::string target, LinkAt(next));
    if (target.empty()) {
      led = next;
      continue;
    }
    if (++links > kLinksMax) {
      return absl::InvalidArgumentError(absl::StrCat(next, ": more than ", kLinksMax, " links"));
    }
    if (target.front() == '/') led.clear();
    const std::vector<std::string> more = absl::StrSplit(target, '/', absl::SkipEmpty());
    parts.insert(parts.begin(), more.begin(), more.end());
  }
  return led.empty() ? "/" : led;
}

absl::StatusOr<JobFolders> FoldersOf(const JobFolders& folders, const std::string& owner) {
  JobFolders of_owner = folders;
  std::vector<std::string*> paths = {&of_owner.secrets};
  for (std::string& path : of_owner.read) paths.push_back(&path);
  for (std::string& path : of_owner.write) paths.push_back(&path);
  for (std::string* path : paths) {
    if (!absl::StrContains(*path, kOwnerPart)) continue;
    if (owner.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "this node gives folders to owners of jobs (", *path,
          "), and nobody knows whose this job is: its coordinator has no certificates"));
    }
    if (owner == "." || owner == ".." || absl::StrContains(owner, '/')) {
      return absl::FailedPreconditionError(
          absl::StrCat("this node gives folders to owners of jobs (", *path,
                       "), and no folder can be called \"", absl::Utf8SafeCHexEscape(owner), "\""));
    }
    *path = absl::StrReplaceAll(*path, {{kOwnerPart, owner}});
  }
  return of_owner;
}

std::string CommonPart(const std::string& folder) {
  const std::string common = folder.substr(0, absl::string_view(folder).find(kOwnerPart));
  return common.size() == folder.size() || common == "/"
             ? common
             : std::string(absl::StripSuffix(common, "/"));
}

absl::Status CheckJobFolders(const JobFolders& folders) {
  const auto check = [](absl::string_view flag, const std::string& path, bool absolute) {
    const auto refused = [&](absl::string_view rule) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is \"", path, "\"; ", rule));
    };
    if (absolute && !absl::StartsWith(path, "/")) return refused("it must be an absolute path");
    for (const absl::string_view part : absl::StrSplit(path, '/')) {
      if (part != kOwnerPart && absl::StrContains(part, kOwnerPart))
        return refused("{owner} must stand alone between two slashes");
    }
    return absl::OkStatus();
  };
  for (const std::string& path : folders.read)
    RETURN_IF_ERROR(check("--read-folder", path, /*absolute=*/true));
  for (const std::string& path : folders.write)
    RETURN_IF_ERROR(check("--write-folder", path, /*absolute=*/true));
  return check("--secrets", folders.secrets, /*absolute=*/false);
}

absl::Status CheckJobPaths(const JobFolders& folders, const std::string& document,
                           absl::string_view directory) {
  ASSIGN_OR_RETURN(const job::ReadJob read, wire::ReadJobFile(document, job::Purpose::kAccepted));
  Judge judge(folders, directory);
  for (const job::PathField& field : job::PathFieldsOf(read.spec)) {
    size_t refused = 0;
    for (const std::string& path : field.paths) {
      if (!judge.Lets(field, path) && ++refused == kPathsNamedMax) break;
    }
  }
  return judge.Verdict();
}

}  // namespace phalanx::agent

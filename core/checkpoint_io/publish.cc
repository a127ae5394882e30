#include "core/checkpoint_io/publish.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/checkpoint_io/folders.h"
#include "core/checkpoint_io/lock.h"
#include "core/posix/file.h"
#include "core/posix/whole_file.h"

namespace phalanx::checkpoint {
namespace {

absl::StatusOr<PartFile> PartFileAt(const std::string& draft, const std::string& name) {
  ASSIGN_OR_RETURN(const File file, File::Open(absl::StrCat(draft, "/", name)));
  std::string bytes;
  RETURN_IF_ERROR(file.Read(0, std::min(file.stamp().bytes, kDataAlignment), bytes));
  ASSIGN_OR_RETURN(const int64_t header_bytes, HeaderBytes(bytes));
  RETURN_IF_ERROR(file.Read(0, header_bytes, bytes));
  ASSIGN_OR_RETURN(const PartHeader header, ReadHeader(bytes));
  return PartFile{.file = name,
                  .bytes = file.stamp().bytes,
                  .header_bytes = header_bytes,
                  .entries = static_cast<int64_t>(header.entries.size()),
                  .digest = Digest(bytes)};
}

// Names in a folder, sorted.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    names.push_back(entries->path().filename().string());
  }
  if (error) return SystemError(folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<PartFile>> PartsIn(const std::string& draft) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(draft));
  std::vector<std::pair<int32_t, PartFile>> parts;
  for (const std::string& name : names) {
    const std::optional<int32_t> rank = ParsePartFileName(name);
    if (!rank.has_value()) continue;
    absl::StatusOr<PartFile> part = PartFileAt(draft, name);
    if (!part.ok()) return Annotate(part.status(), absl::StrCat(draft, "/", name));
    parts.emplace_back(*rank, *std::move(part));
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PartFile> sorted;
  for (auto& [rank, part] : parts) sorted.push_back(std::move(part));
  return sorted;
}

bool SameJob(const Manifest& a, const Manifest& b) {
  return a.store == b.store && a.number == b.number;
}

// In place of the dot before the name of a draft: a checkpoint that is being deleted.
constexpr absl::string_view kDeleted = ".deleted-";
// Likewise: a draft that whoever publishes it has taken out of the ranks' reach.
constexpr absl::string_view kTaken = ".publishing-";

// Of a draft of the job, taken or not.
std::optional<CheckpointName> ParseDraft(absl::string_view name, const Manifest& manifest) {
  const bool taken = absl::ConsumePrefix(&name, kTaken);
  return ParseDraftName(taken ? absl::StrCat(".", name) : std::string(name), manifest.store,
                        manifest.number);
}

// What it did not take away is told in `left`.
class Cleaner {
 public:
  explicit Cleaner(std::vector<std::string>* left) : left_(left) {}

  void RemoveFile(const std::string& path) {
    if (unlink(path.c_str()) != 0 && errno != ENOENT) Tell(path, errno);
  }
  // What Phalanx did not write stays, and its folder with it.
  void RemoveFolder(const std::string& path) {
    if (rmdir(path.c_str()) != 0 && errno != ENOENT) Tell(path, errno);
  }

 private:
  void Tell(const std::string& path, int error) {
    left_->emplace_back(SystemError(path, error).message());
  }
  std::vector<std::string>* left_;
};

// A name that a writer gives to a file of a draft, whole or not.
bool IsWrittenName(absl::string_view name) {
  if (name == kManifestFile || IsLeftOf(kManifestFile, name)) return true;
  absl::ConsumeSuffix(&name, ".tmp");
  return ParsePartFileName(name).has_value();
}

// Whoever puts a link in a folder's place keeps what it leads to.
bool IsLink(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_symlink(path, error);
}

void RemoveWritten(const std::string& folder, Cleaner cleaner) {
  if (IsLink(folder)) return;
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (IsWrittenName(name)) cleaner.RemoveFile(absl::StrCat(folder, "/", name));
  }
  cleaner.RemoveFolder(folder);
}

// First it loses its name, so that nobody takes what is left of it for a checkpoint. One that
// somebody reads stays until the next publication.
void Remove(const ListedCheckpoint& checkpoint, Cleaner cleaner, std::vector<std::string>* left) {
  const std::optional<CheckpointLock> lock = CheckpointLock::ToDelete(checkpoint.path);
  if (!lock.has_value()) return;
  const std::string draft =
      DraftName(checkpoint.name, checkpoint.manifest->store, checkpoint.manifest->number);
  const std::string doomed =
      absl::StrCat(FolderOf(checkpoint.path), "/", kDeleted, draft.substr(1));
  if (rename(checkpoint.path.c_str(), doomed.c_str()) != 0) {
    left->emplace_back(SystemError(checkpoint.path, errno).message());
    return;
  }
  RemoveWritten(doomed, cleaner);
}

bool SamePath(const std::string& a, const std::string& b) {
  std::error_code error;
  return !b.empty() && std::filesystem::equivalent(a, b, error);
}

// Nothing of the job's later epochs is in the directory: whoever publishes for an older one was cut
// off from what has happened since.
absl::Status CheckNewest(const Publication& publication) {
  const Manifest& mine = publication.manifest;
  const auto superseded = [&mine](const std::string& by) {
    return absl::FailedPreconditionError(
        absl::StrCat("epoch ", mine.epoch, " of the job is over: ", by, " is there"));
  };
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(publication.directory));
  for (const std::string& name : names) {
    const std::optional<CheckpointName> draft = ParseDraft(name, mine);
    if (draft.has_value() && draft->epoch > mine.epoch) return superseded(name);
    const std::optional<CheckpointName> other = ParseCheckpointName(name);
    if (!other.has_value() || other->epoch <= mine.epoch) continue;
    const auto manifest = ReadManifestOf(absl::StrCat(publication.directory, "/", name));
    if (manifest.ok() && SameJob(*manifest, mine)) return superseded(name);
  }
  return absl::OkStatus();
}

// Older checkpoints of the job beyond those that are kept, and drafts that it gave up; what is left
// of either where a process was killed that wrote or deleted it.
void Clean(const Publication& publication, const CheckpointName& published,
           std::vector<std::string>* left) {
  const Cleaner cleaner(left);
  absl::StatusOr<std::vector<ListedCheckpoint>> listed = ListCheckpoints(publication.directory);
  if (!listed.ok()) return;
  int32_t kept = 1;  // the one that was just published
  for (const ListedCheckpoint& one : *listed) {
    if (!one.manifest.ok() || !SameJob(*one.manifest, publication.manifest)) continue;
    if (one.name >= published || IsLink(one.path) || SamePath(one.path, publication.in_use))
      continue;
    if (kept++ < publication.keep) continue;
    Remove(one, cleaner, left);
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(publication.directory);
  if (!names.ok()) return;
  const Manifest& manifest = publication.manifest;
  for (const std::string& name : *names) {
    absl::string_view deleted = name;
    if (absl::ConsumePrefix(&deleted, kDeleted)) {
      std::vector<std::string> told_before;
      if (ParseDraftName(absl::StrCat(".", deleted), manifest.store, manifest.number).has_value())
        RemoveWritten(absl::StrCat(publication.directory, "/", name), Cleaner(&told_before));
      continue;
    }
    const std::optional<CheckpointName> draft = ParseDraft(name, manifest);
    if (!draft.has_value()) continue;
    // One of a later step is being written; one of an older epoch nobody writes any more.
    if (draft->epoch < published.epoch ||
        (draft->epoch == published.epoch && draft->step < published.step)) {
      RemoveWritten(absl::StrCat(publication.directory, "/", name), cleaner);
    }
  }
}

// Whether the checkpoint at `path` is this one, from an order that was told twice.
bool IsPublished(const std::string& path, const Publication& publication) {
  const absl::StatusOr<Manifest> there = ReadManifestOf(path);
  return there.ok() && SameJob(*there, publication.manifest) &&
         DigestOf(there->parts) == publication.parts_digest;
}

// Its name, with the first number of a copy that is free or its own already.
absl::StatusOr<CheckpointName> FreeName(const Publication& publication) {
  CheckpointName name{.step = publication.manifest.step, .epoch = publication.manifest.epoch};
  for (; name.copy <= kCopiesMax; name.copy += name.copy == 0 ? 2 : 1) {
    const std::string path = absl::StrCat(publication.directory, "/", ToString(name));
    std::error_code error;
    // A link that leads nowhere has the name, too.
    if (std::filesystem::symlink_status(path, error).type() ==
        std::filesystem::file_type::not_found) {
      return name;
    }
    if (IsPublished(path, publication)) return name;
  }
  return absl::AlreadyExistsError(absl::StrCat(publication.directory, ": has ", kCopiesMax,
                                               " checkpoints of step ", name.step, ", epoch ",
                                               name.epoch, " of other jobs"));
}

absl::Status RenameToNew(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  // File systems of networks know no flags. There a rename replaces no folder that has files, and
  // no file.
  if ((errno == EINVAL || errno == ENOSYS) && rename(from.c_str(), to.c_str()) == 0) {
    return absl::OkStatus();
  }
  if (errno == ENOTEMPTY) errno = EEXIST;
  if (errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(to, " is there already"));
  return SystemError(to, errno);
}

// A draft that its publisher has to itself: ranks that write later steps meanwhile give up their
// parts of earlier ones, by the name that drafts have. Unless it is published it gets that name
// back, so that what it holds can be given up.
class TakenDraft {
 public:
  // One that a publisher has left that was killed is taken over.
  static absl::StatusOr<TakenDraft> Take(const std::string& directory, const std::string& name) {
    TakenDraft draft(absl::StrCat(directory, "/", name),
                     absl::StrCat(directory, "/", kTaken, name.substr(1)));
    std::error_code error;
    if (std::filesystem::exists(draft.draft_, error)) {
      std::vector<std::string> left;
      RemoveWritten(draft.path_, Cleaner(&left));
      RETURN_IF_ERROR(RenameToNew(draft.draft_, draft.path_));
    } else if (error || !std::filesystem::exists(draft.path_, error)) {
      return SystemError(draft.draft_, error ? error.value() : ENOENT);
    }
    draft.held_ = true;
    return draft;
  }
  TakenDraft(TakenDraft&& other) noexcept
      : draft_(std::move(other.draft_)),
        path_(std::move(other.path_)),
        held_(std::exchange(other.held_, false)) {}
  TakenDraft& operator=(TakenDraft&&) = delete;
  ~TakenDraft() {
    if (held_) RenameToNew(path_, draft_).IgnoreError();
  }

  const std::string& path() const { return path_; }
  absl::Status PublishAs(const std::string& path) {
    RETURN_IF_ERROR(RenameToNew(path_, path));
    held_ = false;
    return absl::OkStatus();
  }

 private:
  TakenDraft(std::string draft, std::string path)
      : draft_(std::move(draft)), path_(std::move(path)) {}
  std::string draft_, path_;
  bool held_ = false;
};

}  // namespace

absl::StatusOr<Published> Publish(const Publication& publication) {
  Manifest manifest = publication.manifest;
  const std::string draft_name =
      DraftName({manifest.step, manifest.epoch}, manifest.store, manifest.number);
  ASSIGN_OR_RETURN(const CheckpointName name, FreeName(publication));
  Published published{.path = absl::StrCat(publication.directory, "/", ToString(name))};
  if (IsPublished(published.path, publication)) return published;
  RETURN_IF_ERROR(CheckNewest(publication));
  ASSIGN_OR_RETURN(TakenDraft draft, TakenDraft::Take(publication.directory, draft_name));
  ASSIGN_OR_RETURN(manifest.parts, PartsIn(draft.path()));
  if (DigestOf(manifest.parts) != publication.parts_digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        publication.directory, "/", draft_name, ": has ", manifest.parts.size(),
        " part files, and they are not those that the ranks wrote: checkpoint.directory must be "
        "one folder that all nodes reach"));
  }
  const std::string path = ManifestPath(draft.path());
  RETURN_IF_ERROR(WriteWholeFile(path, WriteManifest(manifest)));
  RETURN_IF_ERROR(SyncFolder(draft.path()));
  // A process may have stood still since it last looked.
  RETURN_IF_ERROR(CheckNewest(publication));
  RETURN_IF_ERROR(draft.PublishAs(published.path));
  RETURN_IF_ERROR(SyncFolder(publication.directory));
  if (CheckNewest(publication).ok()) Clean(publication, name, &published.left);
  return published;
}

}  // namespace phalanx::checkpoint

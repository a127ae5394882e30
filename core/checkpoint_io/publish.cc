#include "core/checkpoint_io/publish.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/stat.h>
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
#include "core/posix/held_folder.h"
#include "core/posix/whole_file.h"

namespace phalanx::checkpoint {
namespace {

absl::StatusOr<PartFile> PartFileAt(const std::string& draft, const std::string& name,
                                    const std::vector<std::string>& below) {
  ASSIGN_OR_RETURN(const File file, File::Open(absl::StrCat(draft, "/", name), below));
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
absl::StatusOr<std::vector<std::string>> NamesIn(const HeldFolder& folder) {
  absl::StatusOr<std::vector<std::string>> names = folder.Names();
  if (!names.ok()) return WritingError(folder.path(), names.status());
  return names;
}

absl::StatusOr<std::vector<PartFile>> PartsIn(const HeldFolder& draft,
                                              const std::vector<std::string>& below) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(draft));
  std::vector<std::pair<int32_t, PartFile>> parts;
  for (const std::string& name : names) {
    const std::optional<int32_t> rank = ParsePartFileName(name);
    if (!rank.has_value()) continue;
    absl::StatusOr<PartFile> part = PartFileAt(draft.path(), name, below);
    if (!part.ok()) return Annotate(part.status(), draft.PathOf(name));
    parts.emplace_back(*rank, *std::move(part));
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PartFile> sorted;
  for (auto& [rank, part] : parts) sorted.push_back(std::move(part));
  return sorted;
}

// Ranks of other nodes, whom no lock keeps from it, may have given up theirs meanwhile.
absl::Status CheckPartsIn(const HeldFolder& draft, const std::vector<PartFile>& parts) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(draft));
  for (const PartFile& part : parts) {
    if (std::binary_search(names.begin(), names.end(), part.file)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(draft.PathOf(part.file), " was given up while it was published"));
  }
  return absl::OkStatus();
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

  void RemoveFile(const HeldFolder& in, const std::string& name) { Unlink(in, name, 0); }
  // What Phalanx did not write stays, and its folder with it.
  void RemoveFolder(const HeldFolder& in, const std::string& name) {
    Unlink(in, name, AT_REMOVEDIR);
  }

 private:
  void Unlink(const HeldFolder& in, const std::string& name, int flags) {
    if (unlinkat(in.descriptor(), name.c_str(), flags) == 0) return;
    const int error = errno;
    if (error != ENOENT) left_->emplace_back(SystemError(in.PathOf(name), error).message());
  }
  std::vector<std::string>* left_;
};

// A name that a writer gives to a file of a draft, whole or not.
bool IsWrittenName(absl::string_view name) {
  if (name == kManifestFile || IsLeftOf(kManifestFile, name)) return true;
  absl::ConsumeSuffix(&name, ".tmp");
  return ParsePartFileName(name).has_value();
}

// The error of a look at what has the name; 0: it is there.
int LookAt(const HeldFolder& in, const std::string& name, int flags, struct stat& there) {
  return fstatat(in.descriptor(), name.c_str(), &there, flags) == 0 ? 0 : errno;
}

// Whoever puts a link in a folder's place keeps what it leads to.
bool IsLink(const HeldFolder& in, const std::string& name) {
  struct stat there;
  return LookAt(in, name, AT_SYMLINK_NOFOLLOW, there) == 0 && S_ISLNK(there.st_mode);
}

void RemoveWritten(const HeldFolder& in, const std::string& name, Cleaner cleaner) {
  const absl::StatusOr<HeldFolder> folder = in.OpenFolder(name);
  const auto names = folder.ok() ? NamesIn(*folder) : folder.status();
  if (!names.ok()) return;
  for (const std::string& written : *names) {
    if (IsWrittenName(written)) cleaner.RemoveFile(*folder, written);
  }
  cleaner.RemoveFolder(in, name);
}

// First it loses its name, so that nobody takes what is left of it for a checkpoint. One that
// somebody reads stays until the next publication.
void Remove(const HeldFolder& in, const ListedCheckpoint& checkpoint,
            const std::vector<std::string>& below, Cleaner cleaner,
            std::vector<std::string>* left) {
  const std::optional<CheckpointLock> lock = CheckpointLock::ToDelete(checkpoint.path, below);
  if (!lock.has_value()) return;
  const std::string name = ToString(checkpoint.name);
  const std::string draft =
      DraftName(checkpoint.name, checkpoint.manifest->store, checkpoint.manifest->number);
  const std::string doomed = absl::StrCat(kDeleted, draft.substr(1));
  if (renameat(in.descriptor(), name.c_str(), in.descriptor(), doomed.c_str()) != 0) {
    left->emplace_back(SystemError(checkpoint.path, errno).message());
    return;
  }
  RemoveWritten(in, doomed, cleaner);
}

bool SamePath(const std::string& a, const std::string& b) {
  std::error_code error;
  return !b.empty() && std::filesystem::equivalent(a, b, error);
}

// Nothing of the job's later epochs is in the directory: whoever publishes for an older one was cut
// off from what has happened since.
absl::Status CheckNewest(const HeldFolder& directory, const Publication& publication) {
  const Manifest& mine = publication.manifest;
  const auto superseded = [&mine](const std::string& by) {
    return absl::FailedPreconditionError(
        absl::StrCat("epoch ", mine.epoch, " of the job is over: ", by, " is there"));
  };
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(directory));
  for (const std::string& name : names) {
    const std::optional<CheckpointName> draft = ParseDraft(name, mine);
    if (draft.has_value() && draft->epoch > mine.epoch) return superseded(name);
    const std::optional<CheckpointName> other = ParseCheckpointName(name);
    if (!other.has_value() || other->epoch <= mine.epoch) continue;
    const auto manifest = ReadManifestOf(directory.PathOf(name), publication.folders);
    if (manifest.ok() && SameJob(*manifest, mine)) return superseded(name);
  }
  return absl::OkStatus();
}

// Older checkpoints of the job beyond those that are kept, and drafts that it gave up; what is left
// of either where a process was killed that wrote or deleted it.
void Clean(const HeldFolder& directory, const Publication& publication,
           const CheckpointName& published, std::vector<std::string>* left) {
  const Cleaner cleaner(left);
  absl::StatusOr<std::vector<ListedCheckpoint>> listed =
      ListCheckpoints(publication.directory, publication.folders);
  if (!listed.ok()) return;
  int32_t kept = 1;  // the one that was just published
  for (const ListedCheckpoint& one : *listed) {
    if (!one.manifest.ok() || !SameJob(*one.manifest, publication.manifest)) continue;
    if (one.name >= published || IsLink(directory, ToString(one.name)) ||
        SamePath(one.path, publication.in_use)) {
      continue;
    }
    if (kept++ < publication.keep) continue;
    Remove(directory, one, publication.folders, cleaner, left);
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(directory);
  if (!names.ok()) return;
  const Manifest& manifest = publication.manifest;
  for (const std::string& name : *names) {
    absl::string_view deleted = name;
    if (absl::ConsumePrefix(&deleted, kDeleted)) {
      std::vector<std::string> told_before;
      if (ParseDraftName(absl::StrCat(".", deleted), manifest.store, manifest.number).has_value())
        RemoveWritten(directory, name, Cleaner(&told_before));
      continue;
    }
    const std::optional<CheckpointName> draft = ParseDraft(name, manifest);
    if (!draft.has_value()) continue;
    // One of a later step is being written; one of an older epoch nobody writes any more.
    if (draft->epoch < published.epoch ||
        (draft->epoch == published.epoch && draft->step < published.step)) {
      RemoveWritten(directory, name, cleaner);
    }
  }
}

// Whether the checkpoint at `path` is this one, from an order that was told twice.
bool IsPublished(const std::string& path, const Publication& publication) {
  const absl::StatusOr<Manifest> there = ReadManifestOf(path, publication.folders);
  return there.ok() && SameJob(*there, publication.manifest) &&
         DigestOf(there->parts) == publication.parts_digest;
}

// Its name, with the first number of a copy that is free or its own already.
absl::StatusOr<CheckpointName> FreeName(const HeldFolder& directory,
                                        const Publication& publication) {
  CheckpointName name{.step = publication.manifest.step, .epoch = publication.manifest.epoch};
  for (; name.copy <= kCopiesMax; name.copy += name.copy == 0 ? 2 : 1) {
    struct stat there;
    // A link that leads nowhere has the name, too.
    if (LookAt(directory, ToString(name), AT_SYMLINK_NOFOLLOW, there) == ENOENT) return name;
    if (IsPublished(directory.PathOf(ToString(name)), publication)) return name;
  }
  return absl::AlreadyExistsError(absl::StrCat(publication.directory, ": has ", kCopiesMax,
                                               " checkpoints of step ", name.step, ", epoch ",
                                               name.epoch, " of other jobs"));
}

absl::Status RenameToNew(const HeldFolder& in, const std::string& from, const std::string& to) {
  const int at = in.descriptor();
  if (renameat2(at, from.c_str(), at, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
  // File systems of networks know no flags. There a rename replaces no folder that has files, and
  // no file.
  if ((errno == EINVAL || errno == ENOSYS) && renameat(at, from.c_str(), at, to.c_str()) == 0)
    return absl::OkStatus();
  const int error = errno;
  if (error == ENOTEMPTY || error == EEXIST)
    return absl::AlreadyExistsError(absl::StrCat(in.PathOf(to), " is there already"));
  return SystemError(in.PathOf(to), error);
}

// A draft that its publisher has to itself: ranks that write later steps meanwhile give up their
// parts of earlier ones, by the name that drafts have. Unless it is published it gets that name
// back, so that what it holds can be given up.
class TakenDraft {
 public:
  // One that a publisher has left that was killed is taken over. `directory` outlives it.
  // Errors: as of AwaitGivenUp and WritingError.
  static absl::StatusOr<TakenDraft> Take(const HeldFolder& directory, const std::string& name,
                                         const std::stop_token& stop) {
    TakenDraft draft(directory, name, absl::StrCat(kTaken, name.substr(1)));
    struct stat there;
    int error = LookAt(directory, name, 0, there);
    if (error == 0) {
      std::vector<std::string> left;
      RemoveWritten(directory, draft.name_, Cleaner(&left));
      RETURN_IF_ERROR(RenameToNew(directory, name, draft.name_));
    } else {
      if (error == ENOENT) error = LookAt(directory, draft.name_, 0, there);
      if (error != 0) return SystemError(directory.PathOf(name), error);
    }
    draft.held_ = true;
    absl::StatusOr<HeldFolder> folder = directory.OpenFolder(draft.name_);
    if (!folder.ok()) return WritingError(directory.PathOf(draft.name_), folder.status());
    RETURN_IF_ERROR(AwaitGivenUp(*folder, stop));
    draft.folder_.emplace(*std::move(folder));
    return draft;
  }
  TakenDraft(TakenDraft&& other) noexcept
      : directory_(other.directory_),
        draft_(std::move(other.draft_)),
        name_(std::move(other.name_)),
        folder_(std::move(other.folder_)),
        held_(std::exchange(other.held_, false)) {}
  TakenDraft& operator=(TakenDraft&&) = delete;
  ~TakenDraft() {
    if (held_) RenameToNew(directory_, name_, draft_).IgnoreError();
  }

  const HeldFolder& folder() const { return *folder_; }
  absl::Status PublishAs(const std::string& name) {
    RETURN_IF_ERROR(RenameToNew(directory_, name_, name));
    held_ = false;
    return absl::OkStatus();
  }

 private:
  TakenDraft(const HeldFolder& directory, std::string draft, std::string name)
      : directory_(directory), draft_(std::move(draft)), name_(std::move(name)) {}
  const HeldFolder& directory_;
  std::string draft_, name_;  // that it had, and has, in the directory
  std::optional<HeldFolder> folder_;
  bool held_ = false;
};

}  // namespace

absl::StatusOr<Published> Publish(const Publication& publication, const std::stop_token& stop) {
  Manifest manifest = publication.manifest;
  const std::string draft_name =
      DraftName({manifest.step, manifest.epoch}, manifest.store, manifest.number);
  const std::vector<std::string>& folders = publication.folders;
  ASSIGN_OR_RETURN(const HeldFolder directory, OpenToWrite(publication.directory, folders));
  ASSIGN_OR_RETURN(const CheckpointName name, FreeName(directory, publication));
  Published published{.path = directory.PathOf(ToString(name))};
  if (IsPublished(published.path, publication)) return published;
  RETURN_IF_ERROR(CheckNewest(directory, publication));
  ASSIGN_OR_RETURN(TakenDraft draft, TakenDraft::Take(directory, draft_name, stop));
  ASSIGN_OR_RETURN(manifest.parts, PartsIn(draft.folder(), folders));
  if (DigestOf(manifest.parts) != publication.parts_digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        publication.directory, "/", draft_name, ": has ", manifest.parts.size(),
        " part files, and they are not those that the ranks wrote: checkpoint.directory must be "
        "one folder that all nodes reach"));
  }
  const std::string path = ManifestPath(draft.folder().path());
  RETURN_IF_ERROR(WriteWholeFile(path, WriteManifest(manifest), 0666, folders));
  RETURN_IF_ERROR(SyncFolder(draft.folder()));
  // A process may have stood still since it last looked.
  RETURN_IF_ERROR(CheckNewest(directory, publication));
  RETURN_IF_ERROR(CheckPartsIn(draft.folder(), manifest.parts));
  RETURN_IF_ERROR(draft.PublishAs(ToString(name)));
  RETURN_IF_ERROR(SyncFolder(directory));
  if (CheckNewest(directory, publication).ok())
    Clean(directory, publication, name, &published.left);
  return published;
}

}  // namespace phalanx::checkpoint

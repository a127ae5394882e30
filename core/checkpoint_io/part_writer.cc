#include "core/checkpoint_io/part_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/folders.h"
#include "core/checkpoint_io/lock.h"
#include "core/posix/held_folder.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {
namespace {

// What is written before it has the name of a part.
std::string AsideOf(const std::string& part) { return absl::StrCat(part, ".tmp"); }

// The file while it has no name of its own. What is not finished is taken away. Its folder may be
// taken to be published, so it is opened anew each time.
class Draft {
 public:
  static absl::StatusOr<Draft> CreateIn(const std::string& folder, const std::string& name,
                                        const std::vector<std::string>& below) {
    Draft draft(folder, AsideOf(name), below);
    // A rank that gives its part up takes the folder along if nothing is in it yet.
    constexpr int kTries = 100;
    int error = ENOENT;
    for (int i = 0; i < kTries && error == ENOENT; ++i) {
      RETURN_IF_ERROR(MakeDraftFolder(folder, below));
      const absl::StatusOr<HeldFolder> opened = HeldFolder::Open(folder, below);
      if (absl::IsNotFound(opened.status())) continue;
      if (!opened.ok()) return WritingError(folder, opened.status());
      const int in = opened->descriptor();
      // Of an older attempt of this rank in this epoch, for nobody else has the name.
      unlinkat(in, draft.name_.c_str(), 0);
      draft.file_.reset(
          openat(in, draft.name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (draft.file_.is_open()) return draft;
      error = errno;
    }
    return SystemError(draft.path(), error);
  }
  Draft(Draft&&) = default;
  Draft& operator=(Draft&&) = delete;
  ~Draft() {
    if (!file_.is_open()) return;
    const absl::StatusOr<HeldFolder> folder = HeldFolder::Open(folder_, below_);
    if (folder.ok()) unlinkat(folder->descriptor(), name_.c_str(), 0);
  }

  absl::Status Write(int64_t offset, absl::string_view bytes,
                     const std::function<absl::Status()>& before_block) {
    while (!bytes.empty()) {
      if (before_block != nullptr) RETURN_IF_ERROR(before_block());
      const absl::string_view block = bytes.substr(0, static_cast<size_t>(kWriteBytes));
      const ssize_t written = pwrite(file_.get(), block.data(), block.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(path(), errno);
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += written;
    }
    return absl::OkStatus();
  }

  // It is complete, and gets its name.
  absl::Status Finish(const std::string& name) {
    if (fdatasync(file_.get()) != 0) return SystemError(path(), errno);
    ASSIGN_OR_RETURN(const HeldFolder folder, OpenToWrite(folder_, below_));
    if (renameat(folder.descriptor(), name_.c_str(), folder.descriptor(), name.c_str()) != 0)
      return SystemError(folder.PathOf(name), errno);
    file_.reset();
    return SyncFolder(folder);
  }

 private:
  Draft(const std::string& folder, std::string name, const std::vector<std::string>& below)
      : folder_(folder), name_(std::move(name)), below_(below) {}
  std::string path() const { return absl::StrCat(folder_, "/", name_); }

  std::string folder_, name_;
  std::vector<std::string> below_;
  UniqueFd file_;
};

// The entry's bytes as the file has them: where they stand, if they stand so there, else in
// `gathered`.
absl::string_view ContiguousBytes(const Entry& entry, const EntrySource& source,
                                  std::string& gathered) {
  const auto bytes = static_cast<size_t>(entry.bytes());
  const char* from = static_cast<const char*>(source.first);
  if (source.stride == entry.line() || entry.lines() == 1) return {from, bytes};
  const auto line = static_cast<size_t>(entry.line() * BytesOf(entry.dtype));
  const auto stride = static_cast<size_t>(source.stride * BytesOf(entry.dtype));
  gathered.resize(bytes);
  for (size_t i = 0; i < static_cast<size_t>(entry.lines()); ++i) {
    std::memcpy(gathered.data() + i * line, from + i * stride, line);
  }
  return gathered;
}

}  // namespace

absl::StatusOr<PartFile> WritePartFile(PartWrite write) {
  PartHeader header{.info = write.info, .entries = std::move(write.entries)};
  const int64_t data = PlaceEntries(absl::MakeSpan(header.entries));
  const auto header_bytes = static_cast<int64_t>(WriteHeader(header).size());
  PartFile part{.file = PartFileName(write.info.rank),
                .bytes = header_bytes + data,
                .header_bytes = header_bytes,
                .entries = static_cast<int64_t>(header.entries.size())};
  ASSIGN_OR_RETURN(Draft draft, Draft::CreateIn(write.draft, part.file, write.folders));
  std::string gathered;
  for (size_t i = 0; i < header.entries.size(); ++i) {
    Entry& entry = header.entries[i];
    const absl::string_view bytes = ContiguousBytes(entry, write.sources[i], gathered);
    entry.digest = Digest64(bytes);
    RETURN_IF_ERROR(draft.Write(header_bytes + entry.offset, bytes, write.before_block));
  }
  const std::string text = WriteHeader(header);
  part.digest = Digest(text);
  RETURN_IF_ERROR(draft.Write(0, text, write.before_block));
  RETURN_IF_ERROR(draft.Finish(part.file));
  return part;
}

void RemovePartFile(const std::string& draft, int32_t rank,
                    const std::vector<std::string>& folders) {
  const absl::StatusOr<HeldFolder> directory = HeldFolder::Open(FolderOf(draft), folders);
  const absl::StatusOr<HeldFolder> folder = HeldFolder::Open(draft, folders);
  if (!directory.ok() || !folder.ok()) return;
  const std::optional<UniqueFd> lock = LockToGiveUp(*folder);
  if (!lock.has_value()) return;
  const std::string part = PartFileName(rank);
  unlinkat(folder->descriptor(), part.c_str(), 0);
  unlinkat(folder->descriptor(), AsideOf(part).c_str(), 0);
  unlinkat(directory->descriptor(), NameIn(draft).c_str(), AT_REMOVEDIR);
}

}  // namespace phalanx::checkpoint

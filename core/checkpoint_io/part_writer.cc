#include "core/checkpoint_io/part_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/folders.h"
#include "core/posix/unique_fd.h"

namespace phalanx::checkpoint {
namespace {

// The file while it has no name of its own. What is not finished is taken away.
class Draft {
 public:
  static absl::StatusOr<Draft> CreateIn(const std::string& folder, std::string path) {
    // A rank that gives its part up takes the folder along if nothing is in it yet.
    constexpr int kTries = 100;
    UniqueFd file;
    for (int i = 0; i < kTries; ++i) {
      RETURN_IF_ERROR(MakeDraftFolder(folder));
      // Of an older attempt of this rank in this epoch, for nobody else has the name.
      unlink(path.c_str());
      file.reset(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (file.is_open()) return Draft(std::move(file), std::move(path));
      if (errno != ENOENT) break;
    }
    return SystemError(path, errno);
  }
  Draft(Draft&&) = default;
  Draft& operator=(Draft&&) = delete;
  ~Draft() {
    if (file_.is_open()) unlink(path_.c_str());
  }

  absl::Status Write(int64_t offset, absl::string_view bytes,
                     const std::function<absl::Status()>& before_block) {
    while (!bytes.empty()) {
      if (before_block != nullptr) RETURN_IF_ERROR(before_block());
      const absl::string_view block = bytes.substr(0, static_cast<size_t>(kWriteBytes));
      const ssize_t written = pwrite(file_.get(), block.data(), block.size(), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
      offset += written;
    }
    return absl::OkStatus();
  }

  // It is complete, and gets its name.
  absl::Status Finish(const std::string& path) {
    if (fdatasync(file_.get()) != 0) return SystemError(path_, errno);
    if (rename(path_.c_str(), path.c_str()) != 0) return SystemError(path, errno);
    file_.reset();
    return absl::OkStatus();
  }

 private:
  Draft(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  UniqueFd file_;
  std::string path_;
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
  const std::string path = absl::StrCat(write.draft, "/", part.file);
  ASSIGN_OR_RETURN(Draft draft, Draft::CreateIn(write.draft, absl::StrCat(path, ".tmp")));
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
  RETURN_IF_ERROR(draft.Finish(path));
  RETURN_IF_ERROR(SyncFolder(write.draft));
  return part;
}

void RemovePartFile(const std::string& draft, int32_t rank) {
  const std::string path = absl::StrCat(draft, "/", PartFileName(rank));
  unlink(path.c_str());
  unlink(absl::StrCat(path, ".tmp").c_str());
  rmdir(draft.c_str());
}

}  // namespace phalanx::checkpoint

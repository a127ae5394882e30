#include "worker/rank/incident_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/held_folder.h"
#include "core/posix/unique_fd.h"
#include "worker/rank/record_file.h"

namespace phalanx::rank {
namespace {

constexpr char kFile[] = "incident.json";
constexpr char kAside[] = ".incident.json.new";

// The folder `name` in `parent`, made where it is not there.
absl::StatusOr<HeldFolder> FolderIn(const HeldFolder& parent, const std::string& name) {
  const std::string path = parent.PathOf(name);
  if (mkdirat(parent.descriptor(), name.c_str(), 0777) != 0 && errno != EEXIST)
    return OutputError("make the folder", path, errno);
  absl::StatusOr<HeldFolder> folder = parent.OpenFolder(name);
  if (!folder.ok()) return OutputError("open the folder", path, folder.status());
  return folder;
}

absl::Status WriteAll(const UniqueFd& file, absl::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return OutputError("write", path, written < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file.get()) == 0 ? absl::OkStatus() : OutputError("write", path, errno);
}

}  // namespace

absl::Status WriteIncidentFile(const std::string& output, int64_t number, absl::string_view text,
                               const std::vector<std::string>& folders) {
  const absl::StatusOr<HeldFolder> base = HeldFolder::Open(output, folders);
  if (!base.ok()) return OutputError("open the output folder", output, base.status());
  ASSIGN_OR_RETURN(const HeldFolder incidents, FolderIn(*base, "incidents"));
  ASSIGN_OR_RETURN(const HeldFolder folder, FolderIn(incidents, absl::StrCat(number)));
  const std::string path = folder.PathOf(kFile);
  const int in = folder.descriptor();
  // Left by a process that was killed.
  if (unlinkat(in, kAside, 0) != 0 && errno != ENOENT)
    return OutputError("replace", folder.PathOf(kAside), errno);
  const UniqueFd file(
      openat(in, kAside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file.is_open()) return OutputError("create", folder.PathOf(kAside), errno);
  absl::Status status = WriteAll(file, text, path);
  if (status.ok() && renameat(in, kAside, in, kFile) != 0)
    status = OutputError("replace", path, errno);
  if (!status.ok()) unlinkat(in, kAside, 0);
  return status;
}

IncidentFiles::IncidentFiles(Failed failed)
    : failed_(std::move(failed)), thread_([this] { Run(); }) {}

IncidentFiles::~IncidentFiles() {
  {
    const MutexLock lock(&mu_);
    ends_ = true;
  }
  changed_.SignalAll();
  thread_.join();
}

void IncidentFiles::Write(v1::WriteIncident order) {
  const MutexLock lock(&mu_);
  if (waiting_.size() == kWaitingMax) waiting_.pop_front();
  waiting_.push_back(std::move(order));
  changed_.SignalAll();
}

void IncidentFiles::Run() {
  while (true) {
    v1::WriteIncident order;
    {
      const MutexLock lock(&mu_);
      while (!ends_ && waiting_.empty()) changed_.Wait(&mu_);
      if (waiting_.empty()) return;
      order = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const absl::Status written =
        WriteIncidentFile(order.output(), order.number(), order.text(),
                          {order.folders().begin(), order.folders().end()});
    if (!written.ok()) failed_(order, written);
  }
}

}  // namespace phalanx::rank

#include "worker/data/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"

namespace phalanx::data {
namespace {

constexpr size_t kReadBytes = 16 * 1024;
constexpr int64_t kRecordBytes = 512;

using Archive = std::unique_ptr<archive, decltype(&archive_read_free)>;

std::string MessageOf(archive* archive) {
  const char* message = archive_error_string(archive);
  return message == nullptr ? "unknown error" : Printable(message);
}

// What the first bytes say about a file that is no tar.
absl::Status CheckStart(const File& file) {
  if (file.stamp().bytes == 0) return absl::InvalidArgumentError("is empty");
  std::string start;
  RETURN_IF_ERROR(file.Read(0, std::min<int64_t>(file.stamp().bytes, 6), start));
  static constexpr struct {
    absl::string_view magic, name;
  } kCompressions[] = {
      {"\x1F\x8B", "gzip"}, {"\x28\xB5\x2F\xFD", "zstd"}, {"BZh", "bzip2"}, {"\xFD\x37zXZ", "xz"}};
  for (const auto& compression : kCompressions) {
    if (absl::StartsWith(start, compression.magic)) {
      return absl::InvalidArgumentError(
          absl::StrCat("is compressed (", compression.name, "); must be a plain tar file"));
    }
  }
  return absl::OkStatus();
}

// The archive ends with a record of zeros. Without it the writer did not finish.
absl::Status CheckEnd(const File& file, int64_t end) {
  const int64_t record = (end + kRecordBytes - 1) / kRecordBytes * kRecordBytes;
  std::string bytes;
  if (record + kRecordBytes > file.stamp().bytes || !file.Read(record, kRecordBytes, bytes).ok() ||
      bytes.find_first_not_of('\0') != std::string::npos) {
    return absl::InvalidArgumentError("is truncated: it has no end-of-archive mark");
  }
  return absl::OkStatus();
}

std::string NameOf(archive_entry* entry) {
  const char* name = archive_entry_pathname_utf8(entry);
  if (name == nullptr) name = archive_entry_pathname(entry);
  return name == nullptr ? "" : std::string(absl::StripPrefix(name, "./"));
}

}  // namespace

absl::StatusOr<std::vector<TarMember>> ListTar(const File& file, ReadProgress* progress) {
  RETURN_IF_ERROR(CheckStart(file));
  Archive reader(archive_read_new(), &archive_read_free);
  archive_read_support_format_tar(reader.get());
  if (lseek(file.descriptor(), 0, SEEK_SET) != 0 ||
      archive_read_open_fd(reader.get(), file.descriptor(), kReadBytes) != ARCHIVE_OK) {
    return absl::InvalidArgumentError(absl::StrCat("is not a tar file: ", MessageOf(reader.get())));
  }
  std::vector<TarMember> members;
  std::string last = "the start";
  int64_t end = 0;
  bool plain = true;
  while (true) {
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(reader.get(), &entry);
    if (result == ARCHIVE_EOF) break;
    // A warning is a name in a character set that this locale lacks, or a date out of range.
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      return absl::InvalidArgumentError(
          last == "the start"
              ? absl::StrCat("is not a tar file: ", MessageOf(reader.get()))
              : absl::StrCat("is damaged after ", last, ": ", MessageOf(reader.get())));
    }
    if (progress != nullptr) RETURN_IF_ERROR(progress->Add(kRecordBytes));
    TarMember member{NameOf(entry), archive_filter_bytes(reader.get(), 0),
                     archive_entry_size(entry)};
    last = absl::StrCat("member ", Printable(member.name));
    // What others than plain files occupy is libarchive's business.
    plain = archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == nullptr &&
            archive_entry_sparse_count(entry) == 0 && member.bytes >= 0;
    if (!plain) continue;
    if (member.bytes > file.stamp().bytes - member.offset) {
      return absl::InvalidArgumentError(absl::StrCat("is truncated: ", last, " has ", member.bytes,
                                                     " bytes at ", member.offset, " of ",
                                                     file.stamp().bytes));
    }
    end = member.offset + member.bytes;
    members.push_back(std::move(member));
  }
  if (plain) RETURN_IF_ERROR(CheckEnd(file, end));
  return members;
}

}  // namespace phalanx::data

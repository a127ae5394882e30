#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "worker/data/data_set.h"
#include "worker/data/index_impl.h"

namespace phalanx::data {
namespace {

// The layout of the file: magic, fields in the order of Visit, digest of all before. Numbers are as
// in memory: the file is a cache of one machine.
constexpr absl::string_view kMagic = "phalanx index 4\n";
constexpr int64_t kFileBytesMax = int64_t{64} << 30;
constexpr size_t kDigestBytes = 32;

class Writer {
 public:
  bool operator()(const std::string& text) {
    Number(text.size());
    bytes_.append(text);
    return true;
  }
  template <typename Value>
  bool operator()(const std::vector<Value>& values) {
    Number(values.size());
    if constexpr (std::is_trivially_copyable_v<Value>) {
      if (!values.empty()) Append(values.data(), values.size() * sizeof(Value));
    } else {
      for (const Value& value : values) Fields(value, *this);
    }
    return true;
  }
  template <typename Value>
  bool operator()(const Value& value) requires std::is_trivially_copyable_v<Value> {
    Append(&value, sizeof(value));
    return true;
  }
  std::string& bytes() { return bytes_; }

 private:
  void Number(uint64_t number) { Append(&number, sizeof(number)); }
  void Append(const void* from, size_t bytes) {
    bytes_.append(static_cast<const char*>(from), bytes);
  }
  std::string bytes_;
};

// Answers false where the bytes end early.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}
  bool operator()(std::string& text) {
    uint64_t size = 0;
    if (!Take(&size, sizeof(size)) || size > rest_.size()) return false;
    text.assign(rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }
  template <typename Value>
  bool operator()(std::vector<Value>& values) {
    uint64_t size = 0;
    if (!Take(&size, sizeof(size))) return false;
    if constexpr (std::is_trivially_copyable_v<Value>) {
      if (size > rest_.size() / sizeof(Value)) return false;
      values.resize(size);
      return values.empty() || Take(values.data(), size * sizeof(Value));
    } else {
      if (size > rest_.size()) return false;
      values.resize(size);
      for (Value& value : values) {
        if (!Fields(value, *this)) return false;
      }
      return true;
    }
  }
  template <typename Value>
  bool operator()(Value& value) requires std::is_trivially_copyable_v<Value> {
    return Take(&value, sizeof(value));
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  bool Take(void* to, size_t bytes) {
    if (bytes > rest_.size()) return false;
    std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return true;
  }
  absl::string_view rest_;
};

template <typename Shard, typename Visitor>
requires std::is_same_v<std::remove_const_t<Shard>, ShardEntry>
bool Fields(Shard& shard, Visitor& visit) {
  return visit(shard.path) && visit(shard.stamp) && visit(shard.first_sample);
}

template <typename Corrupt, typename Visitor>
requires std::is_same_v<std::remove_const_t<Corrupt>, Index::Corrupt>
bool Fields(Corrupt& corrupt, Visitor& visit) {
  return visit(corrupt.shard) && visit(corrupt.key) && visit(corrupt.reason) &&
         visit(corrupt.sample);
}

template <typename Impl, typename Visitor>
bool VisitAll(Impl& impl, Visitor& visit) {
  auto& samples = impl.samples;
  return visit(impl.spec_digest) && visit(impl.tokenizer) && visit(impl.shards) &&
         visit(samples.shapes) && visit(samples.keys) && visit(samples.key_ends) &&
         visit(samples.texts) && visit(samples.items) && visit(samples.item_ends) &&
         visit(samples.rows) && visit(samples.row_ends) && visit(samples.targets) &&
         visit(samples.corrupt) && visit(impl.digest);
}

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

absl::Status WriteAll(const std::string& path, absl::string_view bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return SystemError("cannot create", path);
  absl::Status status;
  while (status.ok() && !bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      status = SystemError("cannot write", path);
    } else {
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (status.ok() && fsync(file) != 0) status = SystemError("cannot synchronise", path);
  if (close(file) != 0 && status.ok()) status = SystemError("cannot close", path);
  return status;
}

absl::Status CheckUnchanged(const Index::Impl& impl, const DataSetSpec& spec) {
  if (impl.spec_digest != DigestOf(spec)) {
    return absl::FailedPreconditionError("index was built for other data or another model");
  }
  const auto check = [](const std::string& path, const FileStamp& stamp) {
    const absl::StatusOr<FileStamp> now = StampOf(path);
    if (!now.ok()) return absl::FailedPreconditionError(GoneSinceIndexed(path, now.status()));
    if (*now == stamp) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path, " has changed since it was indexed"));
  };
  RETURN_IF_ERROR(check(spec.tokenizer, impl.tokenizer));
  for (const ShardEntry& shard : impl.shards) RETURN_IF_ERROR(check(shard.path, shard.stamp));
  return absl::OkStatus();
}

}  // namespace

absl::Status Index::Save(const std::string& path) const {
  Writer writer;
  writer.bytes().append(kMagic.data(), kMagic.size());
  VisitAll(*impl_, writer);
  writer.bytes().append(Digest(writer.bytes()));
  static std::atomic<int64_t> saved = 0;  // two jobs may index one data set at a time
  const std::string aside = absl::StrCat(path, ".", getpid(), ".", ++saved, ".tmp");
  absl::Status status = WriteAll(aside, writer.bytes());
  if (status.ok() && rename(aside.c_str(), path.c_str()) != 0)
    status = SystemError("cannot rename to", path);
  if (!status.ok()) unlink(aside.c_str());
  return status;
}

absl::StatusOr<Index> Index::Load(const std::string& path, const DataSetSpec& spec) {
  if (access(path.c_str(), F_OK) != 0)
    return absl::NotFoundError(absl::StrCat("no index file ", path));
  absl::StatusOr<std::string> bytes = ReadWholeFile(path, kFileBytesMax);
  if (!bytes.ok()) return absl::DataLossError(absl::StrCat(path, ": ", bytes.status().message()));
  absl::string_view body = *bytes;
  const bool sized = body.size() >= kMagic.size() + kDigestBytes && absl::StartsWith(body, kMagic);
  const absl::string_view digest =
      sized ? body.substr(body.size() - kDigestBytes) : absl::string_view();
  if (sized) body.remove_suffix(kDigestBytes);
  auto impl = std::make_shared<Impl>();
  if (sized && Digest(body) == digest) {
    body.remove_prefix(kMagic.size());
    Reader reader(body);
    if (VisitAll(*impl, reader) && reader.AtEnd()) {
      RETURN_IF_ERROR(CheckUnchanged(*impl, spec));
      utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // used now, for who removes old ones
      return Index(std::move(impl));
    }
  }
  return absl::DataLossError(absl::StrCat(path, ": is damaged or no index"));
}

absl::StatusOr<Index> Index::LoadOrBuild(const std::string& path, const DataSetSpec& spec,
                                         ReadProgress* progress) {
  absl::StatusOr<Index> known = Load(path, spec);
  if (!absl::IsNotFound(known.status()) && !absl::IsDataLoss(known.status())) return known;
  ASSIGN_OR_RETURN(Index built, Build(spec, progress));
  // For whoever comes next; without it that one reads the shards, too.
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (!error) built.Save(path).IgnoreError();
  return built;
}

}  // namespace phalanx::data

#include "coordinator/store/wal_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/posix/unique_fd.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kHeader = 32, kFrameHeader = 24;
constexpr uint32_t kMagic = 0x377F0682;  // its last bit: checksums are over big-endian words
constexpr uint32_t kPageMin = 512, kPageMax = 65536, kPageUsual = 4096;
constexpr int kReadings = 5;

// All numbers are big-endian; the words that checksums are over may not be.
uint32_t Word(absl::string_view bytes, size_t at, bool big_endian = true) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[at + (big_endian ? i : 3 - i)]);
    word = word << 8 | byte;
  }
  return word;
}

struct Sums {
  uint32_t first = 0, second = 0;
  friend bool operator==(const Sums&, const Sums&) = default;
};

Sums SumsAt(absl::string_view bytes, size_t at) { return {Word(bytes, at), Word(bytes, at + 4)}; }

Sums Add(Sums sums, absl::string_view bytes, bool big_endian) {
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    sums.first += Word(bytes, at, big_endian) + sums.second;
    sums.second += Word(bytes, at + 4, big_endian) + sums.first;
  }
  return sums;
}

// Of a frame: what comes before its salts, and its page.
Sums AddFrame(Sums sums, absl::string_view frame, bool big_endian) {
  return Add(Add(sums, frame.substr(0, 8), big_endian), frame.substr(kFrameHeader), big_endian);
}

bool IsPageSize(uint32_t size) {
  return size >= kPageMin && size <= kPageMax && (size & (size - 1)) == 0;
}

// A commit frame says how many pages the database has then.
bool Commits(absl::string_view frame) { return Word(frame, 4) != 0; }

// A damaged commit that the log goes on behind.
struct Damage {
  std::string header;  // of the log
  int64_t frame = 0;   // from 1 on; 0: the header
  int64_t offset = 0;
  friend bool operator==(const Damage&, const Damage&) = default;
};

class Reading {
 public:
  explicit Reading(int fd) : fd_(fd) {}

  // Nothing: all commits are there that can be expected.
  absl::StatusOr<std::optional<Damage>> Run() {
    ASSIGN_OR_RETURN(const bool there, Read(0, kHeader, header_));
    if (!there) return std::nullopt;
    const Sums stored = SumsAt(header_, 24);
    big_endian_ = (Word(header_, 0) & 1) != 0;
    page_ = Word(header_, 8);
    const bool sound = (Word(header_, 0) & ~1U) == kMagic && IsPageSize(page_) &&
                       Add({}, HeaderBody(), big_endian_) == stored;
    return sound ? Frames(stored) : Header(stored);
  }

 private:
  absl::string_view HeaderBody() const { return absl::string_view(header_).substr(0, 24); }
  int64_t OffsetOf(int64_t frame) const {
    return static_cast<int64_t>(kHeader) + (frame - 1) * static_cast<int64_t>(kFrameHeader + page_);
  }
  bool OfLog() const { return absl::string_view(frame_).substr(8, 8) == header_.substr(16, 8); }

  // The header is synced before the first frame, which adds to its sums: where that one still does,
  // the header was whole. Else it may be of a new log that was never begun, before the frames of an
  // old one that are all in the database.
  absl::StatusOr<std::optional<Damage>> Header(Sums stored) {
    for (const uint32_t page : {page_, kPageUsual}) {
      if (!IsPageSize(page)) continue;
      ASSIGN_OR_RETURN(const bool there, Read(kHeader, kFrameHeader + page, frame_));
      if (!there || Word(frame_, 0) == 0) continue;
      const Sums first = SumsAt(frame_, 16);
      for (const bool big_endian : {false, true}) {
        const Sums computed = Add({}, HeaderBody(), big_endian);
        if (AddFrame(stored, frame_, big_endian) == first ||
            AddFrame(computed, frame_, big_endian) == first) {
          return Damage{.header = header_};
        }
      }
    }
    return std::nullopt;
  }

  absl::StatusOr<std::optional<Damage>> Frames(Sums sums) {
    int64_t broken = 0;
    bool ended = false;  // with the frame before, a commit from `broken` on
    Sums stored = sums;  // of the frame before, as it says
    for (int64_t frame = 1;; ++frame) {
      ASSIGN_OR_RETURN(const bool there, Read(OffsetOf(frame), kFrameHeader + page_, frame_));
      if (!there) return std::nullopt;
      if (broken == 0) {
        const Sums before = std::exchange(sums, AddFrame(sums, frame_, big_endian_));
        const bool sound = OfLog() && Word(frame_, 0) != 0 && SumsAt(frame_, 16) == sums;
        if (sound) continue;
        broken = frame;
        ended = BrokenOneCommits(before, sums);
      } else {
        // What commits have left that could not be synced may stand behind a later one: frames of
        // this log, which do not follow from it.
        const bool follows =
            OfLog() && (AddFrame(stored, frame_, big_endian_) == SumsAt(frame_, 16) ||
                        AddFrame(sums, frame_, big_endian_) == SumsAt(frame_, 16));
        if (ended && follows)
          return Damage{.header = header_, .frame = broken, .offset = OffsetOf(broken)};
        ended = OfLog() && Commits(frame_);
      }
      stored = SumsAt(frame_, 16);
    }
  }

  // Whether the frame, which is broken, was the last one of its commit, as it says of itself. Not
  // where it is of this log by its sums alone when it does not say so; nor by its salts, unless
  // those are what is broken.
  bool BrokenOneCommits(Sums before, Sums with) {
    if (!Commits(frame_)) return false;
    const Sums stored = SumsAt(frame_, 16);
    std::string silent = frame_;
    silent.replace(4, 4, 4, '\0');
    if (AddFrame(before, silent, big_endian_) == stored) return false;
    return OfLog() || stored == with;
  }

  // False: the log ends before that.
  absl::StatusOr<bool> Read(int64_t offset, size_t count, std::string& bytes) const {
    bytes.resize(count);
    for (size_t done = 0; done < count;) {
      const ssize_t n =
          pread(fd_, bytes.data() + done, count - done, offset + static_cast<int64_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::UnavailableError(std::strerror(errno));
      if (n == 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

  const int fd_;
  std::string header_, frame_;
  bool big_endian_ = false;
  uint32_t page_ = 0;
};

absl::Status ToStatus(const Damage& damage) {
  const std::string place =
      damage.frame == 0 ? std::string("its header")
                        : absl::StrCat("frame ", damage.frame, " (at byte ", damage.offset, ")");
  return absl::DataLossError(absl::StrCat(
      place,
      " is damaged, and commits that were synced lie behind it, which SQLite would drop: put a "
      "backup of the store in its place, database and log together, or move the log away to start "
      "without what it holds"));
}

absl::Status Check(int fd) {
  std::optional<Damage> before;
  // What a process that has the store open writes meanwhile is different the next time.
  for (int reading = 0; reading < kReadings; ++reading) {
    ASSIGN_OR_RETURN(std::optional<Damage> damage, Reading(fd).Run());
    if (!damage.has_value()) return absl::OkStatus();
    if (damage == before) return ToStatus(*damage);
    before = std::move(damage);
  }
  return absl::UnavailableError("it is written while it is read: try again");
}

}  // namespace

absl::Status CheckLog(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) return absl::OkStatus();
  if (!file.is_open())
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  return Annotate(Check(file.get()), path);
}

}  // namespace phalanx::coordinator

#include "coordinator/store/wal_check.h"

#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/posix/unique_fd.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kHeaderBytes = 32, kFrameHeaderBytes = 24;
constexpr uint32_t kMagic = 0x377F0682;  // with its last bit: sums are of big-endian words
constexpr size_t kPageBytes = 4096;      // of a store that this program makes

using Sums = std::pair<uint32_t, uint32_t>;

uint32_t WordAt(absl::string_view bytes, size_t at, bool big_endian = true) {
  uint32_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return big_endian ? be32toh(word) : le32toh(word);
}

// Of whole pairs of words, behind what was summed before.
Sums Summed(absl::string_view bytes, bool big_endian, Sums sums) {
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    sums.first += WordAt(bytes, at, big_endian) + sums.second;
    sums.second += WordAt(bytes, at + 4, big_endian) + sums.first;
  }
  return sums;
}

Sums SumsAt(absl::string_view bytes, size_t at) {
  return {WordAt(bytes, at), WordAt(bytes, at + 4)};
}

struct Frame {
  bool of_log = false;   // its salts are the log's
  bool commits = false;  // it is the last one of a commit
  bool follows = false;  // its checksum follows from what the frame before has
};

// Reads frames one after the other.
class Reader {
 public:
  explicit Reader(UniqueFd file) : file_(std::move(file)) {}

  // False: there is no frame, since the log is empty or a machine's end has cut its first bytes.
  absl::StatusOr<bool> Begin() {
    std::array<char, kHeaderBytes> bytes{};
    ASSIGN_OR_RETURN(const bool there, Read(bytes.data(), bytes.size()));
    const absl::string_view header(bytes.data(), bytes.size());
    const bool zero = std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
    if (!there || zero) return false;
    big_endian_ = (WordAt(header, 0) & 1) != 0;
    sums_ = SumsAt(header, 24);
    sound_ = (WordAt(header, 0) | 1) == (kMagic | 1) &&
             Summed(header.substr(0, 24), big_endian_, {}) == sums_;
    // Of a header that is damaged, frames are still told by what they have in common.
    if (sound_) salts_ = std::string(header.substr(16, 8));
    buffer_.resize(kFrameHeaderBytes + (sound_ ? WordAt(header, 8) : kPageBytes));
    return true;
  }

  // Whether the header is as it was written.
  bool sound() const { return sound_; }

  // Nothing at the end.
  absl::StatusOr<std::optional<Frame>> Next() {
    ASSIGN_OR_RETURN(const bool there, Read(buffer_.data(), buffer_.size()));
    if (!there) return std::nullopt;
    const absl::string_view bytes(buffer_.data(), buffer_.size());
    if (salts_.empty()) salts_ = std::string(bytes.substr(8, 8));
    const Sums sums = Summed(bytes.substr(kFrameHeaderBytes), big_endian_,
                             Summed(bytes.substr(0, 8), big_endian_, sums_));
    Frame frame{.of_log = bytes.substr(8, 8) == salts_, .commits = WordAt(bytes, 4) != 0};
    sums_ = SumsAt(bytes, 16);
    frame.follows = frame.of_log && WordAt(bytes, 0) != 0 && sums == sums_;
    return frame;
  }

 private:
  // False: there is less.
  absl::StatusOr<bool> Read(char* out, size_t count) {
    for (size_t done = 0; done < count;) {
      const ssize_t n = read(file_.get(), out + done, count - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return absl::UnavailableError(std::strerror(errno));
      if (n == 0) return false;
      done += static_cast<size_t>(n);
    }
    return true;
  }

  const UniqueFd file_;
  bool big_endian_ = false;
  std::string salts_;
  Sums sums_;  // that the header or the frame before has
  bool sound_ = true;
  std::vector<char> buffer_;
};

absl::Status Check(Reader& reader) {
  ASSIGN_OR_RETURN(const bool begun, reader.Begin());
  if (!begun) return absl::OkStatus();
  int64_t number = 0;
  std::optional<int64_t> broken;  // the first frame that does not hold; 0: the header
  if (!reader.sound()) broken = 0;
  bool ended = false;  // with the frame before, the commit that it is in
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Frame> frame, reader.Next());
    if (!frame.has_value()) return absl::OkStatus();
    ++number;
    if (!broken.has_value() && frame->follows) continue;
    // What a commit that failed has left may stand behind the last one that did not: other frames
    // of this log, which do not follow from it.
    if (ended && !frame->follows) return absl::OkStatus();
    if (ended) {
      return absl::DataLossError(absl::StrCat(
          "frame ", *broken,
          " is damaged, and commits that were synced stand behind it: put a "
          "backup of the store in its place, or move the log away to serve without what it holds"));
    }
    if (!broken.has_value()) broken = number;
    ended = frame->commits && (frame->of_log || *broken == number);
  }
}

}  // namespace

absl::Status CheckWriteAheadLog(const std::string& log) {
  UniqueFd file(open(log.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open() && errno == ENOENT) return absl::OkStatus();
  if (!file.is_open()) return absl::UnavailableError(absl::StrCat(log, ": ", std::strerror(errno)));
  Reader reader(std::move(file));
  return Annotate(Check(reader), log);
}

}  // namespace phalanx::coordinator

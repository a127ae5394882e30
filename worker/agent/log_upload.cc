#include "worker/agent/log_upload.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spdlog/spdlog.h"

namespace phalanx::agent {
namespace {

constexpr size_t kBlockBytes = 64 << 10;
// Of files that are rotated between a look at their names and the opening.
constexpr int kOpensMax = 8;

// Where the last `lines` lines of a file begin, or 0; what it lacks stays in `lines`. A newline
// that ends the log (`last`) ends a line and begins none.
off_t StartOfLastLines(int fd, bool last, int32_t& lines) {
  struct stat info;
  if (fstat(fd, &info) != 0) return 0;
  std::string block(kBlockBytes, '\0');
  for (off_t end = info.st_size; end > 0;) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(kBlockBytes));
    const ssize_t n = pread(fd, block.data(), static_cast<size_t>(end - begin), begin);
    if (n != end - begin) return 0;
    for (off_t i = end - 1; i >= begin; --i) {
      if (block[static_cast<size_t>(i - begin)] != '\n') continue;
      if (last && i == info.st_size - 1) continue;
      if (--lines == 0) return i + 1;
    }
    end = begin;
  }
  return 0;
}

}  // namespace

LogReader::LogReader(std::string folder, JobId job, int32_t rank, int32_t tail,
                     const std::string& after)
    : folder_(std::move(folder)), job_(job), rank_(rank) {
  if (!after.empty()) {
    GoTo(after);
  } else if (tail > 0) {
    for (int failed = 0; !SkipTo(tail) && failed < kOpensMax; ++failed) continue;
  }
}

void LogReader::GoTo(const std::string& place) {
  const std::vector<std::string> parts = absl::StrSplit(place, ':');
  int64_t offset = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &epoch_.value) ||
      !absl::SimpleAtoi(parts[1], &identity_) || !absl::SimpleAtoi(parts[2], &offset)) {
    epoch_ = Epoch{};
    identity_ = 0;
    return;
  }
  given_ = {.epoch = epoch_, .identity = identity_, .offset = offset};
  for (int failed = 0; !file_.is_open() && failed < kOpensMax; ++failed) {
    const std::vector<LogFile> files = LogFiles(folder_, job_, rank_);
    const auto file = std::find_if(files.begin(), files.end(), [this](const LogFile& one) {
      return one.epoch == epoch_ && one.identity == identity_;
    });
    if (file == files.end()) return;  // it was rotated away
    if (Open(*file)) lseek(file_.get(), offset, SEEK_SET);
  }
}

std::string LogReader::place() const {
  if (given_.identity == 0) return "";
  return absl::StrCat(given_.epoch.value, ":", given_.identity, ":", given_.offset);
}

bool LogReader::SkipTo(int32_t tail) {
  const std::vector<LogFile> files = LogFiles(folder_, job_, rank_);
  for (size_t i = files.size(); i > 0; --i) {
    if (!Open(files[i - 1])) return false;
    const off_t start = StartOfLastLines(file_.get(), i == files.size(), tail);
    lseek(file_.get(), start, SEEK_SET);
    if (tail == 0) break;
  }
  return true;
}

bool LogReader::Open(const LogFile& file) {
  UniqueFd opened(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.is_open() || IdentityOf(opened.get()) != file.identity) return false;
  file_ = std::move(opened);
  identity_ = file.identity;
  epoch_ = file.epoch;
  return true;
}

std::optional<LogFile> LogReader::FileBehind() const {
  const std::vector<LogFile> files = LogFiles(folder_, job_, rank_);
  if (files.empty()) return std::nullopt;
  if (identity_ == 0) return files.front();
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].identity != identity_) continue;
    if (i + 1 == files.size()) return std::nullopt;
    return files[i + 1];
  }
  // The present file was rotated away: on to the oldest that is left of its epoch or a later one.
  for (const LogFile& file : files) {
    if (file.epoch >= epoch_) return file;
  }
  return std::nullopt;
}

void LogReader::Append(absl::string_view block) {
  const auto begin =
      static_cast<int64_t>(lseek(file_.get(), 0, SEEK_CUR)) - static_cast<int64_t>(block.size());
  const bool joins =
      !stretches_.empty() && stretches_.back().identity == identity_ &&
      stretches_.back().offset + static_cast<int64_t>(stretches_.back().bytes) == begin;
  if (!joins) stretches_.push_back({.epoch = epoch_, .identity = identity_, .offset = begin});
  stretches_.back().bytes += block.size();
  absl::StrAppend(&unfinished_, block);
}

size_t LogReader::BytesOfFirstEpoch() const {
  size_t bytes = 0;
  for (const Stretch& stretch : stretches_) {
    if (stretch.epoch != stretches_.front().epoch) break;
    bytes += stretch.bytes;
  }
  return bytes;
}

std::string LogReader::Take(size_t bytes) {
  std::string text = unfinished_.substr(0, bytes);
  unfinished_.erase(0, bytes);
  while (bytes > 0) {
    Stretch& stretch = stretches_.front();
    const size_t n = std::min(bytes, stretch.bytes);
    stretch.offset += static_cast<int64_t>(n);
    stretch.bytes -= n;
    bytes -= n;
    given_ = stretch;
    if (stretch.bytes == 0) stretches_.pop_front();
  }
  return text;
}

std::string LogReader::Next(bool final) {
  std::optional<LogFile> behind;
  for (int failed = 0; unfinished_.size() < kChunkBytes;) {
    std::string block(kBlockBytes, '\0');
    const ssize_t n = file_.is_open() ? read(file_.get(), block.data(), block.size()) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      Append(absl::string_view(block.data(), static_cast<size_t>(n)));
      continue;
    }
    // A file that another one follows is written no more, so it ends where it does now.
    const bool had_ended = behind.has_value();
    if (!had_ended) behind = FileBehind();
    if (!behind.has_value()) break;
    if (!had_ended) continue;
    if (!Open(*behind) && ++failed == kOpensMax) break;
    behind.reset();
  }
  size_t bytes = unfinished_.rfind('\n');
  bytes = bytes == std::string::npos ? 0 : bytes + 1;
  if (unfinished_.size() >= kChunkBytes && bytes == 0) bytes = unfinished_.size();
  if (final && bytes == 0) bytes = unfinished_.size();
  return Take(std::min(bytes, BytesOfFirstEpoch()));
}

struct LogUploader::Upload {
  std::unique_ptr<v1::WorkerService::Stub> stub;
  grpc::ClientContext context;
  std::atomic<bool> cut = false;
  std::atomic<bool> done = false;
  std::jthread thread;  // last: ends before what it uses
};

LogUploader::LogUploader(std::string state, LogActivity& activity)
    : state_(std::move(state)), activity_(activity) {}

LogUploader::~LogUploader() {
  for (Upload& upload : uploads_) upload.context.TryCancel();
}

absl::Status LogUploader::Start(const std::shared_ptr<grpc::Channel>& channel, uint64_t store,
                                const FetchLogsCommand& fetch) {
  uploads_.remove_if([](const Upload& upload) { return upload.done.load(); });
  if (uploads_.size() >= 2 * kUploadsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this node is ending ", uploads_.size(), " uploads of logs; try again"));
  }
  if (uploads_.size() >= kUploadsMax) {
    const auto oldest = std::find_if(uploads_.begin(), uploads_.end(),
                                     [](const Upload& upload) { return !upload.cut.load(); });
    // There is none when those that were cut have not ended yet and the others have.
    if (oldest != uploads_.end()) {
      oldest->cut = true;
      oldest->context.TryCancel();
      activity_.TextAppended();  // wakes it
    }
  }
  Upload& upload = uploads_.emplace_back();
  upload.stub = v1::WorkerService::NewStub(channel);
  upload.thread = std::jthread([this, &upload, folder = StoreFolder(state_, store), fetch] {
    Run(upload, folder, fetch);
    upload.done = true;
  });
  return absl::OkStatus();
}

void LogUploader::AwaitLastLines(const Upload& upload, JobId job) const {
  using std::chrono::steady_clock;
  const steady_clock::time_point until =
      steady_clock::now() + absl::ToChronoNanoseconds(kLastLines);
  for (;;) {
    const uint64_t version = activity_.version();
    const absl::Duration left = absl::FromChrono(until - steady_clock::now());
    if (!activity_.IsLive(job) || activity_.closed() || upload.cut) return;
    if (left <= absl::ZeroDuration()) return;
    activity_.WaitBeyond(version, left);
  }
}

void LogUploader::Run(Upload& upload, const std::string& folder, const FetchLogsCommand& fetch) {
  v1::UploadLogsResponse response;
  const auto writer = upload.stub->UploadLogs(&upload.context, &response);
  v1::UploadLogsRequest message;
  message.set_fetch_id(fetch.fetch_id);
  bool heard = writer->Write(message);
  if (fetch.ended) AwaitLastLines(upload, fetch.job);
  const std::set<int32_t> wanted(fetch.ranks.begin(), fetch.ranks.end());
  std::map<int32_t, LogReader> readers;
  while (heard) {
    // Before reading: what comes after this is news for the next round.
    const uint64_t version = activity_.version();
    const bool last_round = !fetch.follow || !activity_.IsLive(fetch.job) || activity_.closed();
    for (const int32_t rank : LoggedRanks(folder, fetch.job)) {
      if (!wanted.empty() && !wanted.contains(rank)) continue;
      const auto after = fetch.after.find(rank);
      LogReader& reader = readers
                              .try_emplace(rank, folder, fetch.job, rank, fetch.tail,
                                           after == fetch.after.end() ? "" : after->second)
                              .first->second;
      message.set_rank(rank);
      while (heard) {
        *message.mutable_text() = reader.Next(last_round);
        if (message.text().empty()) break;
        message.set_place(reader.place());
        message.set_epoch(reader.epoch().value);
        heard = writer->Write(message);
        if (heard) bytes_sent_ += static_cast<int64_t>(message.text().size());
      }
    }
    if (last_round) break;
    if (!heard) break;
    activity_.WaitBeyond(version, kAskInterval);
    if (upload.cut) break;
    if (activity_.version() != version) continue;
    message.clear_text();
    heard = writer->Write(message);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) {
    spdlog::warn("{} logs were not sent: {}", ToString(fetch.job), status.error_message());
  }
}

}  // namespace phalanx::agent

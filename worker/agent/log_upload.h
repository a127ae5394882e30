// worker/agent/log_upload.h: sends ranks' logs to the coordinator, each fetch on a stream of its
// own.
//
// An upload begins with an empty message that names the fetch, then carries whole lines, at most
// kChunkBytes a message, each rank's oldest first. Without `follow` it ends where the logs end now;
// with it, when the job has no process on this node any more. While there is nothing to send it
// carries an empty message every few seconds: so an upload that nobody reads any more ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/posix/unique_fd.h"
#include "grpcpp/channel.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "worker/agent/log_spool.h"
#include "worker/agent/machine/events.h"

namespace phalanx::agent {

inline constexpr size_t kChunkBytes = 256 << 10;

// Reads one rank's log as it grows, over rotation and new epochs. Not thread-safe.
class LogReader {
 public:
  // Starts after `after`, a place() of before, or where that is no longer kept with the oldest that
  // is left of later text. If it is empty, `tail` lines before the end; 0: at the oldest kept.
  // `folder`: of the job's store.
  LogReader(std::string folder, JobId job, int32_t rank, int32_t tail,
            const std::string& after = "");

  // The next whole lines of one epoch, at most kChunkBytes (a longer line comes in parts); empty:
  // none for now. What an epoch ended with may lack its line end. Whoever is overtaken by rotation
  // has the file that it reads whole, then the oldest that is left: all in order, and nothing
  // twice.
  // `final`: also the last line, which has no end yet.
  std::string Next(bool final);
  // Right after what Next gave last, as text; empty before that.
  std::string place() const;
  // In which that was written.
  Epoch epoch() const { return given_.epoch; }

 private:
  // `bytes` that lie in one file.
  struct Stretch {
    Epoch epoch;
    uint64_t identity = 0;
    int64_t offset = 0;
    size_t bytes = 0;
  };
  bool SkipTo(int32_t tail);  // false: files were rotated meanwhile
  void GoTo(const std::string& place);
  void Append(absl::string_view block);
  std::string Take(size_t bytes);
  size_t BytesOfFirstEpoch() const;           // of what was read and not yet given
  bool Open(const LogFile& file);             // false: it has another name since, or is gone
  std::optional<LogFile> FileBehind() const;  // the present one

  const std::string folder_;
  const JobId job_;
  const int32_t rank_;
  UniqueFd file_;
  Epoch epoch_;
  uint64_t identity_ = 0;          // of file_
  std::string unfinished_;         // a line whose end was not yet read
  std::deque<Stretch> stretches_;  // where it lies
  Stretch given_;                  // behind it: where what was given ends
};

// Not thread-safe: the agent's thread owns it.
class LogUploader {
 public:
  // More than a coordinator asks for at one time: that one knows whose reader may be cut.
  static constexpr size_t kUploadsMax = 32;
  static constexpr absl::Duration kAskInterval = absl::Seconds(2);
  // How long what the ranks of an ended job write last is waited for.
  static constexpr absl::Duration kLastLines = absl::Seconds(2);

  LogUploader(std::string state, LogActivity& activity);
  // Cuts the uploads under way. `activity` must be closed, or they may wait for ever.
  ~LogUploader();

  // Past kUploadsMax the oldest that is under way is cut: it may be one that nobody reads. Errors:
  // ResourceExhausted if many were cut and have not ended yet.
  // `channel`: to the coordinator that asks. `store`: whose job it is.
  absl::Status Start(const std::shared_ptr<grpc::Channel>& channel, uint64_t store,
                     const FetchLogsCommand& fetch);

  // Of texts that were sent, since the start.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Upload;
  void Run(Upload& upload, const std::string& folder, const FetchLogsCommand& fetch);
  void AwaitLastLines(const Upload& upload, JobId job) const;

  const std::string state_;
  LogActivity& activity_;
  std::atomic<int64_t> bytes_sent_ = 0;  // of all threads
  std::list<Upload> uploads_;
};

}  // namespace phalanx::agent

// worker/checkpoint/writer.h: the thread of a rank that writes its parts of checkpoints, and
// publishes those that it is told to.
//
// What goes wrong with a checkpoint is told and ends there: training does not wait for it, and does
// not end because of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/publish.h"
#include "worker/checkpoint/snapshot.h"

namespace phalanx::checkpoint {

struct WriterOptions {
  std::string directory;  // checkpoint.directory, absolute
  std::string store;      // as manifests name it
  int64_t job = 0;
  int32_t rank = 0;
  std::function<absl::Status(int64_t step)> before_block;  // PartWrite::before_block, of that step
  std::vector<std::string> folders;                        // PartWrite::folders
};

// What became of a part.
struct Written {
  CheckpointName name;
  // nullopt: the rank has nothing to write. Errors: as of WritePartFile and Snapshot.
  absl::StatusOr<std::optional<PartFile>> part;
  double seconds = 0;  // that it took, the copy included
};

// Thread-safe but for Begin, which belongs to the thread that trains.
class Writer {
 public:
  using OnWritten = std::function<void(const Written&)>;
  using OnPublished = std::function<void(const CheckpointName&, const absl::StatusOr<Published>&)>;

  // Both are called on the writer's thread. `snapshot` outlives the writer.
  Writer(Snapshot& snapshot, WriterOptions options, OnWritten on_written, OnPublished on_published);
  // Gives up what is being written, and waits for what the thread is at.
  ~Writer();
  // The same without the wait, which may be a long one: for a disk. When it returns the thread uses
  // nothing of the snapshot but its memory.
  void Leave();
  // Whether its thread has ended.
  bool ended() const;

  // Begins the checkpoint of the step that was just decided. False: the one before is still being
  // written, so this one is left out.
  bool Begin(const CheckpointName& name);
  // Whether one that was begun is neither written nor given up.
  bool writing() const;
  // Unpublished parts that it keeps, with the one that is being written. The coordinator gives a
  // checkpoint up once two later ones are whole (Coordinator::PublishNext), which ranks know when
  // they begin the next.
  static constexpr size_t kDraftsMax = 3;
  // Between two blocks of what is being written. At most kPublicationsMax wait; the oldest are
  // forgotten.
  static constexpr size_t kPublicationsMax = 4;
  void Publish(Publication publication);

  // Whether all that was begun has been written or given up by then.
  bool AwaitWritten(std::chrono::steady_clock::time_point deadline);

 private:
  void Run(const std::stop_token& stop);
  void PublishWaiting(const std::stop_token& stop);
  void WriteOne(const CheckpointName& name, const std::stop_token& stop);
  // What is to be written, once it is copied.
  absl::StatusOr<PartWrite> TakeEntries(const std::stop_token& stop);
  absl::StatusOr<std::optional<PartFile>> WritePart(const CheckpointName& name, PartWrite write,
                                                    const std::stop_token& stop);
  std::string DraftOf(const CheckpointName& name) const;

  // Constant after construction.
  Snapshot& snapshot_;
  const WriterOptions options_;
  const OnWritten on_written_;
  const OnPublished on_published_;
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<CheckpointName> writing_ ABSL_GUARDED_BY(mu_);
  absl::Status begun_ ABSL_GUARDED_BY(mu_);  // what the copy's beginning came to
  std::deque<Publication> publications_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool uses_snapshot_ ABSL_GUARDED_BY(mu_) = false;  // more than its memory
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Of the writer's thread: what it wrote last, of which no draft is given up yet, at most
  // kDraftsMax; and the newest that is.
  std::deque<CheckpointName> written_;
  CheckpointName given_up_;
  // Last: joins before what it uses is destroyed.
  std::jthread thread_;
};

}  // namespace phalanx::checkpoint

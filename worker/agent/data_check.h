// worker/agent/data_check.h: whether a job's shards and tokenizer are usable, and their index.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "worker/agent/inbox.h"
#include "worker/agent/machine/actions.h"

namespace phalanx::agent {

// Reads the job file and indexes its training and validation sets; index files that are still true
// are taken as they are. They are kept as STATE/indexes/KEY.index, KEY a digest of what the index
// depends on besides the shards' contents. Blocks for as long as reading the shards takes. An
// outcome that is not OK has every violation. `bytes_read` grows while shards are read.
// Thread-safe.
DataOutcome CheckData(const Document& document, const std::string& indexes_folder,
                      std::atomic<int64_t>& bytes_read);

// The same without a folder to keep anything in, for a person. More corrupt samples than the job
// allows are refused here with the sentence that the job would fail with; of a job, the coordinator
// counts them, together with those that ranks find.
DataOutcome CheckData(const Document& document);

// Runs checks one after another on a thread of its own and posts DataPrepared for each.
// Thread-safe.
class DataPreparer {
 public:
  // Adds what it has read to `bytes_read` as it goes.
  using Check = std::function<DataOutcome(const Document&, std::atomic<int64_t>& bytes_read)>;
  // Orders waiting; beyond, they are answered with ResourceExhausted.
  static constexpr size_t kQueueMax = 256;

  DataPreparer(Check check, Inbox& inbox);
  // Waits for the check under way; the others are dropped.
  ~DataPreparer();

  void Carry(const PrepareData& order);
  bool busy() const;
  // Bytes that all checks have read so far: it stands still where storage does.
  int64_t prepared_bytes() const { return prepared_bytes_; }

 private:
  void Work();

  const Check check_;
  Inbox& inbox_;
  std::atomic<int64_t> prepared_bytes_ = 0;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<PrepareData> orders_ ABSL_GUARDED_BY(mutex_);  // the front is under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::agent

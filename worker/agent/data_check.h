// worker/agent/data_check.h: whether a job's shards and tokenizer are usable, and their index.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "worker/agent/inbox.h"
#include "worker/agent/machine/actions.h"
#include "worker/data/read_progress.h"

namespace phalanx::agent {

// Reads the job file and indexes its training and validation sets; index files that are still true
// are taken as they are. They are kept as STATE/indexes/DIGEST.index, of data::DigestOf. Blocks for
// as long as reading the shards takes. An outcome that is not OK has every violation. `progress`
// grows while shards are read and may call it off. `choose_checkpoint`: the checkpoint that the job
// is to go on from is chosen, too. Every byte of it is read. `folders`: as DataSetSpec::folders,
// and of that checkpoint. Thread-safe.
DataOutcome CheckData(const Document& document, bool choose_checkpoint,
                      const std::string& indexes_folder, data::ReadProgress& progress,
                      const std::vector<std::string>& folders = {});

// Of the index files of a folder, removes those that were used least recently beyond `keep`, and
// what writers that died have left there. Who still needs one reads the shards again. CheckData
// does so with those that it does not keep. Thread-safe.
inline constexpr size_t kIndexesMax = 64;
void RemoveOldIndexes(const std::string& folder, size_t keep = kIndexesMax);

// All of that without a folder to keep anything in, for a person. More corrupt samples than the job
// allows are refused here with the sentence that the job would fail with; of a job, the coordinator
// counts them, together with those that ranks find.
DataOutcome CheckData(const Document& document);

// Runs checks on threads of its own, a few at a time in the order of the orders, and posts
// DataPrepared for each that is not called off. A check that storage holds for ever keeps its
// thread, called off or not. Thread-safe.
class DataPreparer {
 public:
  // Adds what it has read to the progress as it goes, and ends soon where that is called off.
  using Check = std::function<DataOutcome(const PrepareData&, data::ReadProgress&)>;
  // Orders that are not answered; beyond, they are answered with ResourceExhausted.
  static constexpr size_t kQueueMax = 256;
  static constexpr size_t kThreadsMax = 4;

  DataPreparer(Check check, Inbox& inbox);
  // Calls off what is under way and waits for it; the others are dropped.
  ~DataPreparer();

  void Carry(const PrepareData& order);
  void Carry(const CancelData& order);
  // A check is under way, which the destructor would wait for.
  bool busy() const;
  std::vector<Preparing> UnderWay() const;

 private:
  struct Work {
    explicit Work(PrepareData wanted) : order(std::move(wanted)) {}
    const PrepareData order;
    data::ReadProgress progress;
    bool begun = false;  // guarded by mutex_
  };

  void Serve();
  // Waits for the next to begin; nullptr: at the end.
  std::shared_ptr<Work> Next();

  const Check check_;
  Inbox& inbox_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::list<std::shared_ptr<Work>> works_ ABSL_GUARDED_BY(mutex_);  // in order
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Last: they end before what they use. Begun as they are needed.
  std::vector<std::jthread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace phalanx::agent

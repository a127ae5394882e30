// worker/data/sample_reader.h: one sample from its shard to a Sample, on the calling thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "worker/data/data_set.h"
#include "worker/data/file.h"
#include "worker/data/index_impl.h"
#include "worker/data/log_mel.h"
#include "worker/data/sequence.h"

namespace phalanx::data {

// Thread-safe.
class SampleReader {
 public:
  static absl::StatusOr<std::unique_ptr<SampleReader>> Create(Index index, const DataSetSpec& spec,
                                                              const LoaderOptions& options);
  SampleReader(Index index, const DataSetSpec& spec, const LoaderOptions& options,
               std::unique_ptr<Tokenizer> tokenizer);
  // A function of the index alone, whichever thread calls. Errors: Unavailable if the shard cannot
  // be read or is not the one that was indexed.
  absl::StatusOr<std::shared_ptr<const Sample>> Read(int64_t sample) const;
  // For messages: the path of its shard, and its name there.
  const std::string& ShardOf(int64_t sample) const;
  std::string NameOf(int64_t sample) const { return index_.NameOf(sample); }
  // What a decoded sample takes, from its shape alone: items as LoaderOptions::memory has them.
  int64_t BytesOf(int64_t sample) const;

 private:
  absl::StatusOr<std::shared_ptr<const Sample>> ReadFromShard(int64_t sample) const;
  // The shard, opened on first use and kept open among the first kOpenMax.
  absl::StatusOr<std::shared_ptr<const File>> OpenShard(size_t shard) const;
  // Those that this rank needs, zeros for what does not decode. Errors: as File::Read.
  absl::Status ReadItems(const File& file, int64_t sample, Sample& to) const;
  absl::Status ReadTarget(const File& file, int64_t sample, Sample& to) const;
  // `to` becomes an item as one encoder reads it, zeros if it does not decode. Errors:
  // InvalidArgument, a phrase.
  absl::Status DecodeItem(size_t encoder, absl::string_view bytes, std::vector<float>& to) const;

  // Constant after construction.
  const Index index_;
  const DataSetSpec spec_;
  const LoaderOptions options_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  // Parallel to spec_.encoders.
  std::vector<bool> wanted_;
  std::vector<std::unique_ptr<const LogMel>> log_mel_;  // of those that are wanted and read sounds
  mutable Mutex mu_;
  mutable std::vector<std::shared_ptr<const File>> files_ ABSL_GUARDED_BY(mu_);
  mutable size_t open_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace phalanx::data

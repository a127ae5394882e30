// worker/data/data_set.h: WebDataset tar shards, indexed once, then read at random.
//
// A sample is the members KEY.txt and KEY.N.png|jpg|jpeg (N from 0; KEY.png counts as KEY.0.png).
// `<image>` in the text marks where items go; without marks they go first. The index holds the
// offset of every member and the shape of every sample, so every rank knows every shape without
// decoding or asking; its digest is part of what ranks agree on.
//
// A sample as the language module sees it is a sequence: text pieces and item rows in order, then the
// tokenizer's end token. Text is cut so that the sequence fits `context`; a sample whose items alone
// do not fit, whose placeholders do not match its images, or that lacks a member is corrupt: it keeps
// a shape (its text alone) and counts in no loss.
//
// No LibTorch here: the node daemon links this to check and index shards before epoch 1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace phalanx::data {

struct DataSetSpec {
  std::vector<std::string> shards;  // absolute paths, in order
  std::string tokenizer;            // absolute path of a sentencepiece model
  int32_t items_max = 8;            // images a sample at most
  int64_t rows_per_item = 0;        // positions that an item takes: patches of an image
  int64_t context = 0;              // positions of a sequence at most
  int64_t vocabulary = 0;           // the tokenizer's pieces must fit
};

// The shape of one sample, from the index alone.
struct SampleShape {
  int32_t items = 0;
  int32_t positions = 0;  // input positions: sequence length - 1 (the last token is only predicted)
  int32_t counted = 0;    // of them, those whose prediction counts in the loss
  bool corrupt = false;   // found while indexing
};

// Immutable; safe to read from any thread.
class Index {
 public:
  // Reads headers and texts of all shards. Errors: InvalidArgument with violations naming shard,
  // sample and rule for what makes the set unusable (unreadable or truncated shard, no samples, a tokenizer that is
  // none or does not fit); single bad samples are marked corrupt instead, listed in corrupt_samples().
  static absl::StatusOr<Index> Build(const DataSetSpec& spec);
  // The same from a file that Save wrote; FailedPrecondition if shards have changed since (size or mtime).
  static absl::StatusOr<Index> Load(const std::string& path, const DataSetSpec& spec);
  absl::Status Save(const std::string& path) const;  // written aside, then renamed

  int64_t size() const;
  const SampleShape& shape(int64_t sample) const;
  const std::string& digest() const;
  struct Corrupt {
    std::string shard, key, reason;
  };
  const std::vector<Corrupt>& corrupt_samples() const;
  // "emoji-000.tar: grinning_face", for messages.
  std::string NameOf(int64_t sample) const;

  struct Impl;
  explicit Index(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A decoded sample.
struct Sample {
  // Sequence of `positions` inputs; where a row of an item stands the token is 0 and item_row >= 0.
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;        // what position t predicts
  std::vector<uint8_t> label_counts;  // 1 where the label is a text (or end) token after the last item
  std::vector<int32_t> row_positions; // of each item row, in item order, [items * rows_per_item]
  // Each item's pixels [3, size, size], RGB, resized (area/bilinear), normalised with CLIP's mean and
  // deviation; zeros for a corrupt item.
  std::vector<std::vector<float>> pixels;
  bool corrupt = false;               // some item did not decode: label_counts is to be taken as zero
  std::string corrupt_reason;
};

struct LoaderOptions {
  int32_t threads = 1;
  int32_t ready_max = 256;   // decoded samples kept at most
  int64_t image_size = 0;
  bool images = true;        // false: a rank without a vision module never opens an image
};

// Reads and decodes ahead of need. One consumer thread; decoding on threads of its own.
class Loader {
 public:
  static absl::StatusOr<std::unique_ptr<Loader>> Create(Index index, const DataSetSpec& spec,
                                                        const LoaderOptions& options);
  virtual ~Loader() = default;
  // Samples that will be asked for, in that order; replaces what was announced before and is not yet
  // taken. Does not block.
  virtual void Announce(absl::Span<const int64_t> samples) = 0;
  // Waits until the sample is decoded. Errors: Unavailable (the file cannot be read any more).
  virtual absl::StatusOr<std::shared_ptr<const Sample>> Take(int64_t sample) = 0;
};

// Text of tokens, for people. Thread-safe.
class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;
  virtual std::string Decode(absl::Span<const int32_t> tokens) const = 0;
  virtual std::vector<int32_t> Encode(absl::string_view text) const = 0;
  virtual int32_t end_token() const = 0;
  virtual int32_t size() const = 0;
};

}  // namespace phalanx::data

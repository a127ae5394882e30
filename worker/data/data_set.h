// worker/data/data_set.h: WebDataset tar shards, indexed once, then read at random.
//
// A sample is the members KEY.txt and KEY.N.png|jpg|jpeg|wav|flac (N from 0 without gaps over
// images and sounds together; KEY.png counts as KEY.0.png, KEY.wav as KEY.0.wav) of one shard, KEY
// reaching up to the first dot of the file name; where a regressor wants it, also KEY.target.npy;
// other members are left alone. The k-th `<image>` of the text marks where the k-th image goes, the
// k-th `<audio>` where the k-th sound goes; items of a kind without any mark go first, before the
// text, in the order of N. The index holds the offset of every member and the shape of every
// sample, so every rank knows every shape without decoding or asking; its digest is part of what
// ranks agree on.
//
// A sample as the language module sees it is a sequence: text pieces and item rows in order, then
// the tokenizer's end token. Its input positions are all but the last, 0 .. length - 2, and
// position t predicts what stands at t + 1. A prediction counts if that is a text or end token
// after the last item; in a sample without items, all count. A sequence has at least two tokens:
// the end token of an empty one is written twice. Text is cut from its end so that the input
// positions fit `context`; items and the end token stay. A target of R rows [R, target_hidden] says
// what a regressor is to predict at the last R input positions.
//
// A sample whose items alone do not fit, whose marks do not match its items, that has more than
// `items_max` of them, lacks a member or has one twice, or whose target is no array of fp32 or fp64
// [at most positions, target_hidden] is corrupt: it keeps a shape (its text alone) and counts in no
// loss. An item that does not decode, or a target with a value that is not finite, is found later
// and by those only who read it: the sample keeps its shape, Sample::corrupt says so.
//
// Every encoder that reads a kind of items makes rows of each of them: an item stands in the
// sequence as the rows of the first such encoder, then those of the next. How many may differ from
// item to item; the index has them. Without an encoder of images, images and their marks are left
// out as if they were not there; without one of sounds, sounds and theirs.
//
// No LibTorch here: the node daemon links this to check and index shards before epoch 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/job/family.h"
#include "worker/data/item_memory.h"
#include "worker/data/read_progress.h"

namespace phalanx::data {

inline constexpr int64_t kTextBytesMax = int64_t{1} << 20;    // of one sample
inline constexpr int64_t kItemBytesMax = int64_t{64} << 20;   // of one image, sound or target
inline constexpr int64_t kImagePixelsMax = int64_t{1} << 25;  // of one image, as its header says
inline constexpr int32_t kSoundChannelsMax = 8;
inline constexpr int32_t kSoundRateMin = 1000, kSoundRateMax = 384'000;  // hertz
inline constexpr int64_t kSoundFramesMax = int64_t{1} << 30;             // samples of one channel
inline constexpr int64_t kTokenizerBytesMax = int64_t{256} << 20;

enum class ItemKind : int32_t { kImage, kSound };

// A module that reads items.
struct Encoder {
  int32_t module = 0;  // of the job
  ItemKind kind = ItemKind::kImage;
  int64_t rows = 0;  // that an item becomes
  // Images: pixels of a side, and what brings colours to one scale.
  int64_t image_size = 0;
  job::PixelScale pixels;
  // Sounds.
  int64_t mel_bins = 0, frames = 0;

  // Of one decoded item.
  int64_t values() const {
    return kind == ItemKind::kImage ? 3 * image_size * image_size : mel_bins * frames;
  }
};

// Rows that one encoder (an index into DataSetSpec::encoders) makes of one item.
struct ItemRows {
  int32_t encoder = 0, rows = 0;
  friend bool operator==(const ItemRows&, const ItemRows&) = default;
};

struct DataSetSpec {
  std::vector<std::string> shards;  // absolute paths, in order
  std::string tokenizer;            // absolute path of a sentencepiece model (unigram or BPE)
  int32_t items_max = 8;            // images and sounds of a sample, together, at most
  std::vector<Encoder> encoders;    // in the order of the job's modules
  bool targets = false;             // a regressor wants KEY.target.npy
  int64_t target_hidden = 0;        // columns of a target
  int64_t context = 0;              // input positions of a sequence at most; 0: no bound
  int64_t vocabulary = 0;           // the tokenizer's pieces must fit; 0: no bound
  // How violations name these: the fields of the job file that the values came from.
  std::string shards_field = "spec.data.shards";
  std::string tokenizer_field = "spec.data.tokenizer";
  std::string vocabulary_field = "architecture.vocabulary";
  // Of the node, not of the set: shards and tokenizer that are opened lie below one of these,
  // whoever lays links meanwhile; none: they lie anywhere.
  std::vector<std::string> folders;
};

// Of all that an index depends on beside what its files have in them.
std::string DigestOf(const DataSetSpec& spec);

// The shape of one sample, from the index alone.
struct SampleShape {
  int32_t images = 0, sounds = 0;
  int32_t positions = 0;    // input positions: sequence length - 1, at least 1
  int32_t counted = 0;      // of them, those whose prediction counts in the loss; 0 if corrupt
  int32_t target_rows = 0;  // at most positions; 0 without targets or if corrupt
  bool corrupt = false;     // found while indexing
  friend bool operator==(const SampleShape&, const SampleShape&) = default;
};

// Immutable; safe to read from any thread.
class Index {
 public:
  // Reads headers and texts of all shards, several at a time. The result does not depend on how
  // many. Errors: InvalidArgument with violations (ViolationsOf, core/base/violation.h), all of
  // them at once, for what makes the set unusable: unreadable, compressed, damaged or truncated
  // shards, no samples, a tokenizer that is none, has no end token or does not fit. Single bad
  // samples are marked corrupt instead, listed in corrupt_samples(). `progress`, if given, says
  // that reading goes on; called off: Cancelled.
  static absl::StatusOr<Index> Build(const DataSetSpec& spec, ReadProgress* progress = nullptr);
  // The same from a file that Save wrote. Errors: FailedPrecondition if the spec is another or
  // shards or tokenizer have changed since (size or mtime), DataLoss if the file is damaged,
  // NotFound.
  static absl::StatusOr<Index> Load(const std::string& path, const DataSetSpec& spec);
  // Load, and Build and Save where the file is damaged or gone: somebody may have cleared its
  // folder.
  static absl::StatusOr<Index> LoadOrBuild(const std::string& path, const DataSetSpec& spec,
                                           ReadProgress* progress);
  // Written aside, synchronised, then renamed. Errors: Unavailable.
  absl::Status Save(const std::string& path) const;

  int64_t size() const;
  const SampleShape& shape(int64_t sample) const;
  // Of the sample's items in the order of N; of each item those of each encoder that reads it, in
  // the order of encoders. None if it is corrupt.
  absl::Span<const ItemRows> rows(int64_t sample) const;
  // Of file names, sizes, keys, shapes and tokens; neither of paths nor of times, so that nodes
  // that hold the same shards agree. 32 hexadecimal digits.
  const std::string& digest() const;
  struct Corrupt {
    std::string shard, key, reason;
    int64_t sample = 0;
  };
  // In the order of samples.
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
  // [positions]: the sequence without its last token; 0 where a row of an item stands.
  std::vector<int32_t> tokens;
  // [positions]: what position t predicts; 0 where that is a row of an item.
  std::vector<int32_t> labels;
  // [positions]: 1 where the prediction counts. A function of the index alone (all 0 if the sample
  // was found corrupt while indexing), so ranks that do not decode have the same.
  std::vector<uint8_t> label_counts;
  // What an encoder reads of the sample.
  struct Items {
    // Of each of its rows, item by item.
    std::vector<int32_t> positions;
    // [items][Encoder::values]; zeros for an item that does not decode. Empty unless
    // LoaderOptions::modules has the encoder's module. Images: RGB over white, resized (area
    // average down, bilinear up, to a square) and scaled, [3, image_size, image_size]. Sounds:
    // log-mel features (log_mel.h), [mel_bins, frames].
    std::vector<std::vector<float>> values;
    // Where LoaderOptions::memory is given, parallel to `values`: the same there, of its type. An
    // item is in one of the two, in `values` where that had no memory left (nullptr).
    std::vector<std::shared_ptr<const std::byte>> stored;
    ValueType stored_type = ValueType::kFp32;
  };
  std::vector<Items> encoders;  // parallel to DataSetSpec::encoders
  // [target_rows * target_hidden]: what a regressor is to predict at the last target_rows input
  // positions. Empty without LoaderOptions::targets.
  std::vector<float> target;
  bool target_finite = true;  // else `target` is zeros and counts in no loss of targets
  std::string target_reason;  // if it is not: "emoji-000.tar: bow: target.npy has values ..."
  // Found while indexing, or some item that this rank reads did not decode: no loss counts the
  // sample. A target that is not finite says nothing about it.
  bool corrupt = false;
  std::string corrupt_reason;  // "emoji-000.tar: grinning_face: item 0 is a damaged PNG"
};

struct LoaderOptions {
  int32_t threads = 1;  // that read ahead; one more reads what Take wants and none has begun
  // Take waits so long for a sample, below the time that peers wait for this rank.
  absl::Duration patience = absl::Minutes(2);
  // Decoded samples kept at most until they are taken, and their bytes: threads begin no further
  // one while it would exceed either, but one is always under way.
  int32_t ready_max = 256;
  int64_t ready_bytes_max = int64_t{1} << 30;
  // Shards are opened with the loader, not when they are first read: as many as stay open are read
  // even if they are removed meanwhile.
  bool open_at_once = false;
  // What this rank needs: items as these modules read them, and targets. Items that none of them
  // reads are never opened.
  std::vector<int32_t> modules;
  bool targets = false;
  // Where decoded items go; nullptr: into Sample::Items::values.
  std::shared_ptr<ItemMemory> memory;
};

// Reads and decodes ahead of need. One consumer thread; decoding on threads of its own.
class Loader {
 public:
  // Errors: as Index::Build for the tokenizer.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(Index index, const DataSetSpec& spec,
                                                        const LoaderOptions& options);
  virtual ~Loader() = default;
  // Samples that will be asked for, in that order, repeats included; replaces what was announced
  // before and is not yet taken, and keeps what of that is decoded already. Does not block.
  virtual void Announce(absl::Span<const int64_t> samples) = 0;
  // Waits until the sample is decoded, which begins at once if no thread has begun it, announced or
  // not, so any order of calls makes progress. Errors: DataUnavailable (core/job/failure.h), naming
  // the shard: it cannot be read any more, is not the one that was indexed, or its storage did not
  // answer for LoaderOptions::patience. Cancelled once told to stop.
  virtual absl::StatusOr<std::shared_ptr<const Sample>> Take(int64_t sample) = 0;
  // Whether Take would not wait for the sample.
  virtual bool IsReady(int64_t sample) const = 0;
  // Ends waits from now on.
  virtual void set_stop(std::stop_token stop) = 0;
  // Of samples announced that are being decoded or wait to be taken. At most ready_bytes_max or one
  // sample, and one more while Take waits for one that none had begun; and what items take beyond
  // LoaderOptions::memory that had none left for them, in fp32, which is known once they are
  // decoded.
  virtual int64_t ready_bytes() const = 0;
};

// Text to tokens and back. Thread-safe.
//
// Reads the models of the sentencepiece package (unigram and BPE, with their normalisation tables)
// and splits text as its spm_encode does. The package's library is not linked: it exports the
// symbols of a protobuf of its own, which no process may hold beside ours
// (docs/decisions/0004-tokenizer.md).
class Tokenizer {
 public:
  // Errors: InvalidArgument if the file is unreadable or not such a model.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& path, const std::vector<std::string>& below = {});
  virtual ~Tokenizer() = default;
  virtual std::string Decode(absl::Span<const int32_t> tokens) const = 0;
  virtual std::vector<int32_t> Encode(absl::string_view text) const = 0;
  // -1 if the model has none.
  virtual int32_t end_token() const = 0;
  virtual int32_t size() const = 0;
};

}  // namespace phalanx::data

// worker/data/index_impl.h: the tables behind Index, some 80 bytes a sample besides its key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/data/data_set.h"
#include "worker/data/file.h"
#include "worker/data/sequence.h"

namespace phalanx::data {

// Where bytes lie in a shard.
struct Extent {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// An image or sound of a sample.
struct Item {
  Extent extent;
  int32_t number = 0;  // as in its name
  ItemKind kind = ItemKind::kImage;
};

struct ShardEntry {
  std::string path;
  FileStamp stamp;
  int64_t first_sample = 0;
};

// Samples one after the other, of one shard or of all.
struct SampleTable {
  std::vector<SampleShape> shapes;
  std::string keys;                 // one after the other
  std::vector<uint64_t> key_ends;   // of each sample
  std::vector<Extent> texts;        // of each sample; no bytes: has none that is usable
  std::vector<Item> items;          // of sample after sample; none of a corrupt one
  std::vector<uint64_t> item_ends;  // of each sample
  std::vector<ItemRows> rows;       // of sample after sample, as Index::rows
  std::vector<uint64_t> row_ends;   // of each sample
  std::vector<Extent> targets;      // values alone, of each sample; empty without targets
  std::vector<Index::Corrupt> corrupt;

  int64_t size() const { return static_cast<int64_t>(shapes.size()); }
  // Adds the samples of `other` after the own.
  void Append(SampleTable&& other);
};

struct Index::Impl {
  std::string spec_digest;  // of the DataSetSpec that it was built for
  FileStamp tokenizer;
  std::vector<ShardEntry> shards;
  SampleTable samples;
  std::string digest;

  absl::string_view KeyOf(int64_t sample) const;
  size_t ShardOf(int64_t sample) const;
  absl::Span<const Item> ItemsOf(int64_t sample) const;
};

// Errors: InvalidArgument with one violation if it is none, has no end token or does not fit.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const DataSetSpec& spec);

}  // namespace phalanx::data

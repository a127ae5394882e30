#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "worker/data/data_set.h"
#include "worker/data/index_impl.h"
#include "worker/data/members.h"
#include "worker/data/npy.h"
#include "worker/data/sequence.h"
#include "worker/data/tar_reader.h"

namespace phalanx::data {
namespace {

constexpr size_t kBuildThreadsMax = 8;
// Violations that one set reports; beyond, only their number.
constexpr size_t kViolationsMax = 20;

struct Shard {
  FileStamp stamp;
  SampleTable samples;
  std::string digest;
};

// What belongs to one sample of a table in which `ends` says where each one's part ends.
template <typename Value>
absl::Span<const Value> PartOf(const std::vector<Value>& values, const std::vector<uint64_t>& ends,
                               int64_t sample) {
  const size_t i = static_cast<size_t>(sample);
  const uint64_t begin = i == 0 ? 0 : ends[i - 1];
  return absl::MakeConstSpan(values).subspan(begin, ends[i] - begin);
}

void AppendSample(const Entry& entry, absl::Span<const Item> items, const Extent& target,
                  Sequence&& sequence, const std::string& shard, const DataSetSpec& spec,
                  SampleTable& table) {
  if (sequence.shape.corrupt) {
    table.corrupt.push_back(
        {shard, Printable(entry.key), std::move(sequence.corrupt_reason), table.size()});
    items = {};
  }
  table.shapes.push_back(sequence.shape);
  table.keys.append(entry.key);
  table.key_ends.push_back(table.keys.size());
  table.texts.push_back(entry.text.value_or(Extent{}));
  table.items.insert(table.items.end(), items.begin(), items.end());
  table.item_ends.push_back(table.items.size());
  table.rows.insert(table.rows.end(), sequence.rows.begin(), sequence.rows.end());
  table.row_ends.push_back(table.rows.size());
  if (spec.targets) table.targets.push_back(target);
}

// A digest of all samples up to this one, from that of those before: a chain, so that nothing of
// the size of the shard is kept.
std::string Chain(const std::string& before, const Entry& entry, const Sequence& sequence) {
  const SampleShape& shape = sequence.shape;
  std::string record =
      absl::StrCat(before, "\n", entry.key, "\n", shape.images, ",", shape.sounds, ",",
                   shape.positions, ",", shape.counted, ",", shape.target_rows, ",", shape.corrupt);
  for (const Item& item : entry.items) absl::StrAppend(&record, ",", item.extent.bytes);
  if (entry.target.has_value()) absl::StrAppend(&record, ",t", entry.target->bytes);
  record.push_back('\n');
  record.append(reinterpret_cast<const char*>(sequence.tokens.data()),
                sequence.tokens.size() * sizeof(int32_t));
  return Digest(record);
}

// The values of a sample's target and its rows; a fault that makes the sample corrupt goes to
// `parts`. Errors: Unavailable if the file cannot be read.
absl::StatusOr<Extent> ReadTarget(const File& file, const Extent& target, const DataSetSpec& spec,
                                  SampleParts& parts) {
  std::string bytes;
  RETURN_IF_ERROR(file.Read(target.offset, std::min(target.bytes, kNpyHeaderBytesMax), bytes));
  const absl::StatusOr<NpyShape> shape = ReadNpyHeader(bytes, target.bytes);
  if (!shape.ok()) {
    parts.corrupt_reason = absl::StrCat("target.npy ", shape.status().message());
  } else if (target.bytes > kItemBytesMax) {
    parts.corrupt_reason =
        absl::StrCat("target.npy has ", target.bytes, " bytes; must have at most ", kItemBytesMax);
  } else if (shape->columns != spec.target_hidden) {
    parts.corrupt_reason =
        absl::StrCat("target.npy has the shape (", shape->rows, ", ", shape->columns,
                     "); must be (rows, ", spec.target_hidden, ")");
  } else {
    parts.target_rows = shape->rows;
    return Extent{target.offset + shape->header_bytes, shape->values_bytes()};
  }
  return Extent{};
}

// One sample of a shard: its sequence, and its place in the tables.
absl::Status ReadSample(const File& file, Entry& entry, const std::string& name,
                        const DataSetSpec& spec, const Tokenizer& tokenizer, Shard& shard) {
  SampleParts parts{.corrupt_reason = MemberFault(entry, spec)};
  std::string text;
  if (entry.text.has_value() && entry.text->bytes > kTextBytesMax) entry.text.reset();
  if (entry.text.has_value()) {
    RETURN_IF_ERROR(file.Read(entry.text->offset, entry.text->bytes, text));
  }
  Extent target;
  if (spec.targets && parts.corrupt_reason.empty()) {
    ASSIGN_OR_RETURN(target, ReadTarget(file, *entry.target, spec, parts));
  }
  const std::vector<Item> items = ItemsUsed(entry, spec);
  std::vector<ItemKind> kinds;
  for (const Item& item : items) kinds.push_back(item.kind);
  const std::vector<ItemRows> rows = RowsOfItems(kinds, spec);
  parts.items = kinds;
  parts.rows = rows;
  Sequence sequence = MakeSequence(text, parts, spec, tokenizer);
  shard.digest = Chain(shard.digest, entry, sequence);
  AppendSample(entry, items, target, std::move(sequence), name, spec, shard.samples);
  return absl::OkStatus();
}

absl::StatusOr<Shard> ReadShard(const std::string& path, const DataSetSpec& spec,
                                const Tokenizer& tokenizer, ReadProgress* progress) {
  ASSIGN_OR_RETURN(const File file, File::Open(path, spec.folders));
  ASSIGN_OR_RETURN(const std::vector<TarMember> members, ListTar(file, progress));
  const std::string name = BaseName(path);
  Shard shard{.stamp = file.stamp(),
              .digest = Digest(absl::StrCat(name, "\n", file.stamp().bytes))};
  for (Entry& entry : GroupMembers(members)) {
    const int64_t bytes = entry.text.has_value() ? entry.text->bytes : 0;
    const absl::Status read = ReadSample(file, entry, name, spec, tokenizer, shard);
    if (progress != nullptr) RETURN_IF_ERROR(progress->Add(bytes));
    if (!read.ok()) return absl::InvalidArgumentError(read.message());
  }
  return shard;
}

// Reads all shards, several at a time.
std::vector<absl::StatusOr<Shard>> ReadShards(const DataSetSpec& spec, const Tokenizer& tokenizer,
                                              ReadProgress* progress) {
  std::vector<absl::StatusOr<Shard>> shards(spec.shards.size(), absl::UnknownError("not read"));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < shards.size(); i = next++) {
      shards[i] = ReadShard(spec.shards[i], spec, tokenizer, progress);
    }
  };
  const size_t threads = std::min<size_t>(
      {std::max(std::thread::hardware_concurrency(), 1u), kBuildThreadsMax, shards.size()});
  std::vector<std::jthread> helpers;
  for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  return shards;
}

// The same where there is no tokenizer to read texts with: only whether they are shards.
std::vector<absl::StatusOr<Shard>> CheckShards(const DataSetSpec& spec, ReadProgress* progress) {
  std::vector<absl::StatusOr<Shard>> shards;
  for (const std::string& path : spec.shards) {
    const absl::StatusOr<File> file = File::Open(path, spec.folders);
    const absl::Status status = file.ok() ? ListTar(*file, progress).status() : file.status();
    shards.push_back(status.ok() ? absl::StatusOr<Shard>(Shard{}) : status);
  }
  return shards;
}

// Adds what is wrong with shards, the first kViolationsMax by name.
void AddViolations(const DataSetSpec& spec, const std::vector<absl::StatusOr<Shard>>& shards,
                   std::vector<Violation>& violations) {
  size_t faulty = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].ok() || ++faulty > kViolationsMax) continue;
    violations.push_back({absl::StrCat(spec.shards_field, "[", i, "]"), spec.shards[i],
                          std::string(shards[i].status().message())});
  }
  if (faulty > kViolationsMax) {
    violations.push_back({spec.shards_field, "",
                          absl::StrCat(faulty - kViolationsMax, " more shards cannot be used")});
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const DataSetSpec& spec) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      Tokenizer::Load(spec.tokenizer, spec.folders);
  std::string rule;
  if (!tokenizer.ok()) {
    rule = std::string(tokenizer.status().message());
  } else if (spec.vocabulary > 0 && (*tokenizer)->size() > spec.vocabulary) {
    rule = absl::StrCat("has ", (*tokenizer)->size(), " pieces; must fit ", spec.vocabulary_field,
                        " (", spec.vocabulary, ")");
  } else if ((*tokenizer)->end_token() < 0) {
    rule = "has no end token (</s>); must have one";
  } else {
    return tokenizer;
  }
  return ViolationsStatus({{spec.tokenizer_field, spec.tokenizer, rule}});
}

// What samples are made of; nodes that index the same set say the same.
std::string FormOf(const DataSetSpec& spec) {
  return absl::StrCat(spec.items_max, ",", TextOf(spec.encoders), ",", spec.targets, ",",
                      spec.target_hidden, ",", spec.context);
}

std::string DigestOf(const DataSetSpec& spec) {
  std::string text = absl::StrCat(spec.tokenizer, "\n", FormOf(spec), ",", spec.vocabulary);
  for (const std::string& shard : spec.shards) absl::StrAppend(&text, "\n", shard);
  return Digest(text);
}

absl::StatusOr<Index> Index::Build(const DataSetSpec& spec, ReadProgress* progress) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(spec);
  // Shards are looked at whatever the tokenizer is: every violation is reported at once.
  std::vector<Violation> violations = ViolationsOf(tokenizer.status());
  std::vector<absl::StatusOr<Shard>> shards =
      tokenizer.ok() ? ReadShards(spec, **tokenizer, progress) : CheckShards(spec, progress);
  if (progress != nullptr) RETURN_IF_ERROR(progress->Add(0));
  AddViolations(spec, shards, violations);
  RETURN_IF_ERROR(ViolationsStatus(violations));

  auto impl = std::make_shared<Impl>();
  impl->spec_digest = DigestOf(spec);
  ASSIGN_OR_RETURN(impl->tokenizer, StampOf(spec.tokenizer));
  std::string chain = FormOf(spec);
  for (size_t i = 0; i < shards.size(); ++i) {
    absl::StrAppend(&chain, "\n", shards[i]->digest);
    impl->shards.push_back({spec.shards[i], shards[i]->stamp, impl->samples.size()});
    impl->samples.Append(std::move(shards[i]->samples));
  }
  impl->digest = Digest(chain);
  if (impl->samples.size() == 0) {
    return ViolationsStatus(
        {{spec.shards_field, "",
          "must hold samples: members KEY.txt with KEY.N.png, KEY.N.wav, ..."}});
  }
  return Index(std::move(impl));
}

void SampleTable::Append(SampleTable&& other) {
  const auto add = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    from = {};
  };
  for (uint64_t& end : other.key_ends) end += keys.size();
  for (uint64_t& end : other.item_ends) end += items.size();
  for (uint64_t& end : other.row_ends) end += rows.size();
  for (Index::Corrupt& entry : other.corrupt) entry.sample += size();
  add(shapes, other.shapes);
  add(keys, other.keys);
  add(key_ends, other.key_ends);
  add(texts, other.texts);
  add(items, other.items);
  add(item_ends, other.item_ends);
  add(rows, other.rows);
  add(row_ends, other.row_ends);
  add(targets, other.targets);
  add(corrupt, other.corrupt);
}

int64_t Index::size() const { return impl_->samples.size(); }

const SampleShape& Index::shape(int64_t sample) const {
  return impl_->samples.shapes[static_cast<size_t>(sample)];
}

absl::Span<const ItemRows> Index::rows(int64_t sample) const {
  return PartOf(impl_->samples.rows, impl_->samples.row_ends, sample);
}

const std::string& Index::digest() const { return impl_->digest; }

const std::vector<Index::Corrupt>& Index::corrupt_samples() const { return impl_->samples.corrupt; }

std::string Index::NameOf(int64_t sample) const {
  return absl::StrCat(BaseName(impl_->shards[impl_->ShardOf(sample)].path), ": ",
                      Printable(impl_->KeyOf(sample)));
}

absl::string_view Index::Impl::KeyOf(int64_t sample) const {
  const size_t i = static_cast<size_t>(sample);
  const uint64_t begin = i == 0 ? 0 : samples.key_ends[i - 1];
  return absl::string_view(samples.keys).substr(begin, samples.key_ends[i] - begin);
}

absl::Span<const Item> Index::Impl::ItemsOf(int64_t sample) const {
  return PartOf(samples.items, samples.item_ends, sample);
}

size_t Index::Impl::ShardOf(int64_t sample) const {
  const auto after =
      std::upper_bound(shards.begin(), shards.end(), sample,
                       [](int64_t s, const ShardEntry& shard) { return s < shard.first_sample; });
  return static_cast<size_t>(after - shards.begin()) - 1;
}

}  // namespace phalanx::data

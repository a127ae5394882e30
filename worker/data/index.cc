#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "worker/data/data_set.h"
#include "worker/data/index_impl.h"
#include "worker/data/sequence.h"
#include "worker/data/tar_reader.h"

namespace phalanx::data {
namespace {

constexpr size_t kBuildThreadsMax = 8;
// Violations that one set reports; beyond, only their number.
constexpr size_t kViolationsMax = 20;

// Members of one key of one shard.
struct Entry {
  std::string key;
  std::optional<Extent> text;
  std::vector<std::pair<int32_t, Extent>> images;  // by number
  bool repeated = false;                           // some member came twice
};

// The samples of one shard.
struct ShardSamples {
  FileStamp stamp;
  std::vector<Entry> entries;
  std::vector<Sequence> sequences;  // tokens are emptied once digested
  std::string digest;
};

// Splits "dir/face.0.png" into key "dir/face" and suffix "0.png", in lower case.
void SplitName(absl::string_view name, absl::string_view& key, std::string& suffix) {
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == absl::string_view::npos ? 0 : slash + 1);
  key = name.substr(0, dot);
  suffix = dot == absl::string_view::npos ? "" : absl::AsciiStrToLower(name.substr(dot + 1));
}

// The image's number that a suffix names: "png" 0, "3.jpg" 3; -1 if it names no image.
int32_t ImageNumber(absl::string_view suffix) {
  const size_t dot = suffix.find('.');
  const absl::string_view type = dot == absl::string_view::npos ? suffix : suffix.substr(dot + 1);
  if (type != "png" && type != "jpg" && type != "jpeg") return -1;
  if (dot == absl::string_view::npos) return 0;
  int32_t number = -1;
  const absl::string_view digits = suffix.substr(0, dot);
  const bool plain = !digits.empty() && digits.size() <= 6 &&
                     std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit);
  return plain && absl::SimpleAtoi(digits, &number) ? number : -1;
}

// Samples in the order in which their first text or image stands in the shard.
std::vector<Entry> Group(const std::vector<TarMember>& members) {
  std::vector<Entry> entries;
  absl::flat_hash_map<std::string, size_t> by_key;
  for (const TarMember& member : members) {
    absl::string_view key;
    std::string suffix;
    SplitName(member.name, key, suffix);
    const int32_t number = ImageNumber(suffix);
    if (number < 0 && suffix != "txt") continue;
    const auto [place, added] = by_key.try_emplace(key, entries.size());
    if (added) entries.push_back({.key = std::string(key)});
    Entry& entry = entries[place->second];
    const Extent extent{member.offset, member.bytes};
    if (number >= 0) {
      entry.images.emplace_back(number, extent);
    } else {
      entry.repeated = entry.repeated || entry.text.has_value();
      entry.text = extent;
    }
  }
  for (Entry& entry : entries) {
    std::stable_sort(entry.images.begin(), entry.images.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < entry.images.size(); ++i) {
      entry.repeated = entry.repeated || entry.images[i].first == entry.images[i - 1].first;
    }
  }
  return entries;
}

// What is wrong with the members of a sample; empty: nothing.
std::string MemberFault(const Entry& entry, const DataSetSpec& spec) {
  if (!entry.text.has_value()) return "lacks its text member";
  if (entry.repeated) return "has a member twice";
  if (entry.text->bytes > kTextBytesMax) {
    return absl::StrCat("has a text of ", entry.text->bytes, " bytes; must have at most ", kTextBytesMax);
  }
  if (spec.rows_per_item == 0) return "";
  for (size_t i = 0; i < entry.images.size(); ++i) {
    if (entry.images[i].first != static_cast<int32_t>(i)) return absl::StrCat("lacks its image ", i);
    if (entry.images[i].second.bytes > kItemBytesMax) {
      return absl::StrCat("has an image of ", entry.images[i].second.bytes, " bytes; must have at most ",
                          kItemBytesMax);
    }
  }
  return "";
}

absl::StatusOr<ShardSamples> ReadShard(const std::string& path, const DataSetSpec& spec,
                                       const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const File file, File::Open(path));
  ASSIGN_OR_RETURN(const std::vector<TarMember> members, ListTar(file));
  ShardSamples samples{.stamp = file.stamp(), .entries = Group(members)};
  // A chain, so that nothing of the size of the shard is kept.
  samples.digest = Digest(absl::StrCat(BaseName(path), "\n", file.stamp().bytes));
  std::string text;
  for (Entry& entry : samples.entries) {
    std::string fault = MemberFault(entry, spec);
    text.clear();
    if (!entry.text.has_value() || entry.text->bytes > kTextBytesMax) {
      entry.text = Extent{};
    } else {
      const absl::Status read = file.Read(entry.text->offset, entry.text->bytes, text);
      if (!read.ok()) return absl::InvalidArgumentError(read.message());
    }
    Sequence sequence = MakeSequence(text, static_cast<int32_t>(entry.images.size()), spec, tokenizer,
                                     std::move(fault));
    std::string record = absl::StrCat(samples.digest, "\n", entry.key, "\n", sequence.shape.items, ",",
                                      sequence.shape.positions, ",", sequence.shape.counted, ",",
                                      sequence.shape.corrupt ? 1 : 0);
    for (const auto& [number, extent] : entry.images) absl::StrAppend(&record, ",", extent.bytes);
    record.push_back('\n');
    record.append(reinterpret_cast<const char*>(sequence.tokens.data()),
                  sequence.tokens.size() * sizeof(int32_t));
    samples.digest = Digest(record);
    sequence.tokens = {};
    samples.sequences.push_back(std::move(sequence));
  }
  return samples;
}

// Reads all shards, several at a time.
std::vector<absl::StatusOr<ShardSamples>> ReadShards(const DataSetSpec& spec, const Tokenizer& tokenizer) {
  std::vector<absl::StatusOr<ShardSamples>> shards(spec.shards.size(), absl::UnknownError("not read"));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < shards.size(); i = next++) {
      shards[i] = ReadShard(spec.shards[i], spec, tokenizer);
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

void Append(const std::string& path, ShardSamples&& shard, Index::Impl& impl) {
  impl.shards.push_back({path, shard.stamp, static_cast<int64_t>(impl.shapes.size())});
  for (size_t i = 0; i < shard.entries.size(); ++i) {
    const Entry& entry = shard.entries[i];
    Sequence& sequence = shard.sequences[i];
    if (sequence.shape.corrupt) {
      impl.corrupt.push_back({BaseName(path), entry.key, std::move(sequence.corrupt_reason),
                              static_cast<int64_t>(impl.shapes.size())});
    }
    impl.shapes.push_back(sequence.shape);
    impl.keys.append(entry.key);
    impl.key_ends.push_back(impl.keys.size());
    impl.texts.push_back(*entry.text);
    for (int32_t item = 0; item < sequence.shape.items; ++item) {
      impl.items.push_back(entry.images[static_cast<size_t>(item)].second);
    }
    impl.item_ends.push_back(impl.items.size());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const DataSetSpec& spec) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(spec.tokenizer);
  std::string rule;
  if (!tokenizer.ok()) {
    rule = std::string(tokenizer.status().message());
  } else if (spec.vocabulary > 0 && (*tokenizer)->size() > spec.vocabulary) {
    rule = absl::StrCat("has ", (*tokenizer)->size(), " pieces; must fit ", spec.vocabulary_field, " (",
                        spec.vocabulary, ")");
  } else if ((*tokenizer)->end_token() < 0) {
    rule = "has no end token (</s>); must have one";
  } else {
    return tokenizer;
  }
  return ViolationsStatus({{spec.tokenizer_field, spec.tokenizer, rule}});
}

std::string DigestOfSpec(const DataSetSpec& spec) {
  std::string text = absl::StrCat(spec.tokenizer, "\n", spec.items_max, ",", spec.rows_per_item, ",",
                                  spec.context, ",", spec.vocabulary);
  for (const std::string& shard : spec.shards) absl::StrAppend(&text, "\n", shard);
  return Digest(text);
}

absl::StatusOr<Index> Index::Build(const DataSetSpec& spec) {
  std::vector<Violation> violations;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(spec);
  std::vector<absl::StatusOr<ShardSamples>> shards;
  auto impl = std::make_shared<Impl>();
  if (tokenizer.ok()) {
    shards = ReadShards(spec, **tokenizer);
    ASSIGN_OR_RETURN(impl->tokenizer, StampOf(spec.tokenizer));
  } else {
    // Shards are looked at all the same: every violation is reported at once.
    violations = ViolationsOf(tokenizer.status());
    for (const std::string& path : spec.shards) {
      absl::StatusOr<File> file = File::Open(path);
      const absl::Status status = file.ok() ? ListTar(*file).status() : file.status();
      if (status.ok()) {
        shards.push_back(ShardSamples{});
      } else {
        shards.push_back(status);
      }
    }
  }
  int64_t samples = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].ok()) {
      samples += static_cast<int64_t>(shards[i]->entries.size());
    } else if (violations.size() < kViolationsMax) {
      violations.push_back({absl::StrCat(spec.shards_field, "[", i, "]"), spec.shards[i],
                            std::string(shards[i].status().message())});
    }
  }
  if (violations.empty() && samples == 0) {
    violations.push_back({spec.shards_field, "", "must hold samples: members KEY.txt with KEY.png or KEY.N.png"});
  }
  RETURN_IF_ERROR(ViolationsStatus(violations));

  impl->spec_digest = DigestOfSpec(spec);
  std::string chain = absl::StrCat(spec.items_max, ",", spec.rows_per_item, ",", spec.context);
  for (size_t i = 0; i < shards.size(); ++i) {
    absl::StrAppend(&chain, "\n", shards[i]->digest);
    Append(spec.shards[i], *std::move(shards[i]), *impl);
    shards[i] = ShardSamples{};
  }
  impl->digest = Digest(chain);
  return Index(std::move(impl));
}

int64_t Index::size() const { return static_cast<int64_t>(impl_->shapes.size()); }

const SampleShape& Index::shape(int64_t sample) const { return impl_->shapes[static_cast<size_t>(sample)]; }

const std::string& Index::digest() const { return impl_->digest; }

const std::vector<Index::Corrupt>& Index::corrupt_samples() const { return impl_->corrupt; }

std::string Index::NameOf(int64_t sample) const {
  return absl::StrCat(BaseName(impl_->shards[impl_->ShardOf(sample)].path), ": ", impl_->KeyOf(sample));
}

absl::string_view Index::Impl::KeyOf(int64_t sample) const {
  const size_t i = static_cast<size_t>(sample);
  const uint64_t begin = i == 0 ? 0 : key_ends[i - 1];
  return absl::string_view(keys).substr(begin, key_ends[i] - begin);
}

size_t Index::Impl::ShardOf(int64_t sample) const {
  const auto after = std::upper_bound(shards.begin(), shards.end(), sample,
                                      [](int64_t s, const ShardEntry& shard) { return s < shard.first_sample; });
  return static_cast<size_t>(after - shards.begin()) - 1;
}

}  // namespace phalanx::data

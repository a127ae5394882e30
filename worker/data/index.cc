#include <algorithm>
#include <atomic>
#include <iterator>
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

struct Shard {
  FileStamp stamp;
  SampleTable samples;
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
    return absl::StrCat("has a text of ", entry.text->bytes, " bytes; must have at most ",
                        kTextBytesMax);
  }
  if (spec.image_rows == 0) return "";
  for (size_t i = 0; i < entry.images.size(); ++i) {
    if (entry.images[i].first != static_cast<int32_t>(i))
      return absl::StrCat("lacks its image ", i);
    if (entry.images[i].second.bytes > kItemBytesMax) {
      return absl::StrCat("has an image of ", entry.images[i].second.bytes,
                          " bytes; must have at most ", kItemBytesMax);
    }
  }
  return "";
}

void AppendSample(const Entry& entry, Sequence&& sequence, const std::string& shard,
                  SampleTable& table) {
  if (sequence.shape.corrupt) {
    table.corrupt.push_back(
        {shard, Printable(entry.key), std::move(sequence.corrupt_reason), table.size()});
  }
  table.shapes.push_back(sequence.shape);
  table.keys.append(entry.key);
  table.key_ends.push_back(table.keys.size());
  table.texts.push_back(entry.text.value_or(Extent{}));
  for (int32_t item = 0; item < sequence.shape.images; ++item) {
    table.items.push_back(entry.images[static_cast<size_t>(item)].second);
  }
  table.item_ends.push_back(table.items.size());
}

// A digest of all samples up to this one, from that of those before: a chain, so that nothing of
// the size of the shard is kept.
std::string Chain(const std::string& before, const Entry& entry, const Sequence& sequence) {
  std::string record = absl::StrCat(before, "\n", entry.key, "\n", sequence.shape.images, ",",
                                    sequence.shape.sounds, ",", sequence.shape.positions, ",", sequence.shape.counted, ",",
                                    sequence.shape.corrupt ? 1 : 0);
  for (const auto& [number, extent] : entry.images) absl::StrAppend(&record, ",", extent.bytes);
  record.push_back('\n');
  record.append(reinterpret_cast<const char*>(sequence.tokens.data()),
                sequence.tokens.size() * sizeof(int32_t));
  return Digest(record);
}

absl::StatusOr<Shard> ReadShard(const std::string& path, const DataSetSpec& spec,
                                const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const File file, File::Open(path));
  ASSIGN_OR_RETURN(const std::vector<TarMember> members, ListTar(file));
  const std::string name = BaseName(path);
  Shard shard{.stamp = file.stamp(),
              .digest = Digest(absl::StrCat(name, "\n", file.stamp().bytes))};
  std::string text;
  for (Entry& entry : Group(members)) {
    std::string fault = MemberFault(entry, spec);
    text.clear();
    if (entry.text.has_value() && entry.text->bytes > kTextBytesMax) entry.text.reset();
    if (entry.text.has_value()) {
      const absl::Status read = file.Read(entry.text->offset, entry.text->bytes, text);
      if (!read.ok()) return absl::InvalidArgumentError(read.message());
    }
    Sequence sequence = MakeSequence(text, static_cast<int32_t>(entry.images.size()), spec,
                                     tokenizer, std::move(fault));
    shard.digest = Chain(shard.digest, entry, sequence);
    AppendSample(entry, std::move(sequence), name, shard.samples);
  }
  return shard;
}

// Reads all shards, several at a time.
std::vector<absl::StatusOr<Shard>> ReadShards(const DataSetSpec& spec, const Tokenizer& tokenizer) {
  std::vector<absl::StatusOr<Shard>> shards(spec.shards.size(), absl::UnknownError("not read"));
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

// The same where there is no tokenizer to read texts with: only whether they are shards.
std::vector<absl::StatusOr<Shard>> CheckShards(const DataSetSpec& spec) {
  std::vector<absl::StatusOr<Shard>> shards;
  for (const std::string& path : spec.shards) {
    const absl::StatusOr<File> file = File::Open(path);
    const absl::Status status = file.ok() ? ListTar(*file).status() : file.status();
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
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(spec.tokenizer);
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

std::string DigestOfSpec(const DataSetSpec& spec) {
  std::string text =
      absl::StrCat(spec.tokenizer, "\n", spec.items_max, ",", spec.image_rows, ",", spec.audio_rows,
                   ",", spec.targets, ",", spec.target_hidden, ",", spec.context, ",", spec.vocabulary);
  for (const std::string& shard : spec.shards) absl::StrAppend(&text, "\n", shard);
  return Digest(text);
}

absl::StatusOr<Index> Index::Build(const DataSetSpec& spec) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(spec);
  // Shards are looked at whatever the tokenizer is: every violation is reported at once.
  std::vector<Violation> violations = ViolationsOf(tokenizer.status());
  std::vector<absl::StatusOr<Shard>> shards =
      tokenizer.ok() ? ReadShards(spec, **tokenizer) : CheckShards(spec);
  AddViolations(spec, shards, violations);
  RETURN_IF_ERROR(ViolationsStatus(violations));

  auto impl = std::make_shared<Impl>();
  impl->spec_digest = DigestOfSpec(spec);
  ASSIGN_OR_RETURN(impl->tokenizer, StampOf(spec.tokenizer));
  std::string chain = absl::StrCat(spec.items_max, ",", spec.image_rows, ",", spec.audio_rows, ",",
                                   spec.targets, ",", spec.target_hidden, ",", spec.context);
  for (size_t i = 0; i < shards.size(); ++i) {
    absl::StrAppend(&chain, "\n", shards[i]->digest);
    impl->shards.push_back({spec.shards[i], shards[i]->stamp, impl->samples.size()});
    impl->samples.Append(std::move(shards[i]->samples));
  }
  impl->digest = Digest(chain);
  if (impl->samples.size() == 0) {
    return ViolationsStatus(
        {{spec.shards_field, "", "must hold samples: members KEY.txt with KEY.png or KEY.N.png"}});
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
  for (Index::Corrupt& entry : other.corrupt) entry.sample += size();
  add(shapes, other.shapes);
  add(keys, other.keys);
  add(key_ends, other.key_ends);
  add(texts, other.texts);
  add(items, other.items);
  add(item_ends, other.item_ends);
  add(corrupt, other.corrupt);
}

int64_t Index::size() const { return impl_->samples.size(); }

const SampleShape& Index::shape(int64_t sample) const {
  return impl_->samples.shapes[static_cast<size_t>(sample)];
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

size_t Index::Impl::ShardOf(int64_t sample) const {
  const auto after =
      std::upper_bound(shards.begin(), shards.end(), sample,
                       [](int64_t s, const ShardEntry& shard) { return s < shard.first_sample; });
  return static_cast<size_t>(after - shards.begin()) - 1;
}

}  // namespace phalanx::data

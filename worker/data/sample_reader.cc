#include "worker/data/sample_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "worker/data/image.h"
#include "worker/data/npy.h"
#include "worker/data/sound.h"

namespace phalanx::data {
namespace {

// Shards kept open; further ones are opened for each sample.
constexpr size_t kOpenMax = 256;

// Adds an item in `memory`, or beside it where it has none left.
void StoreItem(const std::vector<float>& values, ItemMemory& memory, Sample::Items& to) {
  std::shared_ptr<const std::byte> block = memory.Store(values);
  to.values.push_back(block != nullptr ? std::vector<float>() : values);
  to.stored.push_back(std::move(block));
  to.stored_type = memory.type();
}

// The tables of a sequence: what stands where, what is predicted, what counts.
void FillTables(const Sequence& sequence, Sample& sample) {
  const size_t positions = static_cast<size_t>(sequence.shape.positions);
  const size_t counted_from = positions - static_cast<size_t>(sequence.shape.counted);
  sample.tokens.resize(positions);
  sample.labels.resize(positions);
  sample.label_counts.resize(positions);
  for (size_t t = 0; t < positions; ++t) {
    const auto position = static_cast<int32_t>(t);
    if (IsRow(sequence.tokens[t])) {
      const auto encoder = static_cast<size_t>(EncoderOfRow(sequence.tokens[t]));
      sample.encoders[encoder].positions.push_back(position);
    }
    sample.tokens[t] = std::max(sequence.tokens[t], 0);
    sample.labels[t] = std::max(sequence.tokens[t + 1], 0);
    sample.label_counts[t] = t >= counted_from ? 1 : 0;
  }
}

}  // namespace

SampleReader::SampleReader(Index index, const DataSetSpec& spec, const LoaderOptions& options,
                           std::unique_ptr<Tokenizer> tokenizer)
    : index_(std::move(index)),
      spec_(spec),
      options_(options),
      tokenizer_(std::move(tokenizer)),
      files_(index_.impl().shards.size()) {
  for (const Encoder& encoder : spec_.encoders) {
    const bool wanted = std::find(options_.modules.begin(), options_.modules.end(),
                                  encoder.module) != options_.modules.end();
    const bool sounds = wanted && encoder.kind == ItemKind::kSound;
    wanted_.push_back(wanted);
    log_mel_.push_back(sounds ? std::make_unique<LogMel>(encoder.mel_bins, encoder.frames)
                              : nullptr);
  }
}

absl::StatusOr<std::unique_ptr<SampleReader>> SampleReader::Create(Index index,
                                                                   const DataSetSpec& spec,
                                                                   const LoaderOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(spec));
  auto reader =
      std::make_unique<SampleReader>(std::move(index), spec, options, std::move(tokenizer));
  const size_t opened =
      options.open_at_once ? std::min(reader->index_.impl().shards.size(), kOpenMax) : 0;
  for (size_t shard = 0; shard < opened; ++shard) {
    RETURN_IF_ERROR(reader->OpenShard(shard).status());
  }
  return reader;
}

const std::string& SampleReader::ShardOf(int64_t sample) const {
  return index_.impl().shards[index_.impl().ShardOf(sample)].path;
}

int64_t SampleReader::BytesOf(int64_t sample) const {
  const SampleShape& shape = index_.shape(sample);
  const ValueType type = options_.memory == nullptr ? ValueType::kFp32 : options_.memory->type();
  const auto of_value = static_cast<int64_t>(BytesOfValue(type));
  int64_t words = 2 * int64_t{shape.positions}, item_bytes = 0;
  for (const ItemRows& item : index_.rows(sample)) {
    const auto encoder = static_cast<size_t>(item.encoder);
    words += item.rows;
    item_bytes += wanted_[encoder] ? of_value * spec_.encoders[encoder].values() : 0;
  }
  if (options_.targets) words += shape.target_rows * spec_.target_hidden;
  return int64_t{sizeof(Sample)} + shape.positions + 4 * words + item_bytes;
}

absl::StatusOr<std::shared_ptr<const File>> SampleReader::OpenShard(size_t shard) const {
  {
    MutexLock lock(&mu_);
    if (files_[shard] != nullptr) return files_[shard];
  }
  const ShardEntry& entry = index_.impl().shards[shard];
  absl::StatusOr<File> file = File::Open(entry.path, spec_.folders);
  if (!file.ok()) return absl::UnavailableError(GoneSinceIndexed(entry.path, file.status()));
  if (file->stamp() != entry.stamp) {
    return absl::UnavailableError(absl::StrCat(entry.path, " has changed since it was indexed"));
  }
  auto opened = std::make_shared<const File>(*std::move(file));
  MutexLock lock(&mu_);
  if (files_[shard] == nullptr && open_ < kOpenMax) {
    files_[shard] = opened;
    ++open_;
  }
  return opened;
}

absl::Status SampleReader::DecodeItem(size_t index, absl::string_view bytes,
                                      std::vector<float>& to) const {
  const Encoder& encoder = spec_.encoders[index];
  to.clear();
  if (encoder.kind == ItemKind::kImage) {
    const int32_t size = static_cast<int32_t>(encoder.image_size);
    const absl::StatusOr<Image> image = DecodeImage(bytes, size);
    if (image.ok()) ResizeAndNormalize(*image, size, encoder.pixels, to);
    to.resize(static_cast<size_t>(encoder.values()));
    return image.status();
  }
  const absl::StatusOr<std::vector<float>> sound = DecodeSound(bytes, log_mel_[index]->samples());
  if (sound.ok()) log_mel_[index]->Compute(*sound, to);
  to.resize(static_cast<size_t>(encoder.values()));
  return sound.status();
}

absl::Status SampleReader::ReadItems(const File& file, int64_t sample, Sample& to) const {
  std::string bytes;
  std::vector<float> passing;  // what goes on into LoaderOptions::memory
  for (const Item& item : index_.impl().ItemsOf(sample)) {
    bool read = false;
    for (size_t i = 0; i < spec_.encoders.size(); ++i) {
      if (!wanted_[i] || spec_.encoders[i].kind != item.kind) continue;
      if (!std::exchange(read, true)) {
        RETURN_IF_ERROR(file.Read(item.extent.offset, item.extent.bytes, bytes));
      }
      // For each encoder alone: what one of them reads must not depend on which others are here.
      Sample::Items& items = to.encoders[i];
      const bool passes = options_.memory != nullptr;
      const absl::Status status =
          DecodeItem(i, bytes, passes ? passing : items.values.emplace_back());
      if (passes) StoreItem(passing, *options_.memory, items);
      if (!status.ok() && !to.corrupt) {
        to.corrupt = true;
        to.corrupt_reason =
            absl::StrCat(index_.NameOf(sample), ": item ", item.number, " ", status.message());
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SampleReader::ReadTarget(const File& file, int64_t sample, Sample& to) const {
  const int32_t rows = index_.shape(sample).target_rows;
  if (rows == 0) return absl::OkStatus();
  const Extent& extent = index_.impl().samples.targets[static_cast<size_t>(sample)];
  std::string bytes;
  RETURN_IF_ERROR(file.Read(extent.offset, extent.bytes, bytes));
  const int64_t values = rows * spec_.target_hidden;
  if (ReadNpyValues(bytes, extent.bytes / values, to.target)) return absl::OkStatus();
  to.target.assign(to.target.size(), 0.0f);
  to.target_finite = false;
  to.target_reason =
      absl::StrCat(index_.NameOf(sample), ": target.npy has values that are not finite");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Sample>> SampleReader::Read(int64_t sample) const {
  absl::StatusOr<std::shared_ptr<const Sample>> read = ReadFromShard(sample);
  if (!absl::IsUnavailable(read.status())) return read;
  return job::WithKind(job::FailureKind::kDataUnavailable, read.status());
}

absl::StatusOr<std::shared_ptr<const Sample>> SampleReader::ReadFromShard(int64_t sample) const {
  const Index::Impl& impl = index_.impl();
  const size_t shard = impl.ShardOf(sample);
  ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, OpenShard(shard));
  const SampleShape& shape = index_.shape(sample);
  const Extent& extent = impl.samples.texts[static_cast<size_t>(sample)];
  std::string text;
  absl::Status status = file->Read(extent.offset, extent.bytes, text);
  if (!status.ok()) return Annotate(status, impl.shards[shard].path);
  std::string known;
  if (shape.corrupt) {
    const std::vector<Index::Corrupt>& corrupt = index_.corrupt_samples();
    const auto found =
        std::lower_bound(corrupt.begin(), corrupt.end(), sample,
                         [](const Index::Corrupt& c, int64_t s) { return c.sample < s; });
    known = found->reason;
  }
  std::vector<ItemKind> kinds;
  for (const Item& item : impl.ItemsOf(sample)) kinds.push_back(item.kind);
  const absl::Span<const ItemRows> rows = index_.rows(sample);
  const Sequence sequence =
      MakeSequence(text, {kinds, rows, shape.target_rows, known}, spec_, *tokenizer_);
  if (!(sequence.shape == shape)) {
    return absl::UnavailableError(
        absl::StrCat(index_.NameOf(sample), " has changed since it was indexed"));
  }
  auto decoded = std::make_shared<Sample>();
  decoded->encoders.resize(spec_.encoders.size());
  FillTables(sequence, *decoded);
  if (shape.corrupt) {
    decoded->corrupt = true;
    decoded->corrupt_reason = absl::StrCat(index_.NameOf(sample), ": ", known);
  }
  status = ReadItems(*file, sample, *decoded);
  if (status.ok() && options_.targets) status = ReadTarget(*file, sample, *decoded);
  if (!status.ok()) return Annotate(status, impl.shards[shard].path);
  return std::shared_ptr<const Sample>(std::move(decoded));
}

}  // namespace phalanx::data

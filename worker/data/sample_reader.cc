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

// The tables of a sequence: what stands where, what is predicted, what counts.
void FillTables(const Sequence& sequence, Sample& sample) {
  const size_t positions = static_cast<size_t>(sequence.shape.positions);
  const size_t counted_from = positions - static_cast<size_t>(sequence.shape.counted);
  sample.tokens.resize(positions);
  sample.labels.resize(positions);
  sample.label_counts.resize(positions);
  for (size_t t = 0; t < positions; ++t) {
    const auto position = static_cast<int32_t>(t);
    if (sequence.tokens[t] == kImageToken) sample.image_positions.push_back(position);
    if (sequence.tokens[t] == kSoundToken) sample.sound_positions.push_back(position);
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
      log_mel_(options.sounds ? std::make_unique<LogMel>(options.mel_bins, options.frames)
                              : nullptr),
      files_(index_.impl().shards.size()) {}

absl::StatusOr<std::unique_ptr<SampleReader>> SampleReader::Create(Index index,
                                                                   const DataSetSpec& spec,
                                                                   const LoaderOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(spec));
  return std::make_unique<SampleReader>(std::move(index), spec, options, std::move(tokenizer));
}

int64_t SampleReader::BytesOf(int64_t sample) const {
  const SampleShape& shape = index_.shape(sample);
  int64_t values = 2 * int64_t{shape.positions} + shape.images * spec_.image_rows +
                   shape.sounds * spec_.audio_rows;
  if (options_.images) values += shape.images * 3 * options_.image_size * options_.image_size;
  if (options_.sounds) values += shape.sounds * options_.mel_bins * options_.frames;
  if (options_.targets) values += shape.target_rows * spec_.target_hidden;
  return int64_t{sizeof(Sample)} + shape.positions + 4 * values;
}

absl::StatusOr<std::shared_ptr<const File>> SampleReader::OpenShard(size_t shard) const {
  {
    MutexLock lock(&mu_);
    if (files_[shard] != nullptr) return files_[shard];
  }
  const ShardEntry& entry = index_.impl().shards[shard];
  absl::StatusOr<File> file = File::Open(entry.path);
  if (!file.ok())
    return absl::UnavailableError(absl::StrCat(entry.path, " ", file.status().message()));
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

absl::Status SampleReader::DecodeItem(const Item& item, absl::string_view bytes, Sample& to) const {
  if (item.kind == ItemKind::kImage) {
    const int32_t size = static_cast<int32_t>(options_.image_size);
    std::vector<float>& pixels = to.pixels.emplace_back();
    const absl::StatusOr<Image> image = DecodeImage(bytes, size);
    if (image.ok()) {
      ResizeAndNormalize(*image, size, pixels);
    } else {
      pixels.assign(static_cast<size_t>(3 * options_.image_size * options_.image_size), 0.0f);
    }
    return image.status();
  }
  std::vector<float>& features = to.sounds.emplace_back();
  const absl::StatusOr<std::vector<float>> sound = DecodeSound(bytes, log_mel_->samples());
  if (sound.ok()) {
    log_mel_->Compute(*sound, features);
  } else {
    features.assign(static_cast<size_t>(options_.mel_bins * options_.frames), 0.0f);
  }
  return sound.status();
}

absl::Status SampleReader::ReadItems(const File& file, int64_t sample, Sample& to) const {
  std::string bytes;
  for (const Item& item : index_.impl().ItemsOf(sample)) {
    if (!(item.kind == ItemKind::kImage ? options_.images : options_.sounds)) continue;
    RETURN_IF_ERROR(file.Read(item.extent.offset, item.extent.bytes, bytes));
    const absl::Status status = DecodeItem(item, bytes, to);
    if (!status.ok() && !to.corrupt) {
      to.corrupt = true;
      to.corrupt_reason =
          absl::StrCat(index_.NameOf(sample), ": item ", item.number, " ", status.message());
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
  if (!to.corrupt) {
    to.corrupt = true;
    to.corrupt_reason =
        absl::StrCat(index_.NameOf(sample), ": target.npy has values that are not finite");
  }
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
  const Sequence sequence =
      MakeSequence(text, {kinds, shape.target_rows, known}, spec_, *tokenizer_);
  if (!(sequence.shape == shape)) {
    return absl::UnavailableError(
        absl::StrCat(index_.NameOf(sample), " has changed since it was indexed"));
  }
  auto decoded = std::make_shared<Sample>();
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

#include "tests/oracle/training/memory_source.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/prng.h"

namespace phalanx::oracle {
namespace {

std::vector<float> RandomValues(Prng& prng, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(UnitNormal(prng.Next()));
  return values;
}

int32_t Between(Prng& prng, int32_t low, int32_t high) {
  return low + static_cast<int32_t>(prng.Below(static_cast<uint64_t>(high - low + 1)));
}

// Writes one sample's sequence piece by piece.
class SampleMaker {
 public:
  SampleMaker(const DataShape& shape, int64_t index)
      : shape_(shape),
        prng_(Hash64(99, 1, static_cast<uint64_t>(index))),
        corrupt_(index == shape.corrupt_sample),
        target_finite_(index != shape.corrupt_target),
        sample_(std::make_shared<data::Sample>()) {
    if (shape.text_only_period > 0) {
      const int64_t place = index % shape.text_only_period;
      text_only_ = place >= shape.text_only_first && place < shape.text_only_end;
    }
  }

  std::shared_ptr<const data::Sample> Make() {
    const data::ItemShapes& items = shape_.items;
    int32_t images =
        items.image_rows == 0 ? 0 : Between(prng_, shape_.images_min, shape_.images_max);
    int32_t sounds =
        items.audio_rows == 0 ? 0 : Between(prng_, shape_.sounds_min, shape_.sounds_max);
    if (text_only_) images = sounds = 0;
    const bool any = images + sounds > 0;
    // A piece of text before the items, which does not count, then the caption. Kinds take turns.
    if (any) Text(static_cast<int64_t>(prng_.Below(3)), false);
    while (images + sounds > 0) {
      if (images >= sounds) {
        Item(items.image_rows, 3 * items.image_size * items.image_size, sample_->image_positions,
             sample_->pixels);
        --images;
      } else {
        Item(items.audio_rows, items.mel_bins * items.frames, sample_->sound_positions,
             sample_->sounds);
        --sounds;
      }
    }
    Text(Between(prng_, shape_.text_min, shape_.text_max), true);
    sample_->tokens.pop_back();  // the last token is only predicted
    if (items.targets) {
      const auto positions = static_cast<int32_t>(sample_->tokens.size());
      const int64_t rows = Between(prng_, 0, std::min(shape_.target_rows_max, positions));
      sample_->target = RandomValues(prng_, rows * items.target_hidden);
      sample_->target_finite = target_finite_;
    }
    sample_->corrupt = any && corrupt_;
    if (sample_->corrupt) sample_->corrupt_reason = "made so";
    return std::move(sample_);
  }

 private:
  void Append(int32_t token, int32_t label, bool counts) {
    if (!sample_->tokens.empty()) {
      sample_->labels.push_back(label);
      sample_->label_counts.push_back(counts);
    }
    sample_->tokens.push_back(token);
  }
  void Text(int64_t count, bool counts) {
    for (int64_t t = 0; t < count; ++t) {
      const int32_t token =
          static_cast<int32_t>(prng_.Below(static_cast<uint64_t>(shape_.vocabulary)));
      Append(token, token, counts);
    }
  }
  void Item(int64_t rows, int64_t values, std::vector<int32_t>& positions,
            std::vector<std::vector<float>>& items) {
    for (int64_t row = 0; row < rows; ++row) {
      positions.push_back(static_cast<int32_t>(sample_->tokens.size()));
      Append(0, 0, false);
    }
    items.push_back(corrupt_ ? std::vector<float>(static_cast<size_t>(values))
                             : RandomValues(prng_, values));
  }

  const DataShape& shape_;
  Prng prng_;
  const bool corrupt_, target_finite_;
  bool text_only_ = false;
  std::shared_ptr<data::Sample> sample_;
};

class MemorySource final : public train::SampleSource {
 public:
  explicit MemorySource(const DataShape& shape) : shape_(shape) {
    for (int64_t i = 0; i < shape.samples; ++i) samples_.push_back(SampleMaker(shape, i).Make());
  }
  int64_t size() const override { return shape_.samples; }
  data::SampleShape shape(int64_t sample) const override {
    const data::Sample& s = *samples_[static_cast<size_t>(sample)];
    data::SampleShape shape;
    shape.images = static_cast<int32_t>(s.pixels.size());
    shape.sounds = static_cast<int32_t>(s.sounds.size());
    shape.positions = static_cast<int32_t>(s.tokens.size());
    for (uint8_t counts : s.label_counts) shape.counted += counts;
    if (shape_.items.targets) {
      shape.target_rows =
          static_cast<int32_t>(s.target.size() / static_cast<size_t>(shape_.items.target_hidden));
    }
    return shape;
  }
  std::string NameOf(int64_t sample) const override { return "sample-" + std::to_string(sample); }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    return samples_[static_cast<size_t>(sample)];
  }

 private:
  const DataShape shape_;
  std::vector<std::shared_ptr<const data::Sample>> samples_;
};

}  // namespace

std::unique_ptr<train::SampleSource> MakeData(const DataShape& shape) {
  return std::make_unique<MemorySource>(shape);
}

DataShape DataShapeOf(const job::JobSpec& spec) {
  DataShape shape;
  shape.vocabulary = spec.modules[static_cast<size_t>(spec.language)].architecture.vocabulary;
  shape.items = data::ItemShapesOf(spec);
  return shape;
}

}  // namespace phalanx::oracle

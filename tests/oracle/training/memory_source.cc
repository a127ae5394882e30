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
    sample_->encoders.resize(items.encoders.size());
    int32_t images =
        Reads(data::ItemKind::kImage) ? Between(prng_, shape_.images_min, shape_.images_max) : 0;
    int32_t sounds =
        Reads(data::ItemKind::kSound) ? Between(prng_, shape_.sounds_min, shape_.sounds_max) : 0;
    if (text_only_) images = sounds = 0;
    const bool any = images + sounds > 0;
    // A piece of text before the items, which does not count, then the caption. Kinds take turns.
    if (any) Text(static_cast<int64_t>(prng_.Below(3)), false);
    while (images + sounds > 0) {
      if (images >= sounds) {
        Item(data::ItemKind::kImage);
        --images;
      } else {
        Item(data::ItemKind::kSound);
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
      if (!target_finite_) sample_->target_reason = "made so";
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
  bool Reads(data::ItemKind kind) const {
    return std::any_of(shape_.items.encoders.begin(), shape_.items.encoders.end(),
                       [kind](const data::Encoder& encoder) { return encoder.kind == kind; });
  }
  void Item(data::ItemKind kind) {
    for (size_t i = 0; i < shape_.items.encoders.size(); ++i) {
      const data::Encoder& encoder = shape_.items.encoders[i];
      if (encoder.kind != kind) continue;
      data::Sample::Items& items = sample_->encoders[i];
      for (int64_t row = 0; row < encoder.rows; ++row) {
        items.positions.push_back(static_cast<int32_t>(sample_->tokens.size()));
        Append(0, 0, false);
      }
      items.values.push_back(corrupt_ ? std::vector<float>(static_cast<size_t>(encoder.values()))
                                      : RandomValues(prng_, encoder.values()));
    }
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
    for (int64_t i = 0; i < shape.samples; ++i) {
      samples_.push_back(SampleMaker(shape, i).Make());
      std::vector<data::ItemRows>& rows = rows_.emplace_back();
      for (size_t e = 0; e < shape.items.encoders.size(); ++e) {
        rows.insert(rows.end(), samples_.back()->encoders[e].values.size(),
                    {static_cast<int32_t>(e), static_cast<int32_t>(shape.items.encoders[e].rows)});
      }
    }
  }
  int64_t size() const override { return shape_.samples; }
  data::SampleShape shape(int64_t sample) const override {
    const data::Sample& s = *samples_[static_cast<size_t>(sample)];
    data::SampleShape shape;
    for (size_t e = 0; e < s.encoders.size(); ++e) {
      const bool images = shape_.items.encoders[e].kind == data::ItemKind::kImage;
      (images ? shape.images : shape.sounds) = static_cast<int32_t>(s.encoders[e].values.size());
    }
    shape.positions = static_cast<int32_t>(s.tokens.size());
    for (uint8_t counts : s.label_counts) shape.counted += counts;
    if (shape_.items.targets) {
      shape.target_rows =
          static_cast<int32_t>(s.target.size() / static_cast<size_t>(shape_.items.target_hidden));
    }
    return shape;
  }
  absl::Span<const data::ItemRows> rows(int64_t sample) const override {
    return rows_[static_cast<size_t>(sample)];
  }
  std::string NameOf(int64_t sample) const override { return "sample-" + std::to_string(sample); }
  void Announce(absl::Span<const int64_t>) override {}
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    return samples_[static_cast<size_t>(sample)];
  }

 private:
  const DataShape shape_;
  std::vector<std::shared_ptr<const data::Sample>> samples_;
  std::vector<std::vector<data::ItemRows>> rows_;  // of each sample, encoder by encoder
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

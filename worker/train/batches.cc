#include "worker/train/batches.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "worker/data/job_data.h"

namespace phalanx::train {
namespace {

// Host memory that a copy to `device` may read asynchronously.
at::Tensor HostTensor(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::zeros(sizes, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
}

at::Tensor ToDevice(const at::Tensor& host, at::Device device, at::ScalarType type) {
  if (device.is_cpu()) return host.scalar_type() == type ? host : host.to(type);
  return host.to(device, /*non_blocking=*/true).to(type);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> ShardSource::Open(const std::string& index_path,
                                                                const data::DataSetSpec& spec,
                                                                const data::LoaderOptions& options) {
  ASSIGN_OR_RETURN(data::Index index, data::Index::Load(index_path, spec));
  ASSIGN_OR_RETURN(std::unique_ptr<data::Loader> loader, data::Loader::Create(index, spec, options));
  return std::unique_ptr<SampleSource>(new ShardSource(std::move(index), std::move(loader)));
}

Batches::Batches(const plan::Plan& plan, SampleSource& source, at::Device device, at::ScalarType compute,
                 int64_t length_multiple)
    : plan_(plan),
      source_(source),
      device_(device),
      compute_(compute),
      length_multiple_(length_multiple),
      rows_per_item_(data::ItemShapesOf(plan.spec).image_rows),
      image_size_(data::ItemShapesOf(plan.spec).image_size) {}

std::vector<Microbatch> Batches::OfStep(int64_t step) const {
  std::vector<Microbatch> result(static_cast<size_t>(plan_.microbatches));
  const int64_t first = (step - 1) * plan_.spec.batch.global;
  for (int64_t m = 0; m < plan_.microbatches; ++m) {
    Microbatch& microbatch = result[static_cast<size_t>(m)];
    microbatch.positions = plan::SamplesOfMicrobatch(plan_, m);
    for (int64_t position : microbatch.positions.samples) {
      const int64_t sample = plan::SampleAt(plan_.spec.seed, source_.size(), first + position);
      microbatch.samples.push_back(sample);
      microbatch.shapes.push_back(source_.shape(sample));
    }
  }
  return result;
}

Microbatch Batches::OfSamples(absl::Span<const int64_t> samples) const {
  Microbatch result;
  const int64_t lanes = plan_.parallel(plan_.spec.language).dp;
  for (int64_t lane = 0; lane <= lanes; ++lane) {
    result.positions.lane_first.push_back(
        lane == lanes ? static_cast<int64_t>(samples.size())
                      : plan::EvenSplit(static_cast<int64_t>(samples.size()), lanes, lane).first);
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    result.positions.samples.push_back(static_cast<int64_t>(i));
    result.samples.push_back(samples[i]);
    result.shapes.push_back(source_.shape(samples[i]));
  }
  return result;
}

void Batches::Announce(absl::Span<const plan::Place> places, absl::Span<const Microbatch> step,
                       absl::Span<const Microbatch> next_step) {
  std::vector<int64_t> wanted;
  for (absl::Span<const Microbatch> microbatches : {step, next_step}) {
    for (const Microbatch& microbatch : microbatches) {
      for (const plan::Place& place : places) {
        const bool ends = place.pp == 0 || (place.module == plan_.spec.language &&
                                            place.pp == plan_.parallel(place.module).pp - 1);
        if (!ends) continue;
        const plan::UnitRange part = plan::LaneSamples(plan_, place.module, place.dp, microbatch.positions);
        for (int64_t i = part.first; i < part.end(); ++i) {
          wanted.push_back(microbatch.samples[static_cast<size_t>(i)]);
        }
      }
    }
  }
  source_.Announce(wanted);
}

int64_t Batches::PositionsOf(const Microbatch& microbatch, int64_t index) const {
  const size_t i = static_cast<size_t>(index);
  if (growth_ == nullptr) return microbatch.shapes[i].positions;
  return growth_->prompt_positions[i] + static_cast<int64_t>(growth_->tokens[i].size());
}

SequenceShape Batches::ShapeOf(const Microbatch& microbatch, plan::UnitRange part) const {
  SequenceShape shape{.batch = part.count};
  for (int64_t i = part.first; i < part.end(); ++i) {
    shape.length = std::max(shape.length, PositionsOf(microbatch, i));
  }
  shape.length = (shape.length + length_multiple_ - 1) / length_multiple_ * length_multiple_;
  return shape;
}

int64_t Batches::ItemsOf(const Microbatch& microbatch, plan::UnitRange part) const {
  int64_t items = 0;
  for (int64_t i = part.first; i < part.end(); ++i) items += microbatch.shapes[static_cast<size_t>(i)].images;
  return items;
}

absl::Status Batches::FillLanguage(const Microbatch& microbatch, plan::UnitRange part, bool first_stage,
                                   bool last_stage, model::StageInput& input) {
  const SequenceShape shape = ShapeOf(microbatch, part);
  const int64_t rows = ItemsOf(microbatch, part) * rows_per_item_;
  at::Tensor tokens, row_positions, labels, weights;
  if (first_stage) {
    tokens = HostTensor({shape.batch, shape.length}, at::kLong, device_);
    row_positions = HostTensor({rows}, at::kLong, device_);
  }
  if (last_stage) {
    labels = HostTensor({shape.batch, shape.length}, at::kLong, device_);
    weights = HostTensor({shape.batch, shape.length}, at::kFloat, device_);
  }
  int64_t row = 0;
  for (int64_t b = 0; b < part.count; ++b) {
    const size_t index = static_cast<size_t>(part.first + b);
    ASSIGN_OR_RETURN(std::shared_ptr<const data::Sample> sample, source_.Take(microbatch.samples[index]));
    const int64_t base = b * shape.length;
    const int64_t positions =
        growth_ == nullptr ? microbatch.shapes[index].positions : growth_->prompt_positions[index];
    if (first_stage) {
      int64_t* out = tokens.mutable_data_ptr<int64_t>() + base;
      for (int64_t t = 0; t < positions; ++t) out[t] = sample->tokens[static_cast<size_t>(t)];
      if (growth_ != nullptr) {
        for (size_t t = 0; t < growth_->tokens[index].size(); ++t) {
          out[positions + static_cast<int64_t>(t)] = growth_->tokens[index][t];
        }
      }
      int64_t* place = row_positions.mutable_data_ptr<int64_t>();
      for (int32_t position : sample->image_positions) place[row++] = base + position;
    }
    if (last_stage && growth_ == nullptr) {
      int64_t* label = labels.mutable_data_ptr<int64_t>() + base;
      float* weight = weights.mutable_data_ptr<float>() + base;
      for (int64_t t = 0; t < positions; ++t) {
        label[t] = sample->labels[static_cast<size_t>(t)];
        weight[t] = sample->label_counts[static_cast<size_t>(t)];
      }
    }
  }
  if (first_stage) {
    if (row != rows) {
      return absl::InternalError(absl::StrCat("samples have ", row, " item rows, their index says ", rows));
    }
    input.tokens = ToDevice(tokens, device_, at::kLong);
    if (rows > 0) input.row_positions = ToDevice(row_positions, device_, at::kLong);
  }
  if (last_stage) {
    input.labels = ToDevice(labels, device_, at::kLong);
    input.label_weights = ToDevice(weights, device_, compute_ == at::kDouble ? at::kDouble : at::kFloat);
  }
  return absl::OkStatus();
}

absl::Status Batches::FillVision(const Microbatch& microbatch, plan::UnitRange part, model::StageInput& input,
                                 at::Tensor& valid, std::vector<CorruptSample>& corrupt) {
  const int64_t items = ItemsOf(microbatch, part);
  const int64_t pixels_per_item = 3 * image_size_ * image_size_;
  at::Tensor pixels = HostTensor({items, 3, image_size_, image_size_}, at::kFloat, device_);
  at::Tensor flags = HostTensor({part.count}, at::kFloat, device_);
  float* out = pixels.mutable_data_ptr<float>();
  int64_t item = 0;
  for (int64_t b = 0; b < part.count; ++b) {
    const size_t index = static_cast<size_t>(part.first + b);
    const int64_t sample_number = microbatch.samples[index];
    float& flag = flags.mutable_data_ptr<float>()[b];
    flag = 1;
    if (microbatch.shapes[index].images == 0) continue;
    ASSIGN_OR_RETURN(std::shared_ptr<const data::Sample> sample, source_.Take(sample_number));
    if (sample->corrupt) {
      flag = 0;
      corrupt.push_back({sample_number, sample->corrupt_reason});
    }
    for (const std::vector<float>& image : sample->pixels) {
      if (item < items && static_cast<int64_t>(image.size()) == pixels_per_item) {
        std::memcpy(out + item * pixels_per_item, image.data(), image.size() * sizeof(float));
      }
      ++item;
    }
  }
  if (item != items) {
    return absl::InternalError(absl::StrCat("samples have ", item, " items, their index says ", items));
  }
  valid = ToDevice(flags, device_, at::kFloat);
  if (items > 0) input.pixels = ToDevice(pixels, device_, compute_);
  return absl::OkStatus();
}

}  // namespace phalanx::train

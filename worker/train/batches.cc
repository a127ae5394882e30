#include "worker/train/batches.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/posix/activity.h"
#include "worker/data/job_data.h"

namespace phalanx::train {
namespace {

// Host memory that a copy to `device` may read asynchronously; holds anything.
at::Tensor HostTensor(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return at::empty(sizes, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
}

// Of samples of one lane.
auto IndicesOf(const Microbatch& microbatch, plan::UnitRange range) {
  const size_t first = microbatch.window.IndexOf(range.first);
  return std::views::iota(first, first + static_cast<size_t>(range.count));
}

at::Tensor ToDevice(const at::Tensor& host, at::Device device, at::ScalarType type) {
  if (device.is_cpu()) return host.scalar_type() == type ? host : host.to(type);
  return host.to(device, /*non_blocking=*/true).to(type);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleSource>> ShardSource::Open(const std::string& index_path,
                                                                const data::DataSetSpec& spec,
                                                                const data::LoaderOptions& options,
                                                                const std::stop_token& stop) {
  data::ReadProgress progress;
  const std::stop_callback call_off(stop, [&progress] { progress.called_off = true; });
  ASSIGN_OR_RETURN(data::Index index, data::Index::LoadOrBuild(index_path, spec, &progress));
  ASSIGN_OR_RETURN(std::unique_ptr<data::Loader> loader,
                   data::Loader::Create(index, spec, options));
  return std::unique_ptr<SampleSource>(new ShardSource(std::move(index), std::move(loader)));
}

size_t Window::IndexOf(int64_t position) const {
  int64_t before = 0;
  for (const plan::UnitRange& run : runs) {
    if (position < run.end()) return static_cast<size_t>(before + position - run.first);
    before += run.count;
  }
  return static_cast<size_t>(before);
}

Batches::Batches(const plan::Plan& plan, std::vector<plan::Place> places, SampleSource& source,
                 at::Device device, at::ScalarType compute, int64_t length_multiple)
    : plan_(plan),
      places_(std::move(places)),
      source_(source),
      device_(device),
      compute_(compute),
      length_multiple_(length_multiple),
      items_(data::ItemShapesOf(plan.spec)),
      ahead_(items_, source, device, compute) {
  for (size_t module = 0; module < plan.spec.modules.size(); ++module) {
    encoders_.push_back(items_.EncoderOf(static_cast<int32_t>(module)));
  }
  for (int64_t m = 0; m < plan_.microbatches; ++m) {
    const plan::MicrobatchSamples microbatch = plan::SamplesOfMicrobatch(plan_, m);
    Recurring recurring{.window = WindowOf(microbatch)};
    for (const plan::UnitRange& run : recurring.window.runs) {
      const auto first = microbatch.samples.begin() + run.first;
      recurring.positions.insert(recurring.positions.end(), first, first + run.count);
    }
    recurring_.push_back(std::move(recurring));
  }
}

Window Batches::WindowOf(const plan::MicrobatchSamples& microbatch) const {
  Window window;
  for (const plan::Place& place : places_) {
    window.lanes.push_back(plan::LaneSamples(plan_, place.module, place.dp, microbatch));
  }
  std::vector<plan::UnitRange> ascending = window.lanes;
  std::sort(ascending.begin(), ascending.end(),
            [](const plan::UnitRange& a, const plan::UnitRange& b) { return a.first < b.first; });
  for (const plan::UnitRange& lane : ascending) {
    if (lane.count == 0) continue;
    if (window.runs.empty() || lane.first > window.runs.back().end()) {
      window.runs.push_back(lane);
    } else {
      plan::UnitRange& last = window.runs.back();
      last.count = std::max(last.end(), lane.end()) - last.first;
    }
  }
  return window;
}

void Batches::AddSample(int64_t sample, Microbatch& microbatch) const {
  microbatch.samples.push_back(sample);
  microbatch.shapes.push_back(source_.shape(sample));
  microbatch.rows.push_back(source_.rows(sample));
}

int64_t Batches::SampleOf(int64_t step, int64_t position) const {
  return plan::SampleAt(plan_.spec.seed, source_.size(),
                        (step - 1) * plan_.spec.batch.global + position);
}

std::vector<Microbatch> Batches::OfStep(int64_t step) const {
  std::vector<Microbatch> result;
  result.reserve(recurring_.size());
  for (const Recurring& recurring : recurring_) {
    Microbatch& microbatch = result.emplace_back(Microbatch{.window = recurring.window});
    for (int64_t position : recurring.positions) AddSample(SampleOf(step, position), microbatch);
  }
  return result;
}

Microbatch Batches::OfSamples(absl::Span<const int64_t> samples) const {
  const auto count = static_cast<int64_t>(samples.size());
  Microbatch result{.window = WindowOf(plan::DealMicrobatch(plan_, count))};
  for (const plan::UnitRange& run : result.window.runs) {
    for (int64_t i = run.first; i < run.end(); ++i) {
      AddSample(samples[static_cast<size_t>(i)], result);
    }
  }
  return result;
}

Volume Batches::VolumeOf(absl::Span<const Microbatch> step) const {
  Volume volume;
  for (size_t i = 0; i < places_.size(); ++i) {
    const plan::Place& place = places_[i];
    const bool first = place.pp == 0 && place.cp == 0 && place.tp == 0;
    if (place.module != plan_.spec.language || !first) continue;
    for (const Microbatch& microbatch : step) {
      for (size_t sample : IndicesOf(microbatch, microbatch.window.lanes[i])) {
        const data::SampleShape& shape = microbatch.shapes[sample];
        volume.tokens += shape.positions;
        volume.images += shape.images;
        volume.sounds += shape.sounds;
      }
    }
  }
  return volume;
}

int32_t Batches::TakesOf(const plan::Place& place) const {
  const plan::ModulePlan& module = plan_.modules[static_cast<size_t>(place.module)];
  int32_t takes = 0;
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    takes += module.IsFirst(place.pp, chunk) || module.IsLast(place.pp, chunk);
  }
  return takes;
}

bool Batches::ReadsItems(const plan::Place& place) const {
  if (encoders_[static_cast<size_t>(place.module)] < 0) return false;
  const plan::ModulePlan& module = plan_.modules[static_cast<size_t>(place.module)];
  for (int32_t chunk = 0; chunk < module.chunks(); ++chunk) {
    if (module.IsFirst(place.pp, chunk)) return true;
  }
  return false;
}

ItemsAhead::Lane Batches::ItemLaneOf(int32_t module, const Microbatch& microbatch,
                                     plan::UnitRange range) const {
  ItemsAhead::Lane lane{.module = module, .samples = {}, .items = {}};
  const size_t first = microbatch.window.IndexOf(range.first);
  for (int64_t b = 0; b < range.count; ++b) {
    lane.samples.push_back(microbatch.samples[first + static_cast<size_t>(b)]);
    lane.items.push_back(ItemsOf(module, microbatch, {range.first + b, 1}));
  }
  return lane;
}

void Batches::Announce(absl::Span<const Microbatch> step, absl::Span<const Microbatch> next_step) {
  // What is fetched ahead has been taken.
  std::vector<ItemsAhead::Lane> lanes;
  const auto expect = [&](const Microbatch& microbatch) {
    for (size_t place = 0; place < places_.size(); ++place) {
      const plan::UnitRange lane = microbatch.window.lanes[place];
      if (device_.is_cuda() && lane.count > 0 && ReadsItems(places_[place]))
        lanes.push_back(ItemLaneOf(places_[place].module, microbatch, lane));
    }
  };
  for (absl::Span<const Microbatch> microbatches : {step, next_step}) {
    for (const Microbatch& microbatch : microbatches) expect(microbatch);
  }
  ahead_.Expect(lanes);
  std::set<int32_t> fetched;  // modules whose first lane is
  std::vector<int64_t> wanted;
  const auto append = [&](const Microbatch& microbatch) {
    for (size_t place = 0; place < places_.size(); ++place) {
      const plan::UnitRange lane = microbatch.window.lanes[place];
      const auto first = microbatch.samples.begin() +
                         static_cast<std::ptrdiff_t>(microbatch.window.IndexOf(lane.first));
      int32_t takes = TakesOf(places_[place]);
      const int32_t module = places_[place].module;
      if (device_.is_cuda() && lane.count > 0 && ReadsItems(places_[place]) &&
          ahead_.HasFetched(ItemLaneOf(module, microbatch, lane)) && fetched.insert(module).second)
        --takes;
      for (; takes > 0 && lane.count > 0; --takes) {
        wanted.insert(wanted.end(), first, first + lane.count);
      }
    }
  };
  for (absl::Span<const Microbatch> microbatches : {step, next_step}) {
    for (const Microbatch& microbatch : microbatches) append(microbatch);
  }
  source_.Announce(wanted);
}

int64_t Batches::PositionsOf(const Microbatch& microbatch, size_t i) const {
  if (growth_ == nullptr) return microbatch.shapes[i].positions;
  return growth_->at(microbatch.samples[i]).positions();
}

SequenceShape Batches::ShapeOf(const Microbatch& microbatch, plan::UnitRange range) const {
  SequenceShape shape{.batch = range.count};
  for (size_t i : IndicesOf(microbatch, range)) {
    shape.length = std::max(shape.length, PositionsOf(microbatch, i));
  }
  const int64_t rounded =
      (shape.length + length_multiple_ - 1) / length_multiple_ * length_multiple_;
  const int64_t context = plan_.module_spec(plan_.spec.language).architecture.context;
  shape.length = std::max(shape.length, std::min(rounded, context));
  return shape;
}

int64_t Batches::RowsOf(int32_t module, const Microbatch& microbatch, plan::UnitRange range) const {
  const int32_t encoder = encoders_[static_cast<size_t>(module)];
  int64_t rows = 0;
  for (size_t i : IndicesOf(microbatch, range)) {
    if (encoder < 0) {
      rows += PositionsOf(microbatch, i);
      continue;
    }
    for (const data::ItemRows& item : microbatch.rows[i]) {
      if (item.encoder == encoder) rows += item.rows;
    }
  }
  return rows;
}

int64_t Batches::ItemsOf(int32_t module, const Microbatch& microbatch,
                         plan::UnitRange range) const {
  const int32_t encoder = encoders_[static_cast<size_t>(module)];
  int64_t items = 0;
  for (size_t i : IndicesOf(microbatch, range)) {
    for (const data::ItemRows& item : microbatch.rows[i]) {
      items += item.encoder == encoder ? 1 : 0;
    }
  }
  return items;
}

int64_t Batches::LayerRowsOf(int32_t module, const Microbatch& microbatch,
                             plan::UnitRange range) const {
  return RowsOf(module, microbatch, range) +
         ItemsOf(module, microbatch, range) *
             job::ExtraRowsOfItem(plan_.module_spec(module).architecture);
}

// Samples of one lane and where each begins in its [B, T].
struct Batches::TakenSamples {
  struct Entry {
    std::shared_ptr<const data::Sample> sample;
    int64_t number = 0;                           // in the data set
    int64_t positions = 0;                        // of the sample itself
    const std::vector<int32_t>* grown = nullptr;  // tokens decoded behind it
    int64_t end() const {
      return positions + (grown == nullptr ? 0 : static_cast<int64_t>(grown->size()));
    }
  };
  SequenceShape shape;
  std::vector<Entry> entries;
};

absl::StatusOr<std::shared_ptr<const data::Sample>> Batches::Take(int64_t number) {
  const Waiting for_data;
  return source_.Take(number);
}

absl::StatusOr<Batches::TakenSamples> Batches::TakeSamples(const Microbatch& microbatch,
                                                           plan::UnitRange range) {
  TakenSamples result{.shape = ShapeOf(microbatch, range)};
  for (size_t i : IndicesOf(microbatch, range)) {
    TakenSamples::Entry entry;
    entry.number = microbatch.samples[i];
    ASSIGN_OR_RETURN(entry.sample, Take(entry.number));
    entry.positions = microbatch.shapes[i].positions;
    if (growth_ != nullptr) {
      const Grown& grown = growth_->at(entry.number);
      entry.positions = grown.prompt_positions;
      entry.grown = &grown.tokens;
    }
    result.entries.push_back(std::move(entry));
  }
  return result;
}

template <typename T>
at::Tensor Batches::DeviceValues(const std::vector<T>& values) const {
  const at::ScalarType type = c10::CppTypeToScalarType<T>::value;
  const at::Tensor host = HostTensor({static_cast<int64_t>(values.size())}, type, device_);
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<T>());
  return ToDevice(host, device_, type);
}

model::TokenRows Batches::Tokens(const TakenSamples& taken,
                                 const std::vector<int64_t>& row_positions) const {
  std::vector<int64_t> tokens(static_cast<size_t>(taken.shape.batch * taken.shape.length),
                              model::kPadding);
  auto out = tokens.begin();
  for (const TakenSamples::Entry& entry : taken.entries) {
    std::copy_n(entry.sample->tokens.begin(), entry.positions, out);
    if (entry.grown != nullptr)
      std::copy(entry.grown->begin(), entry.grown->end(), out + entry.positions);
    out += taken.shape.length;
  }
  const model::TokenLists lists = model::ListTokens(tokens, row_positions);
  model::TokenRows rows;
  rows.source = DeviceValues(lists.source);
  if (!lists.next.empty()) rows.next = DeviceValues(lists.next);
  rows.tokens = DeviceValues(lists.tokens);
  rows.order = DeviceValues(lists.order);
  return rows;
}

// Flat positions of every sample's rows, padding left out.
void Batches::AppendAllPositions(const TakenSamples& taken, std::vector<int64_t>& rows) const {
  for (size_t b = 0; b < taken.entries.size(); ++b) {
    for (int64_t t = 0; t < taken.entries[b].end(); ++t) {
      rows.push_back(static_cast<int64_t>(b) * taken.shape.length + t);
    }
  }
}

absl::StatusOr<std::vector<int64_t>> Batches::RowPositions(
    const Microbatch& microbatch, plan::UnitRange range, const TakenSamples& taken,
    absl::Span<const int32_t> sources) const {
  std::vector<int64_t> rows;
  int64_t expected = 0;
  for (int32_t source : sources) {
    expected += RowsOf(source, microbatch, range);
    const int32_t encoder = encoders_[static_cast<size_t>(source)];
    if (encoder < 0) {
      AppendAllPositions(taken, rows);
      continue;
    }
    for (size_t b = 0; b < taken.entries.size(); ++b) {
      const data::Sample& sample = *taken.entries[b].sample;
      for (int32_t position : sample.encoders[static_cast<size_t>(encoder)].positions) {
        rows.push_back(static_cast<int64_t>(b) * taken.shape.length + position);
      }
    }
  }
  if (static_cast<int64_t>(rows.size()) != expected) {
    return absl::InternalError(
        absl::StrCat("samples have ", rows.size(), " rows, their index says ", expected));
  }
  return rows;
}

// A row that is held to a label.
struct Batches::LabelledRow {
  int64_t row = 0;     // flat position
  int64_t sample = 0;  // of the lane
  int64_t label = 0;
  float weight = 0;
};

// In the order of rows; all rows where that is hardly more than those that count.
std::vector<Batches::LabelledRow> Batches::LabelledRows(const TakenSamples& taken) const {
  std::vector<LabelledRow> rows;
  for (size_t b = 0; b < taken.entries.size(); ++b) {
    const TakenSamples::Entry& entry = taken.entries[b];
    const auto sample = static_cast<int64_t>(b);
    const int64_t first = sample * taken.shape.length;
    if (growth_ != nullptr) {
      rows.push_back({.row = first + entry.end() - 1, .sample = sample});
      continue;
    }
    const std::vector<uint8_t>& counts = entry.sample->label_counts;
    for (size_t t = 0; t < static_cast<size_t>(entry.positions); ++t) {
      if (counts[t] == 0) continue;
      rows.push_back({first + static_cast<int64_t>(t), sample, entry.sample->labels[t], 1});
    }
  }
  const int64_t all = taken.shape.batch * taken.shape.length;
  const int64_t most = kLabelledMultiple * kLabelledSizesMax;
  const int64_t multiple = FillsUpLabelled() ? (all + most - 1) / most * kLabelledMultiple : 1;
  const auto counted = std::max<int64_t>(1, static_cast<int64_t>(rows.size()));
  const int64_t count = (counted + multiple - 1) / multiple * multiple;
  if (growth_ == nullptr && (count >= all || lists_all_rows_)) {
    std::vector<LabelledRow> every(static_cast<size_t>(all));
    for (int64_t r = 0; r < all; ++r)
      every[static_cast<size_t>(r)] = {.row = r, .sample = r / taken.shape.length};
    for (const LabelledRow& row : rows) every[static_cast<size_t>(row.row)] = row;
    return every;
  }
  LabelledRow filler = rows.empty() ? LabelledRow() : rows.back();
  filler.weight = 0;
  rows.resize(static_cast<size_t>(count), filler);
  return rows;
}

void Batches::FillLabels(const TakenSamples& taken, const at::Tensor& valid,
                         model::StageInput& input) const {
  const std::vector<LabelledRow> rows = LabelledRows(taken);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t all = taken.shape.batch * taken.shape.length;
  const at::Tensor numbers = HostTensor({3, count}, at::kLong, device_);  // label, row, sample
  const at::Tensor weights = HostTensor({count}, at::kFloat, device_);
  const at::Tensor place = HostTensor({all}, at::kLong, device_).zero_();
  const at::Tensor chosen = HostTensor({all}, at::kBool, device_).zero_();
  int64_t* const number = numbers.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const LabelledRow& row = rows[static_cast<size_t>(i)];
    number[i] = row.label;
    number[count + i] = row.row;
    number[2 * count + i] = row.sample;
    weights.mutable_data_ptr<float>()[i] = row.weight;
    bool& known = chosen.mutable_data_ptr<bool>()[row.row];
    if (!known) place.mutable_data_ptr<int64_t>()[row.row] = i;
    known = true;
  }
  const at::Tensor there = ToDevice(numbers, device_, at::kLong);
  input.labels = there[0];
  if (count != all || growth_ != nullptr || lists_all_rows_) {
    input.labelled = {.rows = there[1],
                      .place = ToDevice(place, device_, at::kLong),
                      .chosen = ToDevice(chosen, device_, at::kBool)};
  }
  input.label_weights = ToDevice(weights, device_, WeightType());
  if (valid.defined()) {
    input.label_weights = input.label_weights * valid.to(WeightType()).index_select(0, there[2]);
  }
}

// Target row r of R belongs to the last R positions of its sample.
absl::Status Batches::FillTargets(const TakenSamples& taken, const at::Tensor& valid,
                                  model::StageInput& input,
                                  std::vector<CorruptSample>& corrupt) const {
  std::vector<int64_t> positions, samples;
  std::vector<float> finite;  // of each row
  const int64_t hidden = items_.target_hidden;
  if (growth_ == nullptr) {
    for (size_t b = 0; b < taken.entries.size(); ++b) {
      const TakenSamples::Entry& entry = taken.entries[b];
      const int64_t rows = static_cast<int64_t>(entry.sample->target.size()) / hidden;
      if (rows > entry.positions)
        return absl::InternalError("a sample has more target rows than positions");
      for (int64_t r = 0; r < rows; ++r) {
        positions.push_back(static_cast<int64_t>(b) * taken.shape.length + entry.positions - rows +
                            r);
        samples.push_back(static_cast<int64_t>(b));
        finite.push_back(entry.sample->target_finite);
      }
      if (!entry.sample->target_finite) {
        corrupt.push_back({entry.number, entry.sample->target_reason});
      }
    }
  }
  const int64_t rows = static_cast<int64_t>(positions.size());
  at::Tensor targets = HostTensor({rows, hidden}, at::kFloat, device_);
  float* out = targets.mutable_data_ptr<float>();
  if (growth_ == nullptr) {
    for (const TakenSamples::Entry& entry : taken.entries) {
      out = std::copy(entry.sample->target.begin(), entry.sample->target.end(), out);
    }
  }
  input.targets = ToDevice(targets, device_, compute_);
  input.target_positions = DeviceValues(positions);
  input.target_weights = DeviceValues(finite).to(WeightType());
  if (valid.defined()) {
    input.target_weights =
        input.target_weights * valid.to(WeightType()).index_select(0, DeviceValues(samples));
  }
  return absl::OkStatus();
}

absl::Status Batches::FillDecoder(const DecoderPart& what, const Microbatch& microbatch,
                                  plan::UnitRange range, const at::Tensor& valid,
                                  model::StageInput& input, std::vector<CorruptSample>& corrupt) {
  if (!what.first && !what.leaves && !what.loss) return absl::OkStatus();
  ASSIGN_OR_RETURN(const TakenSamples taken, TakeSamples(microbatch, range));
  const bool language = what.module == plan_.spec.language;
  if (what.first) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> positions,
                     RowPositions(microbatch, range, taken, what.sources));
    if (!positions.empty()) input.row_positions = DeviceValues(positions);
    if (language) input.tokens = Tokens(taken, positions);
  }
  if (what.leaves) {
    std::vector<int64_t> rows;
    AppendAllPositions(taken, rows);
    input.output_positions = DeviceValues(rows);
  }
  if (what.loss && language) FillLabels(taken, valid, input);
  if (what.loss && !language) return FillTargets(taken, valid, input, corrupt);
  return absl::OkStatus();
}

absl::Status Batches::FillEncoder(int32_t module, const Microbatch& microbatch,
                                  plan::UnitRange range, model::StageInput& input,
                                  at::Tensor& valid, std::vector<CorruptSample>& corrupt) {
  const auto index = static_cast<size_t>(encoders_[static_cast<size_t>(module)]);
  ASSIGN_OR_RETURN(ItemsAhead::Items items, ahead_.Take(ItemLaneOf(module, microbatch, range)));
  valid = DeviceValues(items.valid);
  std::move(items.corrupt.begin(), items.corrupt.end(), std::back_inserter(corrupt));
  const bool images = items_.encoders[index].kind == data::ItemKind::kImage;
  (images ? input.pixels : input.sounds) = std::move(items.values);
  return absl::OkStatus();
}

}  // namespace phalanx::train

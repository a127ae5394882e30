// worker/train/batches.h: the samples of a microbatch as tensors, for the rank that needs them.
//
// Every shape of a step follows from the index of the data set, so a rank can tell the shape of
// each of its messages without decoding a sample or asking a peer. Of a step it looks only at what
// its own lanes work on, which is also all that its messages are about. Decoded data is read only
// by first stages (tokens, pixels) and by the last language stage (labels).
//
// Not thread-safe.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/plan.h"
#include "core/plan/samples.h"
#include "worker/data/data_set.h"
#include "worker/data/job_data.h"
#include "worker/model/stage_io.h"
#include "worker/train/commit.h"
#include "worker/train/items_ahead.h"

namespace phalanx::train {

// Where samples come from: shards on disk (ShardSource) or a test's own. One thread.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t size() const = 0;
  // Of the index, where there is one: ranks that train together have the same.
  virtual std::string digest() const { return {}; }
  virtual data::SampleShape shape(int64_t sample) const = 0;
  // As data::Index::rows; valid as long as the source.
  virtual absl::Span<const data::ItemRows> rows(int64_t sample) const = 0;
  virtual std::string NameOf(int64_t sample) const = 0;
  virtual void Announce(absl::Span<const int64_t> samples) = 0;
  virtual absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) = 0;
  // Whether Take would not wait for the sample.
  virtual bool IsReady(int64_t) const { return true; }
  // Ends waits from now on.
  virtual void set_stop(std::stop_token) {}
};

class ShardSource final : public SampleSource {
 public:
  // Reads the shards where the index is not there any more, as long as `stop` is not requested.
  static absl::StatusOr<std::unique_ptr<SampleSource>> Open(const std::string& index_path,
                                                            const data::DataSetSpec& spec,
                                                            const data::LoaderOptions& options,
                                                            const std::stop_token& stop = {});
  int64_t size() const override { return index_.size(); }
  std::string digest() const override { return index_.digest(); }
  data::SampleShape shape(int64_t sample) const override { return index_.shape(sample); }
  absl::Span<const data::ItemRows> rows(int64_t sample) const override {
    return index_.rows(sample);
  }
  std::string NameOf(int64_t sample) const override { return index_.NameOf(sample); }
  void Announce(absl::Span<const int64_t> samples) override { loader_->Announce(samples); }
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t sample) override {
    return loader_->Take(sample);
  }
  bool IsReady(int64_t sample) const override { return loader_->IsReady(sample); }
  void set_stop(std::stop_token stop) override { loader_->set_stop(std::move(stop)); }

 private:
  ShardSource(data::Index index, std::unique_ptr<data::Loader> loader)
      : index_(std::move(index)), loader_(std::move(loader)) {}
  data::Index index_;
  std::unique_ptr<data::Loader> loader_;
};

// The positions in the list of all samples of a microbatch that a rank works on.
struct Window {
  std::vector<plan::UnitRange> lanes;  // of each place at which the rank stands
  std::vector<plan::UnitRange> runs;   // all of them together: ascending, apart
  // Where the sample at a position of the list stands among those of the runs.
  size_t IndexOf(int64_t position) const;
};

// What a rank knows of one microbatch: the samples of its window.
struct Microbatch {
  Window window;
  std::vector<int64_t> samples;  // numbers in the data set, parallel to the window
  // Parallel to `samples`; `rows` as SampleSource::rows.
  std::vector<data::SampleShape> shapes;
  std::vector<absl::Span<const data::ItemRows>> rows;
};

// Samples [first, first + count) of a microbatch's list as the language module sees them.
struct SequenceShape {
  int64_t batch = 0;   // B
  int64_t length = 0;  // T: longest of the samples; 0 for no samples
};

class Batches {
 public:
  static constexpr int64_t kLabelledMultiple = 128, kLabelledSizesMax = 64;

  // For the rank that stands at `places`. `length_multiple`: T is rounded up to it (8 on CUDA,
  // where GEMMs like it), but not beyond the language module's context. Where it is above 1, the
  // rows that are held to labels are filled up to a multiple of kLabelledMultiple, of which
  // kLabelledSizesMax are as many as all rows, so that few different sizes occur.
  Batches(const plan::Plan& plan, std::vector<plan::Place> places, SampleSource& source,
          at::Device device, at::ScalarType compute, int64_t length_multiple);

  // Microbatches of step `step` (counted from 1) of training.
  std::vector<Microbatch> OfStep(int64_t step) const;
  // A microbatch of given samples, dealt as plan::DealMicrobatch does.
  Microbatch OfSamples(absl::Span<const int64_t> samples) const;
  // Everything that the rank will take in this step and the next, in order of use.
  void Announce(absl::Span<const Microbatch> step, absl::Span<const Microbatch> next_step);
  // On CUDA: what comes next of each encoder is copied to the device, if it is decoded. Waits for
  // nothing; to be called now and then beside passes of training.
  void FetchAhead() {
    if (device_.is_cuda()) ahead_.Fetch();
  }

  // Of the step's samples, those of the replica of the language module whose first rank this is;
  // nothing on any other rank. So the sum over all ranks is that of the step.
  Volume VolumeOf(absl::Span<const Microbatch> step) const;

  // Below, `range` is of the microbatch's samples: those of one lane.
  SequenceShape ShapeOf(const Microbatch& microbatch, plan::UnitRange range) const;
  // Token rows that `module` makes of the samples: of their items, in an encoder; one a position,
  // in a decoder.
  int64_t RowsOf(int32_t module, const Microbatch& microbatch, plan::UnitRange range) const;
  // Items of the samples that `module` reads; 0 for a decoder.
  int64_t ItemsOf(int32_t module, const Microbatch& microbatch, plan::UnitRange range) const;
  // Rows of these in the layers of an encoder.
  int64_t LayerRowsOf(int32_t module, const Microbatch& microbatch, plan::UnitRange range) const;

  // What follows fills the members of a stage's input that decoded samples give, for the samples of
  // the microbatch that a lane works on.

  // First part of an encoder: pixels or sounds, and `valid` [samples of the range] fp32: 0 where an
  // item did not decode. Appends to `corrupt` the samples that did not.
  using CorruptSample = train::CorruptSample;
  absl::Status FillEncoder(int32_t module, const Microbatch& microbatch, plan::UnitRange range,
                           model::StageInput& input, at::Tensor& valid,
                           std::vector<CorruptSample>& corrupt);

  struct DecoderPart {
    int32_t module = 0;
    bool first = false;            // tokens (language) and row_positions
    std::vector<int32_t> sources;  // modules whose rows come in, in the order of the edges
    bool leaves = false;           // output_positions
    bool loss = false;             // labels, their weights and rows, or targets
  };
  // `valid` as above, undefined if all are: other samples count in no loss. Appends to `corrupt`
  // the samples whose targets are not finite, which count in no loss of targets.
  absl::Status FillDecoder(const DecoderPart& what, const Microbatch& microbatch,
                           plan::UnitRange range, const at::Tensor& valid, model::StageInput& input,
                           std::vector<CorruptSample>& corrupt);

  // Decoding: where each sample's prompt ends, and the tokens that have been put behind it. The
  // rows that are held to labels are then the last one of each sample, in their order, of weight 0.
  struct Grown {
    int64_t prompt_positions = 0;
    std::vector<int32_t> tokens;
    int64_t positions() const { return prompt_positions + static_cast<int64_t>(tokens.size()); }
  };
  using Growth = std::map<int64_t, Grown>;  // by sample

  bool FillsUpLabelled() const { return length_multiple_ > 1; }
  // While this is set all rows are listed as those held to labels, by weights of 0 where they are
  // not: as many as there can be.
  void ListAllRows(bool all) { lists_all_rows_ = all; }

  // nullptr: sequences are as long as their samples.
  void SetGrowth(const Growth* growth) { growth_ = growth; }

 private:
  struct TakenSamples;  // of a range, from the source
  absl::StatusOr<TakenSamples> TakeSamples(const Microbatch& microbatch, plan::UnitRange range);
  // Waits for the data.
  absl::StatusOr<std::shared_ptr<const data::Sample>> Take(int64_t number);
  int64_t PositionsOf(const Microbatch& microbatch, size_t i) const;
  // What the places work on of a microbatch.
  Window WindowOf(const plan::MicrobatchSamples& microbatch) const;
  void AddSample(int64_t sample, Microbatch& microbatch) const;
  int64_t SampleOf(int64_t step, int64_t position) const;
  // How often the rank takes each sample of its lane at `place`.
  int32_t TakesOf(const plan::Place& place) const;
  // Whether the first part of an encoder stands there.
  bool ReadsItems(const plan::Place& place) const;
  ItemsAhead::Lane ItemLaneOf(int32_t module, const Microbatch& microbatch,
                              plan::UnitRange range) const;
  // Of weights of samples and losses: fp32, fp64 under fp64.
  at::ScalarType WeightType() const { return compute_ == at::kDouble ? at::kDouble : at::kFloat; }
  // On the device.
  template <typename T>
  at::Tensor DeviceValues(const std::vector<T>& values) const;
  // With the rows of items at `row_positions`.
  model::TokenRows Tokens(const TakenSamples& taken,
                          const std::vector<int64_t>& row_positions) const;
  void AppendAllPositions(const TakenSamples& taken, std::vector<int64_t>& rows) const;
  absl::StatusOr<std::vector<int64_t>> RowPositions(const Microbatch& microbatch,
                                                    plan::UnitRange range,
                                                    const TakenSamples& taken,
                                                    absl::Span<const int32_t> sources) const;
  struct LabelledRow;
  std::vector<LabelledRow> LabelledRows(const TakenSamples& taken) const;
  void FillLabels(const TakenSamples& taken, const at::Tensor& valid,
                  model::StageInput& input) const;
  absl::Status FillTargets(const TakenSamples& taken, const at::Tensor& valid,
                           model::StageInput& input, std::vector<CorruptSample>& corrupt) const;

  // A microbatch of every step.
  struct Recurring {
    Window window;
    std::vector<int64_t> positions;  // in the step's batch, parallel to the window
  };

  const plan::Plan& plan_;
  const std::vector<plan::Place> places_;
  SampleSource& source_;
  at::Device device_;
  at::ScalarType compute_;
  int64_t length_multiple_;
  const data::ItemShapes items_;
  std::vector<int32_t> encoders_;  // by module: index into items_.encoders, -1 for a decoder
  std::vector<Recurring> recurring_;
  const Growth* growth_ = nullptr;
  bool lists_all_rows_ = false;
  ItemsAhead ahead_;
};

}  // namespace phalanx::train

#include "tests/oracle/random_microbatch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/job/family.h"

namespace phalanx::oracle {
namespace {

// Makes a RandomMicrobatch.
class MicrobatchMaker {
 public:
  MicrobatchMaker(const job::JobSpec& spec, const MicrobatchShape& shape, at::ScalarType type)
      : spec_(spec), shape_(shape), type_(type), rows_(static_cast<size_t>(shape.samples), 0) {
    random_ = at::globalContext().defaultGenerator(at::kCPU).clone();
    random_.set_current_seed(shape.seed);
  }

  PlainMicrobatch Make() {
    const size_t modules = spec_.modules.size();
    batch_.pixels.resize(modules);
    batch_.sounds.resize(modules);
    batch_.positions.resize(modules);
    positions_.resize(modules);
    for (size_t module = 0; module < modules; ++module) AddItems(module);
    length_ = *std::max_element(rows_.begin(), rows_.end()) + shape_.text;
    AddTokens();
    for (size_t module = 0; module < modules; ++module) AddPositions(module);
    return std::move(batch_);
  }

 private:
  at::Tensor Random(at::IntArrayRef sizes) {
    return at::randn(sizes, random_, at::kDouble).to(type_);
  }
  int64_t RowsOf(int64_t sample) const { return rows_[static_cast<size_t>(sample)]; }
  int64_t EndOf(int64_t sample) const { return length_ - (sample % 2 == 1 ? shape_.padding : 0); }

  void AddItems(size_t module) {
    const job::Architecture& a = spec_.modules[module].architecture;
    const int64_t items = shape_.items;
    if (items == 0) return;
    const int64_t rows = job::RowsOfItem(a);
    if (job::TraitsOf(a).images()) {
      batch_.pixels[module] = Random({items, 3, a.image_size, a.image_size});
    } else if (job::TraitsOf(a).sounds()) {
      batch_.sounds[module] = Random({items, a.mel_bins, a.frames});
    }
    for (int64_t item = 0; item < items; ++item) {
      const int64_t sample = item % shape_.samples;
      for (int64_t row = 0; row < rows; ++row) {
        positions_[module].emplace_back(sample, rows_[static_cast<size_t>(sample)]++);
      }
    }
  }

  void AddTokens() {
    const int64_t vocabulary =
        spec_.modules[static_cast<size_t>(spec_.language)].architecture.vocabulary;
    const at::ScalarType wide = type_ == at::kDouble ? at::kDouble : at::kFloat;
    batch_.tokens = at::randint(vocabulary, {shape_.samples, length_}, random_, at::kLong);
    batch_.labels = at::randint(vocabulary, {shape_.samples, length_}, random_, at::kLong);
    batch_.label_weights = at::zeros({shape_.samples, length_}, wide);
    for (int64_t i = 0; i < shape_.samples; ++i) {
      batch_.label_weights[i].narrow(0, RowsOf(i), EndOf(i) - RowsOf(i)).fill_(1);
    }
  }

  void AddPositions(size_t module) {
    const job::Architecture& a = spec_.modules[module].architecture;
    std::vector<int64_t> flat;
    for (const auto& [sample, position] : positions_[module]) {
      flat.push_back(sample * length_ + position);
    }
    if (job::TraitsOf(a).decoder()) {
      for (int64_t i = 0; i < shape_.samples; ++i) {
        for (int64_t t = 0; t < EndOf(i); ++t) flat.push_back(i * length_ + t);
      }
    }
    if (!flat.empty()) batch_.positions[module] = at::tensor(flat, at::kLong);
    if (job::TraitsOf(a).predicts()) AddTargets(a.hidden_size);
  }

  void AddTargets(int64_t hidden) {
    if (batch_.targets.defined()) return;
    std::vector<int64_t> flat;
    for (int64_t i = 0; i < shape_.samples; ++i) {
      for (int64_t t = 0; t < 2; ++t) flat.push_back(i * length_ + RowsOf(i) + t);
    }
    batch_.target_positions = at::tensor(flat, at::kLong);
    const int64_t rows = batch_.target_positions.size(0);
    batch_.targets = Random({rows, hidden});
    batch_.target_weights =
        at::arange(rows, at::kLong).remainder(3).ne(1).to(batch_.label_weights.scalar_type());
  }

  const job::JobSpec& spec_;
  const MicrobatchShape shape_;
  const at::ScalarType type_;
  at::Generator random_;
  std::vector<int64_t> rows_;                                        // of each sample, so far
  std::vector<std::vector<std::pair<int64_t, int64_t>>> positions_;  // by module: sample, position
  int64_t length_ = 0;
  PlainMicrobatch batch_;
};

}  // namespace

PlainMicrobatch RandomMicrobatch(const job::JobSpec& spec, const MicrobatchShape& shape,
                                 at::ScalarType type) {
  return MicrobatchMaker(spec, shape, type).Make();
}

}  // namespace phalanx::oracle

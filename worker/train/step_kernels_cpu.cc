#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "worker/train/step_kernels.h"

namespace phalanx::train {
namespace {

template <typename T>
double SquaredSum(const T* values, int64_t count) {
  // Eight partial sums: fixed order, and the compiler may use vectors.
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// `weight`: nullptr where the weights are the master copy, or come from elsewhere.
template <typename State, typename Weight>
void UpdateRun(const State* gradient, State* master, State* first, State* second, Weight* weight,
               int64_t count, const AdamWStep& step, double scale, bool decay) {
  const State beta1 = static_cast<State>(step.beta1), beta2 = static_cast<State>(step.beta2);
  const State rest1 = static_cast<State>(1 - step.beta1),
              rest2 = static_cast<State>(1 - step.beta2);
  const double updates = static_cast<double>(step.update);
  const State correction1 = static_cast<State>(1 / (1 - std::pow(step.beta1, updates)));
  const State correction2 = static_cast<State>(1 / (1 - std::pow(step.beta2, updates)));
  const State rate = static_cast<State>(step.learning_rate),
              epsilon = static_cast<State>(step.epsilon);
  const State weight_decay = static_cast<State>(decay ? step.weight_decay : 0);
  const State factor = static_cast<State>(scale);
  for (int64_t i = 0; i < count; ++i) {
    const State g = gradient[i] * factor;
    const State m = beta1 * first[i] + rest1 * g;
    const State v = beta2 * second[i] + rest2 * (g * g);
    first[i] = m;
    second[i] = v;
    const State direction = (m * correction1) / (std::sqrt(v * correction2) + epsilon);
    const State updated = master[i] - rate * (direction + weight_decay * master[i]);
    master[i] = updated;
    if constexpr (!std::is_same_v<State, Weight>) {
      if (weight != nullptr) weight[i] = static_cast<Weight>(updated);
    }
  }
  if constexpr (std::is_same_v<State, Weight>) {
    if (weight != nullptr) std::copy_n(master, count, weight);
  }
}

class CpuStepKernels final : public StepKernels {
 public:
  explicit CpuStepKernels(int32_t homes) : applied_(static_cast<size_t>(homes), 0) {}

  void SetStop(bool stop) override { stop_.store(stop); }
  bool stopped() const override { return stop_.load(); }

  void AddSquaredNorm(const at::Tensor& gradients, const StateBlock& block,
                      at::Tensor& accumulator) override {
    double sum = 0;
    for (const StateRun& run : block.runs) {
      sum += gradients.scalar_type() == at::kDouble
                 ? SquaredSum(gradients.const_data_ptr<double>() + run.gradient_offset, run.count)
                 : SquaredSum(gradients.const_data_ptr<float>() + run.gradient_offset, run.count);
    }
    accumulator.mutable_data_ptr<double>()[0] += sum;
  }

  void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                   const at::Tensor& sums) override {
    Record record = header;
    for (const int64_t applied : applied_) record.applied = std::min(record.applied, applied);
    record.stop = stopped() ? 1 : 0;
    record = CompleteRecord(record, sums.const_data_ptr<double>());
    std::memcpy(records.mutable_data_ptr<uint8_t>() + static_cast<size_t>(rank) * sizeof(Record),
                &record, sizeof record);
  }

  void MakeDecision(const at::Tensor& records, int32_t world,
                    const Expectation& expected) override {
    std::vector<Record> copies(static_cast<size_t>(world));
    std::memcpy(copies.data(), records.const_data_ptr<uint8_t>(), copies.size() * sizeof(Record));
    Slot(expected.step) = {Decide(copies.data(), world, expected, stopped()), true};
  }

  bool ReadDecision(int64_t step, Decision* decision) override {
    const Published& slot = Slot(step);
    if (!slot.there || slot.decision.step != step) return false;
    *decision = slot.decision;
    return true;
  }

  void SetDecision(const Decision& last) override {
    slots_ = {};
    if (last.step > 0) Slot(last.step) = {last, true};
  }

  void AdamW(const at::Tensor& gradients, StateBlock& block, at::Tensor* weights,
             const AdamWStep& step, int64_t expected_step) override {
    const Published& slot = Slot(expected_step);
    if (slot.decision.step != expected_step || slot.decision.verdict != Verdict::kCommitted) return;
    const double scale = slot.decision.gradient_scale;
    if (gradients.scalar_type() == at::kDouble) {
      Update<double, double>(gradients, block, weights, step, scale);
    } else if (weights != nullptr && weights->scalar_type() == at::kBFloat16) {
      Update<float, at::BFloat16>(gradients, block, weights, step, scale);
    } else {
      Update<float, float>(gradients, block, weights, step, scale);
    }
  }

  void MarkApplied(int32_t home, int64_t step) override {
    const Decision& decision = Slot(step).decision;
    if (decision.step == step && IsDecided(decision.verdict))
      applied_[static_cast<size_t>(home)] = step;
  }
  void SetHomes(int32_t homes, int64_t step) override {
    applied_.assign(static_cast<size_t>(homes), step);
  }
  void SetApplied(int32_t home, int64_t step) override {
    applied_[static_cast<size_t>(home)] = step;
  }
  int64_t applied(int32_t home) const override { return applied_[static_cast<size_t>(home)]; }

  absl::Status Check() override { return absl::OkStatus(); }

  void MarkProgress(int64_t count) override { progress_ = count; }
  int64_t progress() const override { return progress_; }

 private:
  struct Published {
    Decision decision;
    bool there = false;
  };
  Published& Slot(int64_t step) { return slots_[static_cast<size_t>(step % 2)]; }

  template <typename State, typename Weight>
  void Update(const at::Tensor& gradients, StateBlock& block, at::Tensor* weights,
              const AdamWStep& step, double scale) {
    for (const StateRun& run : block.runs) {
      Weight* weight = nullptr;
      if (weights != nullptr) weight = weights->mutable_data_ptr<Weight>() + run.gradient_offset;
      State* master = nullptr;
      if (block.master.defined()) {
        master = block.master.mutable_data_ptr<State>() + run.state_offset;
      } else if constexpr (std::is_same_v<State, Weight>) {
        master = std::exchange(weight, nullptr);
      }
      UpdateRun<State, Weight>(gradients.const_data_ptr<State>() + run.gradient_offset, master,
                               block.first_moment.mutable_data_ptr<State>() + run.state_offset,
                               block.second_moment.mutable_data_ptr<State>() + run.state_offset,
                               weight, run.count, step, scale, run.decay);
    }
  }

  std::atomic<bool> stop_{false};
  std::array<Published, 2> slots_;
  std::vector<int64_t> applied_;
  int64_t progress_ = 0;
};

}  // namespace

std::unique_ptr<StepKernels> MakeCpuStepKernels(int32_t homes) {
  return std::make_unique<CpuStepKernels>(homes);
}

}  // namespace phalanx::train

#include <cmath>
#include <cstring>

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
    if constexpr (!std::is_same_v<State, Weight>) weight[i] = static_cast<Weight>(updated);
  }
}

class CpuStepKernels final : public StepKernels {
 public:
  void AddSquaredNorm(const at::Tensor& gradients, const ShardState& shard,
                      at::Tensor& accumulator) override {
    double sum = 0;
    for (const ShardRun& run : shard.runs) {
      if (!run.counted) continue;
      sum += gradients.scalar_type() == at::kDouble
                 ? SquaredSum(gradients.const_data_ptr<double>() + run.gradient_offset, run.count)
                 : SquaredSum(gradients.const_data_ptr<float>() + run.gradient_offset, run.count);
    }
    accumulator.mutable_data_ptr<double>()[0] += sum;
  }

  void WriteRecord(at::Tensor& records, int32_t rank, const Record& header,
                   const at::Tensor& sums) override {
    const double* values = sums.const_data_ptr<double>();
    Record record = header;
    record.squared_norm = values[0];
    record.loss_sum = values[1];
    record.counted_tokens = values[2];
    record.corrupt_samples = values[3];
    record.checksum = ChecksumOf(record);
    std::memcpy(records.mutable_data_ptr<uint8_t>() + static_cast<size_t>(rank) * sizeof(Record),
                &record, sizeof record);
  }

  void MakeDecision(const at::Tensor& records, int32_t world,
                    const Expectation& expected) override {
    std::vector<Record> copies(static_cast<size_t>(world));
    std::memcpy(copies.data(), records.const_data_ptr<uint8_t>(), copies.size() * sizeof(Record));
    decision_ = Decide(copies.data(), world, expected);
  }

  bool ReadDecision(int64_t step, Decision* decision) override {
    if (decision_.step != step) return false;
    *decision = decision_;
    return true;
  }

  void AdamW(const at::Tensor& gradients, ShardState& shard, at::Tensor& weights,
             const AdamWStep& step, int64_t expected_step) override {
    if (decision_.step != expected_step || decision_.verdict != Verdict::kCommitted) return;
    if (gradients.scalar_type() == at::kDouble) {
      Update<double, double>(gradients, shard, weights, step);
    } else if (weights.scalar_type() == at::kBFloat16) {
      Update<float, at::BFloat16>(gradients, shard, weights, step);
    } else {
      Update<float, float>(gradients, shard, weights, step);
    }
  }

 private:
  template <typename State, typename Weight>
  void Update(const at::Tensor& gradients, ShardState& shard, at::Tensor& weights,
              const AdamWStep& step) {
    for (const ShardRun& run : shard.runs) {
      Weight* weight = weights.mutable_data_ptr<Weight>() + run.gradient_offset;
      State* master = nullptr;
      if constexpr (std::is_same_v<State, Weight>) {
        master = weight;
      } else {
        master = shard.master.mutable_data_ptr<State>() + run.state_offset;
      }
      UpdateRun<State, Weight>(gradients.const_data_ptr<State>() + run.gradient_offset, master,
                               shard.first_moment.mutable_data_ptr<State>() + run.state_offset,
                               shard.second_moment.mutable_data_ptr<State>() + run.state_offset,
                               weight, run.count, step, decision_.gradient_scale, run.decay);
    }
  }

  Decision decision_;
};

}  // namespace

std::unique_ptr<StepKernels> MakeCpuStepKernels() { return std::make_unique<CpuStepKernels>(); }

}  // namespace phalanx::train

#include "tests/bench/products/measure.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_format.h"
#include "worker/model/cuda_product.h"
#include "worker/model/fp8.h"
#include "worker/model/products.h"

namespace phalanx::bench {
namespace {

using schedule::ProductAlgorithm;
using schedule::ProductKey;
using schedule::ProductType;

constexpr int kProposed = 16;
constexpr size_t kSustained = 4;
constexpr double kBehindQuickest = 1.10;  // at most, in a short burst
constexpr double kBurst = 10e-3;          // seconds
// Of the norm of what is computed without a table: results in bf16 round to 2^-9.
constexpr double kRounding = 1e-2;

at::Tensor Random(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

// What a product of a key is computed of, and where.
class Operands {
 public:
  explicit Operands(const ProductKey& key) : key_(key) {
    const bool fp8 = key.a != ProductType::kBf16;
    if (fp8) {
      a_fp8_ = Rounded(key.m, key.k, key.a);
      b_fp8_ = Rounded(key.n, key.k, key.b);
    } else {
      const auto stored = [](bool turned, int64_t rows, int64_t columns) {
        return turned ? Random(columns, rows).t() : Random(rows, columns);
      };
      a_ = stored(key.a_turned, key.m, key.k);
      b_ = stored(key.b_turned, key.k, key.n);
    }
    if (key.bias) bias_ = Random(1, key.n).view({key.n});
    d = at::empty({key.m, key.n}, at::TensorOptions(at::kCUDA).dtype(
                                      key.d == ProductType::kFp32 ? at::kFloat : at::kBFloat16));
    workspace_ = at::empty({schedule::kProductWorkspaceBytes},
                           at::TensorOptions(at::kCUDA).dtype(at::kByte));
  }

  model::cuda::Product product() const {
    const bool fp8 = key_.a != ProductType::kBf16;
    return {.key = key_,
            .a = (fp8 ? a_fp8_.rows : a_).const_data_ptr(),
            .b = (fp8 ? b_fp8_.rows : b_).const_data_ptr(),
            .d = d.mutable_data_ptr(),
            .bias = key_.bias ? bias_.const_data_ptr() : nullptr,
            .a_scale = fp8 ? a_fp8_.scale.const_data_ptr<float>() : nullptr,
            .b_scale = fp8 ? b_fp8_.scale.const_data_ptr<float>() : nullptr};
  }
  // As training does it without a table.
  void Multiply() const {
    if (key_.a != ProductType::kBf16) return Enqueue(nullptr);
    if (key_.d == ProductType::kFp32) return model::WideProductInto(d, a_, b_, key_.add);
    model::ProductInto(d, a_, b_, bias_);
  }
  void MultiplyBy(const ProductAlgorithm& algorithm) const { Enqueue(&algorithm); }

  at::Tensor d;

 private:
  static model::Operand Rounded(int64_t rows, int64_t features, ProductType type) {
    return model::RoundToFp8(
        Random(rows, features),
        type == ProductType::kE4M3 ? model::Fp8Format::kE4M3 : model::Fp8Format::kE5M2,
        model::Forms::kRows);
  }
  void Enqueue(const ProductAlgorithm* algorithm) const {
    const int status = model::cuda::Multiply(at::cuda::getCurrentCUDABlasLtHandle(), product(),
                                             algorithm, workspace_.mutable_data_ptr(),
                                             c10::cuda::getCurrentCUDAStream().stream());
    TORCH_CHECK(status == 0, schedule::ToString(key_), ": cuBLASLt answers with status ", status);
  }

  const ProductKey key_;
  at::Tensor a_, b_, bias_, workspace_;
  model::Operand a_fp8_, b_fp8_;
};

// What d is behind one product, where it was `before`.
at::Tensor ResultOf(const Operands& operands, const at::Tensor& before,
                    const std::function<void()>& multiply) {
  operands.d.copy_(before);
  multiply();
  return operands.d.clone();
}

double Quick(const std::function<void()>& call) {
  Burst(call, 1);
  const double once = Burst(call, 2) / 2;
  const auto calls = std::max<int64_t>(2, std::llround(kBurst / std::max(once, 1e-6)));
  return Burst(call, calls) / static_cast<double>(calls);
}

schedule::ProductCost Mean(const Point& a, const Point& b) {
  return {.seconds = (a.seconds + b.seconds) / 2, .joules = (a.joules + b.joules) / 2};
}

// Those that are right, in the library's order.
std::vector<ProductAlgorithm> SoundOnes(const Operands& operands, Measured& measured) {
  cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const std::vector<ProductAlgorithm> proposed =
      model::cuda::Candidates(handle, operands.product(), kProposed);
  measured.proposed = static_cast<int>(proposed.size());
  const at::Tensor start = at::randn_like(operands.d);
  const at::Tensor expected = ResultOf(operands, start, [&] { operands.Multiply(); });
  const double norm = expected.to(at::kFloat).norm().item<double>();
  std::vector<ProductAlgorithm> sound;
  for (const ProductAlgorithm& algorithm : proposed) {
    if (std::find(sound.begin(), sound.end(), algorithm) != sound.end()) continue;
    if (!model::cuda::Takes(handle, operands.product(), algorithm)) {
      ++measured.refused;
      continue;
    }
    const auto multiply = [&] { operands.MultiplyBy(algorithm); };
    const at::Tensor first = ResultOf(operands, start, multiply);
    const at::Tensor second = ResultOf(operands, start, multiply);
    const double error = (first.to(at::kFloat) - expected.to(at::kFloat)).norm().item<double>();
    if (!at::equal(first, second)) {
      ++measured.unequal;
    } else if (!(error <= kRounding * norm)) {
      ++measured.wrong;
    } else {
      sound.push_back(algorithm);
    }
  }
  operands.d.copy_(start);
  return sound;
}

}  // namespace

Measured MeasureProduct(Meter& meter, const ProductKey& key) {
  Measured measured{.key = key};
  const Operands operands(key);
  const std::vector<ProductAlgorithm> sound = SoundOnes(operands, measured);
  std::vector<double> quick;
  for (const ProductAlgorithm& algorithm : sound)
    quick.push_back(Quick([&] { operands.MultiplyBy(algorithm); }));
  std::vector<size_t> order(sound.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return quick[a] < quick[b]; });
  const auto without = [&] { operands.Multiply(); };
  const Point first = meter.Sustained(without);
  for (size_t i = 0; i < std::min(order.size(), kSustained); ++i) {
    if (quick[order[i]] > kBehindQuickest * quick[order[0]]) break;
    const ProductAlgorithm& algorithm = sound[order[i]];
    const Point point = meter.Sustained([&] { operands.MultiplyBy(algorithm); });
    measured.algorithms.push_back(algorithm);
    measured.costs.push_back({.seconds = point.seconds, .joules = point.joules});
  }
  measured.before = Mean(first, meter.Sustained(without));  // clocks drift as the board warms
  return measured;
}

std::optional<schedule::ProductEntry> EntryOf(const Measured& measured, double limit_watts) {
  const std::optional<size_t> chosen =
      schedule::ChooseProduct(measured.before, measured.costs, limit_watts);
  if (!chosen.has_value()) return std::nullopt;
  return schedule::ProductEntry{.key = measured.key,
                                .algorithm = measured.algorithms[*chosen],
                                .cost = measured.costs[*chosen],
                                .before = measured.before};
}

std::string LineOf(const Measured& measured, const std::optional<schedule::ProductEntry>& entry,
                   double limit_watts) {
  const auto words = [](const schedule::ProductCost& cost) {
    return absl::StrFormat("%.4f ms, %.4f J", 1e3 * cost.seconds, cost.joules);
  };
  std::string line = words(measured.before);
  if (entry.has_value()) {
    const double change = schedule::ProductCostOf(entry->cost, limit_watts) /
                              schedule::ProductCostOf(entry->before, limit_watts) -
                          1;
    absl::StrAppendFormat(&line, " -> %s (%+.1f %%)", words(entry->cost), 100 * change);
  } else {
    line += ", as it is";
  }
  absl::StrAppendFormat(&line, "; %d proposed", measured.proposed);
  if (measured.refused > 0) absl::StrAppendFormat(&line, ", %d refused", measured.refused);
  if (measured.unequal > 0) absl::StrAppendFormat(&line, ", %d not repeatable", measured.unequal);
  if (measured.wrong > 0) absl::StrAppendFormat(&line, ", %d wrong", measured.wrong);
  return line;
}

}  // namespace phalanx::bench

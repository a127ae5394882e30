#include "tests/bench/profile/work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "worker/model/attention.h"
#include "worker/model/fp8.h"

namespace phalanx::bench {
namespace {

struct Shape {
  int64_t rows, inputs, outputs;
};
// Of decoders of 2,048 and 4,096 features and their heads on labelled rows, of an encoder of
// 1,024, and of few rows.
constexpr Shape kProducts[] = {{16384, 4096, 6144},  {16384, 4096, 4096},  {16384, 4096, 28672},
                               {16384, 14336, 4096}, {16384, 2048, 3072},  {16384, 2048, 16384},
                               {16384, 8192, 2048},  {7168, 4096, 128256}, {7168, 2048, 128256},
                               {9216, 1024, 3072},   {9216, 1024, 4096},   {9216, 4096, 1024},
                               {4096, 2048, 3072},   {4096, 4096, 28672}};
constexpr Shape kFp8Products[] = {{16384, 4096, 6144}, {16384, 4096, 28672}, {16384, 14336, 4096},
                                  {16384, 2048, 3072}, {16384, 2048, 16384}, {16384, 8192, 2048},
                                  {4096, 4096, 28672}};
struct Heads {
  int64_t rows, length, heads, kv_heads, head_size;
  bool causal;
};
constexpr Heads kHeads[] = {{16384, 4096, 32, 8, 128, true},
                            {16384, 4096, 32, 8, 64, true},
                            {18432, 576, 16, 16, 64, false},
                            {18432, 576, 16, 16, 128, false}};
constexpr int64_t kElements = int64_t{1} << 27, kFeatures = 4096;
// Bytes an element: bf16 read and written; read twice and written in both forms; gradient, weight
// and both moments read, the latter three written, all in fp32.
constexpr double kCopyBytes = 4, kCastBytes = 6, kUpdateBytes = 28;

at::Tensor Random(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

at::Tensor SumsOf(const Shape& shape) {
  return at::zeros({shape.outputs, shape.inputs}, at::TensorOptions(at::kCUDA));
}

// Weight gradients are added to sums in fp32, as in training.
Product MeasureProduct(Meter& meter, const Shape& shape) {
  const at::Tensor x = Random({shape.rows, shape.inputs}), dy = Random({shape.rows, shape.outputs});
  const at::Tensor weight = Random({shape.outputs, shape.inputs}), sums = SumsOf(shape);
  return {.rows = static_cast<double>(shape.rows),
          .inputs = static_cast<double>(shape.inputs),
          .outputs = static_cast<double>(shape.outputs),
          .forward = meter.Measure([&] { at::mm(x, weight.t()); }),
          .input_gradient = meter.Measure([&] { at::mm(dy, weight); }),
          .weight_gradient = meter.Measure([&] { sums.add_(at::mm(dy.t(), x, at::kFloat)); })};
}

Product MeasureFp8(Meter& meter, const Shape& shape) {
  const auto rounded = [](int64_t rows, int64_t features, model::Fp8Format format) {
    return model::RoundToFp8(Random({rows, features}), format, model::Forms::kBoth);
  };
  const model::Operand x = rounded(shape.rows, shape.inputs, model::Fp8Format::kE4M3);
  const model::Operand dy = rounded(shape.rows, shape.outputs, model::Fp8Format::kE5M2);
  const model::Operand weight = rounded(shape.outputs, shape.inputs, model::Fp8Format::kE4M3);
  const at::Tensor sums = SumsOf(shape);
  const auto product = [](const model::Operand& a, const at::Tensor& b, const at::Tensor& b_scale,
                          model::Fp8Sums mode) {
    model::Fp8Product(a.rows, a.scale, b, b_scale, mode);
  };
  return {.rows = static_cast<double>(shape.rows),
          .inputs = static_cast<double>(shape.inputs),
          .outputs = static_cast<double>(shape.outputs),
          .forward =
              meter.Measure([&] { product(x, weight.rows, weight.scale, model::Fp8Sums::kFast); }),
          .input_gradient = meter.Measure(
              [&] { product(dy, weight.columns, weight.scale, model::Fp8Sums::kPrecise); }),
          .weight_gradient = meter.Measure(
              [&] { model::AddFp8Product(sums, dy.columns, dy.scale, x.columns, x.scale); })};
}

AttentionRun MeasureAttention(Meter& meter, const Heads& shape) {
  plan::TensorUnits units;
  units.query_heads.count = shape.heads;
  units.kv_heads.count = shape.kv_heads;
  const model::HeadMap heads = model::MakeHeadMap(units, shape.heads / shape.kv_heads,
                                                  shape.head_size, at::Device(at::kCUDA, 0));
  const at::Tensor qkv = Random({shape.rows / shape.length, shape.length, heads.columns()});
  const at::Tensor gradient = Random({shape.rows, shape.heads * shape.head_size});
  model::AttentionState state;
  model::Attention(qkv, heads, shape.causal, &state);
  const auto forward = [&] {
    model::AttentionState kept;
    model::Attention(qkv, heads, shape.causal, &kept);
  };
  const auto backward = [&] { model::AttentionBackward(gradient, heads, shape.causal, state); };
  return {.rows = static_cast<double>(shape.rows),
          .length = static_cast<double>(shape.length),
          .heads = static_cast<double>(shape.heads),
          .head_size = static_cast<double>(shape.head_size),
          .causal = shape.causal,
          .forward = meter.Measure(forward),
          .backward = meter.Measure(backward)};
}

Points MeasureUpdate(Meter& meter) {
  const at::TensorOptions wide(at::kCUDA);
  const at::Tensor weights = at::zeros({kElements}, wide), gradients = at::rand({kElements}, wide);
  const at::Tensor mean = at::zeros({kElements}, wide), square = at::zeros({kElements}, wide);
  const at::Tensor step = at::ones({}, wide);
  return meter.Measure([&] {
    at::_fused_adamw_({weights}, {gradients}, {mean}, {square}, {}, {step}, /*lr=*/1e-4,
                      /*beta1=*/0.9, /*beta2=*/0.95, /*weight_decay=*/0.1, /*eps=*/1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  });
}

// Calls use(points) for each call's.
void ForEach(const Work& work, const std::function<void(const Points&)>& use) {
  for (const std::vector<Product>* products : {&work.products, &work.fp8}) {
    for (const Product& product : *products) {
      use(product.forward);
      use(product.input_gradient);
      use(product.weight_gradient);
    }
  }
  for (const AttentionRun& run : work.attention) {
    use(run.forward);
    use(run.backward);
  }
}

double Middle(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int64_t MeasuresOfWork() {
  return static_cast<int64_t>(3 * std::size(kProducts) + 3 * std::size(kFp8Products) +
                              2 * std::size(kHeads) + 3);
}

Work MeasureWork(Meter& meter) {
  Work work;
  const at::Device device(at::kCUDA, 0);
  for (const Shape& shape : kProducts) work.products.push_back(MeasureProduct(meter, shape));
  const bool fp8 = model::CheckFp8(device).ok();
  for (const Shape& shape : kFp8Products) {
    if (fp8) work.fp8.push_back(MeasureFp8(meter, shape));
  }
  for (const Heads& shape : kHeads) work.attention.push_back(MeasureAttention(meter, shape));
  const at::Tensor from = Random({kElements / kFeatures, kFeatures}), to = at::empty_like(from);
  work.memory = meter.Measure([&] { to.copy_(from); });
  if (fp8) {
    work.cast = meter.Measure(
        [&] { model::RoundToFp8(from, model::Fp8Format::kE4M3, model::Forms::kBoth); });
  }
  work.update = MeasureUpdate(meter);
  return work;
}

double LaunchSeconds() {
  constexpr int kCalls = 400;
  const at::Tensor large = Random({8192, 8192});
  const at::Tensor small = at::zeros({1}, at::TensorOptions(at::kCUDA));
  small.fill_(1);
  // These take longer than the host does to enqueue what follows.
  for (int i = 0; i < 16; ++i) at::mm(large, large);
  return Burst([&] { small.fill_(1); }, kCalls) / kCalls;
}

Clocks ClocksOf(const Work& work) {
  std::vector<double> fast, slow;
  ForEach(work, [&](const Points& points) {
    fast.push_back(points.fast.clock_mhz);
    if (HasTwoClocks(points)) slow.push_back(points.slow.clock_mhz);
  });
  return {.fast_mhz = Middle(std::move(fast)), .slow_mhz = Middle(std::move(slow))};
}

schedule::WorkRates RatesAt(const Work& work, double clock_mhz, double idle_watts, bool joules) {
  const auto of = [&](const Points& points) {
    const Point point = At(points, clock_mhz, idle_watts);
    return joules ? point.joules : point.seconds;
  };
  const auto times = [&](const std::vector<Product>& products) {
    std::vector<schedule::ProductTimes> all;
    for (const Product& product : products) {
      all.push_back({product.rows, product.inputs, product.outputs, of(product.forward),
                     of(product.input_gradient), of(product.weight_gradient)});
    }
    return all;
  };
  schedule::WorkRates rates;
  rates.products = times(work.products);
  if (!work.fp8.empty()) {
    rates.fp8 = schedule::Fp8Rates{
        .products = times(work.fp8),
        .cast_bytes_per_second = kCastBytes * static_cast<double>(kElements) / of(work.cast)};
  }
  for (const AttentionRun& run : work.attention) {
    rates.attention.push_back({run.rows, run.length, run.heads, run.head_size, run.causal,
                               of(run.forward), of(run.backward)});
  }
  rates.memory_bytes_per_second = kCopyBytes * static_cast<double>(kElements) / of(work.memory);
  rates.update_bytes_per_second = kUpdateBytes * static_cast<double>(kElements) / of(work.update);
  return rates;
}

}  // namespace phalanx::bench

#include "tests/bench/profile/work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "worker/model/attention.h"
#include "worker/model/cudnn_attention.h"
#include "worker/model/fp8.h"
#include "worker/model/kernels.h"
#include "worker/model/layer.h"
#include "worker/model/unwritten.h"
#include "worker/model/weight_work.h"
#include "worker/train/step_kernels.h"

namespace phalanx::bench {
namespace {

struct Shape {
  int64_t rows, inputs, outputs;
  bool turned =
      false;          // the weight is stored transposed, as that of attention's output, and `down`
  bool bias = false;  // which the product adds
};
// Of decoders of 2,048 and 4,096 features and their heads on labelled rows, of an encoder of
// 1,024, and of few rows.
constexpr Shape kProducts[] = {{16384, 4096, 6144},
                               {16384, 4096, 4096, /*turned=*/true},
                               {16384, 4096, 28672},
                               {16384, 14336, 4096, /*turned=*/true},
                               {16384, 2048, 3072},
                               {16384, 2048, 16384},
                               {16384, 8192, 2048, /*turned=*/true},
                               {7168, 4096, 128256},
                               {7168, 2048, 128256},
                               {9216, 1024, 3072, /*turned=*/false, /*bias=*/true},
                               {9216, 1024, 4096, /*turned=*/false, /*bias=*/true},
                               {9216, 4096, 1024, /*turned=*/true},
                               {4096, 2048, 3072},
                               {4096, 4096, 28672}};
constexpr Shape kFp8Products[] = {{16384, 4096, 6144},
                                  {16384, 4096, 4096, /*turned=*/true},
                                  {16384, 4096, 28672},
                                  {16384, 14336, 4096, /*turned=*/true},
                                  {16384, 2048, 3072},
                                  {16384, 2048, 16384},
                                  {16384, 8192, 2048, /*turned=*/true},
                                  {4096, 4096, 28672}};
struct Heads {
  int64_t rows, length, heads, kv_heads, head_size;
  bool causal;
};
constexpr Heads kHeads[] = {{16384, 4096, 32, 8, 128, true},
                            {16384, 4096, 32, 8, 64, true},
                            {18432, 576, 16, 16, 64, false},
                            {18432, 576, 16, 16, 128, false}};
// A layer of the larger decoder.
constexpr int64_t kBatch = 4, kLength = 4096, kRows = kBatch * kLength, kFeatures = 4096,
                  kMlp = 14336, kBlock = 128, kQueryHeads = 32, kKvHeads = 8, kHeadSize = 128;
constexpr int64_t kLabelledRows = 7168, kVocabulary = 128256;
constexpr int64_t kElements = int64_t{1} << 27, kRuns = 64;  // of an update
constexpr double kEpsilon = 1e-5;
// Bytes an element: bf16 read, and written in both forms; gradient, master and both moments read,
// the latter three written in fp32, weights written in bf16.
constexpr double kCastBytes = 4, kUpdateBytes = 30;
// Read and written: logits in bf16; gradients of rows, and fp32 that they are added to.
constexpr double kLossBytes = 4.0 * kLabelledRows * kVocabulary;
constexpr double kEmbeddingBytes = 10.0 * kRows * kFeatures;

at::Tensor Random(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

at::Tensor Ones(int64_t features) {
  return at::ones({features}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

// With a gradient in fp32, both as they lie in training.
model::Parameter WeightOf(const Shape& shape) {
  const at::TensorOptions wide(at::kCUDA);
  model::Parameter weight;
  if (shape.turned) {
    weight.weight = Random({shape.inputs, shape.outputs}).t();
    weight.gradient = at::zeros({shape.inputs, shape.outputs}, wide).t();
  } else {
    weight.weight = Random({shape.outputs, shape.inputs});
    weight.gradient = at::zeros({shape.outputs, shape.inputs}, wide);
  }
  return weight;
}

// As training does it: in fp32, added to what is there or, by the first microbatch of a step,
// written.
void MeasureWeightGradient(Meter& meter, const model::Parameter& weight,
                           const model::Operand& output_gradient, const model::Operand& input,
                           Product& product) {
  const at::Tensor stored = weight.gradient.is_contiguous() ? weight.gradient : weight.gradient.t();
  const auto add = [&] {
    model::WeightWork work;
    work.Matrix(weight, output_gradient, input);
    work.Run();
  };
  product.weight_gradient = meter.Measure(add);
  product.weight_gradient_written = meter.Measure([&] {
    model::MarkUnwritten(stored);
    add();
  });
}

Product ProductOf(const Shape& shape) {
  Product product;
  product.rows = static_cast<double>(shape.rows);
  product.inputs = static_cast<double>(shape.inputs);
  product.outputs = static_cast<double>(shape.outputs);
  return product;
}

Product MeasureProduct(Meter& meter, const Shape& shape) {
  const model::Operand x = Random({shape.rows, shape.inputs});
  const model::Operand dy = Random({shape.rows, shape.outputs});
  const model::Parameter weight = WeightOf(shape);
  model::Parameter bias;
  if (shape.bias) bias.weight = Ones(shape.outputs);
  Product product = ProductOf(shape);
  product.forward = meter.Measure(
      [&] { shape.bias ? model::Linear(x.rows, weight, bias) : model::Linear(x, weight); });
  product.input_gradient = meter.Measure([&] { model::LinearInputGradient(dy, weight); });
  MeasureWeightGradient(meter, weight, dy, x, product);
  return product;
}

// What rounding takes is the cast's.
Product MeasureFp8(Meter& meter, const Shape& shape) {
  const auto rounded = [](int64_t rows, int64_t features, model::Fp8Format format) {
    return model::RoundToFp8(Random({rows, features}), format, model::Forms::kBoth);
  };
  const model::Operand x = rounded(shape.rows, shape.inputs, model::Fp8Format::kE4M3);
  const model::Operand dy = rounded(shape.rows, shape.outputs, model::Fp8Format::kE5M2);
  const model::Operand weight = rounded(shape.outputs, shape.inputs, model::Fp8Format::kE4M3);
  Product product = ProductOf(shape);
  product.forward = meter.Measure([&] {
    model::Fp8Product(x.rows, x.scale, weight.rows, weight.scale, model::Fp8Sums::kFast);
  });
  product.input_gradient = meter.Measure([&] {
    model::Fp8Product(dy.rows, dy.scale, weight.columns, weight.scale, model::Fp8Sums::kPrecise);
  });
  MeasureWeightGradient(meter, WeightOf(shape), dy, x, product);
  return product;
}

// By cuDNN where a rank would have tried it and taken it.
AttentionRun MeasureAttention(Meter& meter, const Heads& shape) {
  plan::TensorUnits units;
  units.query_heads.count = shape.heads;
  units.kv_heads.count = shape.kv_heads;
  const model::HeadMap heads = model::MakeHeadMap(units, shape.heads / shape.kv_heads,
                                                  shape.head_size, at::Device(at::kCUDA, 0));
  const int64_t batch = shape.rows / shape.length;
  const at::Tensor qkv = Random({batch, shape.length, heads.columns()});
  const at::Tensor gradient = Random({shape.rows, shape.heads * shape.head_size});
  at::Tensor cos, sin;
  if (shape.causal) {  // a decoder's, whose gradients are turned back as they are packed
    cos = at::rand({shape.length, shape.head_size / 2}, at::TensorOptions(at::kCUDA));
    sin = at::rand_like(cos);
  }
  model::PrepareAttention(heads, shape.causal, batch, shape.length, qkv.options());
  model::AttentionState state;
  model::Attention(qkv, heads, shape.causal, &state);
  const auto forward = [&] {
    model::AttentionState kept;
    model::Attention(qkv, heads, shape.causal, &kept);
  };
  const auto backward = [&] {
    model::AttentionBackward(gradient, heads, shape.causal, state, cos, sin);
  };
  return {.rows = static_cast<double>(shape.rows),
          .length = static_cast<double>(shape.length),
          .heads = static_cast<double>(shape.heads),
          .head_size = static_cast<double>(shape.head_size),
          .causal = shape.causal,
          .forward = meter.Measure(forward),
          .backward = meter.Measure(backward)};
}

// What stands between the products of a decoder layer, both ways but for attention, with the bytes
// that core/schedule/work_model.cc counts for it.
constexpr double kBetweenBytes =
    2.0 * kRows * (17 * kFeatures + 2 * (kQueryHeads + kKvHeads) * kHeadSize + 8 * kMlp);
Points MeasureBetween(Meter& meter) {
  const at::Tensor input = Random({kRows, kFeatures}), middle = Random({kRows, kFeatures});
  const at::Tensor output = Random({kRows, kFeatures}), gradient = Random({kRows, kFeatures});
  const at::Tensor norm = Ones(kFeatures);
  const at::Tensor heads = Random({kBatch, kLength, kQueryHeads + 2 * kKvHeads, kHeadSize});
  const at::Tensor cos = at::rand({kLength, kHeadSize / 2}, at::TensorOptions(at::kCUDA));
  const at::Tensor sin = at::rand_like(cos);
  const at::Tensor gate_up = Random({kRows, 2 * kMlp}), active = Random({kRows, kMlp});
  const at::Tensor rstd = model::RmsNorm(input, norm, kEpsilon).rstd;
  return meter.Measure([&] {
    model::RmsNorm(input, norm, kEpsilon);
    model::Rotate(heads, kQueryHeads + kKvHeads, cos, sin, /*inverse=*/false);
    model::AddRmsNorm(input, middle, norm, kEpsilon);
    model::SwiGlu(gate_up, kBlock);
    output.add_(middle);
    model::SwiGluBackward(active, gate_up, kBlock);
    model::RmsNormBackward(gradient, middle, rstd, norm, output);
    model::RmsNormBackward(gradient, input, rstd, norm, output);
  });
}

at::Tensor Tokens(int64_t rows) {
  return at::randint(kVocabulary, {rows}, at::TensorOptions(at::kCUDA).dtype(at::kLong));
}

Points MeasureLoss(Meter& meter) {
  const at::Tensor logits = Random({kLabelledRows, kVocabulary}), labels = Tokens(kLabelledRows);
  const at::Tensor weights = at::ones({kLabelledRows}, at::TensorOptions(at::kCUDA));
  return meter.Measure(
      [&] { model::WholeCrossEntropy(logits, labels, weights, /*gradient=*/true); });
}

Points MeasureEmbedding(Meter& meter) {
  const at::Tensor sums = at::zeros({kVocabulary, kFeatures}, at::TensorOptions(at::kCUDA));
  const at::Tensor tokens = Tokens(kRows), gradient = Random({kRows, kFeatures});
  return meter.Measure([&] { model::AddRows(sums, tokens, /*keep=*/{}, gradient); });
}

// Of an operand whose largest magnitude is known from the kernel that made it.
Points MeasureCast(Meter& meter) {
  model::Operand operand;
  operand.rows = model::RmsNorm(Random({kElements / kFeatures, kFeatures}), Ones(kFeatures),
                                kEpsilon, &operand.largest)
                     .y;
  return meter.Measure(
      [&] { model::RoundToFp8(operand, model::Fp8Format::kE4M3, model::Forms::kBoth); });
}

std::unique_ptr<train::StepKernels> MakeKernels() {
#ifdef PHALANX_WITH_CUDA
  return train::MakeCudaStepKernels(/*homes=*/0);
#else
  return train::MakeCpuStepKernels(/*homes=*/0);  // and no GPU to be measured
#endif
}

Points MeasureUpdate(Meter& meter) {
  constexpr int64_t kStep = 1;
  const at::TensorOptions wide(at::kCUDA);
  const at::Tensor gradients = at::rand({kElements}, wide);
  at::Tensor weights = at::zeros({kElements}, wide.dtype(at::kBFloat16));
  train::StateBlock block;
  block.elements = kElements;
  block.master = at::zeros({kElements}, wide);
  block.first_moment = at::zeros({kElements}, wide);
  block.second_moment = at::zeros({kElements}, wide);
  constexpr int64_t kCount = kElements / kRuns;
  for (int64_t offset = 0; offset < kElements; offset += kCount)
    block.runs.push_back({offset, offset, kCount, /*decay=*/true});
  const std::unique_ptr<train::StepKernels> kernels = MakeKernels();
  kernels->SetDecision({.step = kStep, .verdict = train::Verdict::kCommitted, .gradient_scale = 1});
  const train::AdamWStep step = {
      .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  return meter.Measure([&] { kernels->AdamW(gradients, block, &weights, step, kStep); });
}

// Calls use(points) for each call's.
void ForEach(const Work& work, const std::function<void(const Points&)>& use) {
  for (const std::vector<Product>* products : {&work.products, &work.fp8}) {
    for (const Product& product : *products) {
      use(product.forward);
      use(product.input_gradient);
      use(product.weight_gradient);
      use(product.weight_gradient_written);
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
  return static_cast<int64_t>(4 * std::size(kProducts) + 4 * std::size(kFp8Products) +
                              2 * std::size(kHeads) + 5);
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
  work.memory = MeasureBetween(meter);
  work.loss = MeasureLoss(meter);
  work.embedding = MeasureEmbedding(meter);
  if (fp8) work.cast = MeasureCast(meter);
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
                     of(product.input_gradient), of(product.weight_gradient),
                     of(product.weight_gradient_written)});
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
  rates.memory_bytes_per_second = kBetweenBytes / of(work.memory);
  rates.loss_bytes_per_second = kLossBytes / of(work.loss);
  rates.embedding_bytes_per_second = kEmbeddingBytes / of(work.embedding);
  rates.update_bytes_per_second = kUpdateBytes * static_cast<double>(kElements) / of(work.update);
  return rates;
}

}  // namespace phalanx::bench

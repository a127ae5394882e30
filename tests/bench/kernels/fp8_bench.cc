// phalanx-bench-fp8 [SECONDS]: what products in FP8 and the casts for them take beside bf16, for
// the linear layers of the models in docs/performance.md, and what whole decoder layers do.
//
// Each figure is of that many seconds (0.3) of calls without pause, so under the power that the
// board can keep up. Operands are random: products of zeros are faster.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

#include "core/plan/plan.h"
#include "tests/support/specs.h"
#include "worker/model/layer.h"

namespace phalanx::model {
namespace {

struct Shape {
  const char* name;
  int64_t rows, in, out;
};
constexpr Shape kShapes[] = {{"5B qkv", 16384, 4096, 6144},        {"5B o", 16384, 4096, 4096},
                             {"5B gate_up", 16384, 4096, 28672},   {"5B down", 16384, 14336, 4096},
                             {"1.6B qkv", 16384, 2048, 3072},      {"1.6B o", 16384, 2048, 2048},
                             {"1.6B gate_up", 16384, 2048, 16384}, {"1.6B down", 16384, 8192, 2048},
                             {"ViT-L qkv", 9216, 1024, 3072},      {"ViT-L up", 9216, 1024, 4096},
                             {"ViT-L down", 9216, 4096, 1024}};

at::Tensor Random(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}

// Milliseconds of one call.
double Time(double seconds, const std::function<void()>& call) {
  const auto run = [&call](int64_t times) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    for (int64_t i = 0; i < times; ++i) call();
    end.record();
    end.synchronize();
    return begin.elapsed_time(end) / static_cast<double>(times);
  };
  call();
  return run(std::max<int64_t>(5, static_cast<int64_t>(1e3 * seconds / run(3))));
}

void Measure(const Shape& shape, double seconds) {
  const auto time = [seconds](const std::function<void()>& call) { return Time(seconds, call); };
  const auto round = [](const at::Tensor& rows, Fp8Format format) {
    return RoundToFp8(rows, format, Forms::kBoth);
  };
  const at::Tensor x = Random({shape.rows, shape.in}), weight = Random({shape.out, shape.in});
  const at::Tensor dy = Random({shape.rows, shape.out});
  const at::Tensor sum = at::zeros({shape.out, shape.in}, at::TensorOptions(at::kCUDA));
  const Operand x8 = round(x, Fp8Format::kE4M3), weight8 = round(weight, Fp8Format::kE4M3);
  const Operand dy8 = round(dy, Fp8Format::kE5M2);
  const double bf16[] = {time([&] { at::mm(x, weight.t()); }), time([&] { at::mm(dy, weight); }),
                         time([&] { at::mm(dy.t(), x, at::kFloat); })};
  const auto forward = [&](Fp8Sums sums) {
    return time([&] { Fp8Product(x8.rows, x8.scale, weight8.rows, weight8.scale, sums); });
  };
  const auto backward = [&](Fp8Sums sums) {
    return time([&] { Fp8Product(dy8.rows, dy8.scale, weight8.columns, weight8.scale, sums); });
  };
  const double fp8[] = {
      forward(Fp8Sums::kFast), forward(Fp8Sums::kPrecise), backward(Fp8Sums::kPrecise),
      time([&] { AddFp8Product(sum, dy8.columns, dy8.scale, x8.columns, x8.scale); })};
  const double casts[] = {time([&] { round(x, Fp8Format::kE4M3); }),
                          time([&] { round(dy, Fp8Format::kE5M2); }),
                          time([&] { round(weight, Fp8Format::kE4M3); })};
  const double flops = 2e-9 * static_cast<double>(shape.rows * shape.in * shape.out);
  const double of_bf16 = bf16[0] + bf16[1] + bf16[2], of_fp8 = fp8[0] + fp8[2] + fp8[3];
  std::printf(
      "%-14s %8.4f %8.4f %8.4f | %8.4f (%.4f) %8.4f %8.4f | %8.4f %8.4f %8.4f | %5.0f %5.0f "
      "%5.0f\n",
      shape.name, bf16[0], bf16[1], bf16[2], fp8[0], fp8[1], fp8[2], fp8[3], casts[0], casts[1],
      casts[2], 3 * flops / of_bf16, 3 * flops / of_fp8,
      3 * flops / (of_fp8 + casts[0] + casts[1]));
  std::fflush(stdout);
}

// All passes of one microbatch, of 4 sequences of 4,096, through one layer, whose weights are new.
void MeasureLayer(const char* name, const support::LlamaShape& shape, double seconds) {
  const SequenceShape rows{4, 4096};
  const plan::Plan plan = *plan::MakePlan(
      support::AJob().Module("language", support::Llama(shape)).Compute(job::Precision::kBf16),
      plan::MakeCluster(1, 1), Epoch{1});
  const plan::StageParameters parameters = plan::ParametersOf(plan, {.module = 0});
  const at::TensorOptions sums(at::kCUDA);
  const at::Tensor weights = Random({parameters.elements}).mul_(0.02);
  const at::Tensor gradients = at::zeros({parameters.elements}, sums);
  const ParameterTable table(parameters, weights, gradients);
  LayerContext context;
  const job::Architecture& a = context.architecture = plan.module_spec(0).architecture;
  context.heads = MakeHeadMap(plan::TensorUnitsOf(a, 1, 0), a.heads / plan::KvHeads(a),
                              plan::HeadSize(a), {at::kCUDA, 0});
  const at::Tensor angles = at::rand({a.context, plan::HeadSize(a) / 2}, sums).mul_(6);
  context.cos = angles.cos();
  context.sin = angles.sin();
  const at::Tensor input = Random({rows.rows(), a.hidden_size}), upstream = Random(input.sizes());
  double milliseconds[3];
  for (const int way : {0, 1, 2}) {
    context.fp8 = way > 0;
    context.largest_on_the_way = way < 2;
    const std::unique_ptr<Layer> layer = MakeDecoderLayer(context, table, 0);
    milliseconds[way] = Time(seconds, [&] {
      LayerState state;
      WeightWork work;
      LayerRows output;
      Operand gradient;
      ++context.weights_version;
      work.RunAlong();
      const bool ok = layer->Forward(input, rows, &state, &output).ok() &&
                      layer->BackwardInput(upstream, rows, &state, &work, &gradient).ok();
      work.Run();
      if (!ok) std::abort();
    });
  }
  std::printf(
      "%s: a layer's passes take %.3f ms in bf16, %.3f in FP8, %.3f with passes for all largest "
      "magnitudes\n",
      name, milliseconds[0], milliseconds[1], milliseconds[2]);
  std::fflush(stdout);
}

}  // namespace

void RunBench(double seconds) {
  MeasureLayer("5B",
               {.hidden_size = 4096,
                .layers = 1,
                .heads = 32,
                .kv_heads = 8,
                .mlp_size = 14336,
                .block = 128,
                .vocabulary = 1024,
                .context = 4096},
               3 * seconds);
  MeasureLayer("1.6B",
               {.hidden_size = 2048,
                .layers = 1,
                .heads = 32,
                .kv_heads = 8,
                .mlp_size = 8192,
                .block = 128,
                .vocabulary = 1024,
                .context = 4096},
               3 * seconds);
  std::printf(
      "ms of y, dx, dW in bf16 (fp32 dW) | of y (its sums in fp32), dx, dW += in FP8 | of "
      "the casts of x, dy, W | TFLOP/s in bf16, in FP8, with the casts of x and dy\n");
  for (const Shape& shape : kShapes) Measure(shape, seconds);
}

}  // namespace phalanx::model

int main(int argc, char** argv) {
  if (c10::cuda::device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  phalanx::model::RunBench(argc > 1 ? std::atof(argv[1]) : 0.3);
  return 0;
}

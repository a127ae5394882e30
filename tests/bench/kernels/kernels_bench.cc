// phalanx-bench-kernels [PATTERN]: our CUDA kernels one by one, beside the same jobs in Transformer
// Engine 2.20.2 on an H200, of another day; yardstick.cu beside this measures both in one run, all
// jobs that theirs has.
//
// phalanx-bench-kernels --races [PATTERN]: beside LibTorch's for the same jobs, in one run
// (library_races.h). Fails where one of ours takes more than 5 % longer.
//
// "cold": 10 warm-up calls, then the median of 30, L2 emptied before each by reads (lines that are
// still to be written back would be paid by who comes next). "kept up" is a second of calls without
// pause, from a graph, over inputs and outputs that do not fit in L2 together. Rates count every
// byte once.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/kernels/library_races.h"
#include "worker/model/kernels.h"
#include "worker/train/step_kernels.cuh"

namespace phalanx::model {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr double kSeconds = 1.0;
constexpr double kSetBytes = 512e6;  // of all sets together, at least

at::Tensor Random(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(type));
}

struct Job {
  std::string name;
  double bytes;
  double yardstick_ms;  // 0: none
  std::function<Tensors()> make;
  // What it returns is kept until the end of a round.
  std::function<Tensors(const Tensors&)> run;
};

class Bench {
 public:
  explicit Bench(std::string pattern) : pattern_(std::move(pattern)) {
    std::printf("%-58s %9s %6s %9s %6s %10s %7s\n", "kernel", "kept up", "TB/s", "cold", "TB/s",
                "yardstick", "cold /");
  }

  void Time(const Job& job) {
    if (job.name.find(pattern_) == std::string::npos) return;
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    std::vector<Tensors> sets;
    const auto wanted = static_cast<size_t>(std::ceil(kSetBytes / job.bytes));
    while (sets.size() < std::min<size_t>(wanted, 64)) sets.push_back(job.make());
    for (const Tensors& set : sets) job.run(set);
    const double kept_up = KeptUp(job, sets), cold = Cold(job, sets[0]);
    std::printf("%-58s %9.4f %6.2f %9.4f %6.2f ", job.name.c_str(), kept_up,
                job.bytes / kept_up / 1e9, cold, job.bytes / cold / 1e9);
    if (job.yardstick_ms > 0) {
      std::printf("%10.3f %7.2f%s", job.yardstick_ms, cold / job.yardstick_ms,
                  cold > 1.05 * job.yardstick_ms ? " SLOWER" : "");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  static double KeptUp(const Job& job, const std::vector<Tensors>& sets) {
    at::cuda::CUDAGraph graph;
    std::vector<Tensors> results;
    c10::cuda::device_synchronize();
    graph.capture_begin();
    for (const Tensors& set : sets) results.push_back(job.run(set));
    graph.capture_end();
    for (int i = 0; i < 3; ++i) graph.replay();
    double milliseconds = 0;
    int64_t rounds = 0;
    for (int64_t batch = 4; milliseconds < 1e3 * kSeconds; batch *= 2) {
      at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
      begin.record();
      for (int64_t i = 0; i < batch; ++i) graph.replay();
      end.record();
      end.synchronize();
      milliseconds = begin.elapsed_time(end);
      rounds = batch;
    }
    return milliseconds / static_cast<double>(rounds) / static_cast<double>(sets.size());
  }
  double Cold(const Job& job, const Tensors& set) {
    std::vector<double> times;
    for (int i = 0; i < 40; ++i) {
      at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
      flush_.sum();
      begin.record();
      const Tensors kept = job.run(set);
      end.record();
      end.synchronize();
      if (i >= 10) times.push_back(begin.elapsed_time(end));
    }
    std::nth_element(times.begin(), times.begin() + 15, times.end());
    return times[15];
  }

  const std::string pattern_;
  at::Tensor flush_ = at::zeros({int64_t{1} << 27}, at::TensorOptions(at::kCUDA));  // 512 MiB
};

void Norms(Bench& bench, int64_t rows, int64_t features, const std::vector<double>& yardsticks) {
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  const double n = static_cast<double>(rows * features);
  const auto make = [=] {
    return Tensors{Random({rows, features}), Random({rows, features}), Random({rows, features}),
                   Random({features}), at::rand({rows, 1}, at::TensorOptions(at::kCUDA))};
  };
  bench.Time({"RMSNorm" + size, 4 * n, yardsticks[0], make, [](const Tensors& t) {
                const RmsNormed normed = RmsNorm(t[0], t[3], 1e-5);
                return Tensors{normed.y, normed.rstd};
              }});
  bench.Time({"residual + RMSNorm" + size, 8 * n, 0, make, [](const Tensors& t) {
                const RmsNormed normed = AddRmsNorm(t[0], t[1], t[3], 1e-5);
                return Tensors{normed.y, normed.rstd};
              }});
  bench.Time({"RMSNorm backward" + size, 6 * n, yardsticks[1], make, [](const Tensors& t) {
                const NormGradient g = RmsNormBackward(t[0], t[1], t[4], t[3], {});
                return Tensors{g.x, g.weight};
              }});
  bench.Time(
      {"RMSNorm backward + residual's" + size, 8 * n, yardsticks[2], make, [](const Tensors& t) {
         const NormGradient g = RmsNormBackward(t[0], t[1], t[4], t[3], t[2]);
         return Tensors{g.x, g.weight};
       }});
}

void LayerNorms(Bench& bench, int64_t rows, int64_t features,
                const std::vector<double>& yardsticks) {
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  const double n = static_cast<double>(rows * features);
  const auto make = [=] {
    return Tensors{Random({rows, features}),
                   Random({rows, features}),
                   Random({rows, features}),
                   Random({features}),
                   Random({features}),
                   at::rand({rows, 1}, at::TensorOptions(at::kCUDA)),
                   at::rand({rows, 1}, at::TensorOptions(at::kCUDA))};
  };
  const auto backward = [](const at::Tensor& residual, bool sums, const Tensors& t) {
    const NormGradient g =
        LayerNormBackward(t[0], t[1], {{}, t[5], t[6]}, t[3], t[4], residual, sums);
    return Tensors{g.x, g.weight, g.bias, g.x_sum};
  };
  bench.Time({"LayerNorm" + size, 4 * n, yardsticks[0], make, [](const Tensors& t) {
                const LayerNormed normed = LayerNorm(t[0], t[3], t[4], 1e-5);
                return Tensors{normed.y, normed.mean, normed.rstd};
              }});
  bench.Time({"bias + residual + LayerNorm" + size, 8 * n, 0, make, [](const Tensors& t) {
                const LayerNormed normed = AddLayerNorm(t[0], t[1], t[3], t[3], t[4], 1e-5);
                return Tensors{normed.y, normed.mean, normed.rstd};
              }});
  bench.Time({"LayerNorm backward" + size, 6 * n, yardsticks[1], make,
              [=](const Tensors& t) { return backward({}, false, t); }});
  bench.Time({"LayerNorm backward + residual's, two more sums" + size, 8 * n, 0, make,
              [=](const Tensors& t) { return backward(t[2], true, t); }});
}

void Rotations(Bench& bench, int64_t batch, int64_t length, int64_t queries, int64_t keys,
               int64_t head_size, const std::vector<double>& yardsticks) {
  const double n = static_cast<double>(batch * length * (queries + keys) * head_size);
  const std::string size = " [" + std::to_string(batch) + " x " + std::to_string(length) + ", " +
                           std::to_string(queries) + "/" + std::to_string(keys) + " x " +
                           std::to_string(head_size) + "]";
  const auto make = [=] {
    const at::Tensor angles =
        at::rand({length, head_size / 2}, at::TensorOptions(at::kCUDA)).mul_(6);
    return Tensors{Random({batch, length, queries + 2 * keys, head_size}), angles.cos(),
                   angles.sin()};
  };
  for (const bool inverse : {false, true}) {
    bench.Time({(inverse ? "RoPE backward" : "RoPE") + size, 4 * n, yardsticks[inverse], make,
                [=](const Tensors& t) {
                  Rotate(t[0], queries + keys, t[1], t[2], inverse);
                  return Tensors{};
                }});
  }
}

// The gradients of q, k and v as attention's backward pass leaves them.
void Heads(Bench& bench, int64_t batch, int64_t length, int64_t queries, int64_t keys,
           int64_t head_size) {
  const double n = static_cast<double>(batch * length * (queries + 2 * keys) * head_size);
  const auto part = [=](int64_t heads) {
    return Random({batch, length, heads, head_size}).transpose(1, 2);
  };
  const auto make = [=] {
    const at::Tensor angles =
        at::rand({length, head_size / 2}, at::TensorOptions(at::kCUDA)).mul_(6);
    return Tensors{part(queries), part(keys),
                   part(keys),    angles.cos(),
                   angles.sin(),  Random({batch, length, queries + 2 * keys, head_size})};
  };
  bench.Time({"gradients of q, k, v turned back and packed", 4 * n, 0, make, [](const Tensors& t) {
                PackHeads(t[0], t[1], t[2], t[3], t[4], t[5]);
                return Tensors{};
              }});
}

void SwiGlus(Bench& bench, int64_t rows, int64_t features, int64_t block,
             const std::vector<double>& yardsticks) {
  const double n = static_cast<double>(rows * features);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(2 * features) +
                           "], blocks of " + std::to_string(block);
  const auto make = [=] { return Tensors{Random({rows, 2 * features}), Random({rows, features})}; };
  bench.Time({"SwiGLU" + size, 6 * n, yardsticks[0], make,
              [=](const Tensors& t) { return Tensors{SwiGlu(t[0], block)}; }});
  bench.Time({"SwiGLU backward" + size, 10 * n, yardsticks[1], make,
              [=](const Tensors& t) { return Tensors{SwiGluBackward(t[1], t[0], block)}; }});
}

void Gelus(Bench& bench, GeluKind kind, const std::string& name, int64_t rows, int64_t features,
           const std::vector<double>& yardsticks) {
  const double n = static_cast<double>(rows * features);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  const auto make = [=] { return Tensors{Random({rows, features}), Random({rows, features})}; };
  bench.Time({name + size, 4 * n, yardsticks[0], make,
              [=](const Tensors& t) { return Tensors{Gelu(kind, t[0])}; }});
  for (const bool sums : {false, true}) {
    bench.Time({name + (sums ? " backward with bias" : " backward") + size, 6 * n,
                sums ? 0 : yardsticks[1], make, [=](const Tensors& t) {
                  const GeluGradient g = GeluBackward(kind, t[1], t[0], sums);
                  return Tensors{g.x, g.sum};
                }});
  }
}

void Losses(Bench& bench, int64_t rows, int64_t vocabulary) {
  const double n = static_cast<double>(rows * vocabulary);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(vocabulary) + "]";
  const at::TensorOptions there(at::kCUDA);
  const auto make = [=] {
    return Tensors{Random({rows, vocabulary}),
                   at::randint(vocabulary, {rows}, there.dtype(at::kLong)),
                   at::ones({rows}, there)};
  };
  bench.Time({"cross-entropy with gradient" + size, 4 * n, 0, make,
              [](const Tensors& t) { return Tensors{WholeCrossEntropy(t[0], t[1], t[2], true)}; }});
  bench.Time({"cross-entropy, loss alone" + size, 2 * n, 0, make, [](const Tensors& t) {
                return Tensors{WholeCrossEntropy(t[0], t[1], t[2], false)};
              }});
  bench.Time({"sharded cross-entropy: statistics" + size, 2 * n, 0, make,
              [](const Tensors& t) { return Tensors{SoftmaxStatistics(t[0], t[1], t[2], 0)}; }});
  const auto make_gathered = [=] {
    Tensors tensors = make();
    tensors.push_back(SoftmaxStatistics(tensors[0], tensors[1], tensors[2], 0)
                          .unsqueeze(0)
                          .expand({2, -1, -1})
                          .contiguous());
    return tensors;
  };
  bench.Time(
      {"sharded cross-entropy: gradient" + size, 4 * n, 0, make_gathered,
       [](const Tensors& t) { return Tensors{CrossEntropy(t[0], t[3], t[1], t[2], 0, true)}; }});
}

void Rows(Bench& bench, int64_t rows, int64_t features, int64_t vocabulary) {
  const double n = static_cast<double>(rows * features);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) +
                           "] of " + std::to_string(vocabulary);
  const auto make = [=] {
    return Tensors{Random({vocabulary, features}),
                   at::randint(vocabulary, {rows}, at::TensorOptions(at::kCUDA).dtype(at::kLong)),
                   Random({rows, features}), Random({vocabulary, features}, at::kFloat),
                   at::randperm(rows, at::TensorOptions(at::kCUDA).dtype(at::kLong))};
  };
  bench.Time({"rows taken" + size, 4 * n, 0, make,
              [](const Tensors& t) { return Tensors{TakeRows(t[0], t[1], {})}; }});
  bench.Time({"rows added to fp32" + size, 10 * n, 0, make, [](const Tensors& t) {
                AddRows(t[3], t[1], {}, t[2]);
                return Tensors{};
              }});
  // A third of them of items.
  const auto with_items = [=] {
    const TokenRows rows_of =
        MakeTokenRows(at::randint(vocabulary, {rows}, at::kLong),
                      at::randperm(rows, at::kLong).narrow(0, 0, rows / 3), at::kCUDA);
    return Tensors{Random({vocabulary, features}),
                   Random({rows / 3, features}),
                   Random({rows, features}),
                   Random({vocabulary, features}, at::kFloat),
                   rows_of.source,
                   rows_of.tokens,
                   rows_of.order};
  };
  bench.Time({"rows embedded" + size, 4 * n, 0, with_items, [](const Tensors& t) {
                return Tensors{EmbedRows(t[0], 0, {.source = t[4]}, t[1], {})};
              }});
  bench.Time({"rows of text added to fp32" + size, 20 * n / 3, 0, with_items, [](const Tensors& t) {
                AddTokenRows(t[3], 0, t[5], t[6], t[2]);
                return Tensors{};
              }});
  bench.Time({"rows scattered, distinct" + size, 6 * n, 0, make, [](const Tensors& t) {
                ScatterRows(t[0], t[4], t[2]);
                return Tensors{};
              }});
}

void ColumnSums(Bench& bench, int64_t rows, int64_t features) {
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  bench.Time({"column sums" + size, 2 * static_cast<double>(rows * features), 0,
              [=] {
                return Tensors{Random({rows, features}), Random({features}, at::kFloat)};
              },
              [](const Tensors& t) {
                AddColumnSums(t[1], t[0]);
                return Tensors{};
              }});
}

// What weight_work.cc does with a product, beside a product and a sum of its own. Bytes are those
// of what is added to.
void WeightProducts(Bench& bench, int64_t rows, int64_t outputs, int64_t inputs) {
  const std::string size = " [" + std::to_string(outputs) + " x " + std::to_string(inputs) +
                           "] over " + std::to_string(rows) + " rows";
  const double bytes = 4 * static_cast<double>(outputs * inputs);
  const auto make = [=] {
    return Tensors{Random({rows, outputs}), Random({rows, inputs}),
                   Random({outputs, inputs}, at::kFloat)};
  };
  bench.Time({"weight gradient written" + size, bytes, 0, make, [](const Tensors& t) {
                at::Tensor sum = t[2];
                at::mm_out(sum, t[0].t(), t[1], at::kFloat);
                return Tensors{};
              }});
  bench.Time({"weight gradient added in the product" + size, bytes, 0, make, [](const Tensors& t) {
                at::Tensor sum = t[2];
                at::addmm_out(sum, t[2], t[0].t(), t[1], at::kFloat);
                return Tensors{};
              }});
  bench.Time({"weight gradient, product and sum" + size, bytes, 0, make, [](const Tensors& t) {
                t[2].add_(at::mm(t[0].t(), t[1], at::kFloat));
                return Tensors{};
              }});
}

// As many runs as a bucket of some layers has.
train::RunTable RunsOf(int64_t elements) {
  train::RunTable table;
  const int64_t count = elements / 64;
  for (int64_t at = 0; at < elements; at += count) {
    table.run[table.runs++] = {at, at, count, table.tiles, table.runs % 3 > 0};
    table.tiles += static_cast<int32_t>((count + train::kTile - 1) / train::kTile);
  }
  return table;
}

void Optimizers(Bench& bench, int64_t elements) {
  const double n = static_cast<double>(elements);
  const auto stream = [] { return c10::cuda::getCurrentCUDAStream().stream(); };
  const train::RunTable runs = RunsOf(elements);
  const auto make = [=] {
    const train::Decision decision{
        .step = 5, .verdict = train::Verdict::kCommitted, .gradient_scale = 1};
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof decision)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &decision, sizeof decision);
    return Tensors{Random({elements}, at::kFloat),
                   Random({elements}, at::kFloat),
                   Random({elements}, at::kFloat),
                   Random({elements}, at::kFloat).square(),
                   Random({elements}),
                   bytes.cuda(),
                   at::zeros({train::kNormBlocks}, at::TensorOptions(at::kCUDA).dtype(at::kDouble)),
                   at::zeros({1}, at::TensorOptions(at::kCUDA).dtype(at::kDouble))};
  };
  const train::AdamWFactors factors{0.9f, 0.1f, 0.95f, 0.05f, 3.7f, 7.0f, 1e-4f, 1e-8f, 0.1f};
  for (const bool bf16 : {false, true}) {
    bench.Time({bf16 ? "AdamW, bf16 weights, 2^28 elements in 64 runs" : "AdamW, fp32, 2^28 in 64",
                (bf16 ? 30 : 28) * n, bf16 ? 2.44 : 2.22, make, [=](const Tensors& t) {
                  train::AdamWBuffers buffers{};
                  buffers.gradients = t[0].const_data_ptr<float>();
                  (bf16 ? buffers.master : buffers.weights_fp32) = t[1].mutable_data_ptr<float>();
                  buffers.first = t[2].mutable_data_ptr<float>();
                  buffers.second = t[3].mutable_data_ptr<float>();
                  if (bf16)
                    buffers.weights_bf16 = static_cast<__nv_bfloat16*>(t[4].mutable_data_ptr());
                  train::LaunchAdamW(buffers, runs, factors,
                                     static_cast<const train::Decision*>(t[5].const_data_ptr()), 5,
                                     stream());
                  return Tensors{};
                }});
  }
  bench.Time({"squared norm, fp32, 2^28 in 64", 4 * n, 0.33, make, [=](const Tensors& t) {
                train::LaunchSquaredNormPartials(t[0].const_data_ptr<float>(), runs,
                                                 t[6].mutable_data_ptr<double>(), stream());
                train::LaunchSumPartials(t[6].const_data_ptr<double>(), train::kNormBlocks,
                                         t[7].mutable_data_ptr<double>(), stream());
                return Tensors{};
              }});
}

}  // namespace

void RunBench(const char* pattern) {
  at::globalContext().lazyInitDevice(at::kCUDA);
  Bench bench(pattern);
  Norms(bench, 16384, 4096, {0.072, 0.107, 0.132});
  LayerNorms(bench, 9216, 1024, {0.013, 0.024});
  Rotations(bench, 4, 4096, 32, 8, 128, {0.159, 0.165});
  Heads(bench, 4, 4096, 32, 8, 128);
  SwiGlus(bench, 16384, 14336, 128, {0.322, 0.543});
  Gelus(bench, GeluKind::kQuick, "quick-GELU", 9216, 4096, {0.045, 0.054});
  Gelus(bench, GeluKind::kErf, "GELU", 9216, 4096, {0, 0});
  Gelus(bench, GeluKind::kTanh, "GELU (tanh)", 9216, 4096, {0, 0});
  ColumnSums(bench, 9216, 3072);
  Losses(bench, 16384, 128256);
  Losses(bench, 7168, 128256);
  Rows(bench, 16384, 4096, 128256);
  Optimizers(bench, int64_t{1} << 28);
  WeightProducts(bench, 16384, 4096, 4096);
  WeightProducts(bench, 16384, 28672, 4096);
  WeightProducts(bench, 16384, 2048, 2048);
  WeightProducts(bench, 9216, 4096, 1024);
  std::printf("other shapes\n");
  for (const int64_t features : {2048, 2560, 3000, 4100, 5120, 8192})
    Norms(bench, 16384, features, {0, 0, 0});
  LayerNorms(bench, 11664, 1152, {0, 0});
  Rotations(bench, 4, 4096, 32, 8, 64, {0, 0});
  Rotations(bench, 4, 4096, 32, 8, 80, {0, 0});
  SwiGlus(bench, 16384, 5504, 32, {0, 0});
  SwiGlus(bench, 16384, 9000, 250, {0, 0});
  for (const int64_t vocabulary : {32000, 50257, 151936, 262144}) Losses(bench, 4096, vocabulary);
}

}  // namespace phalanx::model

int main(int argc, char** argv) {
  if (c10::cuda::device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  if (argc > 1 && std::string(argv[1]) == "--races")
    return phalanx::bench::RunLibraryRaces(argc > 2 ? argv[2] : "") ? 0 : 1;
  phalanx::model::RunBench(argc > 1 ? argv[1] : "");
  return 0;
}

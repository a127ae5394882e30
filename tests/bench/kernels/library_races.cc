#include "tests/bench/kernels/library_races.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/cuda_fp8.h"
#include "worker/model/kernels.h"
#include "worker/model/token_rows.h"
#include "worker/train/packed_runs.h"
#include "worker/train/step_kernels.cuh"

namespace phalanx::bench {
namespace {

using Tensors = std::vector<at::Tensor>;
using Body = std::function<Tensors(const Tensors&)>;

constexpr int kRaceRounds = 3;
constexpr double kSlowerMax = 1.05;
constexpr double kNoTime = 1e9;

at::Tensor Normal(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) {
  return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(type));
}

std::string Sized(const std::string& name, int64_t rows, int64_t features) {
  return name + " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
}

class LibraryRaces {
 public:
  explicit LibraryRaces(std::string pattern) : pattern_(std::move(pattern)) {
    std::printf("%-58s %9s %9s %7s\n", "ours beside LibTorch's, cold, milliseconds", "ours",
                "theirs", "ratio");
  }

  void Race(const std::string& name, const std::function<Tensors()>& make, const Body& ours,
            const Body& theirs) {
    if (name.find(pattern_) == std::string::npos) return;
    ++races_;
    double times[2] = {kNoTime, kNoTime};
    try {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
      const Tensors sets[2] = {make(), make()};
      for (int round = 0; round < kRaceRounds; ++round) {
        for (const int who : {round % 2, 1 - round % 2})
          times[who] = std::min(times[who], Cold(who == 0 ? ours : theirs, sets[who]));
      }
    } catch (const std::exception& error) {
      std::printf("%-58s failed: %.200s\n", name.c_str(), error.what());
      slower_.push_back(name);
      return;
    }
    c10::cuda::CUDACachingAllocator::emptyCache();
    const double ratio = times[0] / times[1];
    if (ratio > slowest_) slowest_ = ratio, slowest_name_ = name;
    if (ratio > kSlowerMax) slower_.push_back(name);
    std::printf("%-58s %9.4f %9.4f %7.3f%s\n", name.c_str(), times[0], times[1], ratio,
                ratio > kSlowerMax ? " SLOWER" : "");
    std::fflush(stdout);
  }

  bool Tell() const {
    std::string names;
    for (const std::string& name : slower_)
      names += std::string(names.empty() ? "" : ", ") + "\"" + name + "\"";
    std::printf("{\"races\": %d, \"slower\": [%s], \"slowest\": [%.3f, \"%s\"], \"limit\": %.2f}\n",
                races_, names.c_str(), slowest_, slowest_name_.c_str(), kSlowerMax);
    return slower_.empty();
  }

 private:
  double Cold(const Body& body, const Tensors& set) {
    std::vector<double> times;
    for (int i = 0; i < 26; ++i) {
      at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
      for (int pass = 0; pass < 3; ++pass) flush_.sum();
      begin.record();
      const Tensors kept = body(set);
      end.record();
      end.synchronize();
      if (i >= 6) times.push_back(begin.elapsed_time(end));
    }
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return times[10];
  }

  const std::string pattern_;
  // 1 GiB: three reads take so long that the host has enqueued all of a body behind them.
  const at::Tensor flush_ = at::zeros({int64_t{1} << 28}, at::TensorOptions(at::kCUDA));
  int races_ = 0;
  double slowest_ = 0;
  std::string slowest_name_;
  std::vector<std::string> slower_;
};

void RmsNorms(LibraryRaces& races, int64_t rows, int64_t features) {
  const auto make = [=] {
    return Tensors{Normal({rows, features}), Normal({rows, features}), Normal({features}),
                   at::rand({rows, 1}, at::TensorOptions(at::kCUDA))};
  };
  races.Race(
      Sized("RMSNorm", rows, features), make,
      [](const Tensors& t) {
        const model::RmsNormed normed = model::RmsNorm(t[0], t[2], 1e-5);
        return Tensors{normed.y, normed.rstd};
      },
      [=](const Tensors& t) {
        auto [y, rstd] = at::_fused_rms_norm(t[0], {features}, t[2], 1e-5);
        return Tensors{y, rstd};
      });
  races.Race(
      Sized("RMSNorm backward", rows, features), make,
      [](const Tensors& t) {
        const model::NormGradient g = model::RmsNormBackward(t[1], t[0], t[3], t[2], {});
        return Tensors{g.x, g.weight};
      },
      [=](const Tensors& t) {
        auto [x, weight] =
            at::_fused_rms_norm_backward(t[1], t[0], {features}, t[3], t[2], {true, true});
        return Tensors{x, weight};
      });
}

// Into the branch, in place, on either side.
void ResidualNorms(LibraryRaces& races, int64_t rows, int64_t features) {
  const auto make = [=] {
    return Tensors{Normal({rows, features}), Normal({rows, features}), Normal({features}),
                   Normal({features})};
  };
  races.Race(
      Sized("residual + RMSNorm", rows, features), make,
      [](const Tensors& t) {
        const model::RmsNormed normed = model::AddRmsNorm(t[0], t[1], t[2], 1e-5);
        return Tensors{normed.y, normed.rstd};
      },
      [=](const Tensors& t) {
        auto [y, rstd] = at::_fused_rms_norm(t[1].add_(t[0]), {features}, t[2], 1e-5);
        return Tensors{y, rstd};
      });
  races.Race(
      Sized("bias + residual + LayerNorm", rows, features), make,
      [](const Tensors& t) {
        const model::LayerNormed normed = model::AddLayerNorm(t[0], t[1], t[2], t[2], t[3], 1e-5);
        return Tensors{normed.y, normed.mean, normed.rstd};
      },
      [=](const Tensors& t) {
        t[1].add_(t[2]).add_(t[0]);
        auto [y, mean, rstd] = at::native_layer_norm(t[1], {features}, t[2], t[3], 1e-5);
        return Tensors{y, mean, rstd};
      });
}

void LayerNorms(LibraryRaces& races, int64_t rows, int64_t features) {
  const auto make = [=] {
    return Tensors{Normal({rows, features}),
                   Normal({rows, features}),
                   Normal({features}),
                   Normal({features}),
                   at::rand({rows, 1}, at::TensorOptions(at::kCUDA)),
                   at::rand({rows, 1}, at::TensorOptions(at::kCUDA))};
  };
  races.Race(
      Sized("LayerNorm", rows, features), make,
      [](const Tensors& t) {
        const model::LayerNormed normed = model::LayerNorm(t[0], t[2], t[3], 1e-5);
        return Tensors{normed.y, normed.mean, normed.rstd};
      },
      [=](const Tensors& t) {
        auto [y, mean, rstd] = at::native_layer_norm(t[0], {features}, t[2], t[3], 1e-5);
        return Tensors{y, mean, rstd};
      });
  races.Race(
      Sized("LayerNorm backward", rows, features), make,
      [](const Tensors& t) {
        const model::NormGradient g =
            model::LayerNormBackward(t[1], t[0], {{}, t[4], t[5]}, t[2], t[3], {});
        return Tensors{g.x, g.weight, g.bias};
      },
      [=](const Tensors& t) {
        auto [x, weight, bias] = at::native_layer_norm_backward(t[1], t[0], {features}, t[4], t[5],
                                                                t[2], t[3], {true, true, true});
        return Tensors{x, weight, bias};
      });
}

void GeluRaces(LibraryRaces& races, int64_t rows, int64_t features) {
  const auto make = [=] { return Tensors{Normal({rows, features}), Normal({rows, features})}; };
  for (const bool tanh : {false, true}) {
    const model::GeluKind kind = tanh ? model::GeluKind::kTanh : model::GeluKind::kErf;
    const char* theirs = tanh ? "tanh" : "none";
    const std::string name = tanh ? "GELU (tanh)" : "GELU";
    races.Race(
        Sized(name, rows, features), make,
        [=](const Tensors& t) { return Tensors{model::Gelu(kind, t[0])}; },
        [=](const Tensors& t) { return Tensors{at::gelu(t[0], theirs)}; });
    for (const bool sums : {false, true}) {
      races.Race(
          Sized(name + (sums ? " backward with bias" : " backward"), rows, features), make,
          [=](const Tensors& t) {
            const model::GeluGradient g = model::GeluBackward(kind, t[1], t[0], sums);
            return Tensors{g.x, g.sum};
          },
          [=](const Tensors& t) {
            const at::Tensor x = at::gelu_backward(t[1], t[0], theirs);
            return sums ? Tensors{x, at::sum(x, {0}, false, at::kFloat)} : Tensors{x};
          });
    }
  }
}

// Gate and up in blocks side by side in ours, each a tensor of its own in theirs.
void SwiGlus(LibraryRaces& races, int64_t rows, int64_t features, int64_t block) {
  const auto make = [=] {
    return Tensors{Normal({rows, 2 * features}), Normal({rows, features}), Normal({rows, features}),
                   Normal({rows, features})};
  };
  races.Race(
      Sized("SwiGLU", rows, 2 * features), make,
      [=](const Tensors& t) { return Tensors{model::SwiGlu(t[0], block)}; },
      [](const Tensors& t) { return Tensors{at::silu(t[1]).mul_(t[2])}; });
  races.Race(
      Sized("SwiGLU backward", rows, 2 * features), make,
      [=](const Tensors& t) { return Tensors{model::SwiGluBackward(t[3], t[0], block)}; },
      [](const Tensors& t) {
        return Tensors{at::silu_backward(t[3] * t[2], t[1]), at::silu(t[1]).mul_(t[3])};
      });
}

// Theirs as PyTorch's users write it, into another tensor.
void Rotations(LibraryRaces& races, int64_t batch, int64_t length, int64_t heads, int64_t size) {
  races.Race(
      Sized("RoPE", batch * length, heads * size),
      [=] {
        const at::Tensor angles =
            at::rand({length, size / 2}, at::TensorOptions(at::kCUDA)).mul_(6);
        return Tensors{Normal({batch, length, heads, size}), angles.cos(), angles.sin(),
                       angles.cos().to(at::kBFloat16).unsqueeze(1),
                       angles.sin().to(at::kBFloat16).unsqueeze(1)};
      },
      [=](const Tensors& t) {
        model::Rotate(t[0], heads, t[1], t[2], /*inverse=*/false);
        return Tensors{};
      },
      [](const Tensors& t) {
        const Tensors halves = t[0].chunk(2, -1);
        return Tensors{at::cat(
            {halves[0] * t[3] - halves[1] * t[4], halves[1] * t[3] + halves[0] * t[4]}, -1)};
      });
}

// With the largest magnitude and both forms.
void Casts(LibraryRaces& races, int64_t rows, int64_t features) {
  const at::TensorOptions there(at::kCUDA);
  const auto make = [=] {
    return Tensors{Normal({rows, features}), at::zeros({1}, there.dtype(at::kInt)),
                   at::empty({rows, features}, there.dtype(at::kByte)),
                   at::empty({features, rows}, there.dtype(at::kByte)), at::empty({1}, there)};
  };
  races.Race(
      Sized("cast to FP8, both forms", rows, features), make,
      [=](const Tensors& t) {
        const auto stream = c10::cuda::getCurrentCUDAStream().stream();
        auto* largest = static_cast<uint32_t*>(t[1].mutable_data_ptr());
        model::cuda::Largest(rows * features, t[0].const_data_ptr(), largest, stream);
        model::cuda::CastArguments arguments{};
        arguments.rows = arguments.padded = rows;
        arguments.features = features;
        arguments.x = t[0].const_data_ptr();
        arguments.largest = largest;
        arguments.straight = t[2].mutable_data_ptr();
        arguments.transposed = t[3].mutable_data_ptr();
        arguments.scale = t[4].mutable_data_ptr<float>();
        model::cuda::Cast(model::cuda::Fp8::kE4M3, arguments, stream);
        return Tensors{};
      },
      [](const Tensors& t) {
        const at::Tensor scale = 448 / t[0].abs().amax();
        const at::Tensor cast = (t[0] * scale).to(at::kFloat8_e4m3fn);
        return Tensors{cast, cast.t().contiguous(), scale};
      });
}

// What ranks exchange: runs of a flat buffer.
void Runs(LibraryRaces& races, int64_t runs, int64_t each) {
  std::vector<plan::UnitRange> ranges;
  for (int64_t run = 0; run < runs; ++run) ranges.push_back({2 * run * each, each});
  const auto packed = std::make_shared<train::PackedRuns>(
      ranges, at::Device(at::kCUDA, c10::cuda::current_device()));
  const auto make = [=] { return Tensors{Normal({2 * runs * each}), Normal({runs * each})}; };
  const auto pieces = [=](const at::Tensor& of, int64_t apart) {
    Tensors all;
    for (int64_t run = 0; run < runs; ++run) all.push_back(of.narrow(0, run * apart, each));
    return all;
  };
  const std::string size = " of bf16, " + std::to_string(runs) + " x " + std::to_string(each);
  races.Race(
      "runs packed" + size, make,
      [=](const Tensors& t) {
        packed->Pack(t[0], t[1]);
        return Tensors{};
      },
      [=](const Tensors& t) {
        at::_foreach_copy_(pieces(t[1], each), pieces(t[0], 2 * each));
        return Tensors{};
      });
}

// Theirs in bf16 throughout, which is its fastest.
void Losses(LibraryRaces& races, int64_t rows, int64_t vocabulary) {
  const at::TensorOptions there(at::kCUDA);
  const auto make = [=] {
    return Tensors{Normal({rows, vocabulary}),
                   at::randint(vocabulary, {rows}, there.dtype(at::kLong)), at::ones({rows}, there),
                   at::ones({}, there.dtype(at::kBFloat16))};
  };
  for (const bool gradient : {true, false}) {
    races.Race(
        Sized(gradient ? "cross-entropy with gradient" : "cross-entropy, loss alone", rows,
              vocabulary),
        make,
        [=](const Tensors& t) {
          return Tensors{model::WholeCrossEntropy(t[0], t[1], t[2], gradient)};
        },
        [=](const Tensors& t) {
          constexpr int64_t kIgnored = -100;
          const at::Tensor logs = at::_log_softmax(t[0], 1, /*half_to_float=*/false);
          const auto [loss, weight] =
              at::nll_loss_forward(logs, t[1], {}, at::Reduction::Sum, kIgnored);
          if (!gradient) return Tensors{loss};
          const at::Tensor of_logs =
              at::nll_loss_backward(t[3], logs, t[1], {}, at::Reduction::Sum, kIgnored, weight);
          return Tensors{loss, at::_log_softmax_backward_data(of_logs, logs, 1, at::kBFloat16)};
        });
  }
}

// Rows of text and, a third of them, of items. Theirs has to be told the rows as masks and indices,
// which are made beforehand as ours are.
void Embeddings(LibraryRaces& races, int64_t rows, int64_t features, int64_t vocabulary) {
  const auto make = [=] {
    const at::Tensor tokens = at::randint(vocabulary, {rows}, at::kLong);
    const at::Tensor at_items =
        std::get<0>(at::randperm(rows, at::kLong).narrow(0, 0, rows / 3).sort());
    const model::TokenRows of = model::MakeTokenRows(tokens, at_items, at::kCUDA);
    return Tensors{Normal({vocabulary, features}),
                   Normal({rows / 3, features}),
                   Normal({rows, features}),
                   Normal({vocabulary, features}, at::kFloat),
                   of.source,
                   of.tokens,
                   of.order,
                   tokens.cuda(),
                   at_items.cuda(),
                   of.tokens.to(at::kLong)};
  };
  races.Race(
      Sized("rows embedded", rows, features), make,
      [](const Tensors& t) {
        return Tensors{model::EmbedRows(t[0], 0, {.source = t[4]}, t[1], {})};
      },
      [](const Tensors& t) {
        const at::Tensor y = at::index_select(t[0], 0, t[7]);
        y.index_copy_(0, t[8], t[1]);
        return Tensors{y};
      });
  races.Race(
      Sized("rows of text added to fp32", rows, features), make,
      [](const Tensors& t) {
        model::AddTokenRows(t[3], 0, t[5], t[6], t[2]);
        return Tensors{};
      },
      [](const Tensors& t) {
        t[3].index_add_(0, t[9], at::index_select(t[2], 0, t[6]).to(at::kFloat));
        return Tensors{};
      });
  races.Race(
      Sized("rows taken", rows, features), make,
      [](const Tensors& t) { return Tensors{model::TakeRows(t[0], t[7], {})}; },
      [](const Tensors& t) { return Tensors{at::index_select(t[0], 0, t[7])}; });
}

void ColumnSums(LibraryRaces& races, int64_t rows, int64_t features) {
  races.Race(
      Sized("column sums", rows, features),
      [=] {
        return Tensors{Normal({rows, features}), Normal({features}, at::kFloat)};
      },
      [](const Tensors& t) {
        model::AddColumnSums(t[1], t[0]);
        return Tensors{};
      },
      [](const Tensors& t) {
        t[1].add_(at::sum(t[0], {0}, false, at::kFloat));
        return Tensors{};
      });
}

void Optimizers(LibraryRaces& races, int64_t elements) {
  constexpr int64_t kRuns = 64;
  train::RunTable runs;
  for (int64_t run = 0; run < kRuns; ++run) {
    const int64_t count = elements / kRuns, at = run * count;
    runs.run[runs.runs++] = {at, at, count, runs.tiles, true};
    runs.tiles += static_cast<int32_t>((count + train::kTile - 1) / train::kTile);
  }
  const auto make = [=] {
    const train::Decision decision{
        .step = 5, .verdict = train::Verdict::kCommitted, .gradient_scale = 1};
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof decision)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &decision, sizeof decision);
    const at::TensorOptions there(at::kCUDA);
    return Tensors{Normal({elements}, at::kFloat),
                   Normal({elements}, at::kFloat),
                   Normal({elements}, at::kFloat),
                   Normal({elements}, at::kFloat).square(),
                   bytes.cuda(),
                   at::zeros({train::kNormBlocks + 1}, there.dtype(at::kDouble)),
                   at::ones({}, there)};
  };
  const auto stream = [] { return c10::cuda::getCurrentCUDAStream().stream(); };
  const std::string size = ", fp32, " + std::to_string(elements) + " in 64 runs";
  races.Race(
      "AdamW" + size, make,
      [=](const Tensors& t) {
        const train::AdamWFactors factors{0.9f, 0.1f, 0.95f, 0.05f, 3.7f, 7.0f, 1e-4f, 1e-8f, 0.1f};
        train::AdamWBuffers buffers{};
        buffers.gradients = t[0].const_data_ptr<float>();
        buffers.weights_fp32 = t[1].mutable_data_ptr<float>();
        buffers.first = t[2].mutable_data_ptr<float>();
        buffers.second = t[3].mutable_data_ptr<float>();
        train::LaunchAdamW(buffers, runs, factors,
                           static_cast<const train::Decision*>(t[4].const_data_ptr()), 5, stream());
        return Tensors{};
      },
      [=](const Tensors& t) {
        const auto parts = [=](const at::Tensor& of) { return of.chunk(kRuns); };
        at::_fused_adamw_(parts(t[1]), parts(t[0]), parts(t[2]), parts(t[3]), {},
                          Tensors(kRuns, t[6]), 1e-4, 0.9, 0.95, 0.1, 1e-8, /*amsgrad=*/false,
                          /*maximize=*/false);
        return Tensors{};
      });
  races.Race(
      "squared norm" + size, make,
      [=](const Tensors& t) {
        double* partials = t[5].mutable_data_ptr<double>();
        train::LaunchSquaredNormPartials(t[0].const_data_ptr<float>(), runs, partials, stream());
        train::LaunchSumPartials(partials, train::kNormBlocks, partials + train::kNormBlocks,
                                 stream());
        return Tensors{};
      },
      [](const Tensors& t) { return Tensors{at::linalg_vector_norm(t[0])}; });
}

}  // namespace

bool RunLibraryRaces(const std::string& pattern) {
  LibraryRaces races(pattern);
  LayerNorms(races, 9216, 1024);
  LayerNorms(races, 5832, 1152);
  for (const int64_t features : {int64_t{2048}, int64_t{4096}}) RmsNorms(races, 16384, features);
  ResidualNorms(races, 16384, 4096);
  SwiGlus(races, 16384, 14336, 128);
  Rotations(races, 4, 4096, 40, 128);
  GeluRaces(races, 9216, 4096);
  for (const int64_t features : {int64_t{4096}, int64_t{14336}}) Casts(races, 16384, features);
  Runs(races, 64, int64_t{1} << 20);
  ColumnSums(races, 9216, 3072);
  Losses(races, 7168, 128256);
  Losses(races, 4096, 32000);
  Embeddings(races, 16384, 4096, 128256);
  Optimizers(races, int64_t{1} << 28);
  return races.Tell();
}

}  // namespace phalanx::bench

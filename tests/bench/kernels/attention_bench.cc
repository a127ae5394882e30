// phalanx-bench-attention: attention by cuDNN beside flash attention, both through ATen on views
// into one matrix, and how long cuDNN takes to plan a shape (its first call's time on the host);
// and what flash attention's backward pass takes where its sums have one order, as a job has it
// with `precision: {deterministic: true}`.
//
// Times are of calls without pause for half a second, in the order cuDNN, flash, flash, cuDNN. "of
// both": both passes so, beside those of cuDNN.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/version.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <tuple>

#include "worker/model/cudnn_attention.h"
#include "worker/model/one_order.h"

namespace phalanx::model {
namespace {

constexpr double kSeconds = 0.5;

struct Shape {
  int64_t batch, length, queries, keys, head_size;
  bool causal;
};

double HostMilliseconds(const std::function<void()>& body) {
  c10::cuda::device_synchronize();
  const auto begin = std::chrono::steady_clock::now();
  body();
  c10::cuda::device_synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double KeptUp(const std::function<void()>& body) {
  for (int i = 0; i < 5; ++i) body();
  double milliseconds = 0;
  int64_t rounds = 0;
  for (int64_t count = 20; milliseconds < 1e3 * kSeconds; count *= 2) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    for (int64_t i = 0; i < count; ++i) body();
    end.record();
    end.synchronize();
    milliseconds = begin.elapsed_time(end);
    rounds = count;
  }
  return milliseconds / static_cast<double>(rounds);
}

void Compare(const Shape& shape) {
  const at::TensorOptions bf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const int64_t heads = shape.queries + 2 * shape.keys;
  const at::Tensor all =
      at::randn({shape.batch, shape.length, heads, shape.head_size}, bf16).transpose(1, 2);
  const at::Tensor query = all.narrow(1, 0, shape.queries),
                   key = all.narrow(1, shape.queries, shape.keys),
                   value = all.narrow(1, shape.queries + shape.keys, shape.keys);
  const at::Tensor upstream =
      at::randn({shape.batch, shape.length, shape.queries, shape.head_size}, bf16).transpose(1, 2);
  const std::string name = std::to_string(shape.batch) + " x " + std::to_string(shape.length) +
                           ", " + std::to_string(shape.queries) + "/" + std::to_string(shape.keys) +
                           " heads of " + std::to_string(shape.head_size) +
                           (shape.causal ? ", causal" : "");
  CudnnAttended attended;
  const std::function<void()> cudnn = [&] {
    attended = CudnnAttention(query, key, value, shape.causal);
  };
  const std::function<void()> cudnn_back = [&] {
    CudnnAttentionBackward(upstream, query, key, value, attended, shape.causal);
  };
  double first = 0, first_back = 0;
  try {
    first = HostMilliseconds(cudnn);
    first_back = HostMilliseconds(cudnn_back);
  } catch (const c10::Error& error) {
    std::printf("%-40s cuDNN: %s\n", name.c_str(), error.what_without_backtrace());
    return;
  }
  auto flashed = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, shape.causal);
  const std::function<void()> flash = [&] {
    flashed = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, shape.causal);
  };
  const std::function<void()> flash_back = [&] {
    at::_scaled_dot_product_flash_attention_backward(
        upstream, query, key, value, std::get<0>(flashed), std::get<1>(flashed), {}, {},
        shape.length, shape.length, 0.0, shape.causal, std::get<6>(flashed), std::get<7>(flashed));
  };
  const std::function<void()> ordered_back = [&] {
    const OneOrder order(true);
    flash_back();
  };
  double ordered = 0;
  std::array<double, 4> times{};  // cuDNN, flash; cuDNN backward, flash backward
  for (const bool again : {false, true}) {
    for (const size_t at : {again ? 1 : 0, again ? 0 : 1}) {
      times[at] += KeptUp(at == 0 ? cudnn : flash) / 2;
      times[at + 2] += KeptUp(at == 0 ? cudnn_back : flash_back) / 2;
    }
    ordered += KeptUp(ordered_back) / 2;
  }
  const double pairs = static_cast<double>(shape.batch * shape.queries) *
                       static_cast<double>(shape.length * shape.length) / (shape.causal ? 2 : 1);
  const double flops = 4 * pairs * static_cast<double>(shape.head_size);
  std::printf(
      "%-40s %7.3f %7.3f %5.2f %8.3f %7.3f %5.2f %8.3f %5.2f %7.2f %7.0f %7.0f %8.0f %7.0f\n",
      name.c_str(), times[0], times[1], times[1] / times[0], times[2], times[3],
      times[3] / times[2], ordered, ordered / times[3],
      (times[1] + ordered) / (times[0] + times[2]), flops / times[0] / 1e9,
      2.5 * flops / times[2] / 1e9, first, first_back);
  std::fflush(stdout);
}

}  // namespace

void RunBench() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  std::printf("torch %s, cuDNN %ld; milliseconds\n", TORCH_VERSION,
              at::detail::getCUDAHooks().versionRuntimeCuDNN());
  std::printf("%-40s %7s %7s %5s %8s %7s %5s %8s %5s %7s %7s %7s %8s %7s\n", "shape", "forward",
              "flash", "x", "backward", "flash", "x", "in order", "x", "of both", "TFLOP/s", "back",
              "1st call", "back");
  for (const Shape& shape : {Shape{4, 4096, 32, 8, 128, true},
                             {4, 4096, 32, 8, 128, true},
                             {3, 4096, 32, 8, 128, true},
                             {8, 4096, 32, 8, 64, true},
                             {16, 576, 16, 16, 64, false},
                             {32, 576, 16, 16, 64, false},
                             {16, 729, 16, 16, 72, false},
                             {4, 1500, 16, 16, 64, false},
                             {4, 4096, 32, 8, 96, true},
                             {4, 4096, 32, 8, 80, true},
                             {1, 32768, 32, 8, 128, true},
                             {8, 512, 32, 8, 128, true},
                             {8, 512, 32, 8, 64, true},
                             {2, 2047, 32, 8, 128, true}}) {
    Compare(shape);
  }
}

}  // namespace phalanx::model

int main() {
  if (c10::cuda::device_count() == 0) {
    std::puts("no GPU here");
    return 0;
  }
  phalanx::model::RunBench();
  return 0;
}

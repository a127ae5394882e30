// Our CUDA kernels and Transformer Engine's for the same jobs, as race.cuh times them.
// scripts/gpu/yardstick builds and runs it; no other program links that library. What it has
// nothing for (cross-entropy, rows of embeddings, column sums) is raced in library_races.h.
#include <cuda_runtime.h>
#include <transformer_engine/activation.h>
#include <transformer_engine/cast.h>
#include <transformer_engine/fused_rope.h>
#include <transformer_engine/multi_tensor.h>
#include <transformer_engine/normalization.h>
#include <transformer_engine/recipe.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/kernels/race.cuh"
#include "worker/model/cuda_fp8.h"
#include "worker/model/cuda_kernels.h"
#include "worker/train/step_kernels.cuh"

namespace phalanx::model::cuda {
namespace {

using bench::Bf16;
using bench::Check;
using bench::Race;
using bench::Random;
using bench::Run;
using bench::Sets;
using bench::SetsOf;
using bench::stream;
using transformer_engine::DType;
using transformer_engine::TensorWrapper;

int multiprocessors;

TensorWrapper Wrap(const Bf16* values, std::vector<size_t> shape) {
  return TensorWrapper(const_cast<Bf16*>(values), shape, DType::kBFloat16);
}
TensorWrapper Wrap(const float* values, std::vector<size_t> shape) {
  return TensorWrapper(const_cast<float*>(values), shape, DType::kFloat32);
}
// Calls that only say how much room they need when they get none.
template <typename Call>
Run WithWorkspace(const Call& call) {
  TensorWrapper empty;
  call(0, empty.data());
  const NVTEShape shape = empty.shape();
  size_t bytes = 4;
  for (size_t i = 0; i < shape.ndim; ++i) bytes *= shape.data[i];
  void* room;
  Check(cudaMalloc(&room, bytes));
  auto* workspace = new TensorWrapper(room, shape, empty.dtype());
  return [=](int i) { call(i, workspace->data()); };
}

void Norms(int64_t rows, int64_t features, bool layer) {
  const size_t r = rows, f = features, n = r * f;
  const int sets = SetsOf(4.0 * n);
  const auto x = Sets(sets, n), dy = Sets(sets, n), added = Sets(sets, n), y = Sets(sets, n),
             their_y = Sets(sets, n);
  const Bf16 *weight = Random(f), *bias = Random(f);
  Bf16 *dweight = Random(f), *dbias = Random(f);
  float *mean = Random<float>(r), *rstd = Random<float>(r), *sums = Random<float>(2 * f);
  float* partials = Random<float>(NormPartials(rows) * 2 * f);
  const auto rows_of = [=](const Bf16* of) { return Wrap(of, {r, f}); };
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  const std::string name = layer ? "LayerNorm" : "RMSNorm";
  const Run forward = [=](int i) {
    NormArguments a{};
    a.rows = rows, a.features = features, a.x = x[i], a.weight = weight, a.epsilon = 1e-5f;
    a.y = y[i], a.rstd = rstd;
    if (layer) a.bias = bias, a.mean = mean;
    Norm(Type::kBf16, a, stream);
  };
  const Run their_forward = WithWorkspace([=](int i, NVTETensor workspace) {
    const auto in = rows_of(x[i]), out = rows_of(their_y[i]), w = Wrap(weight, {f}),
               b = Wrap(bias, {f}), m = Wrap(mean, {r}), s = Wrap(rstd, {r});
    if (layer) {
      nvte_layernorm_fwd(in.data(), w.data(), b.data(), 1e-5f, out.data(), m.data(), s.data(),
                         workspace, multiprocessors, false, stream);
    } else {
      nvte_rmsnorm_fwd(in.data(), w.data(), 1e-5f, out.data(), s.data(), workspace, multiprocessors,
                       false, stream);
    }
  });
  Race({name + size, 4.0 * n, forward, their_forward, y[0], their_y[0]});
  for (const bool adds : {false, true}) {
    const Run backward = [=](int i) {
      NormBackwardArguments a{};
      a.rows = rows, a.features = features, a.output_gradient = dy[i], a.x = x[i], a.rstd = rstd;
      a.mean = layer ? mean : nullptr, a.weight = weight, a.residual = adds ? added[i] : nullptr;
      a.input_gradient = y[i], a.kinds = layer ? 2 : 1, a.partials = partials, a.sums = sums;
      NormBackward(Type::kBf16, a, stream);
    };
    const Run theirs = WithWorkspace([=](int i, NVTETensor workspace) {
      const auto in = rows_of(x[i]), d = rows_of(dy[i]), out = rows_of(their_y[i]),
                 more = rows_of(added[i]), w = Wrap(weight, {f}), dw = Wrap(dweight, {f}),
                 db = Wrap(dbias, {f}), m = Wrap(mean, {r}), s = Wrap(rstd, {r});
      if (layer) {
        nvte_layernorm_bwd(d.data(), in.data(), m.data(), s.data(), w.data(), out.data(), dw.data(),
                           db.data(), workspace, multiprocessors, false, stream);
      } else if (adds) {
        nvte_rmsnorm_bwd_add(d.data(), in.data(), more.data(), s.data(), w.data(), out.data(),
                             dw.data(), workspace, multiprocessors, false, stream);
      } else {
        nvte_rmsnorm_bwd(d.data(), in.data(), s.data(), w.data(), out.data(), dw.data(), workspace,
                         multiprocessors, false, stream);
      }
    });
    if (layer && adds) {
      Race({name + " backward + residual's" + size, 8.0 * n, backward, nullptr, nullptr, nullptr});
      continue;
    }
    Race({name + " backward" + (adds ? " + residual's" : "") + size, (adds ? 8.0 : 6.0) * n,
          backward, theirs, y[0], their_y[0]});
  }
}

// Their functions of x, and of the output's gradient and x.
using Activation = void (*)(const NVTETensor, NVTETensor, cudaStream_t);
using ActivationGradient = void (*)(const NVTETensor, const NVTETensor, NVTETensor, cudaStream_t);

void Gelus(Gelu kind, const std::string& name, Activation theirs_of, ActivationGradient gradient_of,
           int64_t rows, int64_t features) {
  const size_t r = rows, f = features, n = r * f;
  const int sets = SetsOf(4.0 * n);
  const auto x = Sets(sets, n), dy = Sets(sets, n), y = Sets(sets, n), their_y = Sets(sets, n);
  float *sums = Random<float>(f), *partials = Random<float>(ColumnPartials(rows) * f);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(features) + "]";
  const Run forward = [=](int i) {
    GeluForward(Type::kBf16, kind, rows * features, x[i], y[i], stream);
  };
  const Run their_forward = [=](int i) {
    theirs_of(Wrap(x[i], {r, f}).data(), Wrap(their_y[i], {r, f}).data(), stream);
  };
  Race({name + size, 4.0 * n, forward, their_forward, y[0], their_y[0]});
  const Run theirs = [=](int i) {
    gradient_of(Wrap(dy[i], {r, f}).data(), Wrap(x[i], {r, f}).data(),
                Wrap(their_y[i], {r, f}).data(), stream);
  };
  const auto backward = [=](bool with_sums) {
    return [=](int i) {
      GeluBackward(Type::kBf16, kind, rows, features, dy[i], x[i], y[i],
                   with_sums ? partials : nullptr, with_sums ? sums : nullptr, stream);
    };
  };
  Race({name + " backward" + size, 6.0 * n, backward(false), theirs, y[0], their_y[0]});
  // They sum biases only on the way to FP8; what can follow their kernel is a pass for the sums.
  const Run theirs_and_sums = [=](int i) {
    theirs(i);
    AddColumnSums(Type::kBf16, rows, features, features, their_y[i], partials, sums, stream);
  };
  Race({name + " backward with bias" + size, 6.0 * n, backward(true), theirs_and_sums, y[0],
        their_y[0]});
}

// The gradients of q, k and v, turned back and packed; they pack by groups of heads.
void Heads(int64_t batch, int64_t length, int64_t queries, int64_t keys, int64_t size) {
  const size_t b = batch, l = length, k = keys, d = size, group = queries / keys;
  const int64_t rows = batch * length, heads = queries + 2 * keys;
  const int sets = SetsOf(4.0 * rows * heads * size);
  const auto query = Sets(sets, rows * queries * size), key = Sets(sets, rows * keys * size),
             value = Sets(sets, rows * keys * size), packed = Sets(sets, rows * heads * size);
  const float *cos = Random<float>(length * size / 2), *sin = Random<float>(length * size / 2);
  const float* angles = Random<float>(length * size);
  const auto part = [=](const Bf16* from, int64_t of) {
    return HeadsPart{from, of, length * of * size, of * size, size};
  };
  const Run ours = [=](int i) {
    PackHeadsArguments a{};
    a.rows = rows, a.length = length, a.half = size / 2, a.to = packed[i], a.cos = cos, a.sin = sin;
    a.parts[0] = part(query[i], queries);
    a.parts[1] = part(key[i], keys);
    a.parts[2] = part(value[i], keys);
    PackHeads(Type::kBf16, a, stream);
  };
  const Run theirs = [=](int i) {
    const auto q = Wrap(query[i], {b, l, k * group, d}), ks = Wrap(key[i], {b, l, k, d}),
               v = Wrap(value[i], {b, l, k, d}), to = Wrap(packed[i], {b, l, k, (group + 2) * d}),
               by = Wrap(angles, {l, 1, 1, d});
    const int head = static_cast<int>(d), in_group = static_cast<int>(group) * head;
    nvte_fused_qkv_rope_backward(q.data(), ks.data(), v.data(), by.data(), by.data(), to.data(),
                                 NVTE_BSHD, false, 1, 0, static_cast<int>(l), static_cast<int>(b),
                                 static_cast<int>(k), head, head, in_group, head, head, stream);
  };
  Race({"gradients of q, k, v turned back and packed", 4.0 * rows * heads * size, ours, theirs,
        nullptr, nullptr});
}

// Blocks of gate and up lie side by side in ours, and each in a half of the row in theirs.
void SwiGlus(int64_t rows, int64_t features, int64_t block) {
  const size_t r = rows, f = features, n = r * f;
  const int sets = SetsOf(6.0 * n);
  const auto gate_up = Sets(sets, 2 * n), dy = Sets(sets, n), y = Sets(sets, n),
             gradient = Sets(sets, 2 * n);
  const std::string size = " [" + std::to_string(rows) + " x " + std::to_string(2 * features) + "]";
  const int64_t count = rows * features / block;
  const Run forward = [=](int i) {
    SwiGlu(Type::kBf16, count, block, gate_up[i], y[i], nullptr, stream);
  };
  const Run their_forward = [=](int i) {
    nvte_swiglu(Wrap(gate_up[i], {r, 2 * f}).data(), Wrap(y[i], {r, f}).data(), stream);
  };
  Race({"SwiGLU" + size, 6.0 * n, forward, their_forward, nullptr, nullptr});
  const Run backward = [=](int i) {
    SwiGluBackward(Type::kBf16, count, block, dy[i], gate_up[i], gradient[i], nullptr, {}, stream);
  };
  const Run their_backward = [=](int i) {
    nvte_dswiglu(Wrap(dy[i], {r, f}).data(), Wrap(gate_up[i], {r, 2 * f}).data(),
                 Wrap(gradient[i], {r, 2 * f}).data(), stream);
  };
  Race({"SwiGLU backward" + size, 10.0 * n, backward, their_backward, nullptr, nullptr});
}

// Of queries and keys in the joint matrix: ours turns them in place, theirs writes them elsewhere.
void Rotations(int64_t batch, int64_t length, int64_t queries, int64_t keys, int64_t head_size) {
  const size_t b = batch, l = length, d = head_size, turned = queries + keys;
  const int64_t rows = batch * length, heads = queries + 2 * keys;
  const double bytes = 4.0 * rows * turned * head_size;
  const int sets = SetsOf(bytes);
  const auto joint = Sets(sets, rows * heads * head_size), out = Sets(sets, rows * turned * d);
  const float *cos = Random<float>(length * head_size / 2),
              *sin = Random<float>(length * head_size / 2);
  const float* angles = Random<float>(length * head_size);
  for (const bool inverse : {false, true}) {
    const Run ours = [=](int i) {
      RotateArguments a{};
      a.rows = rows, a.length = length, a.heads = queries + keys, a.half = head_size / 2;
      a.from = a.to = joint[i], a.from_row = a.to_row = heads * head_size;
      a.from_head = a.to_head = head_size, a.cos = cos, a.sin = sin, a.inverse = inverse;
      Rotate(Type::kBf16, a, stream);
    };
    const Run theirs = [=](int i) {
      const auto in = Wrap(joint[i], {b, l, turned, d}), to = Wrap(out[i], {b, l, turned, d}),
                 by = Wrap(angles, {l, 1, 1, d});
      const TensorWrapper none;
      const int of_row = static_cast<int>(heads * head_size), head = static_cast<int>(head_size);
      const int of_batch = static_cast<int>(length) * of_row;
      if (inverse) {
        nvte_fused_rope_backward(in.data(), none.data(), by.data(), none.data(), to.data(),
                                 NVTE_BSHD, false, 1, 0, static_cast<int>(l), static_cast<int>(b),
                                 static_cast<int>(turned), head, head, of_row, of_batch, head, 1,
                                 stream);
      } else {
        nvte_fused_rope_forward(in.data(), none.data(), by.data(), none.data(), to.data(),
                                NVTE_BSHD, false, 1, 0, static_cast<int>(l), static_cast<int>(b),
                                static_cast<int>(turned), head, head, of_row, of_batch, head, 1,
                                stream);
      }
    };
    Race({inverse ? "RoPE backward" : "RoPE", bytes, ours, theirs, nullptr, nullptr});
  }
}

// Lists of tensors that lie one behind the other, as their optimizers take them; never freed.
NVTETensor** ListsOf(const std::vector<std::pair<void*, DType>>& buffers, size_t runs,
                     size_t each) {
  auto* lists = new std::vector<NVTETensor*>;
  for (const auto& [values, type] : buffers) {
    const size_t bytes = type == DType::kBFloat16 ? 2 : 4;
    auto* tensors = new std::vector<NVTETensor>;
    for (size_t run = 0; run < runs; ++run) {
      auto* tensor = new TensorWrapper(static_cast<char*>(values) + run * each * bytes,
                                       std::vector<size_t>{each}, type);
      tensors->push_back(tensor->data());
    }
    lists->push_back(tensors->data());
  }
  return lists->data();
}

void Optimizers(size_t runs, size_t each) {
  constexpr int kChunk = 65536;  // of theirs, as their own optimizer has it
  const size_t n = runs * each;
  const int sets = 2;  // each is far larger than L2
  struct State {
    float *gradients, *master, *first, *second;
    Bf16* weights;
    NVTETensor **all, **gradient_list;
  };
  std::vector<State> ours(sets), theirs(sets);
  for (std::vector<State>* states : {&ours, &theirs}) {
    for (State& of : *states) {
      of.gradients = Random<float>(n), of.master = Random<float>(n), of.first = Random<float>(n);
      of.second = Random<float>(n), of.weights = Random(n);
      Check(cudaMemsetAsync(of.second, 0, n * sizeof(float), stream));
      of.all = ListsOf({{of.gradients, DType::kFloat32},
                        {of.weights, DType::kBFloat16},
                        {of.first, DType::kFloat32},
                        {of.second, DType::kFloat32},
                        {of.master, DType::kFloat32}},
                       runs, each);
      of.gradient_list = ListsOf({{of.gradients, DType::kFloat32}}, runs, each);
    }
  }
  train::RunTable table;
  for (size_t run = 0; run < runs; ++run) {
    const auto first = static_cast<int64_t>(run * each), count = static_cast<int64_t>(each);
    table.run[table.runs++] = {first, first, count, table.tiles, true};
    table.tiles += static_cast<int32_t>((count + train::kTile - 1) / train::kTile);
  }
  train::Decision decision;
  decision.step = 5, decision.verdict = train::Verdict::kCommitted, decision.gradient_scale = 1;
  train::Decision* decided;
  Check(cudaMalloc(&decided, sizeof decision));
  Check(cudaMemcpy(decided, &decision, sizeof decision, cudaMemcpyDefault));
  int32_t* go_on;
  Check(cudaMalloc(&go_on, sizeof(int32_t)));
  Check(cudaMemset(go_on, 0, sizeof(int32_t)));
  auto* const flag = new TensorWrapper(go_on, std::vector<size_t>{1}, DType::kInt32);
  const std::string size = ", " + std::to_string(runs) + " runs of " + std::to_string(each);
  const Run update = [=](int i) {
    train::AdamWBuffers buffers{};
    buffers.gradients = ours[i].gradients, buffers.weights_bf16 = ours[i].weights;
    buffers.master = ours[i].master, buffers.first = ours[i].first;
    buffers.second = ours[i].second;
    const train::AdamWFactors factors{0.9f, 0.1f, 0.95f, 0.05f, 3.7f, 7.0f, 1e-4f, 1e-8f, 0.1f};
    train::LaunchAdamW(buffers, table, factors, decided, 5, stream);
  };
  const Run their_update = [=](int i) {
    constexpr int kStep = 3, kDecoupled = 1, kCorrected = 1;
    nvte_multi_tensor_adam_cuda(kChunk, flag->data(), theirs[i].all, 5, runs, 1e-4f, 0.9f, 0.95f,
                                1e-8f, kStep, kDecoupled, kCorrected, 0.1f, stream);
  };
  Race({"AdamW, bf16 weights" + size, 30.0 * n, update, their_update, nullptr, nullptr});
  double* partials;
  Check(cudaMalloc(&partials, (train::kNormBlocks + 1) * sizeof(double)));
  const Run norm = [=](int i) {
    train::LaunchSquaredNormPartials(ours[i].gradients, table, partials, stream);
    train::LaunchSumPartials(partials, train::kNormBlocks, partials + train::kNormBlocks, stream);
  };
  constexpr size_t kTheirPartials = 320;
  auto* const room = new TensorWrapper(Wrap(Random<float>(kTheirPartials), {kTheirPartials}));
  auto* const sum = new TensorWrapper(Wrap(Random<float>(1), {1}));
  auto* const unused = new TensorWrapper(Wrap(Random<float>(runs), {runs}));
  const Run their_norm = [=](int i) {
    nvte_multi_tensor_l2norm_cuda(kChunk, flag->data(), theirs[i].gradient_list, 1, runs,
                                  room->data(), unused->data(), sum->data(), unused->data(),
                                  /*per_tensor=*/0, /*max_chunks_per_tensor=*/-1, stream);
  };
  Race({"squared norm, fp32" + size, 4.0 * n, norm, their_norm, nullptr, nullptr});
}

// The largest magnitude, a scale that is a power of two, and both forms.
void Casts(int64_t rows, int64_t features) {
  const size_t r = rows, f = features, n = r * f;
  const int sets = SetsOf(4.0 * n);
  const auto x = Sets(sets, n);
  const auto bytes = [&] {
    std::vector<void*> all(sets);
    for (void*& one : all) Check(cudaMalloc(&one, n));
    return all;
  };
  const std::vector<void*> straight = bytes(), turned = bytes();
  uint32_t* largest;
  Check(cudaMalloc(&largest, sizeof(uint32_t)));
  Check(cudaMemset(largest, 0, sizeof(uint32_t)));
  float* const scale = Random<float>(4);
  const Run ours = [=](int i) {
    Largest(rows * features, x[i], largest, stream);
    CastArguments a{};
    a.rows = rows, a.features = features, a.x = x[i], a.largest = largest;
    a.straight = straight[i], a.transposed = turned[i], a.padded = rows, a.scale = scale;
    Cast(Fp8::kE4M3, a, stream);
  };
  float* const scalars = Random<float>(4);
  auto* const config = new transformer_engine::QuantizationConfigWrapper;
  config->set_force_pow_2_scales(true);
  const auto output = [=](int i, bool with_largest) {
    const std::vector<size_t> one{1};
    TensorWrapper to;
    to.set_rowwise_data(straight[i], DType::kFloat8E4M3, std::vector<size_t>{r, f});
    to.set_columnwise_data(turned[i], DType::kFloat8E4M3, std::vector<size_t>{f, r});
    to.set_scale(scalars, DType::kFloat32, one);
    to.set_rowwise_scale_inv(scalars + 1, DType::kFloat32, one);
    to.set_columnwise_scale_inv(scalars + 1, DType::kFloat32, one);
    // Else a cast looks for it once more.
    if (with_largest) to.set_amax(scalars + 2, DType::kFloat32, one);
    return to;
  };
  const Run theirs = [=](int i) {
    const auto in = Wrap(x[i], {r, f}), measured = output(i, true), cast = output(i, false);
    nvte_compute_amax(in.data(), measured.data(), stream);
    nvte_compute_scale_from_amax(measured.data(), *config, stream);
    nvte_quantize(in.data(), cast.data(), stream);
  };
  Race({"cast to FP8, both forms [" + std::to_string(rows) + " x " + std::to_string(features) + "]",
        6.0 * n, ours, theirs, nullptr, nullptr});
}

void RunAll() {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0));
  multiprocessors = properties.multiProcessorCount;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::printf("%s, milliseconds\n%-52s %8s %8s %6s %8s %6s %8s %6s %9s\n", properties.name, "",
              "cold", "kept up", "TB/s", "theirs", "ratio", "kept up", "ratio", "apart");
  Norms(9216, 1024, /*layer=*/true);
  Norms(5832, 1152, /*layer=*/true);
  Norms(16384, 2048, /*layer=*/false);
  Norms(16384, 4096, /*layer=*/false);
  Norms(8192, 8192, /*layer=*/false);
  Gelus(Gelu::kQuick, "quick-GELU", nvte_qgelu, nvte_dqgelu, 9216, 4096);
  Gelus(Gelu::kTanh, "GELU (tanh)", nvte_gelu, nvte_dgelu, 9216, 4096);
  SwiGlus(16384, 14336, 128);
  SwiGlus(16384, 8192, 128);
  Rotations(4, 4096, 32, 8, 128);
  Heads(4, 4096, 32, 8, 128);
  Casts(16384, 4096);
  Casts(16384, 14336);
  Optimizers(64, size_t{1} << 21);
}

}  // namespace
}  // namespace phalanx::model::cuda

int main() {
  phalanx::model::cuda::RunAll();
  const bool fast = phalanx::bench::TellRaces();
  std::fflush(stdout);
  std::quick_exit(fast ? 0 : 1);  // before the statics of their library end
}

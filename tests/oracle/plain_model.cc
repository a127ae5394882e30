#include "tests/oracle/plain_model.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/plan.h"
#include "core/plan/units.h"

namespace phalanx::oracle {
namespace {

using job::Family;

bool IsDecoder(const job::Architecture& architecture) {
  return job::TraitsOf(architecture).decoder();
}

at::Tensor Of(const std::vector<at::Tensor>& tensors, int32_t module) {
  const auto index = static_cast<size_t>(module);
  return index < tensors.size() ? tensors[index] : at::Tensor();
}

// Whisper's fixed positions, [length, hidden].
at::Tensor Sinusoids(int64_t length, int64_t hidden) {
  const at::TensorOptions fp64 = at::TensorOptions().dtype(at::kDouble);
  const double step = std::log(10000.0) / (static_cast<double>(hidden) / 2 - 1);
  const at::Tensor time = at::arange(length, fp64).unsqueeze(1) *
                          at::exp(at::arange(hidden / 2, fp64).mul(-step)).unsqueeze(0);
  return at::cat({time.sin(), time.cos()}, 1);
}

std::string Key(const job::Module& module, const std::string& name) {
  return module.name + "/" + name;
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x * at::rsqrt(x.pow(2).mean(-1, /*keepdim=*/true) + epsilon) * weight;
}

// x [batch, length, heads, head_size]; the two halves of a head are rotated against each other.
at::Tensor Rotated(const at::Tensor& x, double theta) {
  const int64_t length = x.size(1), size = x.size(3);
  const at::TensorOptions fp64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequencies = at::pow(theta, at::arange(0, size, 2, fp64).div(size).neg());
  const at::Tensor angles = at::arange(length, fp64).unsqueeze(1) * frequencies;
  const at::Tensor both = at::cat({angles, angles}, 1).unsqueeze(1);  // [length, 1, size]
  const at::Tensor turned =
      at::cat({x.narrow(3, size / 2, size / 2).neg(), x.narrow(3, 0, size / 2)}, 3);
  return x * at::cos(both).to(x.scalar_type()) + turned * at::sin(both).to(x.scalar_type());
}

// query [batch, length, heads, size], key and value with as many heads or a divisor of them.
at::Tensor Attention(at::Tensor query, at::Tensor key, at::Tensor value, bool causal) {
  const int64_t group = query.size(2) / key.size(2), length = query.size(1);
  query = query.transpose(1, 2);
  key = key.repeat_interleave(group, 2).transpose(1, 2);
  value = value.repeat_interleave(group, 2).transpose(1, 2);
  at::Tensor scores =
      at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  if (causal) {
    const at::Tensor future =
        at::ones({length, length}, at::TensorOptions().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(future, -INFINITY);
  }
  return at::matmul(at::softmax(scores, -1), value).transpose(1, 2).flatten(2);
}

}  // namespace

job::JobSpec OnOneRankEach(job::JobSpec spec) {
  for (size_t i = 0; i < spec.modules.size(); ++i) {
    spec.modules[i].parallel = {};
    spec.modules[i].offset = static_cast<int32_t>(i);
  }
  spec.schedule = {};  // no chunks
  spec.resources.devices = static_cast<int32_t>(spec.modules.size());
  return spec;
}

PlainModel::PlainModel(const job::JobSpec& spec, at::ScalarType type)
    : spec_(OnOneRankEach(spec)), type_(type) {
  const auto devices = static_cast<int32_t>(spec_.modules.size());
  const auto plan = plan::MakePlan(spec_, plan::MakeCluster(1, devices), Epoch{1});
  if (!plan.ok()) {
    std::fprintf(stderr, "the oracle's plan: %s\n", plan.status().ToString().c_str());
    std::abort();
  }
  for (int32_t m = 0; m < devices; ++m) {
    has_target_loss_.push_back(m != spec_.language && plan->HasLoss(m));
    const job::Module& module = spec_.modules[static_cast<size_t>(m)];
    for (const plan::LogicalTensor& tensor : plan::ParametersOf(*plan, {.module = m}).logical) {
      at::Tensor value = at::empty({tensor.rows, tensor.cols}, at::kDouble);
      double* data = value.mutable_data_ptr<double>();
      const plan::InitialValues initial(spec_.seed, module.name, tensor);
      for (int64_t i = 0; i < value.numel(); ++i) data[i] = initial(i);
      if (tensor.cols == 1) value = value.squeeze(1);
      const std::string key = Key(module, tensor.name);
      frozen_[key] = tensor.name.rfind("projector.", 0) == 0 ? false : module.frozen;
      for (const job::Edge& edge : spec_.edges) {
        const std::string prefix =
            absl::StrCat("projector.", spec_.modules[static_cast<size_t>(edge.to)].name, ".");
        if (edge.from == m && tensor.name.rfind(prefix, 0) == 0)
          frozen_[key] = edge.projector->frozen;
      }
      decays_[key] = tensor.decay;
      parameters_[key] = value.to(type_).clone().set_requires_grad(!frozen_[key]);
    }
  }
}

const at::Tensor& PlainModel::Get(int32_t module, const std::string& name) const {
  return parameters_.at(Key(ModuleAt(module), name));
}

at::Tensor PlainModel::Linear(int32_t module, const at::Tensor& x, const std::string& name) const {
  const auto bias = parameters_.find(Key(ModuleAt(module), name + ".bias"));
  return at::linear(x, Get(module, name + ".weight"),
                    bias == parameters_.end() ? at::Tensor() : bias->second);
}

at::Tensor PlainModel::Norm(int32_t module, const at::Tensor& x, const std::string& name) const {
  const job::Architecture& a = ArchitectureOf(module);
  return at::layer_norm(x, {a.hidden_size}, Get(module, name + ".weight"),
                        Get(module, name + ".bias"), a.norm_epsilon);
}

at::Tensor PlainModel::EncoderLayer(int32_t module, const at::Tensor& x, int32_t layer) const {
  const job::Architecture& a = ArchitectureOf(module);
  const bool vision = a.family != Family::kWhisper;
  const std::string name =
      absl::StrCat(vision ? "vision_model.encoder.layers." : "model.encoder.layers.", layer, ".");
  const at::Tensor normed =
      Norm(module, x, name + (vision ? "layer_norm1" : "self_attn_layer_norm"));
  const auto heads = [&](const char* which) {
    return Linear(module, normed, absl::StrCat(name, "self_attn.", which, "_proj"))
        .unflatten(2, {a.heads, -1});
  };
  const at::Tensor attended = Attention(heads("q"), heads("k"), heads("v"), /*causal=*/false);
  const at::Tensor middle = x + Linear(module, attended, name + "self_attn.out_proj");
  const at::Tensor hidden =
      Linear(module, Norm(module, middle, name + (vision ? "layer_norm2" : "final_layer_norm")),
             name + (vision ? "mlp.fc1" : "fc1"));
  const at::Tensor active = a.family == Family::kClipVision
                                ? hidden * at::sigmoid(hidden * 1.702)
                                : at::gelu(hidden, vision ? "tanh" : "none");
  return middle + Linear(module, active, name + (vision ? "mlp.fc2" : "fc2"));
}

at::Tensor PlainModel::VisionFeatures(int32_t module, const at::Tensor& pixels) const {
  const job::Architecture& a = ArchitectureOf(module);
  const std::string name = "vision_model.";
  const at::Tensor kernel = Get(module, name + "embeddings.patch_embedding.weight")
                                .view({a.hidden_size, 3, a.patch_size, a.patch_size});
  if (a.family == Family::kSiglipVision) {
    const at::Tensor& bias = Get(module, name + "embeddings.patch_embedding.bias");
    at::Tensor x = at::conv2d(pixels.to(type_), kernel, bias, a.patch_size).flatten(2);
    x = x.transpose(1, 2) + Get(module, name + "embeddings.position_embedding.weight");
    for (int32_t layer = 0; layer < a.layers; ++layer) x = EncoderLayer(module, x, layer);
    return Norm(module, x, name + "post_layernorm").flatten(0, 1);
  }
  at::Tensor x = at::conv2d(pixels.to(type_), kernel, {}, a.patch_size).flatten(2).transpose(1, 2);
  const at::Tensor class_row =
      Get(module, name + "embeddings.class_embedding").expand({x.size(0), 1, a.hidden_size});
  x = at::cat({class_row, x}, 1) + Get(module, name + "embeddings.position_embedding.weight");
  x = Norm(module, x, name + "pre_layrnorm");
  for (int32_t layer = 0; layer < a.layers; ++layer) x = EncoderLayer(module, x, layer);
  return x.narrow(1, 1, x.size(1) - 1).flatten(0, 1);
}

at::Tensor PlainModel::AudioFeatures(int32_t module, const at::Tensor& sounds) const {
  const job::Architecture& a = ArchitectureOf(module);
  const auto convolved = [&](const at::Tensor& x, const std::string& which, int64_t stride) {
    const std::string name = "model.encoder." + which;
    const at::Tensor kernel = Get(module, name + ".weight").view({a.hidden_size, -1, 3});
    return at::gelu(at::conv1d(x, kernel, Get(module, name + ".bias"), stride, /*padding=*/1));
  };
  at::Tensor x = convolved(convolved(sounds.to(type_), "conv1", 1), "conv2", 2).transpose(1, 2);
  x = x + Sinusoids(x.size(1), a.hidden_size).to(type_);
  for (int32_t layer = 0; layer < a.layers; ++layer) x = EncoderLayer(module, x, layer);
  return Norm(module, x, "model.encoder.layer_norm").flatten(0, 1);
}

at::Tensor PlainModel::Projected(int32_t edge, const at::Tensor& rows) const {
  const job::Edge& along = spec_.edges[static_cast<size_t>(edge)];
  if (!along.projector.has_value()) return rows;
  const std::string name = absl::StrCat("projector.", ModuleAt(along.to).name, ".linear_");
  return Linear(along.from, at::gelu(Linear(along.from, rows, name + "1")), name + "2");
}

at::Tensor PlainModel::Features(int32_t edge, const at::Tensor& items) const {
  const int32_t module = spec_.edges[static_cast<size_t>(edge)].from;
  return Projected(edge, job::TraitsOf(ArchitectureOf(module)).sounds()
                             ? AudioFeatures(module, items)
                             : VisionFeatures(module, items));
}

at::Tensor PlainModel::DecoderLayer(int32_t module, const at::Tensor& x, int32_t layer) const {
  const job::Architecture& a = ArchitectureOf(module);
  const std::string name = absl::StrCat("model.layers.", layer, ".");
  const at::Tensor normed =
      RmsNorm(x, Get(module, name + "input_layernorm.weight"), a.norm_epsilon);
  const auto heads = [&](const char* which) {
    return Linear(module, normed, absl::StrCat(name, "self_attn.", which, "_proj"))
        .unflatten(2, {-1, plan::HeadSize(a)});
  };
  const at::Tensor attended =
      Attention(Rotated(heads("q"), a.rope_theta), Rotated(heads("k"), a.rope_theta), heads("v"),
                /*causal=*/true);
  const at::Tensor middle = x + Linear(module, attended, name + "self_attn.o_proj");
  const at::Tensor mlp_input =
      RmsNorm(middle, Get(module, name + "post_attention_layernorm.weight"), a.norm_epsilon);
  const at::Tensor active = at::silu(Linear(module, mlp_input, name + "mlp.gate_proj")) *
                            Linear(module, mlp_input, name + "mlp.up_proj");
  return middle + Linear(module, active, name + "mlp.down_proj");
}

at::Tensor PlainModel::PositionsOf(int32_t module, const PlainMicrobatch& batch) const {
  const at::Tensor positions = Of(batch.positions, module);
  return positions.defined() ? positions : at::arange(batch.tokens.numel(), at::kLong);
}

at::Tensor PlainModel::RowsAlong(int32_t edge, const PlainMicrobatch& batch) const {
  const int32_t from = spec_.edges[static_cast<size_t>(edge)].from;
  if (IsDecoder(ArchitectureOf(from))) {
    const at::Tensor normed = NormedHidden(from, batch).flatten(0, 1);
    return Projected(edge, normed.index_select(0, PositionsOf(from, batch)));
  }
  const bool audio = job::TraitsOf(ArchitectureOf(from)).sounds();
  const at::Tensor items = Of(audio ? batch.sounds : batch.pixels, from);
  if (!items.defined() || items.numel() == 0) return {};
  return Features(edge, items);
}

at::Tensor PlainModel::DecoderHidden(int32_t module, const PlainMicrobatch& batch) const {
  const job::Architecture& a = ArchitectureOf(module);
  const bool joint = module == spec_.language && batch.row_positions.defined();
  std::vector<at::Tensor> rows, positions;
  for (size_t i = 0; i < spec_.edges.size(); ++i) {
    if (spec_.edges[i].to != module) continue;
    const at::Tensor arrived = RowsAlong(static_cast<int32_t>(i), batch);
    if (!arrived.defined()) continue;
    rows.push_back(arrived);
    if (!joint) positions.push_back(PositionsOf(spec_.edges[i].from, batch));
  }
  at::Tensor x;
  if (job::TraitsOf(a).vocabulary()) {
    x = at::embedding(Get(module, "model.embed_tokens.weight"), batch.tokens).flatten(0, 1);
  } else {
    x = at::zeros({batch.tokens.numel(), a.hidden_size}, at::TensorOptions().dtype(type_));
  }
  if (!rows.empty()) {
    const at::Tensor where = joint ? batch.row_positions : at::cat(positions);
    x = x.index_fill(0, where, 0).index_add(0, where, at::cat(rows));
  }
  x = x.view({batch.tokens.size(0), batch.tokens.size(1), a.hidden_size});
  for (int32_t layer = 0; layer < a.layers; ++layer) x = DecoderLayer(module, x, layer);
  return x;
}

at::Tensor PlainModel::NormedHidden(int32_t module, const PlainMicrobatch& batch) const {
  return RmsNorm(DecoderHidden(module, batch), Get(module, "model.norm.weight"),
                 ArchitectureOf(module).norm_epsilon);
}

at::Tensor PlainModel::Hidden(const PlainMicrobatch& batch) const {
  return DecoderHidden(spec_.language, batch);
}

at::Tensor PlainModel::Logits(const at::Tensor& hidden) const {
  const job::Architecture& a = ArchitectureOf(spec_.language);
  const at::Tensor normed =
      RmsNorm(hidden, Get(spec_.language, "model.norm.weight"), a.norm_epsilon);
  return at::linear(
      normed, Get(spec_.language, a.tied_head ? "model.embed_tokens.weight" : "lm_head.weight"));
}

at::Tensor PlainModel::TokenLoss(const PlainMicrobatch& batch) const {
  const at::Tensor logits = Logits(Hidden(batch)).flatten(0, 1);
  const at::Tensor losses =
      at::cross_entropy_loss(logits, batch.labels.flatten(), {}, at::Reduction::None);
  return (losses * batch.label_weights.flatten().to(type_)).sum();
}

at::Tensor PlainModel::TargetLoss(int32_t module, const PlainMicrobatch& batch) const {
  const at::Tensor normed =
      NormedHidden(module, batch).flatten(0, 1).index_select(0, batch.target_positions);
  const at::Tensor predicted = at::linear(normed, Get(module, "predict.weight"));
  const at::Tensor errors = (predicted - batch.targets.to(type_)).square().mean(1);
  return (errors * batch.target_weights.to(type_)).sum() * ModuleAt(module).loss_weight;
}

at::Tensor PlainModel::Loss(const PlainMicrobatch& batch) const {
  at::Tensor loss = TokenLoss(batch);
  if (!batch.targets.defined()) return loss;
  for (int32_t m = 0; m < static_cast<int32_t>(spec_.modules.size()); ++m) {
    if (has_target_loss_[static_cast<size_t>(m)]) loss = loss + TargetLoss(m, batch);
  }
  return loss;
}

void PlainModel::Accumulate(const PlainMicrobatch& batch) {
  at::AutoGradMode grad(true);
  const at::Tensor loss = Loss(batch);
  if (loss.requires_grad()) loss.backward();
  loss_sum_ += loss.item<double>();
  counted_tokens_ += batch.label_weights.sum().item<double>();
}

NamedTensors PlainModel::Gradients() const {
  NamedTensors gradients;
  for (const auto& [name, parameter] : parameters_) {
    gradients[name] =
        parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter).detach();
  }
  return gradients;
}

PlainStep PlainModel::Step(double learning_rate) {
  const at::NoGradGuard no_grad;
  const job::Optimizer& optimizer = spec_.optimizer;
  if (counted_tokens_ <= 0) return {};  // a skipped step, whose gradients are all zero
  PlainStep step{.loss = loss_sum_ / counted_tokens_, .counted_tokens = counted_tokens_};
  NamedTensors gradients = Gradients();
  double squares = 0;
  for (auto& [name, gradient] : gradients) {
    if (frozen_.at(name)) continue;
    gradient.div_(counted_tokens_);
    squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  step.gradient_norm = std::sqrt(squares);
  double clip = 1;
  if (optimizer.clip_norm > 0 && step.gradient_norm > optimizer.clip_norm) {
    clip = optimizer.clip_norm / step.gradient_norm;
  }
  ++updates_;
  const double updates = static_cast<double>(updates_);
  for (auto& [name, parameter] : parameters_) {
    if (frozen_.at(name)) continue;
    const at::Tensor gradient = gradients.at(name) * clip;
    at::Tensor& first = first_moments_.try_emplace(name, at::zeros_like(gradient)).first->second;
    at::Tensor& second = second_moments_.try_emplace(name, at::zeros_like(gradient)).first->second;
    first = first * optimizer.betas[0] + gradient * (1 - optimizer.betas[0]);
    second = second * optimizer.betas[1] + gradient.square() * (1 - optimizer.betas[1]);
    const at::Tensor mean = first / (1 - std::pow(optimizer.betas[0], updates));
    const at::Tensor variance = second / (1 - std::pow(optimizer.betas[1], updates));
    at::Tensor change = mean / (variance.sqrt() + optimizer.epsilon);
    if (decays_.at(name)) change = change + parameter * optimizer.weight_decay;
    parameter.sub_(change * learning_rate);
    parameter.mutable_grad().reset();
  }
  loss_sum_ = counted_tokens_ = 0;
  return step;
}

}  // namespace phalanx::oracle

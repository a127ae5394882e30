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
    const job::Module& module = spec_.modules[static_cast<size_t>(m)];
    for (const plan::LogicalTensor& tensor : plan::ParametersOf(*plan, {.module = m}).logical) {
      at::Tensor value = at::empty({tensor.rows, tensor.cols}, at::kDouble);
      double* data = value.mutable_data_ptr<double>();
      for (int64_t i = 0; i < value.numel(); ++i)
        data[i] = plan::InitialValue(spec_.seed, module.name, tensor, i);
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
  return parameters_.at(Key(spec_.modules[static_cast<size_t>(module)], name));
}

at::Tensor PlainModel::EncoderLayer(int32_t module, const at::Tensor& x, int32_t layer) const {
  const job::Architecture& a = spec_.modules[static_cast<size_t>(module)].architecture;
  const std::string name = absl::StrCat("vision_model.encoder.layers.", layer, ".");
  const auto linear = [&](const at::Tensor& input, const std::string& which) {
    return at::linear(input, Get(module, name + which + ".weight"),
                      Get(module, name + which + ".bias"));
  };
  const auto norm = [&](const at::Tensor& input, const std::string& which) {
    return at::layer_norm(input, {a.hidden_size}, Get(module, name + which + ".weight"),
                          Get(module, name + which + ".bias"), a.norm_epsilon);
  };
  const at::Tensor normed = norm(x, "layer_norm1");
  const auto heads = [&](const char* which) {
    return linear(normed, absl::StrCat("self_attn.", which, "_proj")).unflatten(2, {a.heads, -1});
  };
  const at::Tensor middle =
      x +
      linear(Attention(heads("q"), heads("k"), heads("v"), /*causal=*/false), "self_attn.out_proj");
  const at::Tensor hidden = linear(norm(middle, "layer_norm2"), "mlp.fc1");
  return middle + linear(hidden * at::sigmoid(hidden * 1.702), "mlp.fc2");
}

at::Tensor PlainModel::Features(int32_t edge, const at::Tensor& pixels) const {
  const job::Edge& along = spec_.edges[static_cast<size_t>(edge)];
  const job::Module& module = spec_.modules[static_cast<size_t>(along.from)];
  const job::Architecture& a = module.architecture;
  const std::string name = "vision_model.";
  const at::Tensor kernel = Get(along.from, name + "embeddings.patch_embedding.weight")
                                .view({a.hidden_size, 3, a.patch_size, a.patch_size});
  at::Tensor x = at::conv2d(pixels.to(type_), kernel, {}, a.patch_size).flatten(2).transpose(1, 2);
  const at::Tensor class_row =
      Get(along.from, name + "embeddings.class_embedding").expand({x.size(0), 1, a.hidden_size});
  x = at::cat({class_row, x}, 1) + Get(along.from, name + "embeddings.position_embedding.weight");
  x = at::layer_norm(x, {a.hidden_size}, Get(along.from, name + "pre_layrnorm.weight"),
                     Get(along.from, name + "pre_layrnorm.bias"), a.norm_epsilon);
  for (int32_t layer = 0; layer < a.layers; ++layer) x = EncoderLayer(along.from, x, layer);
  x = x.narrow(1, 1, x.size(1) - 1).flatten(0, 1);
  if (!along.projector.has_value()) return x;
  const std::string projector =
      absl::StrCat("projector.", spec_.modules[static_cast<size_t>(along.to)].name, ".");
  const auto linear = [&](const at::Tensor& input, const char* which) {
    return at::linear(input, Get(along.from, projector + which + ".weight"),
                      Get(along.from, projector + which + ".bias"));
  };
  return linear(at::gelu(linear(x, "linear_1")), "linear_2");
}

at::Tensor PlainModel::DecoderLayer(const at::Tensor& x, int32_t layer) const {
  const job::Architecture& a = spec_.modules[static_cast<size_t>(spec_.language)].architecture;
  const std::string name = absl::StrCat("model.layers.", layer, ".");
  const auto weight = [&](const std::string& which) {
    return Get(spec_.language, name + which + ".weight");
  };
  const at::Tensor normed = RmsNorm(x, weight("input_layernorm"), a.norm_epsilon);
  const auto heads = [&](const char* which) {
    return at::linear(normed, weight(absl::StrCat("self_attn.", which, "_proj")))
        .unflatten(2, {-1, plan::HeadSize(a)});
  };
  const at::Tensor attended =
      Attention(Rotated(heads("q"), a.rope_theta), Rotated(heads("k"), a.rope_theta), heads("v"),
                /*causal=*/true);
  const at::Tensor middle = x + at::linear(attended, weight("self_attn.o_proj"));
  const at::Tensor mlp_input = RmsNorm(middle, weight("post_attention_layernorm"), a.norm_epsilon);
  const at::Tensor active = at::silu(at::linear(mlp_input, weight("mlp.gate_proj"))) *
                            at::linear(mlp_input, weight("mlp.up_proj"));
  return middle + at::linear(active, weight("mlp.down_proj"));
}

at::Tensor PlainModel::Hidden(const PlainMicrobatch& batch) const {
  const job::Architecture& a = spec_.modules[static_cast<size_t>(spec_.language)].architecture;
  at::Tensor x = at::embedding(Get(spec_.language, "model.embed_tokens.weight"), batch.tokens);
  std::vector<at::Tensor> rows;
  for (size_t edge = 0; edge < spec_.edges.size(); ++edge) {
    if (spec_.edges[edge].to != spec_.language) continue;
    const auto source = static_cast<size_t>(spec_.edges[edge].from);
    if (source >= batch.pixels.size() || !batch.pixels[source].defined() ||
        batch.pixels[source].numel() == 0)
      continue;
    rows.push_back(Features(static_cast<int32_t>(edge), batch.pixels[source]));
  }
  if (!rows.empty()) {
    x = x.flatten(0, 1).index_copy(0, batch.row_positions, at::cat(rows)).view(x.sizes());
  }
  for (int32_t layer = 0; layer < a.layers; ++layer) x = DecoderLayer(x, layer);
  return x;
}

at::Tensor PlainModel::Logits(const at::Tensor& hidden) const {
  const job::Architecture& a = spec_.modules[static_cast<size_t>(spec_.language)].architecture;
  const at::Tensor normed =
      RmsNorm(hidden, Get(spec_.language, "model.norm.weight"), a.norm_epsilon);
  return at::linear(
      normed, Get(spec_.language, a.tied_head ? "model.embed_tokens.weight" : "lm_head.weight"));
}

at::Tensor PlainModel::Loss(const PlainMicrobatch& batch) const {
  const at::Tensor logits = Logits(Hidden(batch)).flatten(0, 1);
  const at::Tensor losses =
      at::cross_entropy_loss(logits, batch.labels.flatten(), {}, at::Reduction::None);
  return (losses * batch.label_weights.flatten().to(type_)).sum();
}

void PlainModel::Accumulate(const PlainMicrobatch& batch) {
  at::AutoGradMode grad(true);
  const at::Tensor loss = Loss(batch);
  loss.backward();
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

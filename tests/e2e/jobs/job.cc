#include "tests/e2e/jobs/job.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/jobs/process.h"

namespace phalanx::e2e {

DataFolder MakeData(const support::ShardOptions& options) {
  DataFolder data{.path = support::MakeFolder("e2e-data")};
  data.files = support::WriteShards(data.path, options);
  support::ShardOptions validation = options;
  validation.samples = 4;
  validation.shards = 1;
  validation.seed = options.seed + 1;
  validation.name = "validation";
  support::WriteShards(data.path, validation);
  return data;
}

void DamagePicture(const DataFolder& data, int32_t number) {
  for (const std::string& shard : data.files.shards) {
    std::string bytes = support::ReadFile(shard);
    // The chunk with the pixels: its checksum will not fit.
    for (size_t at = bytes.find("IDAT"); at != std::string::npos; at = bytes.find("IDAT", at + 1)) {
      if (number-- > 0) continue;
      for (size_t i = 0; i < 12; ++i) bytes[at + 4 + i] = '\xff';
      return support::WriteFile(shard, bytes);
    }
  }
  Require(false, "there is no such picture");
}

std::string JobText(const DataFolder& data, const JobOptions& options) {
  std::string text =
      absl::StrCat("apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", options.name,
                   "}\nspec:\n", "  seed: 3\n  steps: ", options.steps,
                   "\n  precision: {compute: ", options.precision, "}\n  modules:\n");
  if (!options.vision.empty()) {
    absl::StrAppend(
        &text,
        "    - name: vision\n      architecture: {family: clip_vision, hidden_size: 32, "
        "layers: 2, heads: 4, mlp_size: 64, block: 8, image_size: 16, patch_size: 8}\n"
        "      parallel: {",
        options.vision, "}\n");
  }
  absl::StrAppend(
      &text, "    - name: language\n      architecture: {family: llama, hidden_size: 32, layers: ",
      options.layers, ", heads: ", options.heads, ", kv_heads: ", options.kv_heads,
      ", mlp_size: 64, block: 8, vocabulary: ", data.files.vocabulary,
      ", context: 32}\n      parallel: {", options.language, "}\n");
  if (!options.vision.empty()) {
    absl::StrAppend(&text,
                    "  edges:\n    - {from: vision, to: language, projector: {type: mlp, "
                    "hidden_size: 32}}\n");
  }
  absl::StrAppend(&text, "  batch: {global: ", options.batch, ", micro: ", options.micro, "}\n",
                  "  data: {shards: \"set-{000..001}.tar\", tokenizer: set.model, corrupt_max: ",
                  options.corrupt_max, options.validation ? ", validation: validation-000.tar" : "",
                  "}\n", "  optimizer: {learning_rate: ", options.learning_rate,
                  ", warmup_steps: 2}\n", "  resources: {device: cpu}\n  output: ", options.output,
                  "\n");
  return text;
}

v1::JobDocument Document(const DataFolder& data, const JobOptions& options) {
  v1::JobDocument document;
  document.set_directory(data.path);
  document.set_text(JobText(data, options));
  return document;
}

std::vector<Metric> ReadMetrics(const std::string& output) {
  std::vector<Metric> metrics;
  std::ifstream file(output + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line);
    metrics.push_back({.step = entry.at("step").get<int64_t>(),
                       .loss = entry.at("loss").get<double>(),
                       .gradient_norm = entry.at("gradient_norm").get<double>(),
                       .corrupt_samples = entry.value("corrupt_samples", int64_t{0})});
  }
  return metrics;
}

std::string StepsFault(const std::vector<Metric>& metrics, int64_t steps) {
  for (size_t i = 0; i < metrics.size(); ++i) {
    const int64_t expected = static_cast<int64_t>(i) + 1;
    if (metrics[i].step != expected) {
      return absl::StrCat("line ", expected, " is of step ", metrics[i].step);
    }
  }
  const int64_t count = static_cast<int64_t>(metrics.size());
  return count == steps ? "" : absl::StrCat(count, " lines for ", steps, " steps");
}

}  // namespace phalanx::e2e

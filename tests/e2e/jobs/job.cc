#include "tests/e2e/jobs/job.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/process.h"

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
  support::Require(false, "there is no such picture");
}

namespace {

std::string ModuleText(const std::string& name, const std::string& architecture,
                       const std::string& parallel, const std::string& offset = "",
                       const std::string& more = "") {
  if (parallel.empty()) return "";
  std::string text = absl::StrCat("    - name: ", name, "\n      architecture: {", architecture,
                                  ", hidden_size: ", kHidden,
                                  ", mlp_size: 64, block: 8}\n      parallel: {", parallel, "}\n");
  if (!offset.empty()) absl::StrAppend(&text, "      offset: ", offset, "\n");
  if (!more.empty()) absl::StrAppend(&text, "      ", more, "\n");
  return text;
}

std::string EdgesText(const JobOptions& options) {
  std::string text;
  const std::string projector =
      absl::StrCat(", projector: {type: mlp, hidden_size: ", kHidden, "}}\n");
  if (!options.vision.empty()) {
    absl::StrAppend(&text, "    - {from: vision, to: language", projector);
  }
  if (!options.audio.empty()) absl::StrAppend(&text, "    - {from: audio, to: language", projector);
  if (!options.regressor.empty()) absl::StrAppend(&text, "    - {from: language, to: regressor}\n");
  return text.empty() ? "" : absl::StrCat("  edges:\n", text);
}

std::string RecoveryText(const JobOptions& options) {
  if (options.standby)
    return options.recovery.empty() ? "" : absl::StrCat("  recovery: ", options.recovery, "\n");
  if (options.recovery.empty()) return "  recovery: {standby: none}\n";
  return absl::StrCat("  recovery: {standby: none, ", options.recovery.substr(1), "\n");
}

}  // namespace

std::string JobText(const DataFolder& data, const JobOptions& options) {
  const std::string heads =
      absl::StrCat("heads: ", options.heads, ", kv_heads: ", options.kv_heads, ", context: 32");
  return absl::StrCat(
      "apiVersion: phalanx/v1\nkind: TrainingJob\nmetadata: {name: ", options.name, "}\nspec:\n",
      "  seed: 3\n  steps: ", options.steps, "\n  precision: {compute: ", options.precision,
      "}\n  modules:\n",
      ModuleText("vision",
                 "family: clip_vision, layers: 2, heads: 4, image_size: 16, patch_size: 8",
                 options.vision, "", options.vision_more),
      ModuleText("audio", "family: whisper, layers: 1, heads: 4, mel_bins: 8, frames: 8",
                 options.audio),
      ModuleText("language",
                 absl::StrCat("family: llama, layers: ", options.layers, ", ", heads,
                              ", vocabulary: ", data.files.vocabulary),
                 options.language, options.language_offset, options.language_more),
      ModuleText("regressor", absl::StrCat("family: regressor, layers: 1, ", heads),
                 options.regressor),
      EdgesText(options), "  batch: {global: ", options.batch, ", micro: ", options.micro, "}\n",
      "  schedule: ", options.schedule, "\n",
      "  data: {shards: \"set-{000..001}.tar\", tokenizer: set.model, corrupt_max: ",
      options.corrupt_max, options.validation ? ", validation: validation-000.tar" : "", "}\n",
      "  optimizer: {learning_rate: ", options.learning_rate,
      ", minimum_learning_rate: ", options.minimum_learning_rate, ", warmup_steps: 2}\n",
      RecoveryText(options),
      options.checkpoint.empty() ? "" : absl::StrCat("  checkpoint: ", options.checkpoint, "\n"),
      options.time_limit.empty() ? "" : absl::StrCat("  time_limit: ", options.time_limit, "\n"),
      options.priority == 0 ? "" : absl::StrCat("  priority: ", options.priority, "\n"),
      options.preemptible ? "  preemptible: true\n" : "",
      "  resources: {device: cpu, spares: ", options.spares, "}\n  output: ", options.output,
      options.profile ? "\n  profile: true" : "", options.trace ? "\n  trace: true\n" : "\n");
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
                       .learning_rate = entry.at("learning_rate").get<double>(),
                       .seconds = entry.at("step_seconds").get<double>(),
                       .tokens = entry.at("tokens").get<int64_t>(),
                       .images = entry.at("images").get<int64_t>(),
                       .corrupt_samples = entry.value("corrupt_samples", int64_t{0}),
                       .skipped = entry.value("skipped", false),
                       .epoch = entry.value("epoch", int64_t{0})});
  }
  return metrics;
}

std::vector<Metric> MetricsOf(const DataFolder& data, const std::string& output) {
  return ReadMetrics((std::filesystem::path(data.path) / output).string());
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

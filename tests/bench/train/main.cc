// phalanx-bench train JOB [OUTPUT]: trains a job through `phalanx run` and prints one JSON line of what
// it measured: medians over the steps after the first kWarmupSteps.
//
// FLOPs: 2 a multiply-add, causal attention half, head included, forward and executed backward, no
// recomputation; mfu against the dense bf16 rate of an H100 or H200, null on CPU; tokens are language
// positions without padding; bubble = 1 - busy / (devices x step).
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/plan/cost.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "core/wire/job_yaml.h"
#include "nlohmann/json.hpp"

namespace {

constexpr size_t kWarmupSteps = 10;
constexpr size_t kStepsMin = 30;
constexpr double kPeakFlops = 989e12;

using Json = nlohmann::ordered_json;

int Fail(const std::string& message) {
  std::cerr << "phalanx-bench: " << message << "\n";
  return 1;
}

// Runs `phalanx run` beside this executable; its talk goes to our stderr. Returns its exit code.
int RunJob(const std::string& job, const std::string& output) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "phalanx";
  const pid_t child = fork();
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execl(program.c_str(), program.c_str(), "run", job.c_str(), "--output", output.c_str(), nullptr);
    std::fprintf(stderr, "%s: %s\n", program.c_str(), std::strerror(errno));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<Json> ReadLines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(part * static_cast<double>(values.size())))];
}

double Mean(const std::vector<Json>& lines, const char* key) {
  double sum = 0;
  for (const Json& line : lines) sum += line.at(key).get<double>();
  return sum / static_cast<double>(lines.size());
}

Json Measure(const phalanx::plan::Plan& plan, const std::string& output, const std::vector<Json>& all) {
  const std::vector<Json> lines(all.begin() + kWarmupSteps, all.end());
  std::vector<double> seconds;
  for (const Json& line : lines) seconds.push_back(line.at("step_seconds").get<double>());
  const double median = Percentile(seconds, 0.5);
  const double tokens = Mean(lines, "tokens"), items = Mean(lines, "items");
  const double flops = phalanx::plan::StepFlops(plan, tokens, items) / median / plan.world;
  Json result;
  result["tokens_per_s"] = tokens / median;
  result["samples_per_s"] = static_cast<double>(plan.spec.batch.global) / median;
  result["step_ms"] = {{"median", median * 1e3}, {"p95", Percentile(seconds, 0.95) * 1e3}};
  result["tflops_per_device"] = flops * 1e-12;
  result["mfu"] = plan.spec.resources.device == phalanx::job::DeviceKind::kGpu ? Json(flops / kPeakFlops) : Json();
  double busy = 0, exposed = 0, span = 0;
  Json memory = Json::array();
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::ifstream in(output + "/ranks/rank-" + std::to_string(rank) + ".json");
    if (!in) continue;
    const Json figures = Json::parse(in);
    busy += figures.at("busy_seconds").get<double>();
    exposed += figures.at("exposed_comm_seconds").get<double>();
    span += figures.at("step_seconds").get<double>();
    memory.push_back(figures.at("memory_bytes"));
  }
  result["bubble"] = span > 0 ? Json(1 - busy / span) : Json();
  result["exposed_comm"] = span > 0 ? Json(exposed / span) : Json();
  result["memory_bytes"] = memory;
  result["loss_first"] = all.front().at("loss");
  result["loss_last"] = all.back().at("loss");
  result["world"] = plan.world;
  result["job"] = plan.spec.name;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4 || std::string(argv[1]) != "train") {
    std::cerr << "usage: phalanx-bench train JOB [OUTPUT]\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  std::stringstream text;
  text << file.rdbuf();
  const auto read = phalanx::wire::ReadJobFile(text.str(), phalanx::job::Purpose::kSubmit);
  if (!read.ok()) return Fail(std::string(read.status().message()));
  const auto plan =
      phalanx::plan::MakePlan(read->spec, phalanx::plan::MakeCluster(1, read->spec.World()), phalanx::Epoch{1});
  if (!plan.ok()) return Fail(std::string(plan.status().message()));
  if (plan->spec.steps < static_cast<int64_t>(kWarmupSteps + kStepsMin)) {
    return Fail("spec.steps: " + std::to_string(plan->spec.steps) + ": must be at least " +
                std::to_string(kWarmupSteps + kStepsMin) + ", the first " + std::to_string(kWarmupSteps) +
                " count in nothing");
  }
  const std::filesystem::path output =
      argc == 4 ? std::filesystem::absolute(argv[3])
                : std::filesystem::temp_directory_path() / ("phalanx-bench." + std::to_string(getpid()));
  const int code = RunJob(argv[2], output.string());
  if (code != 0) return Fail("the run ended with exit code " + std::to_string(code));
  const std::vector<Json> lines = ReadLines(output.string() + "/metrics.jsonl");
  if (lines.size() != static_cast<size_t>(plan->spec.steps)) {
    return Fail("metrics.jsonl has " + std::to_string(lines.size()) + " lines");
  }
  std::cout << Measure(*plan, output.string(), lines).dump() << std::endl;
  if (argc == 3) std::filesystem::remove_all(output);
  return 0;
}

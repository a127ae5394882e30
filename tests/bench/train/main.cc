// phalanx-bench profile ARGUMENTS, phalanx-bench products ARGUMENTS: what phalanx-bench-profile and
// phalanx-bench-products, beside this executable, do.
//
// phalanx-bench train JOB [OUTPUT] [--trace FILE] [--profile]: trains a job through `phalanx run`
// and prints one JSON line of what it measured over the steps after the first kWarmupSteps: tokens,
// labelled ones and samples a second are all of them over all time, FLOPs and what the simulator is
// beside are of the median step. With --trace the job runs with `trace: true`, and FILE is the
// timeline that it leaves. With --profile it runs with `profile: true`: the line has each rank's
// profile of one warm step by part, and a table of them, with the kernels that take longest, goes
// to standard error.
//
// FLOPs: 2 a multiply-add, causal attention half, head included, forward and executed backward, no
// recomputation; tflops_per_device of all rows, as others count theirs, tflops_per_device_executed
// without what rows that have no label do not need (core/plan/cost.h); mfu of all rows against the
// dense bf16 rate of an H100 or H200, null on CPU; tokens are language positions without padding,
// labelled ones those that the loss counts; bubble = 1 - busy / (devices x step). simulated_ms is
// the step that the simulator predicts from the mean time of each part's passes, as measured in the
// run, and the longest end of a step (reductions, optimizer, gathers) behind it; simulated_error is
// how far that is off, and simulated_passes_ms the step without that end. mhz, degrees, watts and
// joules_per_token are what NVML says of the boards of the run, four times a second, and are not
// there without it: means over the steps that count, the watts and joules of all boards together.
// fp8 is how products in FP8 are made, where there are some. host is the part of a step in which a
// rank's host works instead of waiting for its device (on CPU it is the device), allocations and
// retries what LibTorch's allocator asks of the device in the steps that count, each of the rank
// that has most.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/cost.h"
#include "core/plan/plan.h"
#include "core/schedule/choice.h"
#include "core/schedule/simulator.h"
#include "core/wire/job_yaml.h"
#include "nlohmann/json.hpp"
#include "tests/bench/board/board.h"
#include "tests/bench/board/board_log.h"

namespace {

constexpr size_t kWarmupSteps = 10;
constexpr size_t kStepsMin = 30;
constexpr double kPeakFlops = 989e12;

using Json = nlohmann::ordered_json;

int Fail(const std::string& message) {
  std::cerr << "phalanx-bench: " << message << "\n";
  return 1;
}

// Of a program beside this executable.
std::string Beside(const char* program) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / program;
}

// Becomes that program. Returns where there is none.
int ExecBeside(const char* name, char** argv) {
  const std::string program = Beside(name);
  execv(program.c_str(), argv);
  return Fail(program + ": " + std::strerror(errno));
}

// Runs `phalanx` beside this executable in `folder`, and returns its exit code. An unset file
// stands for /dev/null as its input, and for our stderr as its output.
int RunPhalanx(std::vector<std::string> arguments, const std::string& folder, std::FILE* in,
               std::FILE* out) {
  std::string program = Beside("phalanx");
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    dup2(in != nullptr ? fileno(in) : open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out != nullptr ? fileno(out) : STDERR_FILENO, STDOUT_FILENO);
    if (chdir(folder.c_str()) == 0) execv(argv[0], argv.data());
    std::fprintf(stderr, "%s: %s\n", program.c_str(), std::strerror(errno));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Options {
  std::string job, output, trace;  // empty: none
  bool profile = false;
};

// The job with `trace: true`, `profile: true` or both, as standard input of a run in the job's
// folder. nullptr: it has said why.
std::FILE* WatchedJob(const std::string& job, const std::string& folder, const Options& options) {
  std::FILE* file = std::tmpfile();
  if (file == nullptr || RunPhalanx({"validate", job, "-o", "json"}, folder, nullptr, file) != 0)
    return nullptr;
  std::fseek(file, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  Json document =
      Json::parse(text.data(), text.data() + std::fread(text.data(), 1, text.size(), file));
  if (!options.trace.empty()) document["spec"]["trace"] = true;
  if (options.profile) document["spec"]["profile"] = true;
  std::FILE* watched = std::tmpfile();
  if (watched == nullptr) return nullptr;
  std::fputs(document.dump().c_str(), watched);
  std::rewind(watched);
  return watched;
}

int RunJob(const Options& options, const std::string& output) {
  const std::filesystem::path path = std::filesystem::absolute(options.job);
  const std::string folder = path.parent_path();
  if (options.trace.empty() && !options.profile)
    return RunPhalanx({"run", path, "--output", output}, folder, nullptr, nullptr);
  std::FILE* in = WatchedJob(path, folder, options);
  return in == nullptr ? 1 : RunPhalanx({"run", "-", "--output", output}, folder, in, nullptr);
}

// The last that metrics.jsonl has; 0: none.
int64_t LastStep(const std::string& path) {
  constexpr std::streamoff kTail = 4096;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return 0;
  in.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(in.tellg()) - kTail));
  const std::string tail(std::istreambuf_iterator<char>(in), {});
  const size_t end = tail.rfind('\n');
  if (end == std::string::npos || end == 0) return 0;
  const size_t before = tail.rfind('\n', end - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const Json line = Json::parse(tail.substr(begin, end - begin), nullptr, /*exceptions=*/false);
  return line.is_object() ? line.value("step", int64_t{0}) : 0;
}

// Runs the job; `boards`: what those of its devices say of the steps that count.
int RunWatched(const Options& options, const phalanx::plan::Plan& plan, const std::string& output,
               std::optional<phalanx::bench::BoardMeans>& boards) {
  using phalanx::bench::Board;
  auto opened = plan.spec.resources.device == phalanx::job::DeviceKind::kGpu
                    ? Board::OpenAll(plan.world)
                    : absl::StatusOr<std::vector<Board>>(std::vector<Board>());
  if (!opened.ok()) std::cerr << "phalanx-bench: no clocks: " << opened.status() << "\n";
  if (!opened.ok() || opened->empty()) return RunJob(options, output);
  phalanx::bench::BoardLog log(*std::move(opened),
                               [path = output + "/metrics.jsonl"] { return LastStep(path); });
  const int code = RunJob(options, output);
  boards = MeansOf(log.Stop(), static_cast<int64_t>(kWarmupSteps), plan.spec.steps);
  return code;
}

std::vector<Json> ReadLines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

double Percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(values.size())))];
}

double Mean(const std::vector<Json>& lines, const char* key) {
  double sum = 0;
  for (const Json& line : lines) sum += line.at(key).get<double>();
  return sum / static_cast<double>(lines.size());
}

// The mean over ranks of what each measured, as the simulator's costs.
class MeasuredCosts {
 public:
  explicit MeasuredCosts(const phalanx::plan::Plan& plan) {
    for (const phalanx::plan::ModulePlan& module : plan.modules) {
      costs_.parts.emplace_back(module.stage_layers.size(), phalanx::schedule::PartCost{0, 0, 0});
      ranks_.emplace_back(module.stage_layers.size(), 0.0);
      chunks_.push_back(module.chunks());
    }
  }
  void Add(const Json& figures) {
    for (const Json& pass : figures.at("passes")) {
      const size_t m = pass.at("module").get<size_t>();
      const size_t part = pass.at("stage").get<size_t>() * static_cast<size_t>(chunks_[m]) +
                          pass.at("chunk").get<size_t>();
      phalanx::schedule::PartCost& cost = costs_.parts[m][part];
      cost.forward += pass.at("forward").get<double>();
      cost.backward_input += pass.at("backward_input").get<double>();
      cost.backward_weight += pass.at("backward_weight").get<double>();
      ranks_[m][part] += 1;
    }
    finish_ = std::max(
        finish_, figures.at("finish_seconds").get<double>() / figures.at("steps").get<double>());
  }
  double finish() const { return finish_; }
  // Seconds of a step's passes.
  double Predict(const phalanx::plan::Plan& plan) {
    for (size_t m = 0; m < ranks_.size(); ++m) {
      for (size_t part = 0; part < ranks_[m].size(); ++part) {
        const double ranks = std::max(1.0, ranks_[m][part]);
        phalanx::schedule::PartCost& cost = costs_.parts[m][part];
        cost = {cost.forward / ranks, cost.backward_input / ranks, cost.backward_weight / ranks};
      }
    }
    const auto programs = phalanx::schedule::BuildStep(plan);
    if (!programs.ok()) return 0;
    return phalanx::schedule::Simulate(plan, *programs, costs_).step;
  }

 private:
  phalanx::schedule::CostModel costs_;
  std::vector<std::vector<double>> ranks_;
  std::vector<int32_t> chunks_;
  double finish_ = 0;
};

// Of each rank that has written it.
std::vector<Json> ReadFigures(const phalanx::plan::Plan& plan, const std::string& output) {
  std::vector<Json> figures;
  for (int32_t rank = 0; rank < plan.world; ++rank) {
    std::ifstream in(output + "/ranks/rank-" + std::to_string(rank) + ".json");
    if (in) figures.push_back(Json::parse(in));
  }
  return figures;
}

Json Measure(const phalanx::plan::Plan& plan, const std::vector<Json>& ranks,
             const std::vector<Json>& all,
             const std::optional<phalanx::bench::BoardMeans>& boards) {
  const std::vector<Json> lines(all.begin() + kWarmupSteps, all.end());
  std::vector<double> seconds;
  for (const Json& line : lines) seconds.push_back(line.at("step_seconds").get<double>());
  const double median = Percentile(seconds, 0.5);
  const double tokens = Mean(lines, "tokens");
  const double labelled = Mean(lines, "labelled_tokens");
  const phalanx::plan::StepFlops step_flops = phalanx::plan::FlopsOf(
      plan, {tokens, labelled, Mean(lines, "images"), Mean(lines, "sounds")});
  const double flops = step_flops.all_rows / median / plan.world;
  Json result;
  const double mean = Mean(lines, "step_seconds");
  result["tokens_per_s"] = tokens / mean;
  result["labelled_tokens_per_s"] = labelled / mean;
  result["samples_per_s"] = static_cast<double>(plan.spec.batch.global) / mean;
  result["step_ms"] = {
      {"mean", mean * 1e3}, {"median", median * 1e3}, {"p95", Percentile(seconds, 0.95) * 1e3}};
  result["tflops_per_device"] = flops * 1e-12;
  result["tflops_per_device_executed"] = step_flops.executed / median / plan.world * 1e-12;
  result["mfu"] = plan.spec.resources.device == phalanx::job::DeviceKind::kGpu
                      ? Json(flops / kPeakFlops)
                      : Json();
  if (boards.has_value()) {
    result["mhz"] = boards->mhz;
    result["watts"] = boards->watts;
    result["joules_per_token"] = boards->watts * mean / tokens;
    result["degrees"] = boards->degrees;
  }
  double busy = 0, exposed = 0, span = 0, host = 0;
  int64_t allocations = 0, retries = 0;
  MeasuredCosts costs(plan);
  Json memory = Json::array(), profiles = Json::array();
  for (const Json& figures : ranks) {
    busy += figures.at("busy_seconds").get<double>();
    exposed += figures.at("exposed_comm_seconds").get<double>();
    span += figures.at("step_seconds").get<double>();
    costs.Add(figures);
    memory.push_back(figures.at("memory_bytes"));
    const double of_rank = figures.at("step_seconds").get<double>();
    if (of_rank > 0) host = std::max(host, figures.at("host_seconds").get<double>() / of_rank);
    const Json& allocator = figures.at("allocator");
    allocations = std::max(allocations, allocator.at("allocations").get<int64_t>());
    retries = std::max(retries, allocator.at("retries").get<int64_t>());
    if (!figures.contains("profile")) continue;
    Json profile = figures.at("profile");
    profile.erase("kernels");
    profile["rank"] = figures.at("rank");
    profiles.push_back(std::move(profile));
  }
  result["bubble"] = span > 0 ? Json(1 - busy / span) : Json();
  result["exposed_comm"] = span > 0 ? Json(exposed / span) : Json();
  const double passes = costs.Predict(plan), predicted = passes + costs.finish();
  result["simulated_ms"] = predicted * 1e3;
  result["simulated_passes_ms"] = passes * 1e3;
  result["simulated_error"] = predicted / median - 1;
  result["host"] = host;
  result["allocations"] = allocations;
  result["retries"] = retries;
  result["memory_bytes"] = memory;
  for (const Json& figures : ranks) {
    if (figures.contains("fp8")) result["fp8"] = figures.at("fp8");
  }
  if (!profiles.empty()) result["profiles"] = profiles;
  result["loss_first"] = all.front().at("loss");
  result["loss_last"] = all.back().at("loss");
  result["world"] = plan.world;
  result["job"] = plan.spec.name;
  return result;
}

// A part of a step in milliseconds and of the step's time.
void PrintPart(const std::string& name, double seconds, double share, double step) {
  std::fprintf(stderr, "  %-14s %10.3f ms %10.3f ms of the step, %5.1f %%\n", name.c_str(),
               seconds * 1e3, share * 1e3, 100 * share / step);
}

void PrintProfile(const Json& figures) {
  constexpr size_t kKernelsMax = 25, kNameMax = 100, kGapNameMax = 60;
  const Json& profile = figures.at("profile");
  const double step = profile.at("seconds").get<double>();
  std::fprintf(stderr, "rank %d, step %d: %.3f ms\n", figures.at("rank").get<int>(),
               profile.at("step").get<int>(), step * 1e3);
  for (const auto& [name, part] : profile.at("parts").items())
    PrintPart(name, part.at("seconds").get<double>(), part.at("share").get<double>(), step);
  const double waiting = profile.at("waiting").get<double>();
  PrintPart("waiting", waiting, waiting, step);
  std::fprintf(stderr, "  longest spans in which nothing computes, behind the step's beginning:\n");
  for (const Json& gap : profile.at("gaps")) {
    const auto name = [&](const char* which) {
      return gap.at(which).get<std::string>().substr(0, kGapNameMax);
    };
    std::fprintf(stderr, "  %10.3f ms at %10.3f ms, %8.3f ms communicating; %s, then %s\n",
                 gap.at("seconds").get<double>() * 1e3, gap.at("at").get<double>() * 1e3,
                 gap.at("communication").get<double>() * 1e3, name("after").c_str(),
                 name("before").c_str());
  }
  const Json& kernels = profile.at("kernels");
  for (size_t i = 0; i < std::min(kKernelsMax, kernels.size()); ++i) {
    const Json& kernel = kernels[i];
    std::fprintf(stderr, "  %10.3f ms %6d x  %-13s %s\n", kernel.at("seconds").get<double>() * 1e3,
                 kernel.at("count").get<int>(), kernel.at("part").get<std::string>().c_str(),
                 kernel.at("name").get<std::string>().substr(0, kNameMax).c_str());
  }
}

// False: the arguments are not those of the usage.
bool ReadArguments(const std::vector<std::string>& arguments, Options& options) {
  std::vector<std::string> names;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--profile") {
      options.profile = true;
    } else if (arguments[i] == "--trace" && i + 1 < arguments.size()) {
      options.trace = arguments[++i];
    } else if (arguments[i].rfind("--", 0) == 0) {
      return false;
    } else {
      names.push_back(arguments[i]);
    }
  }
  if (names.size() < 2 || names.size() > 3 || names[0] != "train") return false;
  options.job = names[1];
  if (names.size() == 3) options.output = names[2];
  return true;
}

int Train(const Options& options, const phalanx::plan::Plan& plan) {
  const std::filesystem::path output =
      options.output.empty()
          ? std::filesystem::temp_directory_path() / ("phalanx-bench." + std::to_string(getpid()))
          : std::filesystem::absolute(options.output);
  std::optional<phalanx::bench::BoardMeans> boards;
  const int code = RunWatched(options, plan, output.string(), boards);
  if (code != 0) return Fail("the run ended with exit code " + std::to_string(code));
  const std::vector<Json> lines = ReadLines(output.string() + "/metrics.jsonl");
  if (lines.size() != static_cast<size_t>(plan.spec.steps))
    return Fail("metrics.jsonl has " + std::to_string(lines.size()) + " lines");
  const std::vector<Json> ranks = ReadFigures(plan, output.string());
  std::cout << Measure(plan, ranks, lines, boards).dump() << std::endl;
  for (const Json& figures : ranks) {
    if (figures.contains("profile")) {
      PrintProfile(figures);
    } else if (options.profile) {
      return Fail("rank " + figures.at("rank").dump() + " has no profile; its log says why");
    }
  }
  if (!options.trace.empty()) {
    std::error_code error;
    std::filesystem::copy_file(output / "trace.json", options.trace,
                               std::filesystem::copy_options::overwrite_existing, error);
    if (error) return Fail(options.trace + ": " + error.message());
  }
  if (options.output.empty()) std::filesystem::remove_all(output);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "profile")
    return ExecBeside("phalanx-bench-profile", argv + 1);
  if (!arguments.empty() && arguments[0] == "products")
    return ExecBeside("phalanx-bench-products", argv + 1);
  Options options;
  if (!ReadArguments(arguments, options)) {
    std::cerr
        << "usage: phalanx-bench train JOB [OUTPUT] [--trace FILE] [--profile]\n"
           "       phalanx-bench profile --output FILE [--name KIND] [--seconds N]\n"
           "       phalanx-bench products --job JOB.yaml [--job ...] --out FILE [--before FILE]\n"
           "                              [--seconds N] [--seconds-each N]\n";
    return 2;
  }
  std::ifstream file(options.job);
  std::stringstream text;
  text << file.rdbuf();
  const auto read = phalanx::wire::ReadJobFile(text.str(), phalanx::job::Purpose::kSubmit);
  if (!read.ok()) return Fail(std::string(read.status().message()));
  const auto plan = phalanx::schedule::PlanJob(
      read->spec, phalanx::plan::MakeCluster(1, read->spec.World()), phalanx::Epoch{1});
  if (!plan.ok()) return Fail(std::string(plan.status().message()));
  if (plan->spec.steps < static_cast<int64_t>(kWarmupSteps + kStepsMin)) {
    return Fail("spec.steps: " + std::to_string(plan->spec.steps) + ": must be at least " +
                std::to_string(kWarmupSteps + kStepsMin) + ", the first " +
                std::to_string(kWarmupSteps) + " count in nothing");
  }
  return Train(options, *plan);
}

#include "tests/bench/products/met.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"

namespace phalanx::bench {
namespace {

using Json = nlohmann::ordered_json;
using schedule::ProductKey;

constexpr int64_t kSteps = 4;

std::string PhalanxBeside() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "phalanx").string();
}

// `in` unset: /dev/null; `out` unset: standard error. Returns an exit code.
int RunPhalanx(std::vector<std::string> arguments, const std::string& folder, std::FILE* in,
               std::FILE* out) {
  std::string program = PhalanxBeside();
  std::vector<char*> argv = {program.data()};
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("PHALANX_PRODUCTS", "none", 1);
    dup2(in != nullptr ? fileno(in) : open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(out != nullptr ? fileno(out) : STDERR_FILENO, STDOUT_FILENO);
    if (chdir(folder.c_str()) == 0) execv(argv[0], argv.data());
    std::perror(program.c_str());
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The job of a few steps that writes no checkpoints, as standard input of a run.
absl::StatusOr<std::FILE*> FewSteps(const std::string& job, const std::string& folder) {
  std::FILE* file = std::tmpfile();
  if (file == nullptr || RunPhalanx({"validate", job, "-o", "json"}, folder, nullptr, file) != 0)
    return absl::InvalidArgumentError(absl::StrCat(job, ": it is no valid job"));
  std::fseek(file, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  Json document = Json::parse(text);
  Json& spec = document["spec"];
  spec["steps"] = kSteps;
  if (spec.contains("optimizer")) spec["optimizer"]["warmup_steps"] = 0;
  for (const char* part : {"checkpoint", "trace", "profile"}) spec.erase(part);
  std::FILE* few = std::tmpfile();
  if (few == nullptr) return absl::UnavailableError("no temporary file");
  std::fputs(document.dump().c_str(), few);
  std::rewind(few);
  return few;
}

schedule::ProductType TypeNamed(const Json& name) {
  const auto names = schedule::ProductTypeNames();
  const auto found = std::find(names.begin(), names.end(), name.get<std::string>());
  return static_cast<schedule::ProductType>(found - names.begin());
}

Weighted ReadOne(const Json& from) {
  const auto flag = [&](const char* name) { return from.at(name).get<bool>(); };
  const auto side = [&](const char* name) { return from.at(name).get<int64_t>(); };
  return {.key = {.a = TypeNamed(from.at("a")),
                  .b = TypeNamed(from.at("b")),
                  .d = TypeNamed(from.at("d")),
                  .a_turned = flag("a_turned"),
                  .b_turned = flag("b_turned"),
                  .add = flag("add"),
                  .fast = flag("fast"),
                  .bias = flag("bias"),
                  .m = side("m"),
                  .n = side("n"),
                  .k = side("k")},
          .count = side("count")};
}

}  // namespace

std::vector<Weighted> Merged(const std::vector<std::vector<Weighted>>& jobs) {
  std::map<ProductKey, int64_t> counts;
  for (const std::vector<Weighted>& job : jobs) {
    for (const Weighted& product : job) counts[product.key] += product.count;
  }
  std::vector<Weighted> all;
  for (const auto& [key, count] : counts) all.push_back({key, count});
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.flops() > b.flops(); });
  return all;
}

absl::StatusOr<std::vector<Weighted>> ProductsOfJob(const std::string& job) {
  const std::filesystem::path path = std::filesystem::absolute(job);
  const std::string folder = path.parent_path().string();
  ASSIGN_OR_RETURN(std::FILE * in, FewSteps(path.string(), folder));
  std::string output =
      (std::filesystem::temp_directory_path() / "phalanx-products.XXXXXX").string();
  if (mkdtemp(output.data()) == nullptr) return absl::UnavailableError("no temporary folder");
  const int code = RunPhalanx({"run", "-", "--output", output}, folder, in, nullptr);
  std::fclose(in);
  if (code != 0) {
    return absl::InternalError(
        absl::StrCat(job, ": phalanx run ended with exit code ", code, "; it left ", output));
  }
  std::vector<std::vector<Weighted>> ranks;
  for (const auto& file : std::filesystem::directory_iterator(output + "/ranks")) {
    std::ifstream text(file.path());
    const Json figures = Json::parse(text);
    std::vector<Weighted>& products = ranks.emplace_back();
    if (!figures.contains("products")) continue;
    for (const Json& product : figures.at("products")) products.push_back(ReadOne(product));
  }
  std::filesystem::remove_all(output);
  std::vector<Weighted> all = Merged(ranks);
  if (all.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job,
                     ": its ranks met no products that a table may have; it must train in "
                     "bf16 on a GPU"));
  }
  return all;
}

}  // namespace phalanx::bench

#include "tests/support/files.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace phalanx::support {
namespace {

void Check(bool condition, absl::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "tests/support/files: %s\n", std::string(what).c_str());
  std::abort();
}

}  // namespace

std::string MakeFolder(absl::string_view name) {
  // Removed when the test program ends in good order.
  struct Folders {
    std::vector<std::string> paths;
    ~Folders() {
      std::error_code ignored;
      for (const std::string& path : paths) std::filesystem::remove_all(path, ignored);
    }
  };
  static Folders folders;
  const char* root = std::getenv("TMPDIR");
  std::string path = absl::StrCat(root == nullptr ? "/tmp" : root, "/phalanx-", name, "-XXXXXX");
  Check(mkdtemp(path.data()) != nullptr, "cannot make a folder");
  folders.paths.push_back(path);
  return path;
}

void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  Check(file.good(), absl::StrCat("cannot write ", path));
}

void ReplaceFile(const std::string& path, absl::string_view bytes) {
  const std::string beside = path + ".new";
  WriteFile(beside, bytes);
  Check(std::rename(beside.c_str(), path.c_str()) == 0, absl::StrCat("cannot replace ", path));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Check(file.good(), absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string FindTool(absl::string_view name) {
  const auto variable = [](const char* of) {
    const char* value = std::getenv(of);
    return std::string(value == nullptr ? "" : value);
  };
  std::string dependencies = variable("PHALANX_DEPS_DIR");
  if (dependencies.empty()) dependencies = variable("HOME") + "/.cache/phalanx/deps";
  std::vector<std::string> folders = absl::StrSplit(variable("PATH"), ':');
  folders.push_back(absl::StrCat(dependencies, "/", name));
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (access(path.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(path)) return path;
  }
  return "";
}

}  // namespace phalanx::support

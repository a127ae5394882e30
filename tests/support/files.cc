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

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Check(file.good(), absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace phalanx::support

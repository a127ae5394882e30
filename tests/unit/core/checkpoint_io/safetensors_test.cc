// Part files are what Hugging Face's safetensors library reads (scripts/setup brings it).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/checkpoint_io/checkpoints.h"
#include "tests/support/paths.h"
#include "tests/support/tools.h"
#include "tests/unit/core/checkpoint_io/written.h"

namespace phalanx::checkpoint {
namespace {

// Where scripts/setup puts the library; empty if it is not there.
std::string Library() {
  const std::string path = tests::DepsDir() + "/safetensors-0.8.0";
  return std::filesystem::exists(path + "/safetensors") ? path : "";
}

// A number as an element of that type holds it.
int64_t Held(double value, DType dtype) {
  if (dtype != DType::kBf16) return static_cast<int64_t>(value);
  const std::string bytes = std::string(2, '\0') + support::BytesOf(value, dtype);
  float held = 0;
  std::memcpy(&held, bytes.data(), sizeof held);
  return static_cast<int64_t>(held);
}

// The lines that the script should print of a file.
std::vector<std::string> Expected(const support::MadePart& part) {
  std::vector<std::string> lines;
  for (const Entry& entry : part.header.entries) {
    std::string text = absl::StrCat(NameOf(entry), " ", ToString(entry.dtype), " ", entry.lines(),
                                    " ", entry.line());
    const support::CheckpointValues value(entry.module, entry.tensor, entry.kind);
    for (int64_t line = 0; line < entry.lines(); ++line) {
      for (int64_t i = 0; i < entry.line(); ++i) {
        const int64_t row = entry.where.row + (entry.transposed ? i : line);
        const int64_t col = entry.where.col + (entry.transposed ? line : i);
        absl::StrAppend(&text, " ", Held(value(row, col), entry.dtype));
      }
    }
    lines.push_back(std::move(text));
  }
  std::sort(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) {
    return a.substr(0, a.find(' ')) < b.substr(0, b.find(' '));
  });
  lines.insert(lines.begin(), absl::StrCat("file phalanx-1 50 ", part.header.info.rank, " ",
                                           part.header.entries.size()));
  return lines;
}

class SafetensorsTest : public testing::TestWithParam<job::Precision> {};

TEST_P(SafetensorsTest, PartFiles_AreReadByHuggingFacesLibrary) {
  const std::string library = Library();
  PHALANX_SKIP_WITHOUT_TOOL(library.empty() ? "no safetensors library: scripts/setup brings it"
                                            : "");
  const plan::Plan plan = PlanOf(TwoModules(GetParam()));
  const std::string folder = support::MakeFolder("safetensors");
  const std::string path = support::WriteCheckpoint(plan, folder);
  std::vector<std::string> expected;
  std::string files;
  for (const support::MadePart& part : support::MakeParts(plan)) {
    const std::vector<std::string> lines = Expected(part);
    expected.insert(expected.end(), lines.begin(), lines.end());
    absl::StrAppend(&files, " ", PartPath(path, part.header.info.rank));
  }
  const std::string said = folder + "/said",
                    command = absl::StrCat(
                        "PYTHONPATH=", library, " /usr/bin/python3 ", tests::SourceDir(),
                        "/tests/unit/core/checkpoint_io/read_with_safetensors.py", files, " >",
                        said, " 2>", said, ".err");
  ASSERT_EQ(std::system(command.c_str()), 0) << support::ReadFile(said + ".err");
  const std::vector<std::string> lines =
      absl::StrSplit(support::ReadFile(said), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), expected.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    ASSERT_TRUE(lines[i] == expected[i]) << lines[i].substr(0, 200) << "\n"
                                         << expected[i].substr(0, 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SafetensorsTest,
                         testing::Values(job::Precision::kBf16, job::Precision::kFp32,
                                         job::Precision::kFp64),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace phalanx::checkpoint

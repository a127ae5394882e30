// phalanx-fault-matrix: every fault in every phase, with real processes, and what becomes of it.
//
//   phalanx-fault-matrix [--rows REGEX] [--logs FOLDER] [--write FILE]
//   phalanx-fault-matrix --list | --check FILE
//
// Tries the rows whose name has a match, all without --rows, and tells of each. --logs keeps what
// the processes of rows that are not as expected said, --write makes the page of all rows. --check
// only compares a page with what is expected. Exits with 1 where something is not as expected.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "tests/e2e/matrix/page.h"
#include "tests/e2e/matrix/row.h"
#include "tests/e2e/matrix/trial.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

struct Flags {
  std::string rows, logs, write, check;
  bool list = false;
};

// False: there is no such flag, or its value is missing.
bool Parse(int argc, char** argv, Flags& flags) {
  const std::map<std::string, std::string*> values = {{"--rows", &flags.rows},
                                                      {"--logs", &flags.logs},
                                                      {"--write", &flags.write},
                                                      {"--check", &flags.check}};
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--list") {
      flags.list = true;
      continue;
    }
    const auto value = values.find(argv[i]);
    if (value == values.end() || ++i == argc) return false;
    *value->second = argv[i];
  }
  return flags.write.empty() || flags.rows.empty();
}

int Check(const std::string& path) {
  if (WithoutTimes(ExpectedPage(AllRows())) == WithoutTimes(support::ReadText(path))) return 0;
  std::fprintf(stderr, "%s is not what is expected: phalanx-fault-matrix --write %s\n",
               path.c_str(), path.c_str());
  return 1;
}

// Of a row that is not as expected.
void KeepLogs(const Flags& flags, const Row& row, const Verdict& verdict) {
  if (flags.logs.empty()) return;
  const std::string file = absl::StrReplaceAll(row.name(), {{" ", "_"}, {"/", "_"}});
  support::WriteFile(absl::StrCat(flags.logs, "/", file, ".log"),
                     absl::StrCat(verdict.wrong, "\n\n", verdict.logs));
}

int Try(const Flags& flags) {
  std::vector<Row> rows = AllRows();
  const std::regex wanted(flags.rows);
  std::erase_if(rows, [&](const Row& row) { return !std::regex_search(row.name(), wanted); });
  Trials trials;
  std::vector<Line> lines;
  size_t wrong = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const absl::Time begin = absl::Now();
    const Verdict verdict = trials.Try(row);
    const bool right = verdict.wrong.empty();
    const std::string back = BackText(row, verdict);
    std::printf("row %zu of %zu: %s: %s%s (%.1f s)\n", i + 1, rows.size(), row.name().c_str(),
                right ? "as expected" : "NOT as expected",
                back.empty() ? "" : absl::StrCat(", back after ", back).c_str(),
                absl::ToDoubleSeconds(absl::Now() - begin));
    if (!right) {
      ++wrong;
      std::printf("  %s\n", absl::StrReplaceAll(verdict.wrong, {{"\n", "\n  "}}).c_str());
      KeepLogs(flags, row, verdict);
    }
    std::fflush(stdout);
    Outcome told = right ? row.expected : verdict.found;
    if (!right && verdict.found.what.empty()) told.what = "not known";
    lines.push_back({row, told, back});
  }
  if (!flags.write.empty()) support::WriteFile(flags.write, PageOf(lines));
  std::printf("%zu rows, %zu not as expected\n", rows.size(), wrong);
  return wrong == 0 && !rows.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, flags)) {
    std::fprintf(stderr,
                 "phalanx-fault-matrix [--rows REGEX] [--logs FOLDER] | --write FILE | "
                 "--check FILE | --list\n");
    return 2;
  }
  if (!flags.check.empty()) return Check(flags.check);
  if (!flags.list) return Try(flags);
  for (const Row& row : AllRows()) std::printf("%s\n", row.name().c_str());
  return 0;
}

}  // namespace
}  // namespace phalanx::e2e

int main(int argc, char** argv) {
  try {
    setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);  // of the ranks, which are many
    return phalanx::e2e::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

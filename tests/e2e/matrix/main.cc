// phalanx-fault-matrix: every fault in every phase, with real processes, and what becomes of it.
//
//   phalanx-fault-matrix [--rows REGEX] [--runs N] [--logs FOLDER] [--write FILE]
//   phalanx-fault-matrix --list | --check FILE
//
// Tries the rows whose name has a match, all without --rows, each N times, once without --runs, and
// tells of each. --logs keeps what the processes of rows that are not as expected said, --write
// makes the page of all rows. --check only compares a page with what is expected, and looks for
// lines that do not say how soon there was a verdict, or how soon all were back. Exits with 1 where
// something is not as expected, or is detected later than its detector promises: the median of a
// line of the page, and each run with some slack.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/e2e/matrix/page.h"
#include "tests/e2e/matrix/row.h"
#include "tests/e2e/matrix/trial.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

struct Flags {
  std::string rows, logs, write, check, runs = "1";
  int64_t runs_of_each = 1;
  bool list = false;
};

// False: there is no such flag, or its value is missing.
bool Parse(int argc, char** argv, Flags& flags) {
  const std::map<std::string, std::string*> values = {{"--rows", &flags.rows},
                                                      {"--logs", &flags.logs},
                                                      {"--runs", &flags.runs},
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
  if (!absl::SimpleAtoi(flags.runs, &flags.runs_of_each) || flags.runs_of_each < 1) return false;
  return flags.write.empty() || flags.rows.empty();
}

int Check(const std::string& path) {
  const std::string page = support::ReadText(path);
  const std::vector<std::string> untold = UntoldTimes(page, AllRows());
  for (const std::string& line : untold) std::fprintf(stderr, "it is not told %s\n", line.c_str());
  if (untold.empty() && WithoutTimes(ExpectedPage(AllRows())) == WithoutTimes(page)) return 0;
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

// One run of a row, told and put down in its line. False: it is not as expected.
bool TryOnce(const Flags& flags, Trials& trials, const std::string& name, Line& line) {
  const absl::Time begin = absl::Now();
  const Verdict verdict = trials.Try(line.row);
  const bool right = verdict.wrong.empty();
  const std::string back = BackText(line.row, verdict);
  std::printf("%s: %s", name.c_str(), right ? "as expected" : "NOT as expected");
  if (verdict.detected.has_value()) {
    line.detected.push_back(*verdict.detected);
    std::printf(", detected after %.3f s", absl::ToDoubleSeconds(*verdict.detected));
  }
  if (!back.empty()) std::printf(", back after %s", back.c_str());
  std::printf(" (%.1f s)\n", absl::ToDoubleSeconds(absl::Now() - begin));
  line.back.push_back(back);
  if (!right) {
    std::printf("  %s\n", absl::StrReplaceAll(verdict.wrong, {{"\n", "\n  "}}).c_str());
    KeepLogs(flags, line.row, verdict);
    line.outcome = verdict.found;
    if (verdict.found.what.empty()) line.outcome.what = "not known";
  }
  std::fflush(stdout);
  return right;
}

int Try(const Flags& flags) {
  std::vector<Row> rows = AllRows();
  const std::regex wanted(flags.rows);
  std::erase_if(rows, [&](const Row& row) { return !std::regex_search(row.name(), wanted); });
  Trials trials;
  std::vector<Line> lines;
  size_t wrong = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Line& line = lines.emplace_back(Line{rows[i], rows[i].expected, {}, {}});
    bool right = true;
    for (int64_t run = 0; run < flags.runs_of_each && right; ++run) {
      right = TryOnce(flags, trials,
                      absl::StrCat("row ", i + 1, " of ", rows.size(), ": ", rows[i].name()), line);
    }
    wrong += right ? 0 : 1;
  }
  if (!flags.write.empty()) {
    const std::string today = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
    support::WriteFile(flags.write, Dated(PageOf(lines), today));
  }
  const std::vector<std::string> late = DetectedLate(lines);
  for (const std::string& line : late) std::printf("LATE: %s\n", line.c_str());
  std::printf("%zu rows, %zu not as expected, %zu lines detected late\n", rows.size(), wrong,
              late.size());
  return wrong == 0 && late.empty() && !rows.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!Parse(argc, argv, flags)) {
    std::fprintf(stderr,
                 "phalanx-fault-matrix [--rows REGEX] [--runs N] [--logs FOLDER] | --write FILE | "
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

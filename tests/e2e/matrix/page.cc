#include "tests/e2e/matrix/page.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace phalanx::e2e {
namespace {

constexpr absl::string_view kHead =
    R"(# Faults, and what becomes of them

Every fault of [`phalanx inject`](cli.md#faults-on-demand) in every phase that it can be asked for, and what else befalls
processes, nodes and links. Each line was tried with real processes: a job in fp64 on three nodes with two CPU slots each.
Where it went on, every step is in `metrics.jsonl` once, with the losses of a run without a fault to 1e-9 of them, and neither metrics nor checkpoints are
of an epoch that others had gone on from. This page is written by

<!-- not run: every row takes its time; the test e2e/matrix runs one of every kind -->
```sh
build/release/bin/phalanx-fault-matrix --write docs/faults.md
```

which fails where a line is not as expected; `--rows REGEX` tries some. [recovery.md](recovery.md) says what the rungs of the ladder are, and
[failures.md](failures.md) what the causes mean.

Unless the line says otherwise the job has three replicas of two tensor ranks: ranks 0 and 1 on node `here`, 2 and 3 on `middle`, 4 and 5 on `there`, and
who is lost stays out (`rejoin: manual`). A fault on demand hits rank 3; one in the phase `recovery` hits rank 4 after rank 5 was killed, so
the first rank is 5. Communicators for the loss of any one rank are
made beforehand (`standby: auto`), but for the last section. `recovery, as state moves` is `--phase recovery` with `--at-step`. *Again* is how many steps were begun again.
`mute` is tried where a message of a step is given to another rank: in the sums of a tensor group and of replicas, in records and gathers, and, of a job of
two stages and three replicas, between stages (rank 0). Nobody is to blame, so no rank is the first.
`nan` and `slow` have a line each: `nan` is in what a rank says of a step, `--phase record` alone, and `slow` is in every pass, wherever it begins.
*Detected after* is the time from the fault until the coordinator's verdict, the median of the line's runs, and *at most* what the detector promises, which the program holds it to, and each run with 10 s of slack:
300 ms where a process, its daemon or a broken connection says so; 5 s of standing still, and 10 s in which all wait, each with the second in which a daemon looks; what the row itself is about, such as silence, comes on top.
*Back after* is the time from the fault until all ranks that are left are ready for the next step.
Where a time is *not measured*, the line was last tried before times of its kind were taken down, if at all.
A rank that stays slow for longer than here is named ([operations.md](operations.md#slow-devices)), and its job trains on with it.
)";

// Of a line of a table between bars, what is before the first and behind the last one among them.
constexpr size_t kCells = 11, kDetected = 7, kAtMost = 8, kBack = 9;

std::string Cells(const Line& line) {
  const Outcome& outcome = line.outcome;
  const std::string ranks = outcome.first_ranks == std::vector<int32_t>{-1}
                                ? "none"
                                : absl::StrJoin(outcome.first_ranks, " or ");
  const std::string again =
      outcome.redone <= 1 ? absl::StrCat(outcome.redone) : absl::StrCat("at most ", outcome.redone);
  return absl::StrCat(outcome.what, " | ", outcome.cause, " | ", ranks, " | ",
                      outcome.redone == 0 ? "" : again);
}

// Longer times sort behind.
int Order(absl::string_view back) {
  constexpr absl::string_view kTimes[] = {"< 1 s", "< 5 s", "< 15 s"};
  const auto found =
      std::find_if(std::begin(kTimes), std::end(kTimes),
                   [&](absl::string_view time) { return absl::EndsWith(back, time); });
  return found == std::end(kTimes) ? -1 : static_cast<int>(found - std::begin(kTimes));
}

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(duration));
}

// A line of the page.
struct Told {
  const Line* first = nullptr;
  std::vector<std::string> phases;
  std::string back;
  std::optional<absl::Duration> detected;  // nullopt: of no run
};

// The lower one of the two in the middle.
std::optional<absl::Duration> MedianOf(std::vector<absl::Duration> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Told> Joined(const std::vector<Line>& lines) {
  std::vector<Told> all;
  for (size_t i = 0; i < lines.size();) {
    Told told{.first = &lines[i]};
    const Row& row = lines[i].row;
    const std::string cells = Cells(lines[i]);
    std::vector<absl::Duration> detected;
    for (; i < lines.size() && lines[i].row.section == row.section; ++i) {
      const Line& line = lines[i];
      if (line.row.fault != row.fault || Cells(line) != cells) break;
      const bool on_demand = !line.row.injections.empty() && line.row.act == nullptr;
      told.phases.push_back(line.row.phase.empty() && on_demand ? "any" : line.row.phase);
      for (const std::string& back : line.back)
        if (told.back.empty() || Order(told.back) < Order(back)) told.back = back;
      detected.insert(detected.end(), line.detected.begin(), line.detected.end());
    }
    told.detected = MedianOf(std::move(detected));
    all.push_back(std::move(told));
  }
  return all;
}

}  // namespace

std::string PageOf(const std::vector<Line>& lines) {
  std::string page(kHead), section;
  for (const Told& told : Joined(lines)) {
    const Row& row = told.first->row;
    if (row.section != section) {
      section = row.section;
      absl::StrAppend(&page, "\n## ", section, "\n\n",
                      "| Fault | Phase | What happened | Cause | First rank | Again | Detected "
                      "after | At most | Back after |\n"
                      "|---|---|---|---|---|---|---|---|---|\n");
    }
    const std::optional<absl::Duration> within = DetectedWithin(row);
    absl::StrAppend(&page, "| ", row.fault, " | ", absl::StrJoin(told.phases, ", "), " | ",
                    Cells(*told.first), " | ",
                    told.detected.has_value() ? SecondsText(*told.detected) : "", " | ",
                    within.has_value() ? SecondsText(*within) : "", " | ", told.back, " |\n");
  }
  return page;
}

std::vector<std::string> DetectedLate(const std::vector<Line>& lines) {
  std::vector<std::string> late;
  for (const Told& told : Joined(lines)) {
    const std::optional<absl::Duration> within = DetectedWithin(told.first->row);
    if (!within.has_value() || !told.detected.has_value() || *told.detected <= *within) continue;
    late.push_back(absl::StrCat(told.first->row.fault, " (", absl::StrJoin(told.phases, ", "),
                                "): detected after ", SecondsText(*told.detected), ", expected ",
                                SecondsText(*within), " at most"));
  }
  return late;
}

std::string ExpectedPage(const std::vector<Row>& rows) {
  std::vector<Line> lines;
  for (const Row& row : rows) lines.push_back({row, row.expected, {}, {}});
  return PageOf(lines);
}

std::vector<std::string> UntoldVerdicts(const std::string& page) {
  std::vector<std::string> untold;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() != kCells || absl::StripAsciiWhitespace(cells[kAtMost]).empty()) continue;
    if (absl::StripAsciiWhitespace(cells[kDetected]).empty()) untold.emplace_back(line);
  }
  return untold;
}

std::string WithoutTimes(const std::string& page) {
  std::vector<std::string> lines = absl::StrSplit(page, '\n');
  for (std::string& line : lines) {
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() != kCells) continue;
    cells[kDetected] = cells[kBack] = "";
    line = absl::StrJoin(cells, "|");
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace phalanx::e2e

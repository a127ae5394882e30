#include "tests/e2e/matrix/page.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace phalanx::e2e {
namespace {

constexpr absl::string_view kHead =
    R"(# Faults, and what becomes of them

Every fault of [`phalanx inject`](cli.md#faults-on-demand) in every phase that it can be asked for, and what else befalls
processes, nodes and links. Each line was tried with real processes: a job in fp64 on three nodes with two CPU slots each.
Where it went on, every step is in `metrics.jsonl` once, with the losses of a run without a fault to 1e-9 of them. This page is written by

    build/release/bin/phalanx-fault-matrix --write docs/faults.md

which fails where a line is not as expected; `--rows REGEX` tries some. [recovery.md](recovery.md) says what the rungs of the ladder are, and
[failures.md](failures.md) what the causes mean.

Unless the line says otherwise the job has three replicas of two tensor ranks: ranks 0 and 1 on node `here`, 2 and 3 on `middle`, 4 and 5 on `there`, and
who is lost stays out (`rejoin: manual`). A fault on demand hits rank 3; one in the phase `recovery` hits rank 4 after rank 5 was killed, so
the first rank is 5. Communicators for the loss of any one rank are
made beforehand (`standby: auto`), but for the last section. `recovery, as state moves` is `--phase recovery` with `--at-step`. *Again* is how many steps were begun again.
`nan` and `slow` have a line each: `nan` is in what a rank says of a step, `--phase record` alone, and `slow` is in every pass, wherever it begins.
*Back after* is the time from the fault until all ranks that are left are ready for the next step.
A rank that stays slow for longer than here is named ([operations.md](operations.md#slow-devices)), and its job trains on with it.
)";

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

}  // namespace

std::string PageOf(const std::vector<Line>& lines) {
  std::string page(kHead), section;
  for (size_t i = 0; i < lines.size();) {
    const Row& row = lines[i].row;
    if (row.section != section) {
      section = row.section;
      absl::StrAppend(
          &page, "\n## ", section, "\n\n",
          "| Fault | Phase | What happened | Cause | First rank | Again | Back after |\n"
          "|---|---|---|---|---|---|---|\n");
    }
    const std::string cells = Cells(lines[i]);
    std::vector<std::string> phases;
    std::string back;
    for (; i < lines.size() && lines[i].row.section == section; ++i) {
      const Line& line = lines[i];
      if (line.row.fault != row.fault || Cells(line) != cells) break;
      const bool on_demand = !line.row.injections.empty() && line.row.act == nullptr;
      phases.push_back(line.row.phase.empty() && on_demand ? "any" : line.row.phase);
      if (back.empty() || Order(back) < Order(line.back)) back = line.back;
    }
    absl::StrAppend(&page, "| ", row.fault, " | ", absl::StrJoin(phases, ", "), " | ", cells, " | ",
                    back, " |\n");
  }
  return page;
}

std::string ExpectedPage(const std::vector<Row>& rows) {
  std::vector<Line> lines;
  for (const Row& row : rows) lines.push_back({row, row.expected, ""});
  return PageOf(lines);
}

std::string WithoutTimes(const std::string& page) {
  std::vector<std::string> lines = absl::StrSplit(page, '\n');
  for (std::string& line : lines) {
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() != 9) continue;
    cells[7] = "";
    line = absl::StrJoin(cells, "|");
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace phalanx::e2e

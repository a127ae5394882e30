#include "tests/e2e/matrix/page.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace phalanx::e2e {
namespace {

constexpr absl::string_view kHead =
    R"(# Faults, and what becomes of them

Every fault of [`phalanx inject`](cli.md#faults-on-demand) in every phase that it can be asked for (`xid:31` and `xid:63` at once alone), and what else befalls
processes, nodes and links. Each line was tried with real processes: a job in fp64 on three nodes with two CPU slots each.
Where it went on, every step is in `metrics.jsonl` once, with the losses of a run without a fault to 1e-9 of them, and neither metrics nor checkpoints are
of an epoch that others had gone on from. This page is written by

<!-- not run: every row takes its time; the test e2e/matrix runs some of every section -->
```sh
build/release/bin/phalanx-fault-matrix --write docs/faults.md
```

which fails where a line is not as expected; `--rows REGEX` tries some. [recovery.md](recovery.md) says what the rungs of the ladder are, and
[failures.md](failures.md) what the causes mean.

Unless the line says otherwise the job has three replicas of two tensor ranks: ranks 0 and 1 on node `here`, 2 and 3 on `middle`, 4 and 5 on `there`, and
who is lost stays out (`rejoin: manual`). A fault on demand hits rank 3; one in the phase `recovery` hits rank 4 after rank 5 was killed, so
the first rank is 5. Communicators for the loss of any one rank are
made beforehand (`standby: auto`), but for the last section. `recovery, as state moves` is `--phase recovery` with `--at-step`. *Again* is how many steps were begun again.
`mute` is tried where a message of a step is given to another rank: in the sums of a tensor group and of replicas, in records, updates and gathers, and, of a job of
two stages and three replicas, between stages (rank 0). Nobody is to blame, so no rank is the first.
`nan` is tried where it can come: before a step is decided; `any` is its record. `slow` is in every pass from where it begins.
Of faults behind the first one, such as those in the phase `recovery`, an event has to tell, with the cause.
*Detected after* is the time from the fault until the coordinator's verdict, the median of the line's runs, and *at most* what the detector promises, which the program holds it to, and each run with 10 s of slack:
350 ms where a process, its daemon or a broken connection says so, 300 of them those that a word about a peer waits for a better one; 5 s of standing still, and 10 s in which all wait, each with the second in which a daemon looks; what the row itself is about, such as silence, comes on top.
*Back after* is the time from the fault until all ranks that are left are ready for the next step.
A rank that stays slow for longer than here is named ([operations.md](operations.md#slow-devices)), and its job trains on with it.
)";

constexpr absl::string_view kTail = R"(
## Elsewhere

What else befalls drivers, clocks, disks, messages and people's programs is tried by tests of their own, each with what becomes of it in its name:

| Fault | Tests |
|---|---|
| XIDs of every kind, as a table of what each costs (48, 63, 79, 94, 95, 109 and 119 among them); one that a driver tells of | `unit/worker/agent/machine` (XidTest, XidHistoryTest), `unit/worker/agent` (NvmlEventsTest) |
| a driver that hangs: while it is followed, while a daemon starts, in a check | `unit/worker/agent` (NvmlEventsTest, DriverDeadlineTest), `e2e/jobs` (CheckTest) |
| a device that takes longer than others | `e2e/recovery` (SlowTest) |
| messages that are late, lost, doubled or out of order; partitions of one direction, half-open connections | `sim/cluster` ([simulator.md](simulator.md)) |
| an answer that is lost, of each call that changes something | `rpc` (RoleTest, each asked for again), `sim/coordinator` |
| a coordinator whose disk is full, fails, is slow or does not answer | `rpc` (store_failure_test.cc, CheckStoreTest), `unit/coordinator/machine` (SlowStoreTest) |
| a wall clock that is set, on coordinator, daemon and client | `rpc/clock`, `rpc/agent/clock`, `unit/client/clock` |
| a second daemon of a node's name; a store that was put back | `e2e/jobs` (NameTest, StoreTest) |
| daemons, coordinators and recorded sessions of the release before | `rpc/older`, `e2e/rolling` |
| a checkpoint with a flipped bit, a cut or missing part, the manifest of another model; a disk that fails or is slow | `oracle/checkpoint` (DamageTest), `unit/core/checkpoint_io` |
| what NCCL says of itself: whose fault each of its errors is; a communicator that has failed while the device is waited for | `gpu/comm` (NcclErrorsTest), `oracle/training` (EpochChecksTest) |
| peers that are killed or stand still under NCCL, kernels that do not end, devices that fail, on GPUs | `gpu` tests, which skip where there is no GPU |
)";

// What a page has where not all of its lines were tried, or not since times of their kind are taken
// down; PageOf() does not write it. While it is there, a time may be kNotMeasured.
constexpr absl::string_view kNote =
    "Where a time is *not measured*, the line was last tried before times of its kind were taken "
    "down, if at all.\n";
constexpr absl::string_view kDay = "All times are of ";
constexpr absl::string_view kNotMeasured = "not measured";
constexpr absl::string_view kNotKnown = "not known: ";

// Of a line of a table between bars, what is before the first and behind the last one among them.
constexpr size_t kCells = 11, kDetected = 7, kBack = 9;

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

// Whether training went on behind a verdict.
bool ComesBack(const Outcome& outcome) {
  return !outcome.cause.empty() && outcome.what != Fails("", 0).what;
}

// Of a line, before its times.
std::string Begin(const Told& told) {
  return absl::StrCat("| ", told.first->row.fault, " | ", absl::StrJoin(told.phases, ", "), " | ",
                      Cells(*told.first), " |");
}

// What stands where a time is not there that would be due.
std::string Lack(bool due, const std::string& reason) {
  return due && !reason.empty() ? absl::StrCat(kNotKnown, reason) : "";
}

// Whether a cell has what is due there: a time, or why nobody knows it.
bool IsTold(absl::string_view cell, bool is_time, const std::string& reason, bool may_lack) {
  return is_time || (may_lack && cell == kNotMeasured) ||
         (!reason.empty() && cell == Lack(true, reason));
}

bool IsSeconds(absl::string_view cell) {
  double seconds = -1;
  return absl::ConsumeSuffix(&cell, " s") && absl::SimpleAtod(cell, &seconds) && seconds >= 0;
}

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

// As they are to be; nobody has tried them.
std::vector<Line> ExpectedLines(const std::vector<Row>& rows) {
  std::vector<Line> lines;
  for (const Row& row : rows) lines.push_back({row, row.expected, {}, {}});
  return lines;
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
    const bool back = ComesBack(told.first->outcome);
    absl::StrAppend(&page, Begin(told), " ",
                    told.detected.has_value() ? SecondsText(*told.detected)
                                              : Lack(within.has_value(), row.no_detected),
                    " | ", within.has_value() ? SecondsText(*within) : "", " | ",
                    told.back.empty() ? Lack(back, row.no_back) : told.back, " |\n");
  }
  return absl::StrCat(page, kTail);
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

std::string ExpectedPage(const std::vector<Row>& rows) { return PageOf(ExpectedLines(rows)); }

std::vector<std::string> UntoldTimes(const std::string& page, const std::vector<Row>& rows) {
  const bool may_lack = absl::StrContains(page, kNote);
  const std::vector<Line> expected = ExpectedLines(rows);
  const std::vector<Told> all = Joined(expected);
  std::vector<std::string> untold;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    if (cells.size() != kCells) continue;
    const auto told = std::find_if(all.begin(), all.end(), [line](const Told& one) {
      return absl::StartsWith(line, Begin(one));
    });
    if (told == all.end()) continue;  // the heads of tables, and what is not expected
    const Row& row = told->first->row;
    const absl::string_view detected = absl::StripAsciiWhitespace(cells[kDetected]);
    const absl::string_view back = absl::StripAsciiWhitespace(cells[kBack]);
    if (DetectedWithin(row).has_value() &&
        !IsTold(detected, IsSeconds(detected), row.no_detected, may_lack)) {
      untold.push_back(absl::StrCat("how soon there was a verdict: ", line));
    }
    if (ComesBack(row.expected) && !IsTold(back, Order(back) >= 0, row.no_back, may_lack))
      untold.push_back(absl::StrCat("how soon all were back: ", line));
  }
  return untold;
}

std::string Dated(const std::string& page, absl::string_view day) {
  const size_t head = std::min(page.find("\n## "), page.size());
  return absl::StrCat(page.substr(0, head), kDay, day, ".\n", page.substr(head));
}

std::string WithoutTimes(const std::string& page) {
  std::vector<std::string> lines = absl::StrSplit(absl::StrReplaceAll(page, {{kNote, ""}}), '\n');
  std::erase_if(lines, [](const std::string& line) { return absl::StartsWith(line, kDay); });
  for (std::string& line : lines) {
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() != kCells) continue;
    cells[kDetected] = cells[kBack] = "";
    line = absl::StrJoin(cells, "|");
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace phalanx::e2e

// tests/e2e/matrix/page.h: the table of faults as a page of docs/.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/e2e/matrix/row.h"

namespace phalanx::e2e {

// What is told of a row.
struct Line {
  Row row;
  Outcome outcome;
  std::vector<std::string> back;         // "< 1 s", of each run
  std::vector<absl::Duration> detected;  // of those runs of which it is known
};

// Neighbours that differ in the phase alone share a line, with the longest time back, and the
// median of the times to the verdict.
std::string PageOf(const std::vector<Line>& lines);
// Lines of that page whose median is over what DetectedWithin() allows, each with both.
std::vector<std::string> DetectedLate(const std::vector<Line>& lines);
// What is expected; nobody knows how long it takes.
std::string ExpectedPage(const std::vector<Row>& rows);
// Lines of the page that do not say how soon there was a verdict, where a detector promises one, or
// how soon all were back, where training went on: each with which of the two. What a row says that
// nobody may know (Row::no_detected, no_back) is said by its reason. A page that says so of itself
// may have lines whose times are not measured; none that PageOf() makes does.
std::vector<std::string> UntoldTimes(const std::string& page, const std::vector<Row>& rows);
// The page with the day of its times, such as 2026-11-29.
std::string Dated(const std::string& page, absl::string_view day);
// The page but for how long things took and when, and for whether it says that some of that is not
// measured.
std::string WithoutTimes(const std::string& page);

}  // namespace phalanx::e2e

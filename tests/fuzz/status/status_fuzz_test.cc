// That the jobs of the fuzzer bring each kind of page about: else it looks for faults in refusals.
#include <future>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/status/status_page.h"
#include "gtest/gtest.h"
#include "tests/fuzz/status/jobs.h"

namespace phalanx::fuzz {
namespace {

TEST(StatusFuzzTest, JobsOfTheFuzzer_HaveEachKindOfPage) {
  coordinator::Board board;
  Fill(board);
  coordinator::StatusPage page(board, [](const auto&, const auto& answer) {
    answer(absl::UnavailableError("nobody knows"));
  });
  const std::map<std::string, int> codes = {
      {"/", 200},
      {"/page.css", 200},
      {"/page.js", 200},
      {"/api/overview", 200},
      {absl::StrCat("/api/jobs/", kDamaged), 500},
      {absl::StrCat("/api/jobs/", kEnded), 200},
      {absl::StrCat("/api/jobs/", kEnded, "/incidents/1.svg"), 200},
      {absl::StrCat("/api/jobs/", kTrains), 200},
      {absl::StrCat("/api/jobs/", kTrains, "/timeline.svg"), 200},
      {absl::StrCat("/api/jobs/", kTrains, "/incidents/2.svg"), 200},
      {absl::StrCat("/api/jobs/", kTrains, "/incidents/3.svg"), 404},
      {absl::StrCat("/api/jobs/", kWaits), 200},
      {absl::StrCat("/api/jobs/", kWaits, "/timeline.svg"), 404},
      {absl::StrCat("/api/jobs/", kUnreadable, "/timeline.svg"), 400},
      {"/api/jobs/99", 404}};
  for (const auto& [path, code] : codes) {
    std::promise<transport::HttpResponse> made;
    page.Serve(path,
               [&made](transport::HttpResponse response) { made.set_value(std::move(response)); });
    const transport::HttpResponse response = made.get_future().get();
    EXPECT_EQ(response.code, code) << path << ": " << response.body;
  }
}

}  // namespace
}  // namespace phalanx::fuzz

// Any target that somebody asks the status page for, by itself and as a stream of events.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/status/status_page.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/http/exchange.h"
#include "tests/fuzz/status/jobs.h"
#include "tests/fuzz/support/fuzz.h"
#include "transport/http/http_request.h"

namespace phalanx::fuzz {
namespace {

using coordinator::QueueWatch;
using transport::HttpResponse;

constexpr std::chrono::seconds kPatience{60};  // nothing takes as long on a machine that works

// A board, its page, and the server of that.
class Site {
 public:
  Site() { Fill(board_); }

  // Errors: DeadlineExceeded, if it is not answered for long.
  absl::StatusOr<HttpResponse> PageOf(const std::string& target) {
    // It may be answered later.
    const auto made = std::make_shared<std::promise<HttpResponse>>();
    page_.Serve(target, [made](HttpResponse response) { made->set_value(std::move(response)); });
    std::future<HttpResponse> page = made->get_future();
    if (page.wait_for(kPatience) != std::future_status::ready) {
      return absl::DeadlineExceededError(
          absl::StrCat("nobody answers \"", absl::CHexEscape(target), "\""));
    }
    return page.get();
  }
  const LocalHttp& http() const { return http_; }

 private:
  coordinator::Board board_;
  coordinator::StatusPage page_{
      board_, [](const std::vector<JobId>& jobs,
                 const std::function<void(absl::StatusOr<QueueWatch::Spots>)>& answer) {
        QueueWatch::Spots spots;
        for (const JobId job : jobs) spots[job] = {.number = 1};
        answer(std::move(spots));
      }};
  LocalHttp http_{
      {.metrics = [] { return std::string(); },
       .ready = [] { return Health(); },
       .pages = [this](const std::string& target,
                       transport::HttpAnswer answer) { page_.Serve(target, std::move(answer)); }}};
};

Site& TheSite() {
  static Site site;
  return site;
}

// Of a page that is there.
std::string CheckPage(const HttpResponse& page) {
  if (page.policy.empty()) return "a page without a policy";
  if (page.type == "application/json")
    return nlohmann::json::accept(page.body) ? "" : "no JSON: " + page.body;
  // Texts of jobs are text: the page's own script is a file.
  if (absl::StrContains(page.body, kMarkup)) return "markup that a job has said: " + page.body;
  if (page.type == "image/svg+xml") {
    return absl::StartsWith(page.body, "<svg ") && absl::EndsWith(page.body, "</svg>\n")
               ? ""
               : "no picture: " + page.body;
  }
  return page.body.empty() ? "an empty page" : "";
}

std::string CheckAnswer(const std::string& target, const HttpResponse& page) {
  if (page.code == 200) return CheckPage(page);
  if (page.type != "text/plain; charset=utf-8") return "a refusal that is no plain text";
  if (page.body.size() < 2 || page.body.back() != '\n') return "refused without a sentence";
  if (page.code == 404) return "";
  // A document that this release does not read has no picture.
  if (page.code == 400 && absl::EndsWith(target.substr(0, target.find('?')), "/timeline.svg"))
    return "";
  if (page.code == 500 && absl::StrContains(page.body, "--check-store")) return "";
  return absl::StrCat("the code ", page.code, ": ", page.body);
}

// `query`: of /api/stream.
std::string CheckStream(Site& site, absl::string_view query) {
  const UniqueFd connection = site.http().Connect();
  Send(connection, absl::StrCat("GET /api/stream", query, " HTTP/1.1\r\n\r\n"));
  const absl::StatusOr<std::string> got = ReadAnswer(connection);
  if (!got.ok()) return std::string(got.status().message());
  if (!absl::StartsWith(query, "?/api/")) {
    const absl::StatusOr<Answer> answer = TakeApart(*got, true);
    if (!answer.ok()) return std::string(answer.status().message());
    return answer->code == 400 ? "" : "not refused: " + *got;
  }
  if (!IsStream(*got)) return "no stream of events: " + *got;
  const absl::StatusOr<HttpResponse> page = site.PageOf(std::string(query.substr(1)));
  if (!page.ok()) return std::string(page.status().message());
  const bool there = page->code == 200;
  return absl::StrContains(*got, there ? "\n\nevent: page\ndata: " : "\n\nevent: gone\ndata: ")
             ? ""
             : "another event: " + *got;
}

}  // namespace

std::string Check(absl::string_view bytes) {
  Site& site = TheSite();
  const std::string target(bytes);
  const absl::StatusOr<HttpResponse> page = site.PageOf(target);
  if (!page.ok()) return std::string(page.status().message());
  if (std::string wrong = CheckAnswer(target, *page); !wrong.empty()) return wrong;
  const auto request = transport::ReadHttpRequest(absl::StrCat("GET ", bytes, " HTTP/1.1"));
  if (!request.ok() || request->target != target || request->path() != "/api/stream") return "";
  return CheckStream(site, request->query());
}

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus = {"/",
                                     "/page.css",
                                     "/page.js?v=1",
                                     "/api/overview",
                                     "/api/overview?x=%2e",
                                     "/api/stream",
                                     "/api/stream?/",
                                     "/api/stream?/api/overview",
                                     "/api/stream?/api/stream?/api/overview",
                                     "/api/jobs/",
                                     "/api/jobs/job-3",
                                     "/api/jobs/trains",
                                     "/api/jobs/-1",
                                     "/api/jobs/9223372036854775808",
                                     "/api/jobs/3/",
                                     "/api/jobs/3/../3",
                                     "/api/jobs/%33",
                                     "/api/jobs/3/incidents/1.svg.svg",
                                     "/api/jobs/3/incidents/-1.svg",
                                     "/api/jobs/3/incidents/1/1.svg",
                                     "/api/jobs//incidents//timeline.svg",
                                     "//",
                                     ""};
  for (const int64_t job : {kDamaged, kEnded, kTrains, kWaits, kUnreadable, int64_t{99}}) {
    for (const char* rest : {"", "/timeline.svg", "/incidents/1.svg", "/incidents/2.svg?a"}) {
      corpus.push_back(absl::StrCat("/api/jobs/", job, rest));
      corpus.push_back(absl::StrCat("/api/stream?/api/jobs/", job, rest));
    }
  }
  return corpus;
}

}  // namespace phalanx::fuzz

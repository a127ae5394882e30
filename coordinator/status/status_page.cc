#include "coordinator/status/status_page.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/status/files.h"
#include "coordinator/status/status_json.h"
#include "coordinator/wire/incident_codec.h"
#include "core/base/status.h"
#include "core/schedule/preview.h"
#include "core/wire/incident_svg.h"
#include "core/wire/job_yaml.h"
#include "core/wire/timeline_svg.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kReadsWaiting = 64, kDrawingsWaiting = 8;
constexpr int32_t kReaders = 2, kDrawers = 1;

// Nothing from elsewhere, no script but our file: what a job is named does not matter.
constexpr char kPagePolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
constexpr char kPicturePolicy[] = "default-src 'none'; style-src 'unsafe-inline'";

transport::HttpResponse FileResponse(const char* type, absl::string_view text) {
  return {.type = type, .body = std::string(text), .policy = kPagePolicy};
}
transport::HttpResponse Json(std::string text) {
  return {.type = "application/json", .body = std::move(text), .policy = "default-src 'none'"};
}
transport::HttpResponse Picture(std::string svg) {
  return {.type = "image/svg+xml", .body = std::move(svg), .policy = kPicturePolicy};
}
transport::HttpResponse NotFound() { return {.code = 404, .body = "no such page\n"}; }
transport::HttpResponse Busy() {
  return {.code = 503, .body = "too much waits; try again later\n"};
}
// As plain text, so that what it quotes is nothing more.
transport::HttpResponse Refusal(const absl::Status& status) {
  const int code = absl::IsNotFound(status) ? 404 : absl::IsInvalidArgument(status) ? 400 : 500;
  return {.code = code, .body = absl::StrCat(status.message(), "\n")};
}

// Jobs that wait for devices, as the page has them in order.
std::vector<JobId> QueueOf(const std::vector<JobViewPtr>& jobs) {
  std::vector<JobViewPtr> waiting;
  for (const JobViewPtr& job : jobs) {
    if (job->phase == job::JobPhase::kQueued && !job->suspended && !job->damaged)
      waiting.push_back(job);
  }
  std::sort(waiting.begin(), waiting.end(), [](const JobViewPtr& a, const JobViewPtr& b) {
    return std::pair(-int64_t{a->request->priority}, a->id) <
           std::pair(-int64_t{b->request->priority}, b->id);
  });
  std::vector<JobId> ids;
  for (const JobViewPtr& job : waiting) ids.push_back(job->id);
  return ids;
}

absl::StatusOr<std::string> IncidentPicture(const Board& board, const std::string& name,
                                            int64_t number) {
  ASSIGN_OR_RETURN(const JobViewPtr job, board.Find(name));
  ASSIGN_OR_RETURN(const std::vector<IncidentPtr> incidents, board.Incidents(job->id));
  for (const IncidentPtr& incident : incidents) {
    if (incident->number != number) continue;
    v1::Incident message;
    ToProto(*incident, &message);
    return wire::IncidentSvg(job->request->name, message);
  }
  return absl::NotFoundError(absl::StrCat("there is no incident ", number));
}

absl::StatusOr<std::string> TimelinePicture(const JobView& job) {
  ASSIGN_OR_RETURN(const job::ReadJob read,
                   wire::ReadJobFile(job.request->document.text, job::Purpose::kAccepted));
  ASSIGN_OR_RETURN(const schedule::Preview preview,
                   job.layout->modules.empty()
                       ? schedule::PreviewJob(read.spec, plan::ClusterOf(*job.placement), {}, {})
                       : schedule::PreviewLayout(read.spec, *job.layout));
  return wire::TimelineSvg(preview.plan, wire::FiguresOf(preview), preview.simulation.timeline);
}

}  // namespace

StatusPage::StatusPage(const Board& board, QueueWatch::Ask queue)
    : board_(board),
      queue_(std::move(queue), clock_),
      readers_("status", WorkPool::Priority::kServing, kReaders, kReadsWaiting),
      drawers_("status-drawer", WorkPool::Priority::kBehind, kDrawers, kDrawingsWaiting) {}

void StatusPage::Stop() {
  readers_.Stop();
  drawers_.Stop();
}

void StatusPage::Serve(const std::string& target, transport::HttpAnswer answer) {
  // What stands behind a '?' is for caches.
  const std::string path = target.substr(0, target.find('?'));
  WorkPool& pool = absl::EndsWith(path, "/timeline.svg") ? drawers_ : readers_;
  pool.Add([this, path, answer = std::move(answer)](const absl::Status& go) {
    answer(go.ok() ? Make(path) : Busy());
  });
}

// Live jobs first of all, whichever they are; then the newest that have ended.
absl::StatusOr<Overview> StatusPage::OverviewOf() {
  Overview overview;
  board_.Count(overview.counts);
  overview.nodes = board_.Nodes(StatusPage::kNodesMax);
  const JobId end{INT64_MAX};
  overview.jobs = board_.ListLive(end, StatusPage::kJobsMax);
  ASSIGN_OR_RETURN(const std::vector<JobViewPtr> newest,
                   board_.List(end, StatusPage::kJobsMax / 2));
  for (const JobViewPtr& job : newest) {
    if (job::IsTerminal(job->phase)) overview.jobs.push_back(job);
  }
  std::stable_sort(overview.jobs.begin(), overview.jobs.end(),
                   [](const JobViewPtr& a, const JobViewPtr& b) { return a->id > b->id; });
  const auto same = [](const JobViewPtr& a, const JobViewPtr& b) { return a->id == b->id; };
  overview.jobs.erase(std::unique(overview.jobs.begin(), overview.jobs.end(), same),
                      overview.jobs.end());
  overview.queue = queue_.Of(QueueOf(overview.jobs));
  return overview;
}

absl::StatusOr<JobPage> StatusPage::PageOf(const std::string& name) {
  JobPage page;
  ASSIGN_OR_RETURN(page.job, board_.Find(name));
  const JobId id = page.job->id;
  page.curve = board_.CurveOf(id);
  if (page.job->damaged) return page;
  page.queue = queue_.Of(QueueOf({page.job}));
  ASSIGN_OR_RETURN(page.incidents, board_.Incidents(id));
  ASSIGN_OR_RETURN(page.events, board_.Events(id, 0));
  if (page.events.size() > StatusPage::kEventsShown) {
    page.events.erase(page.events.begin(), page.events.end() - StatusPage::kEventsShown);
  }
  ASSIGN_OR_RETURN(page.evaluation, board_.Evaluation(id));
  return page;
}

transport::HttpResponse StatusPage::Make(const std::string& path) {
  if (path == "/") return FileResponse("text/html; charset=utf-8", PageHtml());
  if (path == "/page.css") return FileResponse("text/css; charset=utf-8", PageCss());
  if (path == "/page.js") return FileResponse("text/javascript; charset=utf-8", PageJs());
  if (path == "/api/overview") {
    const absl::StatusOr<Overview> overview = OverviewOf();
    return overview.ok() ? Json(OverviewJson(*overview)) : Refusal(overview.status());
  }
  absl::string_view rest = path;
  return absl::ConsumePrefix(&rest, "/api/jobs/") ? OfJob(rest) : NotFound();
}

// `rest`: "7", "7/timeline.svg", "7/incidents/1.svg".
transport::HttpResponse StatusPage::OfJob(absl::string_view rest) {
  const std::vector<std::string> parts = absl::StrSplit(rest, '/');
  int64_t id = 0;
  if (!absl::SimpleAtoi(parts[0], &id)) return NotFound();
  const std::string job = ToString(JobId{id});
  if (parts.size() == 1) {
    const absl::StatusOr<JobPage> page = PageOf(job);
    return page.ok() ? Json(JobJson(*page)) : Refusal(page.status());
  }
  if (parts.size() == 2 && parts[1] == "timeline.svg") return Timeline(job);
  int64_t number = 0;
  if (parts.size() != 3 || parts[1] != "incidents" ||
      !absl::SimpleAtoi(absl::StripSuffix(parts[2], ".svg"), &number)) {
    return NotFound();
  }
  absl::StatusOr<std::string> svg = IncidentPicture(board_, job, number);
  return svg.ok() ? Picture(*std::move(svg)) : Refusal(svg.status());
}

transport::HttpResponse StatusPage::Timeline(const std::string& job) {
  const absl::StatusOr<JobViewPtr> view = board_.FindWhole(job);
  if (!view.ok()) return Refusal(view.status());
  if ((*view)->placement->empty()) return NotFound();
  // One that has ended keeps the digest of its last layout, and not the layout.
  const std::string key = absl::StrCat(job, " ", (*view)->plan_digest,
                                       (*view)->layout->modules.empty() ? " whole" : "");
  {
    MutexLock lock(&mu_);
    const auto found = pictures_.find(key);
    if (found != pictures_.end()) return Picture(found->second);
  }
  absl::StatusOr<std::string> svg = TimelinePicture(**view);
  if (!svg.ok()) return Refusal(svg.status());
  MutexLock lock(&mu_);
  if (pictures_.size() >= kPicturesKept) pictures_.erase(pictures_.begin());
  pictures_[key] = *svg;
  return Picture(*std::move(svg));
}

}  // namespace phalanx::coordinator

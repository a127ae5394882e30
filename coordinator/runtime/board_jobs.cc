// What is read of jobs: of those that are live here, of others from the store.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/runtime/board.h"
#include "coordinator/store/store_check.h"
#include "coordinator/wire/ended_codec.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/job/scalar.h"

namespace phalanx::coordinator {
namespace {

// "job-7" or "7": digits alone, so that "+7", which may be meant as something else, is no job.
std::optional<JobId> ParseJobId(absl::string_view text) {
  absl::ConsumePrefix(&text, "job-");
  JobId id;
  if (!job::ParseUnsigned(text).has_value() || !absl::SimpleAtoi(text, &id.value))
    return std::nullopt;
  return id;
}

absl::Status Damaged(const absl::Status& status, absl::string_view what, JobId job) {
  return absl::Status(
      status.code(),
      absl::StrCat(
          "the store: the ", what, " of ", ToString(job), " ", status.message(),
          "; phalanx delete removes it, phalanx-coordinator --check-store lists all damage"));
}

absl::Status Unreadable(const absl::Status& entry) {
  return absl::Status(
      entry.code(),
      absl::StrCat("the store: ", entry.message(),
                   "; phalanx-coordinator --check-store lists all damage and says what to do"));
}

// What a read of an entry failed with, if its place in the store is damaged with `what` and what to
// do next; else as it is.
absl::Status InWords(const absl::Status& status, absl::string_view what) {
  return absl::IsDataLoss(status) ? Unreadable(Annotate(status, what)) : status;
}

absl::StatusOr<EndedJob> FindEntry(EndedJobs& ended, const std::string& job) {
  absl::StatusOr<EndedJob> found = absl::NotFoundError("");
  if (const std::optional<JobId> id = ParseJobId(job)) {
    found = ended.Find(*id);
    if (absl::IsDataLoss(found.status()))
      return InWords(found.status(), absl::StrCat("the entry of ", ToString(*id)));
  }
  if (absl::IsNotFound(found.status())) found = ended.FindNamed(job);
  const std::string shown = absl::StrCat("job \"", LineText(job.substr(0, 128)), "\"");
  if (absl::IsNotFound(found.status()))
    return absl::NotFoundError(absl::StrCat("there is no ", shown));
  if (!found.ok()) return InWords(found.status(), absl::StrCat("the entry of the ", shown));
  return found;
}

absl::StatusOr<JobViewPtr> FindEnded(EndedJobs& ended, const std::string& job) {
  const absl::StatusOr<EndedJob> found = FindEntry(ended, job);
  if (!found.ok()) return found.status();
  absl::StatusOr<JobViewPtr> view = DecodeSummary(found->summary, found->job);
  if (!view.ok()) return Damaged(view.status(), "summary", found->job);
  return view;
}

// For lists: what the columns beside a damaged summary say of a job.
JobViewPtr StandIn(const EndedJob& ended, const absl::Status& damage) {
  JobRequest request;
  request.name = ended.name;
  return std::make_shared<const JobView>(
      JobView{.id = ended.job,
              .request = std::make_shared<const JobRequest>(std::move(request)),
              .phase = ended.phase,
              .reason = std::string(damage.message()),
              .submitted = ended.ended,
              .ended = ended.ended,
              .damaged = true});
}

absl::StatusOr<EndedDetails> DetailsOf(EndedJobs& ended, JobId job) {
  const absl::StatusOr<std::string> sealed = ended.Details(job);
  if (!sealed.ok()) return InWords(sealed.status(), absl::StrCat("the details of ", ToString(job)));
  absl::StatusOr<EndedDetails> details = DecodeDetails(*sealed, job);
  if (details.ok()) return details;
  return Damaged(details.status(), "details", job);
}

JobViewPtr WithDocument(const JobView& view, Document document) {
  JobView whole = view;
  JobRequest request = *view.request;
  request.document = std::move(document);
  whole.request = std::make_shared<const JobRequest>(std::move(request));
  return std::make_shared<const JobView>(std::move(whole));
}

}  // namespace

JobViewPtr Board::FindLive(const std::string& job) const {
  MutexLock lock(&mu_);
  auto found = jobs_.end();
  if (const std::optional<JobId> id = ParseJobId(job)) found = jobs_.find(*id);
  if (found == jobs_.end()) {
    const auto named = newest_.find(job);
    if (named != newest_.end()) found = jobs_.find(named->second);
  }
  return found == jobs_.end() ? nullptr : found->second.job;
}

absl::StatusOr<JobViewPtr> Board::Find(const std::string& job) const {
  if (JobViewPtr live = FindLive(job); live != nullptr) return live;
  return FindEnded(*ended(), job);
}

absl::StatusOr<JobId> Board::IdOf(const std::string& job) const {
  if (const JobViewPtr live = FindLive(job); live != nullptr) return live->id;
  ASSIGN_OR_RETURN(const EndedJob entry, FindEntry(*ended(), job));
  return entry.job;
}

absl::Status Board::CheckPlaceOf(JobId job) const {
  const absl::Status read = ended()->Details(job).status();
  if (!absl::IsDataLoss(read)) return absl::OkStatus();
  return InWords(read, absl::StrCat("the details of ", ToString(job)));
}

absl::StatusOr<JobViewPtr> Board::FindWhole(const std::string& job) const {
  if (JobViewPtr live = FindLive(job); live != nullptr) return live;
  ASSIGN_OR_RETURN(const JobViewPtr view, FindEnded(*ended(), job));
  ASSIGN_OR_RETURN(EndedDetails details, DetailsOf(*ended(), view->id));
  return WithDocument(*view, std::move(details.document));
}

std::vector<JobViewPtr> Board::ListLive(JobId before, size_t count) const {
  std::vector<JobViewPtr> jobs;
  MutexLock lock(&mu_);
  for (auto it = jobs_.lower_bound(before); it != jobs_.begin() && jobs.size() < count;) {
    --it;
    if (it->second.job != nullptr) jobs.push_back(it->second.job);
  }
  return jobs;
}

absl::StatusOr<std::vector<JobViewPtr>> Board::List(JobId before, size_t count) const {
  std::vector<JobViewPtr> jobs = ListLive(before, count);
  ASSIGN_OR_RETURN(const std::vector<EndedJob> ended_jobs, ended()->List(before, count));
  for (const EndedJob& ended : ended_jobs) {
    if (const absl::Status entry = EntryStatus(*this->ended(), ended); !entry.ok()) {
      jobs.push_back(StandIn(ended, Unreadable(entry)));
      continue;
    }
    absl::StatusOr<JobViewPtr> view = DecodeSummary(ended.summary, ended.job);
    // One that is damaged keeps nobody from the others.
    jobs.push_back(view.ok() ? *std::move(view)
                             : StandIn(ended, Damaged(view.status(), "summary", ended.job)));
  }
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const JobViewPtr& a, const JobViewPtr& b) { return a->id > b->id; });
  // A job that is about to be forgotten is in both.
  const auto same = [](const JobViewPtr& a, const JobViewPtr& b) { return a->id == b->id; };
  jobs.erase(std::unique(jobs.begin(), jobs.end(), same), jobs.end());
  if (jobs.size() > count) jobs.resize(count);
  return jobs;
}

absl::StatusOr<std::vector<JobEvent>> Board::Events(JobId job, int64_t after_number) const {
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second.events.After(after_number);
  }
  ASSIGN_OR_RETURN(EndedDetails details, DetailsOf(*ended(), job));
  std::erase_if(details.events,
                [after_number](const JobEvent& event) { return event.number <= after_number; });
  return std::move(details.events);
}

absl::StatusOr<std::vector<IncidentPtr>> Board::Incidents(JobId job) const {
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second.incidents;
  }
  ASSIGN_OR_RETURN(EndedDetails details, DetailsOf(*ended(), job));
  return std::move(details.incidents);
}

std::vector<CurvePoint> Board::CurveOf(JobId job) const {
  {
    MutexLock lock(&mu_);
    const auto found = curves_.find(job);
    if (found != curves_.end()) return found->second.points();
    if (jobs_.contains(job)) return {};
  }
  absl::StatusOr<EndedDetails> details = DetailsOf(*ended(), job);
  return details.ok() ? std::move(details->curve) : std::vector<CurvePoint>();
}

absl::StatusOr<std::shared_ptr<const EvaluationReport>> Board::Evaluation(JobId job) const {
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) return found->second.evaluation;
  }
  ASSIGN_OR_RETURN(EndedDetails details, DetailsOf(*ended(), job));
  return std::move(details.evaluation);
}

absl::Status Board::Subscribe(JobId job, std::shared_ptr<Subscription> subscription) {
  subscription->CountIn(pending_bytes_);
  bool live = false;
  {
    MutexLock lock(&mu_);
    const auto found = jobs_.find(job);
    if (found != jobs_.end()) {
      live = true;
      Entry& entry = found->second;
      // Under the lock, so that no later view overtakes this one.
      if (entry.job != nullptr) subscription->Add(entry.job);
      if (entry.evaluation != nullptr) subscription->Add(entry.evaluation);
      entry.subscriptions.push_back(subscription);
    }
  }
  if (!live) {
    ASSIGN_OR_RETURN(const JobViewPtr view, FindEnded(*ended(), ToString(job)));
    ASSIGN_OR_RETURN(EndedDetails details, DetailsOf(*ended(), job));
    subscription->Add(WithDocument(*view, std::move(details.document)));
    if (details.evaluation != nullptr) subscription->Add(details.evaluation);
  }
  subscription->wake_();
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator

#include "client/list.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_view.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"

namespace phalanx::client {
namespace {

constexpr int32_t kPageSize = 100;
constexpr int32_t kWatchedMax = 1000;
constexpr v1::JobPhase kPhases[] = {v1::JOB_PHASE_QUEUED,  v1::JOB_PHASE_STARTING,
                                    v1::JOB_PHASE_RUNNING, v1::JOB_PHASE_SUCCEEDED,
                                    v1::JOB_PHASE_FAILED,  v1::JOB_PHASE_CANCELLED};

v1::ListJobsRequest RequestOf(const ListOptions& options) {
  v1::ListJobsRequest request;
  for (const v1::JobPhase phase : options.phases) request.add_phases(phase);
  request.mutable_labels()->insert(options.labels.begin(), options.labels.end());
  request.set_node(options.node);
  request.set_owner(options.owner);
  return request;
}

// At most `limit` jobs, newest first, of numbers above `after`; limit 0: all.
absl::StatusOr<std::vector<v1::JobStatus>> ListJobs(Connection& connection,
                                                    v1::ListJobsRequest request, int32_t limit,
                                                    int64_t after = 0) {
  std::vector<v1::JobStatus> jobs;
  std::set<std::string> tokens;  // of pages that were asked for
  while (true) {
    const int32_t left = limit - static_cast<int32_t>(jobs.size());
    request.set_page_size(limit > 0 ? std::min(left, kPageSize) : kPageSize);
    v1::ListJobsResponse response;
    RETURN_IF_ERROR(connection.Call(&v1::JobService::Stub::ListJobs, request, &response));
    for (v1::JobStatus& job : *response.mutable_jobs()) {
      if (job.id() <= after) return jobs;
      jobs.push_back(std::move(job));
    }
    const bool enough = limit > 0 && jobs.size() >= static_cast<size_t>(limit);
    if (response.next_page_token().empty() || enough) return jobs;
    // A page may be empty, but none comes twice.
    if (!tokens.insert(response.next_page_token()).second) {
      return absl::DataLossError(absl::StrCat("the coordinator's pages of jobs do not go on after ",
                                              jobs.size(), " jobs"));
    }
    request.set_page_token(response.next_page_token());
  }
}

// What a watch tells of again when it changes.
bool SameRow(const v1::JobStatus& a, const v1::JobStatus& b) {
  return a.phase() == b.phase() && a.epoch() == b.epoch() && a.reason() == b.reason();
}

// Jobs as they change. The coordinator is asked for those that are new and for those that have not
// ended; one that is among neither has ended, moved or been deleted, and is asked for by number.
class ListWatch {
 public:
  ListWatch(Connection& connection, const ListOptions& options, Io& io)
      : connection_(connection), options_(options), io_(io) {}

  // Prints what there is. Errors: as the coordinator answers.
  absl::Status Begin() {
    // Before the list, so that nothing is missed between the two.
    ASSIGN_OR_RETURN(const std::vector<v1::JobStatus> newest, ListJobs(connection_, {}, 1));
    if (!newest.empty()) newest_ = newest.front().id();
    ASSIGN_OR_RETURN(std::vector<v1::JobStatus> jobs,
                     ListJobs(connection_, RequestOf(options_), options_.limit));
    Print(jobs);
    for (v1::JobStatus& job : jobs) {
      newest_ = std::max(newest_, job.id());
      if (!IsTerminal(job.phase())) shown_.insert_or_assign(job.id(), std::move(job));
    }
    return absl::OkStatus();
  }

  // Prints what has changed. Errors: as the coordinator answers.
  absl::Status Round() {
    v1::ListJobsRequest request = RequestOf(options_);
    request.clear_phases();
    ASSIGN_OR_RETURN(std::vector<v1::JobStatus> jobs,
                     ListJobs(connection_, request, kWatchedMax, newest_));
    for (const v1::JobPhase phase : kPhases) {
      if (!IsTerminal(phase)) request.add_phases(phase);
    }
    ASSIGN_OR_RETURN(std::vector<v1::JobStatus> live, ListJobs(connection_, request, kWatchedMax));
    jobs.insert(jobs.end(), std::make_move_iterator(live.begin()),
                std::make_move_iterator(live.end()));
    std::map<int64_t, v1::JobStatus> now;  // the later answer wins
    for (v1::JobStatus& job : jobs) {
      newest_ = std::max(newest_, job.id());
      now.insert_or_assign(job.id(), std::move(job));
    }
    RETURN_IF_ERROR(AddGone(now));
    std::vector<v1::JobStatus> changed;
    for (auto& [id, job] : now) Compare(std::move(job), changed);
    Print(changed);
    return absl::OkStatus();
  }

 private:
  // What has become of jobs that the lists do not have any more.
  absl::Status AddGone(std::map<int64_t, v1::JobStatus>& now) {
    std::set<int64_t> gone = std::exchange(live_, {});
    for (const auto& [id, job] : shown_) gone.insert(id);
    for (const auto& [id, job] : now) {
      gone.erase(id);
      if (!IsTerminal(job.phase())) live_.insert(id);
    }
    for (const int64_t id : gone) {
      v1::GetJobRequest request;
      request.set_job(absl::StrCat("job-", id));
      v1::GetJobResponse response;
      const absl::Status status =
          connection_.Call(&v1::JobService::Stub::GetJob, request, &response);
      if (absl::IsNotFound(status)) {
        if (shown_.erase(id) > 0) io_.talk << "job-" << id << " is deleted\n";
        continue;
      }
      RETURN_IF_ERROR(status);
      // It lives, but not where this watch looks: should it come back, it is told of again.
      if (!IsTerminal(response.job().phase())) {
        shown_.erase(id);
        continue;
      }
      response.mutable_job()->clear_document();
      now.emplace(id, std::move(*response.mutable_job()));
    }
    return absl::OkStatus();
  }

  bool Wanted(const v1::JobStatus& job) const {
    return options_.phases.empty() || std::find(options_.phases.begin(), options_.phases.end(),
                                                job.phase()) != options_.phases.end();
  }

  void Compare(v1::JobStatus job, std::vector<v1::JobStatus>& changed) {
    const auto before = shown_.find(job.id());
    const bool was_shown = before != shown_.end();
    if (!was_shown && !Wanted(job)) return;
    if (!was_shown || !SameRow(before->second, job)) changed.push_back(job);
    if (IsTerminal(job.phase())) {
      shown_.erase(job.id());
    } else {
      shown_.insert_or_assign(job.id(), std::move(job));
    }
  }

  void Print(const std::vector<v1::JobStatus>& jobs) {
    const bool words = options_.format == Format::kTable || options_.format == Format::kWide;
    if (jobs.empty()) return;
    if (words) {
      const bool header = io_.headers && !std::exchange(headed_, true);
      PrintRows(jobs, options_.format, header, absl::Now(), io_.out);
    } else {
      for (const v1::JobStatus& job : jobs) {
        if (options_.format == Format::kYaml) io_.out << "---\n";  // each is a document
        PrintJob(job, options_.format, io_.headers, absl::Now(), io_.out);
      }
    }
    io_.out << std::flush;
  }

  Connection& connection_;
  const ListOptions& options_;
  Io& io_;
  bool headed_ = false;
  int64_t newest_ = 0;                      // number of the newest job that was seen
  std::map<int64_t, v1::JobStatus> shown_;  // as last printed, by number; none that has ended
  std::set<int64_t> live_;                  // those of the round before
};

int WatchList(Connection& connection, const ListOptions& options, Stopper& stopper, Io& io) {
  ListWatch watch(connection, options, io);
  absl::Status status = watch.Begin();
  while (status.ok() && io.out && !stopper.Pause(options.interval)) status = watch.Round();
  return status.ok() ? static_cast<int>(kSuccess) : FailCall(status, io);
}

}  // namespace

int List(Connection& connection, const ListOptions& options, Stopper& stopper, Io& io) {
  if (options.watch) return WatchList(connection, options, stopper, io);
  const absl::StatusOr<std::vector<v1::JobStatus>> jobs =
      ListJobs(connection, RequestOf(options), options.limit);
  if (!jobs.ok()) return FailCall(jobs.status(), io);
  if (jobs->empty() && (options.format == Format::kTable || options.format == Format::kWide)) {
    const bool filtered = !options.phases.empty() || !options.labels.empty() ||
                          !options.node.empty() || !options.owner.empty();
    io.talk << (filtered ? "no such jobs\n" : "no jobs\n");
    return kSuccess;
  }
  PrintJobs(*jobs, options.format, io.headers, absl::Now(), io.out);
  return kSuccess;
}

absl::StatusOr<std::vector<v1::JobPhase>> ParsePhases(absl::Span<const std::string> lists) {
  std::vector<v1::JobPhase> phases;
  for (const std::string& list : lists) {
    for (const absl::string_view word : absl::StrSplit(list, ',')) {
      const auto* found = std::find_if(
          std::begin(kPhases), std::end(kPhases),
          [word](v1::JobPhase phase) { return absl::EqualsIgnoreCase(PhaseWord(phase), word); });
      if (found == std::end(kPhases)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "\"", LineText(word), "\" must be one of ",
            absl::StrJoin(kPhases, ", ",
                          [](std::string* out, v1::JobPhase phase) {
                            absl::StrAppend(out, absl::AsciiStrToLower(PhaseWord(phase)));
                          }),
            absl::EqualsIgnoreCase(word, "suspended")
                ? "; a job that is suspended is queued, which list says beside it"
                : ""));
      }
      if (std::find(phases.begin(), phases.end(), *found) == phases.end()) phases.push_back(*found);
    }
  }
  return phases;
}

absl::StatusOr<std::map<std::string, std::string>> ParseSelector(
    absl::Span<const std::string> lists) {
  std::map<std::string, std::string> labels;
  for (const std::string& list : lists) {
    for (const absl::string_view item : absl::StrSplit(list, ',')) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(item, absl::MaxSplits('=', 1));
      const bool said = item.find('=') != absl::string_view::npos && !pair.first.empty();
      const auto [at, is_new] = labels.emplace(pair.first, pair.second);
      if (!said || (!is_new && at->second != pair.second)) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", LineText(list),
                         "\" must be labels such as team=demo or team=demo,tier=a, each once"));
      }
    }
  }
  return labels;
}

}  // namespace phalanx::client

#include "coordinator/rpc/job_filter.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/wire/common_codec.h"
#include "coordinator/wire/job_codec.h"
#include "core/base/node_name.h"
#include "core/base/status.h"
#include "core/wire/examination_codec.h"

namespace phalanx::coordinator {
namespace {

constexpr int32_t kPageDefault = 100;
constexpr int32_t kPageMax = 1000;
// Jobs that a request with a filter looks at.
constexpr size_t kLooksMax = 1000;
constexpr int kPhasesMax = 16, kLabelsMax = 64, kTypesMax = 64;
constexpr size_t kOwnerBytesMax = 253;
// Of a page of nodes, or of the examinations in an answer without pages: half of what a client
// takes.
constexpr size_t kNodesBytesMax = 4 << 20;
// Of a token that is refused.
constexpr size_t kTokenBytesShown = 32;

absl::Status CheckCount(absl::string_view field, int64_t count, int64_t max) {
  if (count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", count, ": at most ", max, " may be named"));
}

absl::Status CheckPageSize(int32_t size, absl::string_view zero) {
  if (size >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("page_size: ", size, ": must be 0 (then it is ", zero, ") or more"));
}

// Names that nobody and nothing has are a mistake, or somebody's trick.
absl::Status CheckName(absl::string_view field, absl::string_view name, absl::string_view others) {
  const bool sound = std::all_of(name.begin(), name.end(), [others](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           others.find(c) != absl::string_view::npos;
  });
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": \"", absl::CHexEscape(name),
                                                 "\": must be letters, digits and ", others));
}

absl::Status CheckJobs(const v1::ListJobsRequest& request) {
  RETURN_IF_ERROR(CheckPageSize(request.page_size(), absl::StrCat(kPageDefault)));
  RETURN_IF_ERROR(CheckCount("phases", request.phases_size(), kPhasesMax));
  RETURN_IF_ERROR(CheckCount("labels", static_cast<int64_t>(request.labels().size()), kLabelsMax));
  if (request.node().size() > kNodeNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("node: ", request.node().size(), " bytes: at most ", kNodeNameBytesMax));
  }
  if (request.owner().size() > kOwnerBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("owner: ", request.owner().size(), " bytes: at most ", kOwnerBytesMax));
  }
  RETURN_IF_ERROR(CheckName("node", request.node(), "._-"));
  return CheckName("owner", request.owner(), "._@+-");
}

absl::StatusOr<JobId> BeginOf(const std::string& token) {
  JobId before{std::numeric_limits<int64_t>::max()};
  if (token.empty() || (absl::SimpleAtoi(token, &before.value) && before.value >= 1)) return before;
  return absl::InvalidArgumentError(
      absl::StrCat("page_token: \"", absl::CHexEscape(token.substr(0, kTokenBytesShown)),
                   "\": unknown; give the next_page_token of the answer before, or none"));
}

bool HasDevicesOf(const Placement& placement, const std::string& node) {
  return std::any_of(placement.begin(), placement.end(), [&node](const NodeDevices& entry) {
    return entry.node == node && !entry.devices.empty();
  });
}

bool MatchesFilter(const JobView& job, const v1::ListJobsRequest& request) {
  if (request.phases_size() > 0 && std::find(request.phases().begin(), request.phases().end(),
                                             ToProto(job.phase)) == request.phases().end()) {
    return false;
  }
  for (const auto& [key, value] : request.labels()) {
    const auto label = job.request->labels.find(key);
    if (label == job.request->labels.end() || label->second != value) return false;
  }
  if (!request.owner().empty() && job.request->owner != request.owner()) return false;
  return request.node().empty() || HasDevicesOf(*job.placement, request.node());
}

// Whether what it asks for can only be jobs that have not ended.
bool OnlyLive(const v1::ListJobsRequest& request) {
  return request.phases_size() > 0 &&
         std::all_of(request.phases().begin(), request.phases().end(), [](int phase) {
           return phase == v1::JOB_PHASE_QUEUED || phase == v1::JOB_PHASE_STARTING ||
                  phase == v1::JOB_PHASE_RUNNING;
         });
}

}  // namespace

absl::Status ListJobs(const Board& board, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response) {
  RETURN_IF_ERROR(CheckJobs(request));
  ASSIGN_OR_RETURN(JobId before, BeginOf(request.page_token()));
  const int32_t size =
      request.page_size() == 0 ? kPageDefault : std::min(request.page_size(), kPageMax);
  const bool filtered = request.phases_size() > 0 || !request.labels().empty() ||
                        !request.node().empty() || !request.owner().empty();
  const size_t looks = filtered ? kLooksMax : static_cast<size_t>(size);
  std::vector<JobViewPtr> jobs;
  if (OnlyLive(request)) {
    jobs = board.ListLive(before, looks);
  } else {
    ASSIGN_OR_RETURN(jobs, board.List(before, looks));
  }
  size_t looked = 0;
  while (looked < jobs.size() && response->jobs_size() < size) {
    const JobView& job = *jobs[looked++];
    before = job.id;
    if (MatchesFilter(job, request)) ToProto(job, false, response->add_jobs());
  }
  const bool all = looked == jobs.size() && jobs.size() < looks;
  if (!all && before.value > 1) response->set_next_page_token(absl::StrCat(before.value));
  return absl::OkStatus();
}

absl::Status SelectEvents(const std::vector<JobEvent>& events, const v1::ListEventsRequest& request,
                          v1::ListEventsResponse* response) {
  RETURN_IF_ERROR(CheckPageSize(request.page_size(), "all"));
  RETURN_IF_ERROR(CheckCount("types", request.types_size(), kTypesMax));
  const Instant since = request.has_since() ? FromProto(request.since()) : absl::InfinitePast();
  const auto& types = request.types();
  for (const JobEvent& event : events) {
    if (event.time < since) continue;
    if (!types.empty() && std::find(types.begin(), types.end(), event.type) == types.end())
      continue;
    if (request.page_size() > 0 && response->events_size() == request.page_size()) {
      response->set_more(true);
      break;
    }
    ToProto(event, response->add_events());
  }
  return absl::OkStatus();
}

absl::Status ListNodes(const Board& board, const v1::ListNodesRequest& request,
                       v1::ListNodesResponse* response) {
  RETURN_IF_ERROR(CheckPageSize(request.page_size(), "all"));
  const bool paged = request.page_size() > 0;
  const int32_t size = std::min(request.page_size(), kPageMax);
  std::vector<NodeView> nodes;
  if (request.node().empty()) {
    // One more than a page has, which says that it is not the last one.
    nodes = board.Nodes(paged ? static_cast<size_t>(size) + 1 : SIZE_MAX, request.page_token());
  } else if (std::optional<NodeView> node = board.FindNode(request.node())) {
    nodes.push_back(*std::move(node));
  }
  size_t bytes = 0;
  for (const NodeView& node : nodes) {
    if (paged && (response->nodes_size() == size || bytes >= kNodesBytesMax)) {
      response->set_next_page_token(response->nodes(response->nodes_size() - 1).name());
      break;
    }
    v1::NodeStatus* status = response->add_nodes();
    ToProto(node, status);
    if (request.examinations() && node.examination != nullptr && bytes < kNodesBytesMax)
      wire::ToProto(*node.examination, status->mutable_examination());
    bytes += paged ? status->ByteSizeLong() : status->examination().ByteSizeLong();
  }
  return absl::OkStatus();
}

}  // namespace phalanx::coordinator

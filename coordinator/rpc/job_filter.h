// coordinator/rpc/job_filter.h: which jobs, events and nodes a list is to have.
//
// A list is read in pages, each of which looks at a bounded number of jobs, so that no caller holds
// up the others however rare what it looks for is.
#pragma once

#include "absl/status/status.h"
#include "coordinator/machine/actions.h"
#include "coordinator/runtime/board.h"
#include "phalanx/v1/job_service.pb.h"

namespace phalanx::coordinator {

// Fills `response` with a page of jobs. Errors: InvalidArgument, with the field; those of
// Board::List.
absl::Status ListJobs(const Board& board, const v1::ListJobsRequest& request,
                      v1::ListJobsResponse* response);

// Fills `response` with those of `events`, which are in order, that the request asks for. Errors:
// InvalidArgument, with the field.
absl::Status SelectEvents(const std::vector<JobEvent>& events, const v1::ListEventsRequest& request,
                          v1::ListEventsResponse* response);

// Fills `response` with a page of nodes, or with all of them. Errors: InvalidArgument, with the
// field.
absl::Status ListNodes(const Board& board, const v1::ListNodesRequest& request,
                       v1::ListNodesResponse* response);

}  // namespace phalanx::coordinator

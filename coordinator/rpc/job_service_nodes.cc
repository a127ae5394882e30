// Calls about nodes.
#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "coordinator/rpc/ending.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/wire/common_codec.h"
#include "core/base/random_word.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kReasonBytesMax = 1024;

absl::Status CheckReason(absl::string_view reason) {
  if (absl::StripAsciiWhitespace(reason).empty()) {
    return absl::InvalidArgumentError(
        "reason is empty; say why, for everybody who looks at the node");
  }
  if (std::any_of(reason.begin(), reason.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError("reason must have no control characters, line ends included");
  }
  if (reason.size() <= kReasonBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reason has ", reason.size(), " bytes; at most ", kReasonBytesMax));
}

// Answers with the node as it is then.
template <typename Response>
auto WithNode(const Ending& end, Response* response) {
  return [end, response](const absl::StatusOr<MarkedNode>& marked) {
    if (marked.ok()) ToProto(*marked->node, response->mutable_node());
    end(marked.status());
  };
}

}  // namespace

JobServiceImpl::Reactor* JobServiceImpl::ListNodes(Context* context,
                                                   const v1::ListNodesRequest* request,
                                                   v1::ListNodesResponse* response) {
  const Ending end(context, "ListNodes", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  response->set_store_fault(std::string(driver_.accepting().message()));
  return end.With(coordinator::ListNodes(board_, *request, response));
}

JobServiceImpl::Reactor* JobServiceImpl::TryConnection(Context* context,
                                                       const v1::TryConnectionRequest* request,
                                                       v1::TryConnectionResponse* response) {
  const Ending end(context, "TryConnection", metrics_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  driver_.Reach({.from = request->from(),
                 .to = request->to(),
                 .word = absl::StrCat(absl::Hex(RandomWord(), absl::kZeroPad16),
                                      absl::Hex(RandomWord(), absl::kZeroPad16))},
                [end, response](const absl::StatusOr<std::string>& fault) {
                  if (fault.ok()) response->set_fault(*fault);
                  end(fault.status());
                });
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::CordonNode(Context* context,
                                                    const v1::CordonNodeRequest* request,
                                                    v1::CordonNodeResponse* response) {
  const Ending end(context, "CordonNode", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  end.Changes(request->node());
  if (absl::Status status = CheckReason(request->reason()); !status.ok()) return end.With(status);
  driver_.MarkNode({.node = request->node(),
                    .mark = NodeMark{.reason = request->reason()},
                    .by = NameOf(end.caller())},
                   WithNode(end, response));
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::UncordonNode(Context* context,
                                                      const v1::UncordonNodeRequest* request,
                                                      v1::UncordonNodeResponse* response) {
  const Ending end(context, "UncordonNode", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  end.Changes(request->node());
  driver_.MarkNode({.node = request->node(), .by = NameOf(end.caller())}, WithNode(end, response));
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::DrainNode(Context* context,
                                                   const v1::DrainNodeRequest* request,
                                                   v1::DrainNodeResponse* response) {
  const Ending end(context, "DrainNode", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  end.Changes(request->node());
  if (absl::Status status = CheckReason(request->reason()); !status.ok()) return end.With(status);
  driver_.MarkNode({.node = request->node(),
                    .mark = NodeMark{.drains = true, .reason = request->reason()},
                    .by = NameOf(end.caller()),
                    .force = request->force()},
                   [end, response](const absl::StatusOr<MarkedNode>& marked) {
                     if (marked.ok()) ToProto(*marked, response);
                     end(marked.status());
                   });
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::ReserveNode(Context* context,
                                                     const v1::ReserveNodeRequest* request,
                                                     v1::ReserveNodeResponse* response) {
  const Ending end(context, "ReserveNode", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  end.Changes(request->node());
  if (absl::Status status = CheckReason(request->reason()); !status.ok()) return end.With(status);
  driver_.ReserveNode({.node = request->node(),
                       .reserve = ReserveMark{.reason = request->reason()},
                       .by = NameOf(end.caller())},
                      WithNode(end, response));
  return end.reactor();
}

JobServiceImpl::Reactor* JobServiceImpl::UnreserveNode(Context* context,
                                                       const v1::UnreserveNodeRequest* request,
                                                       v1::UnreserveNodeResponse* response) {
  const Ending end(context, "UnreserveNode", metrics_, audit_);
  if (absl::Status status = Take(end, *request); !status.ok()) return end.With(status);
  end.Changes(request->node());
  driver_.ReserveNode({.node = request->node(), .by = NameOf(end.caller())},
                      WithNode(end, response));
  return end.reactor();
}

}  // namespace phalanx::coordinator

#include "client/node_commands.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/node_list.h"
#include "client/node_view.h"
#include "client/output.h"
#include "core/base/terminal_text.h"
#include "phalanx/v1/job_service.grpc.pb.h"

namespace phalanx::client {
namespace {

// Data for scripts, or one line for people.
template <typename Response>
int Tell(const Response& response, Format format, const std::string& line, Io& io) {
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree(response), format, io.out);
  } else if (format == Format::kName) {
    io.out << TerminalText(response.node().name()) << "\n";
  } else {
    io.talk << "node " << TerminalText(response.node().name()) << " " << line << "\n";
  }
  return kSuccess;
}

}  // namespace

int DescribeNode(Connection& connection, const std::string& name, Format format, Io& io) {
  const absl::StatusOr<std::optional<v1::NodeStatus>> node = FindNode(connection, name);
  if (!node.ok()) return FailCall(node.status(), io);
  if (!node->has_value()) {
    return FailCall(absl::NotFoundError(absl::StrCat("there is no node \"", LineText(name),
                                                     "\"; phalanx nodes lists those there are")),
                    io);
  }
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree(**node), format, io.out);
  } else if (format == Format::kName) {
    io.out << TerminalText((*node)->name()) << "\n";
  } else {
    DescribeNode(**node, absl::Now(), io.out);
  }
  return kSuccess;
}

int Cordon(Connection& connection, const NodeMarkOptions& options, Io& io) {
  v1::CordonNodeRequest request;
  request.set_node(options.node);
  request.set_reason(options.reason);
  v1::CordonNodeResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::CordonNode, request, &response);
  if (!status.ok()) return FailChange(status, io);
  return Tell(response, options.format,
              "is cordoned: its jobs go on, and nothing new is placed on it", io);
}

int Uncordon(Connection& connection, const NodeMarkOptions& options, Io& io) {
  v1::UncordonNodeRequest request;
  request.set_node(options.node);
  v1::UncordonNodeResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::UncordonNode, request, &response);
  if (!status.ok()) return FailChange(status, io);
  return Tell(response, options.format,
              response.node().has_reserve() ? "is in reserve again" : "takes jobs again", io);
}

int Reserve(Connection& connection, const NodeMarkOptions& options, Io& io) {
  v1::ReserveNodeRequest request;
  request.set_node(options.node);
  request.set_reason(options.reason);
  v1::ReserveNodeResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::ReserveNode, request, &response);
  if (!status.ok()) return FailChange(status, io);
  return Tell(response, options.format,
              "is in reserve: its jobs go on, and its devices are for jobs that lose one", io);
}

int Unreserve(Connection& connection, const NodeMarkOptions& options, Io& io) {
  v1::UnreserveNodeRequest request;
  request.set_node(options.node);
  v1::UnreserveNodeResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::UnreserveNode, request, &response);
  if (!status.ok()) return FailChange(status, io);
  return Tell(response, options.format, "is not in reserve any more", io);
}

int Drain(Connection& connection, const NodeMarkOptions& options, Io& io) {
  v1::DrainNodeRequest request;
  request.set_node(options.node);
  request.set_reason(options.reason);
  request.set_force(options.force);
  v1::DrainNodeResponse response;
  const absl::Status status = connection.Call(&v1::JobService::Stub::DrainNode, request, &response);
  if (!status.ok()) return FailChange(status, io);
  const int code = Tell(response, options.format,
                        response.jobs().empty() ? "is drained: no job has devices of it"
                                                : "drains: nothing new is placed on it",
                        io);
  if (options.format != Format::kTable && options.format != Format::kWide) return code;
  for (const v1::JobOnNode& job : response.jobs()) {
    io.talk << "job-" << job.job() << " (" << TerminalText(job.name()) << ") "
            << TerminalText(job.what()) << "\n";
  }
  return code;
}

}  // namespace phalanx::client

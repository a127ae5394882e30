// client/node_commands.h: `phalanx describe node`, `cordon`, `uncordon`, `drain`, `reserve` and
// `unreserve`: nodes are looked at, taken out of service, and put into it again.
//
// Each returns the process's exit code (client/exit_code.h).
#pragma once

#include <string>

#include "client/connection.h"
#include "client/format.h"

namespace phalanx::client {

struct NodeMarkOptions {
  std::string node;
  std::string reason;
  Format format = Format::kTable;
  bool force = false;  // of a drain: jobs that cannot save their state are ended
};

// What the coordinator says of one node, with its checks.
int DescribeNode(Connection& connection, const std::string& name, Format format, Io& io);
// Nothing new is placed on the node.
int Cordon(Connection& connection, const NodeMarkOptions& options, Io& io);
// Jobs may use it again.
int Uncordon(Connection& connection, const NodeMarkOptions& options, Io& io);
// As Cordon, and jobs leave it. Says of each job there what becomes of it.
int Drain(Connection& connection, const NodeMarkOptions& options, Io& io);

// The queue gives its devices to no job: they are lent to jobs that lose one.
int Reserve(Connection& connection, const NodeMarkOptions& options, Io& io);
// The queue may give its devices to jobs again.
int Unreserve(Connection& connection, const NodeMarkOptions& options, Io& io);

}  // namespace phalanx::client

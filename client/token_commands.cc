#include "client/token_commands.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "core/base/terminal_text.h"
#include "core/job/scalar.h"
#include "phalanx/v1/join_service.grpc.pb.h"

namespace phalanx::client {
namespace {

// As the coordinator has them.
constexpr absl::Duration kTtlMin = absl::Minutes(1), kTtlMax = absl::Hours(720);
// Of what somebody may mean.
constexpr uint64_t kDaysMax = 100'000;

std::string NodesOf(const v1::JoinToken& token) {
  std::string nodes;
  for (const v1::JoinToken::Use& use : token.uses())
    absl::StrAppend(&nodes, nodes.empty() ? "" : ",", use.node());
  return nodes;
}

std::string LeftOf(const v1::JoinToken& token) {
  const absl::Duration left = ToTime(token.expires()) - absl::Now();
  return left > absl::ZeroDuration() ? FormatAge(left) : "-";
}

// Of "30d" and "4w", which durations do not have; 0: it is neither.
int64_t HoursOf(absl::string_view text) {
  const int64_t hours = absl::ConsumeSuffix(&text, "d")   ? 24
                        : absl::ConsumeSuffix(&text, "w") ? 24 * 7
                                                          : 0;
  const std::optional<uint64_t> count = job::ParseUnsigned(text);
  return hours > 0 && count.value_or(0) <= kDaysMax
             ? hours * static_cast<int64_t>(count.value_or(0))
             : 0;
}

bool IsDocument(Format format) { return format == Format::kJson || format == Format::kYaml; }

}  // namespace

std::string TtlFault(const std::string& text) {
  const std::optional<absl::Duration> ttl = job::ParseDuration(text);
  if (ttl.has_value() && *ttl >= kTtlMin && *ttl <= kTtlMax) return "";
  const int64_t hours = HoursOf(text);
  return absl::StrCat("must be a duration in h, m and s, from 1m to 720h, such as 90m",
                      hours > 0 ? absl::StrCat("; ", text, " is ", hours, "h") : "");
}

int TokenCreate(Connection& connection, const TokenOptions& options, Io& io) {
  v1::CreateTokenRequest request;
  request.set_node(options.node);
  request.set_uses(options.uses);
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(options.ttl % absl::Seconds(1));
  request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(options.ttl));
  request.mutable_ttl()->set_nanos(static_cast<int32_t>(nanoseconds));
  v1::CreateTokenResponse response;
  const absl::Status status =
      connection.CallOnce(&v1::JoinService::Stub::CreateToken, request, &response);
  if (!status.ok()) return FailCall(status, io);
  const v1::JoinToken& token = response.about();
  if (IsDocument(options.format)) {
    PrintTree(ToTree(response), options.format, io.out);
  } else {
    io.out << response.token() << "\n";
  }
  io.talk << "token " << TerminalText(token.id()) << " lets "
          << (token.node().empty() ? "one node" : "node " + TerminalText(token.node())) << " join "
          << (token.uses_max() == 1 ? "once" : absl::StrCat(token.uses_max(), " times"))
          << " within " << FormatAge(options.ttl)
          << "; put it into a file for phalanx-worker --join-token-file, and show it to nobody\n";
  return kSuccess;
}

int TokenList(Connection& connection, Format format, Io& io) {
  v1::ListTokensResponse response;
  const absl::Status status =
      connection.Call(&v1::JoinService::Stub::ListTokens, v1::ListTokensRequest(), &response);
  if (!status.ok()) return FailCall(status, io);
  if (IsDocument(format)) {
    PrintTree(ToTree("tokens", response.tokens()), format, io.out);
    return kSuccess;
  }
  Table table({"ID", "STATE", "NODE", "USES", "EXPIRES IN", "BY", "JOINED"});
  for (const v1::JoinToken& token : response.tokens()) {
    if (format == Format::kName) {
      io.out << TerminalText(token.id()) << "\n";
      continue;
    }
    table.Add({token.id(), token.state(), token.node().empty() ? "any" : token.node(),
               absl::StrCat(token.uses_size(), "/", token.uses_max()), LeftOf(token),
               token.created_by().empty() ? "-" : token.created_by(),
               token.uses().empty() ? "-" : NodesOf(token)});
  }
  if (format == Format::kName) return kSuccess;
  if (response.tokens().empty()) {
    io.talk << "there are no tokens; phalanx token create makes one\n";
  } else {
    table.Print(io.out, io.headers);
  }
  return kSuccess;
}

int TokenRevoke(Connection& connection, const std::string& id, Format format, Io& io) {
  v1::RevokeTokenRequest request;
  request.set_id(id);
  v1::RevokeTokenResponse response;
  const absl::Status status =
      connection.Call(&v1::JoinService::Stub::RevokeToken, request, &response);
  if (!status.ok()) return FailChange(status, io);
  const v1::JoinToken& token = response.about();
  if (IsDocument(format)) {
    PrintTree(ToTree(response), format, io.out);
  } else if (format == Format::kName) {
    io.out << TerminalText(token.id()) << "\n";
  } else {
    io.talk << "token " << TerminalText(token.id()) << " is revoked"
            << (token.uses().empty()
                    ? ""
                    : absl::StrCat(", and so are the certificates of ",
                                   TerminalText(NodesOf(token)),
                                   "; their jobs go on as after the loss of a node"))
            << "\n";
  }
  return kSuccess;
}

}  // namespace phalanx::client

// client/token_commands.h: `phalanx token create|list|revoke`: what nodes join with.
//
// Each returns the process's exit code (client/exit_code.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/connection.h"
#include "client/format.h"

namespace phalanx::client {

// What is wrong with `text` as the time that a token is good for; empty: nothing. That there are no
// days, and the same time without them: "must be a duration in h, m and s, from 1m to 720h, such as
// 90m; 30d is 720h".
std::string TtlFault(const std::string& text);

struct TokenOptions {
  std::string node;  // that it is for; empty: any
  absl::Duration ttl = absl::Hours(1);
  int32_t uses = 1;
  Format format = Format::kTable;
};
// The token alone is data; what it is for goes to io.talk.
int TokenCreate(Connection& connection, const TokenOptions& options, Io& io);
int TokenList(Connection& connection, Format format, Io& io);
int TokenRevoke(Connection& connection, const std::string& id, Format format, Io& io);

}  // namespace phalanx::client

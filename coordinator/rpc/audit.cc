#include "coordinator/rpc/audit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/cut_text.h"
#include "core/base/terminal_text.h"

namespace phalanx::coordinator {
namespace {

constexpr size_t kTextBytesMax = 256;

AuditKind KindOf(const Caller& caller, const absl::Status& outcome) {
  if (!outcome.ok()) return AuditKind::kNotDone;
  return caller.has_value() && caller->role == Role::kWorker ? AuditKind::kByWorker
                                                             : AuditKind::kDone;
}

}  // namespace

std::string Quoted(absl::string_view text) {
  const std::string cut = CutText(std::string(text), kTextBytesMax);
  return absl::StrCat("\"", LineText(absl::StrReplaceAll(cut, {{"\\", "\\\\"}, {"\"", "\\\""}})),
                      "\"");
}

void ExpectFailedHandshakes(Metrics& metrics) {
  for (const absl::string_view port : {"grpc", "http"}) {
    for (const transport::HandshakeFault fault : transport::kHandshakeFaults)
      metrics.HandshakeMayFail(port, transport::ToString(fault));
  }
}

bool Audit::MayTell(const std::string& whose, absl::string_view why_not) {
  if (refusals_.Take(Identity{whose, Role::kViewer}).ok()) return true;
  left_out_();
  MutexLock lock(&mu_);
  ++count_;
  reason_ = std::string(why_not);
  return false;
}

void Audit::Tell(const Caller& caller, absl::string_view method, absl::string_view object,
                 const absl::Status& outcome) {
  // Under a name that is not the same for a person and a node, and that strangers share.
  const std::string who = caller.has_value() && !caller->name.empty()
                              ? absl::StrCat(RoleName(caller->role), "/", caller->name)
                              : "-";
  if (outcome.ok() || MayTell(who, absl::StrCat("who=", who, " is refused too often")))
    Log(AuditLine(caller, method, object, outcome), KindOf(caller, outcome));
}

void Audit::KeepAndLog(const std::string& line, AuditKind kind) const {
  if (keep_ != nullptr && !keep_(line, kind).ok()) not_kept_();
  log_(line);
}

void Audit::Log(const std::string& line, AuditKind kind) {
  int64_t count = 0;
  std::string reason;
  {
    MutexLock lock(&mu_);
    std::swap(count, count_);
    std::swap(reason, reason_);
  }
  if (count != 0)
    KeepAndLog(absl::StrCat("audit left_out=", count, " reason=", Quoted(reason)),
               AuditKind::kNotDone);
  KeepAndLog(line, kind);
}

void Audit::TellOfHandshake(absl::string_view port, const transport::FailedHandshake& failed) {
  // Whoever reaches a port can make any number of them, and is to hide no other line.
  if (!MayTell("-/handshake", "handshakes fail too often")) return;
  Log(AuditLine(std::nullopt, "handshake", absl::StrCat("port=", port, " peer=", failed.peer),
                absl::UnauthenticatedError(failed.reason)),
      AuditKind::kNotDone);
}

std::string AuditLine(const Caller& caller, absl::string_view method, absl::string_view object,
                      const absl::Status& outcome) {
  const bool named = caller.has_value() && !caller->name.empty();
  std::string line =
      absl::StrCat("audit who=", named ? caller->name : "-",
                   " role=", named ? RoleName(caller->role) : "-", " method=", method);
  if (!object.empty()) absl::StrAppend(&line, " ", object);
  absl::StrAppend(&line, " outcome=", absl::StatusCodeToString(outcome.code()));
  if (!outcome.ok()) {
    absl::StrAppend(&line, " reason=", Quoted(outcome.message()));
  }
  return line;
}

}  // namespace phalanx::coordinator

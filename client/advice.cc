#include "client/advice.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "client/rpc_status.h"
#include "core/base/violation.h"

namespace phalanx::client {
namespace {

// Words that a message begins its advice with.
constexpr absl::string_view kVerbs[] = {
    "ask",     "bring",       "cancel",     "change", "choose",  "copy",  "correct",
    "delete",  "end another", "end others", "give",   "join",    "leave", "lower",
    "make",    "mend",        "move",       "name",   "phalanx", "put",   "raise",
    "remove",  "revoke",      "see",        "set",    "show",    "start", "stop",
    "suspend", "submit",      "take",       "try",    "upgrade", "use",   "wait"};

// What only a rule says.
constexpr absl::string_view kRules[] = {
    "did you mean ",    " must be ",          " must begin with ",
    " must have ",      " needs --",          " does not go with ",
    "; its ranks are ", "; its last one is ", ": it has no phase "};

struct Advice {
  absl::StatusCode code;
  absl::string_view after_call, after_failure;
};

constexpr Advice kAdvice[] = {
    {absl::StatusCode::kCancelled,
     "the call was ended before it was answered: run the command again",
     "run the command again to start anew"},
    {absl::StatusCode::kUnknown,
     "run the command again; if it happens again, report it with the log of the coordinator",
     "run the command again; if it happens again, report it with what the command printed"},
    {absl::StatusCode::kInvalidArgument,
     "correct that; phalanx COMMAND --help shows what a command takes",
     "correct that; phalanx COMMAND --help shows what a command takes"},
    {absl::StatusCode::kDeadlineExceeded,
     "run the command again, with more time where it needs that: --timeout",
     "run the command again, with more time where it needs that: --timeout"},
    {absl::StatusCode::kNotFound,
     "see that the name is right: phalanx list shows the jobs, phalanx nodes the nodes",
     "name one that is there and that you can read"},
    {absl::StatusCode::kAlreadyExists, "choose another name, or remove what has this one",
     "choose another name, or remove what has this one"},
    {absl::StatusCode::kPermissionDenied,
     "ask somebody who may do it, or for a certificate whose role may; phalanx config show tells "
     "which one is shown now",
     "name one that is there and that you can read"},
    {absl::StatusCode::kResourceExhausted,
     "wait and run the command again, and end calls that nobody needs, such as phalanx watch and "
     "phalanx logs -f",
     "make room, and run the command again"},
    {absl::StatusCode::kFailedPrecondition,
     "run the command again when that has changed: phalanx describe shows how a job stands, "
     "phalanx nodes how the nodes do",
     "change that first, and run the command again"},
    {absl::StatusCode::kAborted, "run the command again", "run the command again"},
    {absl::StatusCode::kOutOfRange, "correct the number that the message names",
     "correct the number that the message names"},
    {absl::StatusCode::kUnimplemented,
     "the coordinator is of another version; phalanx version tells yours",
     "use another way: this phalanx cannot do that; phalanx version tells which one it is"},
    {absl::StatusCode::kInternal,
     "this is a fault of Phalanx: report it with the log of the coordinator",
     "this is a fault of Phalanx: report it with what the command printed"},
    {absl::StatusCode::kUnavailable,
     "see that phalanx-coordinator runs and serves, and run the command again",
     "mend that, and run the command again"},
    {absl::StatusCode::kDataLoss,
     "ask an operator to look: phalanx-coordinator --check-store lists all damage",
     "take a copy of it that is whole; phalanx checkpoints list shows which checkpoints there are"},
    {absl::StatusCode::kUnauthenticated,
     "show a certificate that the coordinator's authority has signed: --tls-certificate and "
     "--tls-key, or phalanx config set; phalanx config show tells which one is shown now",
     "name a certificate and its key: --tls-certificate and --tls-key, or phalanx config set"},
};

// A code that gRPC does not have is as good as unknown.
const Advice& AdviceOf(absl::StatusCode code) {
  const auto* found = std::find_if(std::begin(kAdvice), std::end(kAdvice),
                                   [code](const Advice& one) { return one.code == code; });
  return found == std::end(kAdvice) ? kAdvice[1] : *found;
}

// What will not change any more; empty: the message is of no job that has ended.
absl::string_view NextOfEnded(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return "";
  if (absl::StrContains(status.message(), " has already ended: "))
    return "there is nothing to cancel: it has ended; phalanx rerun queues it again";
  for (const absl::string_view is : {" is Succeeded; ", " is Failed; ", " is Cancelled; "}) {
    if (absl::StrContains(status.message(), is))
      return "it has ended: phalanx rerun queues it again, phalanx list shows the jobs that there "
             "are";
  }
  return "";
}

// Whether nothing is to be added to the message; `next` is then what there is to say already.
bool IsSaid(const absl::Status& status, std::string& next) {
  next = NextOf(status);
  return !next.empty() || !ViolationsOf(status).empty() || SaysNext(status.message());
}

}  // namespace

bool SaysNext(absl::string_view message) {
  for (const absl::string_view rule : kRules) {
    if (absl::StrContains(message, rule)) return true;
  }
  while (!message.empty() && message.back() == '\n') message.remove_suffix(1);
  size_t begin = 0;
  for (const absl::string_view end : {"; ", ": ", "\n"}) {
    const size_t at = message.rfind(end);
    if (at != absl::string_view::npos) begin = std::max(begin, at + end.size());
  }
  if (begin == 0) return false;  // one clause: what is wrong
  const absl::string_view clause = message.substr(begin);
  return std::any_of(std::begin(kVerbs), std::end(kVerbs), [clause](absl::string_view verb) {
    return absl::StartsWith(clause, verb) && clause.size() > verb.size() &&
           clause[verb.size()] == ' ';
  });
}

std::string NextAfterCall(const absl::Status& status) {
  std::string next;
  if (IsSaid(status, next)) return next;
  if (absl::IsNotFound(status) && absl::StartsWith(status.message(), "there is no job")) {
    return "phalanx list shows the jobs that there are";
  }
  if (const absl::string_view ended = NextOfEnded(status); !ended.empty())
    return std::string(ended);
  return std::string(AdviceOf(status.code()).after_call);
}

std::string NextAfterFailure(const absl::Status& status) {
  std::string next;
  if (IsSaid(status, next)) return next;
  return std::string(AdviceOf(status.code()).after_failure);
}

}  // namespace phalanx::client

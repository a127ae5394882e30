#include "client/connection.h"

#include <grpc/support/time.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/rpc_status.h"

namespace phalanx::client {
namespace {

// Before a call is made on a connection that has just come.
constexpr absl::Duration kPause = absl::Milliseconds(20);
constexpr int kMessageBytesMax = 8 << 20;
// Of several servers each has so long to take a connection before the next one is asked; the
// longest pause between two is short, for while one follows another all are asked.
constexpr absl::Duration kReachTime = absl::Milliseconds(300), kTurnPause = absl::Milliseconds(200);

ConnectionOptions Filled(ConnectionOptions options) {
  if (options.server.empty()) options.server = kDefaultServer;
  return options;
}

// With no credentials its calls fail at once.
std::shared_ptr<grpc::Channel> OpenChannel(
    const std::string& server, bool several, bool tls,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  // One that hangs is left as soon as another one leads.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, several ? 2'000 : 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, several ? 2'000 : 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The channel's own reconnects must not be slower than the calls that wait for them.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // For how long one attempt may take, a TLS handshake on a busy machine included; one that is
  // refused is made again no sooner either.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, several || tls ? 1000 : 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(server, credentials, arguments);
}

// Whether an answer says nothing of what became of an attempt before it.
bool LeavesOpen(grpc::StatusCode code) {
  return code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::DEADLINE_EXCEEDED ||
         code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::RESOURCE_EXHAUSTED;
}

}  // namespace

absl::Duration Backoff::Next() {
  const absl::Duration wait = next_ * (0.5 + 0.5 * prng_.Uniform());
  next_ = std::min(next_ * 2, kMax);
  return wait;
}

Connection::Connection(ConnectionOptions options)
    : options_(Filled(std::move(options))), fault_(CheckTlsFiles(options_.tls)), servers_([this] {
        const std::vector<std::string> addresses = absl::StrSplit(options_.server, ',');
        std::vector<Server> servers;
        for (const std::string& address : addresses) {
          const auto channel =
              OpenChannel(address, addresses.size() > 1, options_.tls.on(),
                          fault_.ok() ? transport::ClientCredentials(options_.tls) : nullptr);
          servers.push_back(
              {channel, v1::JobService::NewStub(channel), v1::JoinService::NewStub(channel)});
        }
        return servers;
      }()) {}

uint64_t Connection::Draw() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

absl::Status CheckTlsFiles(const transport::TlsFiles& files) {
  const absl::Status status = transport::CheckTlsFiles(files, "--tls-");
  if (status.ok()) return status;
  return WithNext(status,
                  "correct the file or name another one; phalanx config show tells where its name "
                  "is from");
}

absl::Status Connection::Explain(const grpc::Status& status) const {
  if (!fault_.ok()) return fault_;
  const absl::Status plain = FromGrpc(status);
  // gRPC answers so, without a word, for a coordinator that has not seen the call.
  if (absl::IsUnimplemented(plain) && plain.message().empty()) {
    return WithNext(
        absl::Status(plain.code(),
                     absl::StrCat("the coordinator at ", options_.server,
                                  " does not know this call, or cannot read what it says")),
        "give names, texts and folders in UTF-8; where they are, the coordinator is of another "
        "version: phalanx version tells yours");
  }
  if (!absl::IsUnavailable(plain) && !absl::IsDeadlineExceeded(plain)) return plain;
  const bool answered = SaidByCoordinator(status);
  // Who is called turns away whoever shows such a certificate, and says no more than that.
  const absl::Status holds = transport::CheckHolds(options_.tls, "--tls-", absl::Now());
  if (!answered && !holds.ok()) {
    return WithNext(absl::Status(plain.code(), absl::StrCat("the coordinator at ", options_.server,
                                                            " does not answer: ", holds.message())),
                    "ask for a certificate that holds, or name another one; phalanx "
                    "config show tells where its name is from");
  }
  return WithNext(
      absl::Status(plain.code(),
                   absl::StrCat("the coordinator at ", options_.server,
                                answered ? " cannot serve this now: " : " does not answer: ",
                                plain.message())),
      answered
          ? "ask again when that has changed; phalanx nodes shows the nodes that are there, and "
            "the coordinator's log says more"
      : options_.tls.on()
          ? "see that phalanx-coordinator runs there, with TLS and under that name, and that each "
            "side's certificate holds and is signed by an authority that the other names; --server "
            "names another one, and phalanx config show tells where the address is from"
          : "see that phalanx-coordinator runs there, and without TLS, as no certificate is named "
            "here; --server names another one, and phalanx "
            "config show tells where the address is from");
}

absl::Status Connection::Once(const std::function<grpc::Status(grpc::ClientContext&)>& attempt) {
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.timeout);
  const auto left = [deadline] {
    return absl::FromChrono(deadline - std::chrono::steady_clock::now());
  };
  Backoff backoff(Draw());
  while (true) {
    if (fault_.ok() && has_several() && left() > options_.turn && !Reaches(kReachTime)) {
      TryNext(backoff);
      continue;
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + left()));
    context.set_wait_for_ready(true);
    const grpc::Status status = attempt(context);
    if (!has_several() || !IsOfStandby(status)) return Explain(status);
    const absl::Duration wait = TryNext(backoff);
    if (wait >= left()) return Explain(status);
    absl::SleepFor(wait);
  }
}

absl::Status Connection::Repeat(const std::function<grpc::Status(grpc::ClientContext&)>& attempt) {
  // A clock that is set meanwhile ends or prolongs nothing.
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.timeout);
  const auto left = [deadline] {
    return absl::FromChrono(deadline - std::chrono::steady_clock::now());
  };
  Backoff backoff(Draw());
  grpc::Status said;  // by the coordinator, the last time that it said anything
  bool may_be_done = false;
  const auto told = [&](const grpc::Status& last) {
    const bool open = may_be_done && LeavesOpen(last.error_code());
    return open ? AsMaybeDone(Explain(last)) : Explain(last);
  };
  while (true) {
    const bool in_turn = has_several() && left() > options_.turn;
    if (fault_.ok() && in_turn && !Reaches(kReachTime)) {
      TryNext(backoff);
      continue;
    }
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + (in_turn ? options_.turn : left())));
    const grpc::Status status = attempt(context);
    may_be_done = may_be_done || MayHave(status);
    // One that stops cuts off what comes in that moment.
    const bool late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                      (in_turn && status.error_code() == grpc::StatusCode::CANCELLED);
    // It tells more than that there was no time for another answer.
    if (late && !in_turn && !said.ok()) return told(said);
    const absl::Duration asked = RetryDelayOf(status);
    const bool over_limit =
        status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && asked > absl::ZeroDuration();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE && !over_limit && !(late && in_turn)) {
      return told(status);
    }
    if (SaidByCoordinator(status)) said = status;
    // Those who were turned away together do not come back together.
    const absl::Duration wait = over_limit ? asked + backoff.Next()
                                : asked > absl::ZeroDuration() && !has_several() ? asked
                                                                                 : TryNext(backoff);
    if (wait >= left()) return told(said.ok() ? status : said);
    Wait(status, wait);
  }
}

bool Connection::MayHave(const grpc::Status& status) const {
  if (!fault_.ok()) return false;
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED:
      return true;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return servers_[at_].channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
    case grpc::StatusCode::UNAVAILABLE:
      if (SaidByCoordinator(status)) return !IsOfStandby(status);
      // In gRPC's words of calls that never left.
      return !absl::StrContains(status.error_message(), "failed to connect") &&
             !absl::StrContains(status.error_message(), "resol");
    default:
      return false;
  }
}

// A connection that is being made goes on only while somebody waits for it. One that is there, to
// somebody who does not serve, is no reason to ask sooner.
void Connection::Wait(const grpc::Status& status, absl::Duration wait) {
  const bool unanswered =
      status.error_code() == grpc::StatusCode::UNAVAILABLE && !SaidByCoordinator(status);
  if (!unanswered || Reaches(absl::ZeroDuration())) return absl::SleepFor(wait);
  if (Reaches(wait)) absl::SleepFor(std::min(wait, kPause));
}

absl::Duration Connection::TryNext(Backoff& backoff) {
  at_ = (at_ + 1) % servers_.size();
  return has_several() ? std::min(backoff.Next(), kTurnPause) : backoff.Next();
}

bool Connection::Reaches(absl::Duration patience) {
  return servers_[at_].channel->WaitForConnected(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(patience), GPR_TIMESPAN)));
}

}  // namespace phalanx::client

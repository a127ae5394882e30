#include "worker/agent/join.h"

#include <grpcpp/client_context.h>
#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/prng.h"
#include "core/base/random_word.h"
#include "core/base/status.h"
#include "core/posix/file.h"
#include "core/posix/whole_file.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "transport/issuance.h"
#include "worker/agent/session.h"

namespace phalanx::agent {
namespace {

using std::chrono::steady_clock;

constexpr int64_t kFileBytesMax = 1 << 20;
constexpr absl::Duration kCallTimeout = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(200);
// Of a renewal that failed: a twentieth of the certificate's life, within these.
constexpr absl::Duration kRetryMin = absl::Seconds(1), kRetryMax = absl::Minutes(5);
// The wall clock is looked at so often: it may be set.
constexpr absl::Duration kLook = absl::Minutes(1);
constexpr absl::string_view kTokenUri = "phalanx-token:";

std::string IdentityFile(const std::string& state) { return state + "/identity.pem"; }

// "ID" of "phx_ID_SECRET"; empty: it is no token.
std::string IdOf(absl::string_view token) {
  const size_t begin = token.find('_'), end = token.rfind('_');
  return begin == absl::string_view::npos || end <= begin + 1
             ? ""
             : std::string(token.substr(begin + 1, end - begin - 1));
}

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  const auto fault = [&file](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("--join-token-file: ", file, ": ", what));
  };
  struct stat status {};
  if (stat(file.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
    return fault("everybody may read it; chmod 600 it, and revoke the token if somebody did");
  const absl::StatusOr<std::string> text = ReadWholeFile(file, kFileBytesMax);
  if (!text.ok()) return fault(text.status().message());
  std::string token(absl::StripAsciiWhitespace(*text));
  if (!absl::StartsWith(token, "phx_") || IdOf(token).empty())
    return fault("must be a token as phalanx token create prints it");
  return token;
}

// Of the certificate that the node has. NotFound: it has none.
absl::StatusOr<transport::CertificateFacts> ReadIdentity(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadWholeFile(file, kFileBytesMax);
  if (!text.ok()) return absl::NotFoundError(text.status().message());
  return transport::FactsOf(*text);
}

bool Has(const transport::CertificateFacts& facts, const std::string& uri) {
  return std::find(facts.uris.begin(), facts.uris.end(), uri) != facts.uris.end();
}

absl::Status KeepIdentity(const std::string& file, const std::string& certificate,
                          const std::string& key) {
  return WriteWholeFile(file, absl::StrCat(certificate, key), 0600);
}

// One for each coordinator: of several, that one answers which leads.
using Stubs = std::vector<std::unique_ptr<v1::JoinService::Stub>>;
Stubs StubsOf(const std::string& coordinators, const transport::TlsFiles& tls) {
  Stubs stubs;
  for (const auto& channel : ConnectTo(coordinators, tls)) {
    stubs.push_back(v1::JoinService::NewStub(channel));
  }
  return stubs;
}

// It waits for a connection: gRPC makes those only while some call waits.
void Prepare(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + kCallTimeout));
  context.set_wait_for_ready(true);
}

// What the coordinator says, or that it says nothing.
absl::Status StatusOf(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// Cancelled is not our doing: a coordinator or a proxy that ends calls says so.
bool MayComeBack(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsResourceExhausted(status);
}

absl::Status Explain(const JoinOptions& options, const absl::Status& status) {
  if (!MayComeBack(status))
    return Annotate(status, absl::StrCat("cannot join the coordinator at ", options.coordinator));
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot join: too many nodes ask the coordinator at ", options.coordinator,
                     " at once, for ", absl::FormatDuration(options.crowd_patience),
                     " now: ", status.message(), "; start fewer at a time"));
  }
  return absl::UnavailableError(absl::StrCat(
      "cannot join: the coordinator at ", options.coordinator,
      " does not answer: ", status.message(),
      "; see that it runs there with TLS, with --join-ca-certificate and --join-ca-key, and with a "
      "certificate of an authority in ",
      options.ca));
}

// Whether it was stopped meanwhile.
bool PauseFor(absl::Duration pause, const std::function<bool()>& stopped) {
  const auto end = steady_clock::now() + absl::ToChronoNanoseconds(pause);
  while (!stopped()) {
    const absl::Duration left = absl::FromChrono(end - steady_clock::now());
    if (left <= absl::ZeroDuration()) return false;
    absl::SleepFor(std::min(left, kPause));
  }
  return true;
}

// When to give up, and when to ask again. Many nodes that start together are not to come back
// together.
class Attempts {
 public:
  explicit Attempts(const JoinOptions& options)
      : options_(options), crowd_pause_(options.crowd_pause_min) {}

  // After an attempt that came to nothing; nothing: there is no other.
  std::optional<absl::Duration> Next(const absl::Status& status) {
    const auto now = steady_clock::now();
    if (!absl::IsResourceExhausted(status)) {
      const bool over = now >= heard_ + absl::ToChronoNanoseconds(options_.patience);
      return over ? std::nullopt : std::optional(kPause);
    }
    heard_ = now;
    if (now >= start_ + absl::ToChronoNanoseconds(options_.crowd_patience)) return std::nullopt;
    if (!told_) {
      options_.log(absl::StrCat("waits to join, as too many nodes ask the coordinator at ",
                                options_.coordinator, " at once: ", status.message()));
    }
    told_ = true;
    const absl::Duration pause = crowd_pause_ * (0.5 + 0.5 * prng_.Uniform());
    crowd_pause_ = std::min(crowd_pause_ * 2, options_.crowd_pause_max);
    return pause;
  }

 private:
  const JoinOptions& options_;
  const steady_clock::time_point start_ = steady_clock::now();
  steady_clock::time_point heard_ = start_;  // last of a coordinator
  Prng prng_{RandomWord()};
  absl::Duration crowd_pause_;
  bool told_ = false;
};

absl::StatusOr<transport::TlsFiles> Join(const JoinOptions& options, const std::string& token,
                                         const std::function<bool()>& stopped) {
  ASSIGN_OR_RETURN(const transport::KeyAndRequest own, transport::MakeKeyAndRequest());
  v1::JoinRequest request;
  request.set_token(token);
  request.set_node(options.node);
  request.set_certificate_request(own.request);
  const Stubs stubs =
      StubsOf(options.coordinator, {.ca = options.ca, .refresh_seconds = options.refresh_seconds});
  const std::string file = IdentityFile(options.state);
  Attempts attempts(options);
  size_t at = 0;  // of the coordinator that is asked
  // The same key each time: an answer that was lost is given again.
  while (true) {
    grpc::ClientContext context;
    Prepare(context);
    v1::JoinResponse response;
    const absl::Status status = StatusOf(stubs[at]->Join(&context, request, &response));
    if (status.ok()) {
      RETURN_IF_ERROR(KeepIdentity(file, response.certificate(), own.key));
      return transport::TlsFiles{.ca = options.ca,
                                 .certificate = file,
                                 .key = file,
                                 .refresh_seconds = options.refresh_seconds};
    }
    const absl::Status cancelled = absl::CancelledError("stopped before it has joined");
    if (stopped()) return cancelled;
    const std::optional<absl::Duration> pause =
        MayComeBack(status) ? attempts.Next(status) : std::nullopt;
    if (!pause.has_value()) return Explain(options, status);
    if (PauseFor(*pause, stopped)) return cancelled;
    // One that is crowded is the one that leads.
    if (!absl::IsResourceExhausted(status)) at = (at + 1) % stubs.size();
  }
}

}  // namespace

bool HasIdentity(const std::string& state) {
  std::error_code error;
  return std::filesystem::exists(IdentityFile(state), error);
}

absl::StatusOr<transport::TlsFiles> ObtainIdentity(const JoinOptions& options,
                                                   const std::function<bool()>& stopped) {
  const std::string file = IdentityFile(options.state);
  std::error_code error;
  std::filesystem::create_directories(options.state, error);
  const absl::StatusOr<transport::CertificateFacts> own = ReadIdentity(file);
  const bool holds = own.ok() && own->end > absl::Now() &&
                     Has(*own, absl::StrCat("phalanx:worker/", options.node));
  std::string token;
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(token, ReadToken(options.token_file));
  }
  const bool is_new = !token.empty() && !(holds && Has(*own, absl::StrCat(kTokenUri, IdOf(token))));
  if (!is_new && !holds) {
    return absl::InvalidArgumentError(
        absl::StrCat("--join-token-file is missing: ", file,
                     own.ok() ? " has expired, or is of another node" : " has no certificate",
                     "; ask an operator for a token (phalanx token create)"));
  }
  if (is_new) return Join(options, token, stopped);
  return transport::TlsFiles{.ca = options.ca,
                             .certificate = file,
                             .key = file,
                             .refresh_seconds = options.refresh_seconds};
}

IdentityRenewer::IdentityRenewer(std::string coordinator, transport::TlsFiles files,
                                 std::function<void(const std::string& line)> log)
    : coordinator_(std::move(coordinator)),
      files_(std::move(files)),
      log_(std::move(log)),
      thread_([this] { Run(); }) {}

IdentityRenewer::~IdentityRenewer() {
  MutexLock lock(&mu_);
  stop_ = true;
  stop_changed_.SignalAll();
}

absl::Duration IdentityRenewer::Left() const {
  const absl::StatusOr<transport::CertificateFacts> own = ReadIdentity(files_.certificate);
  const absl::StatusOr<FileStamp> stamp = StampOf(files_.certificate);
  if (!own.ok() || !stamp.ok()) return absl::ZeroDuration();
  // It is dated back, for clocks that are behind.
  const absl::Time obtained = std::max(own->begin, absl::FromUnixNanos(stamp->modified));
  return obtained + 2 * (own->end - obtained) / 3 - absl::Now();
}

absl::Status IdentityRenewer::Renew() {
  ASSIGN_OR_RETURN(const transport::KeyAndRequest next, transport::MakeKeyAndRequest());
  v1::RenewCertificateRequest request;
  request.set_certificate_request(next.request);
  // Connections of its own, with the certificate that is there now.
  absl::Status status;
  for (const auto& stub : StubsOf(coordinator_, files_)) {
    if (IsStopped()) return absl::CancelledError("stopped before it was");
    grpc::ClientContext context;
    Prepare(context);
    v1::RenewCertificateResponse response;
    status = StatusOf(stub->RenewCertificate(&context, request, &response));
    if (status.ok()) return KeepIdentity(files_.certificate, response.certificate(), next.key);
    if (!MayComeBack(status)) return status;
  }
  return status;
}

bool IdentityRenewer::IsStopped() {
  MutexLock lock(&mu_);
  return stop_;
}

void IdentityRenewer::Run() {
  pthread_setname_np(pthread_self(), "identity");
  absl::Duration pause = absl::ZeroDuration();
  std::string told;
  while (true) {
    const absl::Duration wait = std::clamp(std::max(Left(), pause), absl::ZeroDuration(), kLook);
    {
      const auto next = steady_clock::now() + absl::ToChronoNanoseconds(wait);
      MutexLock lock(&mu_);
      while (!stop_ && !stop_changed_.WaitUntil(&mu_, next)) continue;
      if (stop_) return;
    }
    if (Left() > absl::ZeroDuration()) continue;
    const absl::Status status = Renew();
    if (!status.ok() && IsStopped()) return;
    std::string line = status.ok() ? "certificate renewed"
                                   : absl::StrCat("certificate not renewed: ", status.message());
    if (status.ok() || line != told) log_(line);
    told = std::move(line);
    const auto own = ReadIdentity(files_.certificate);
    pause = status.ok() || !own.ok()
                ? kRetryMin
                : std::clamp((own->end - own->begin) / 20, kRetryMin, kRetryMax);
  }
}

}  // namespace phalanx::agent

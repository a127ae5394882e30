// worker/agent/join.h: a node that has no certificate gets one for a join token, and renews it.
//
// Key and certificate are one file of the state folder, identity.pem, of mode 0600: so a renewal
// puts both in place at once. The token is read from a file, for a process list shows arguments to
// everybody.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "transport/tls.h"

namespace phalanx::agent {

struct JoinOptions {
  std::string coordinator;  // HOST:PORT, of several between commas
  std::string ca;           // PEM file of the authorities that the coordinator's certificate is of
  std::string node;
  std::string state;       // folder
  std::string token_file;  // empty: there is none, and what the node has must do
  int refresh_seconds = 10;
  // How long a coordinator that does not answer is waited for.
  absl::Duration patience = absl::Minutes(1);
  // How long one that answers that too many nodes ask is asked again, after pauses that grow from
  // the first to the second and are drawn between half and the whole.
  absl::Duration crowd_patience = absl::Minutes(10);
  absl::Duration crowd_pause_min = absl::Seconds(2), crowd_pause_max = absl::Seconds(10);
  // Told once that it waits, and why.
  std::function<void(const std::string& line)> log = [](const std::string&) {};
};

// The files with which the node speaks to its coordinator: those of the certificate that it has, or
// joins for. A token that it has not joined with yet takes the place of what it has, and so does
// any where that has expired. `stopped` is asked between attempts and in pauses. Errors:
// InvalidArgument, naming a flag; Cancelled, if it is stopped and only then; Unavailable, if no
// coordinator answers; ResourceExhausted, if too many nodes ask for all of the patience; what the
// coordinator says.
absl::StatusOr<transport::TlsFiles> ObtainIdentity(const JoinOptions& options,
                                                   const std::function<bool()>& stopped);

// Whether there is a certificate in the state folder, of whatever worth.
bool HasIdentity(const std::string& state);

// Renews a certificate that came of a token whenever two thirds of its life are over, and tries
// again where that fails. Thread-safe.
class IdentityRenewer {
 public:
  // `files`: of ObtainIdentity. `log`: from the renewer's thread.
  IdentityRenewer(std::string coordinator, transport::TlsFiles files,
                  std::function<void(const std::string& line)> log);
  ~IdentityRenewer();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // How long until it is to be renewed; not above 0: now.
  absl::Duration Left() const;
  absl::Status Renew() ABSL_LOCKS_EXCLUDED(mu_);
  bool IsStopped() ABSL_LOCKS_EXCLUDED(mu_);

  const std::string coordinator_;
  const transport::TlsFiles files_;
  const std::function<void(const std::string& line)> log_;
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::agent

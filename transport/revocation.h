// transport/revocation.h: certificates that their authority has taken back before they expire.
//
// The file has certificate revocation lists (X.509 CRLs) in PEM. It is looked at again while the
// program runs: what is put in its place, by a rename, holds from then on, also for connections
// that are open, as callers ask about every call. What cannot be read, or is signed by no
// authority, changes nothing: who was taken back stays so. A list whose next update is overdue
// still holds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"

namespace phalanx::transport {

struct RevocationOptions {
  std::string file;  // of the lists
  std::string ca;    // PEM file of the authorities; each list is signed by one of them
  std::string name;  // of the file, as the user gave it: "--tls-revoked"
  // How often the file is looked at again.
  int refresh_seconds = 10;
  // One line each: what was read; why what is there now was not. From the thread of the lists, as
  // `changed`.
  std::function<void(const std::string& line)> log = [](const std::string&) {};
  std::function<void(const std::string& line)> warn = [](const std::string&) {};
  // Has() may answer otherwise than before.
  std::function<void()> changed = [] {};
};

// Thread-safe.
class Revocations {
 public:
  // Errors: InvalidArgument, with the name and the path of the file.
  static absl::StatusOr<std::unique_ptr<Revocations>> Open(RevocationOptions options);
  ~Revocations();

  // Whether one of the certificates, in PEM one after another, was taken back.
  bool Has(absl::string_view certificates) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Lists;

  explicit Revocations(RevocationOptions options) : options_(std::move(options)) {}
  // Reads the file, if it is not as it was.
  absl::Status Refresh() ABSL_LOCKS_EXCLUDED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const RevocationOptions options_;
  // Of Open, then of the thread: the text that holds, and how often others are still to be told.
  std::string text_;
  int changes_ = 0;
  mutable Mutex mu_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Lists> lists_ ABSL_GUARDED_BY(mu_);
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace phalanx::transport

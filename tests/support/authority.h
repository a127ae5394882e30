// tests/support/authority.h: certificates, made by the script that the documentation names.
#pragma once

#include <string>

#include "transport/tls.h"

namespace phalanx::support {

// What cannot be made throws std::runtime_error.
class Authority {
 public:
  Authority();

  // Certificates, with this authority as the one that they trust. `days` below 0: expired.
  transport::TlsFiles Coordinator(int days = 1) const;
  transport::TlsFiles Worker(const std::string& node, int days = 1) const;
  // For a port that the node serves; the authority is the one of its readers.
  transport::TlsFiles Node(const std::string& host, int days = 1) const;
  transport::TlsFiles User(const std::string& name, const std::string& role, int days = 1) const;

  // What was made so far as `file`, such as "user-alice".
  void Revoke(const std::string& file) const;

  // Of revoked certificates; it is there once a certificate was made.
  std::string revoked() const { return folder_ + "/revoked.pem"; }
  const std::string& folder() const { return folder_; }

 private:
  // What the script prints: the file that it has made.
  std::string Run(const std::string& arguments, int days) const;
  transport::TlsFiles Make(const std::string& arguments, int days) const;

  const std::string folder_;
};

}  // namespace phalanx::support

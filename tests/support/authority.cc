#include "tests/support/authority.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace phalanx::support {

Authority::Authority() : folder_(MakeFolder("authority")) {}

transport::TlsFiles Authority::Coordinator(int days) const {
  return Make("coordinator 127.0.0.1", days);
}

transport::TlsFiles Authority::Worker(const std::string& node, int days) const {
  return Make(absl::StrCat("worker ", node), days);
}

transport::TlsFiles Authority::Node(const std::string& host, int days) const {
  return Make(absl::StrCat("node ", host), days);
}

transport::TlsFiles Authority::User(const std::string& name, const std::string& role,
                                    int days) const {
  return Make(absl::StrCat("user ", name, " ", role), days);
}

void Authority::Revoke(const std::string& file) const { Run(absl::StrCat("revoke ", file), 1); }

std::string Authority::Run(const std::string& arguments, int days) const {
  const Finished made = RunToEnd({"/bin/sh", "-c",
                                  absl::StrCat("DAYS=", days, " ", tests::SourceDir(),
                                               "/scripts/make_ca ", folder_, " ", arguments)});
  Require(made.exit_code == 0, made.talk);
  return std::string(absl::StripAsciiWhitespace(made.out));
}

transport::TlsFiles Authority::Make(const std::string& arguments, int days) const {
  const std::string certificate = Run(arguments, days);
  return {.ca = folder_ + "/ca.pem",
          .certificate = certificate,
          .key = absl::StrCat(absl::StripSuffix(certificate, ".pem"), "-key.pem"),
          .refresh_seconds = 1};
}

}  // namespace phalanx::support

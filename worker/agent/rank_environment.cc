#include "worker/agent/rank_environment.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/posix/file.h"
#include "core/wire/job_yaml.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kSecretBytesMax = 64 << 10;

// Errors: why there is none, in words that follow the file's name.
absl::StatusOr<std::string> ReadSecret(const std::string& folder, const std::string& file) {
  if (folder.empty()) {
    return absl::FailedPreconditionError(
        "this node has no folder of secrets: start phalanx-worker with --secrets");
  }
  ASSIGN_OR_RETURN(std::string secret,
                   ReadWholeFile(absl::StrCat(folder, "/", file), kSecretBytesMax));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.find('\0') != std::string::npos)
    return absl::InvalidArgumentError("has a zero byte, which no variable can hold");
  return secret;
}

}  // namespace

absl::StatusOr<RankVariables> RankEnvironment(const std::string& document,
                                              const std::string& secrets) {
  ASSIGN_OR_RETURN(const job::ReadJob read, wire::ReadJobFile(document, job::Purpose::kSubmit));
  RankVariables variables{.has_secrets = !read.spec.secrets.empty()};
  for (const auto& [name, value] : read.spec.env)
    variables.all.push_back(absl::StrCat(name, "=", value));
  std::vector<Violation> violations;
  for (const auto& [name, file] : read.spec.secrets) {
    const absl::StatusOr<std::string> secret = ReadSecret(secrets, file);
    if (secret.ok()) {
      variables.all.push_back(absl::StrCat(name, "=", *secret));
    } else {
      violations.push_back({.field = absl::StrCat("spec.secrets.", name),
                            .value = file,
                            .rule = std::string(secret.status().message())});
    }
  }
  if (!violations.empty()) return ViolationsStatus(violations);
  return variables;
}

}  // namespace phalanx::agent

#include "worker/agent/rank_environment.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/job/environment.h"
#include "core/posix/file.h"
#include "core/wire/job_yaml.h"
#include "spdlog/spdlog.h"

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

// Of a job that was accepted before that was refused.
bool IsLeftOut(const std::string& name, const std::optional<std::string>& why) {
  if (why.has_value()) spdlog::warn("the job's variable {} is left out: {}", name, *why);
  return why.has_value();
}

}  // namespace

absl::StatusOr<RankVariables> RankEnvironment(const std::string& document,
                                              const std::string& secrets) {
  ASSIGN_OR_RETURN(const job::ReadJob read, wire::ReadJobFile(document, job::Purpose::kAccepted));
  RankVariables variables{.has_secrets = !read.spec.secrets.empty()};
  for (const auto& [name, value] : read.spec.env) {
    if (!IsLeftOut(name, job::WhyNotVariable(name)))
      variables.all.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<Violation> violations;
  for (const auto& [name, file] : read.spec.secrets) {
    if (IsLeftOut(name, job::WhyNotSecret(name, file))) continue;
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

#include "worker/agent/flags.h"

#include <iostream>
#include <limits>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "core/base/cut_text.h"
#include "core/base/empty_flags.h"
#include "core/base/terminal_text.h"
#include "core/job/devices.h"
#include "core/job/fields.h"
#include "core/job/scalar.h"
#include "worker/agent/translate.h"

namespace phalanx::agent {
namespace {

constexpr double kGraceMax = 86400;               // seconds
constexpr double kCheckIntervalMax = 86400 * 30;  // seconds
constexpr size_t kLabelBytesShown = 64;
constexpr int kThreadsMax = 1024;  // more than processors that any machine has for a rank
constexpr int64_t kLogRateMax = int64_t{1} << 40;

void AddFlags(CLI::App& app, Flags& flags) {
  AgentOptions& options = flags.options;
  app.set_version_flag("--version", std::string("phalanx-worker ") + PHALANX_VERSION);
  app.option_defaults()->take_last();  // a script's option may be overridden behind it
  app.add_option("--coordinator", options.coordinator,
                 "HOST:PORT of the coordinator; of several, that one which leads is found: "
                 "HOST:PORT,HOST:PORT");
  app.add_option(
      "--tls-ca", options.tls.ca,
      "PEM file of the authorities whose certificate the coordinator must show; with the "
      "two below: mutual TLS");
  app.add_option("--tls-certificate", options.tls.certificate, "PEM file of this node's own");
  app.add_option("--tls-key", options.tls.key, "PEM file of its private key");
  app.add_option("--join-token-file", flags.join_token_file,
                 "file with a token to get a certificate with, in place of the two above")
      ->excludes("--tls-certificate")
      ->excludes("--tls-key");
  app.add_flag("--plaintext", flags.plaintext,
               "talk to the coordinator without TLS, as without certificates: on loopback alone, "
               "since whoever answers at --coordinator runs programs here");
  app.add_option("--node", options.node, "name of this node, unique in the cluster")
      ->default_str("HOSTNAME");
  app.add_option("--device", options.device_kind, "cpu: slots for development, gpu: NVIDIA GPUs")
      ->capture_default_str();
  app.add_option("--devices", options.devices, "how many of them")->capture_default_str();
  app.add_option("--device-memory", flags.device_memory,
                 "bytes that jobs may use of each device, such as 80Gi; default: all that a GPU "
                 "has, anything on cpu");
  app.add_option(
      "--host-memory", flags.host_memory,
      "bytes that jobs may use of this node beside devices, such as 200Gi, for copies of "
      "their state; default: what is available when the daemon starts");
  app.add_option("--state", options.state, "folder for logs and data indexes");
  app.add_option("--read-folder", options.folders.read,
                 "folder that jobs of this node may read; repeatable; with none of these two: any, "
                 "without certificates alone. "
                 "{owner} in a path stands for who submitted the job")
      ->take_all();
  app.add_option("--write-folder", options.folders.write,
                 "folder that jobs of this node may read and write; repeatable")
      ->take_all();
  app.add_option(
      "--secrets", options.folders.secrets,
      "folder with a file for each secret that jobs of this node may name; default: none");
  app.add_option("--ready-file", options.ready_file,
                 "is there while the coordinator has let us in");
  app.add_option("--metrics", options.metrics.address,
                 "HOST:PORT for /metrics, /livez and /readyz; port 0: any free one; default: none");
  app.add_option("--metrics-certificate", options.metrics.tls.certificate,
                 "PEM file of a certificate for that port, which then speaks TLS; who reads "
                 "/metrics shows one of --tls-ca");
  app.add_option("--metrics-key", options.metrics.tls.key, "PEM file of its private key");
  app.add_option("--tls-revoked", options.metrics.revoked,
                 "PEM file of revocation lists of the authorities of --tls-ca, for who reads "
                 "/metrics, looked at every 10 s");
  app.add_flag("--metrics-plaintext", options.metrics.plaintext,
               "serve --metrics without TLS, as without a certificate: on loopback alone");
  app.add_option("--rank-program", options.rank_program,
                 "executable of a rank; default: phalanx-rank beside this program");
  app.add_option("--address", options.address, "address at which other nodes reach the ranks")
      ->capture_default_str();
  app.add_option("--label", flags.labels, "KEY=VALUE for a job's node_selector; repeatable")
      ->take_all();
  app.add_option("--failure-domain", flags.failure_domain,
                 "what this node fails together with, such as its rack; default: the node alone");
  app.add_option("--threads", options.threads,
                 "threads of a rank on CPU; default: the CPUs shared out over the devices")
      ->check(CLI::Range(1, kThreadsMax));
  app.add_option("--log-bytes", options.log_bytes_max, "kept of the log of one rank in one epoch")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max(), "POSITIVE"));
  app.add_option("--log-rate", options.log_rate,
                 "bytes a second that one rank may log, and eight times as many at once; what is "
                 "more is dropped; 0: any number")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, kLogRateMax, "NONNEGATIVE"));
  app.add_option("--grace", flags.grace, "seconds that ranks have to end in when this daemon does")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kGraceMax, "NONNEGATIVE"));
  app.add_option(
      "--device-events", options.device_events,
      "follow this file of lines \"DEVICE xid N\" and \"DEVICE temperature N\" instead of the "
      "driver, to try what becomes of them");
  app.add_option("--check-interval", flags.check_interval,
                 "seconds between checks of a device that no job has; 0: none, also when the node "
                 "joins")
      ->capture_default_str()
      ->check(CLI::Range(0.0, kCheckIntervalMax, "NONNEGATIVE"));
  app.add_option("--check-faults", options.check_faults,
                 "file of lines \"DEVICE memory\", \"DEVICE arithmetic\" and \"DEVICE hang\" that "
                 "checks find, to try what becomes of them");
  app.add_option("--check-data", flags.job_file,
                 "check a job file with its shards and tokenizer, print what is wrong, and end");
}

}  // namespace

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  CLI::App app("Daemon of one node: joins a coordinator and runs ranks for it.", "phalanx-worker");
  AddFlags(app, flags);
  if (const auto empty = FlagsWithoutValue({argv, static_cast<size_t>(argc)}); !empty.empty())
    return TellEmptyFlags(empty, std::cerr);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (const auto empty = EmptyFlagsOf(app); !empty.empty())
      return TellEmptyFlags(empty, std::cerr);
    app.exit(error);
    return kUsage;
  }
  if (const auto empty = EmptyFlagsOf(app); !empty.empty()) return TellEmptyFlags(empty, std::cerr);
  return std::nullopt;
}

absl::StatusOr<int64_t> SizeOf(absl::string_view flag, const std::optional<std::string>& text) {
  if (!text.has_value()) return 0;
  const std::optional<int64_t> bytes = job::ParseSize(*text);
  if (bytes.has_value() && *bytes > 0) return *bytes;
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " is \"", *text, "\"; it must be a whole number of bytes above 0, such as 80Gi"));
}

absl::Status TakeLabels(const Flags& flags, AgentOptions& options) {
  for (const std::string& label : flags.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--label is \"", label, "\"; it must be KEY=VALUE"));
    }
    const std::string key = label.substr(0, equals), value = label.substr(equals + 1);
    const auto [known, added] = options.labels.emplace(key, value);
    if (!added && known->second != value) {
      return absl::InvalidArgumentError(absl::StrCat("--label is ", key, "=", known->second,
                                                     " and ", key, "=", value,
                                                     "; a node has one value for each"));
    }
  }
  if (!flags.failure_domain.empty()) {
    const auto [label, added] =
        options.labels.emplace(job::kFailureDomainLabel, flags.failure_domain);
    if (!added && label->second != flags.failure_domain) {
      return absl::InvalidArgumentError(
          absl::StrCat("--failure-domain is \"", flags.failure_domain, "\", and --label ",
                       job::kFailureDomainLabel, "=", label->second, "; leave one of them out"));
    }
  }
  for (const auto& [key, value] : options.labels) {
    // No message to a coordinator holds it.
    const std::string label = absl::StrCat(key, "=", value);
    if (Utf8Of(label, label.size()) != label) {
      return absl::InvalidArgumentError(
          absl::StrCat("--label is \"", TerminalText(label), "\"; it must be UTF-8"));
    }
    if (key.size() <= job::kLabelBytesMax && value.size() <= job::kLabelBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        key == job::kFailureDomainLabel && !flags.failure_domain.empty() ? "--failure-domain"
                                                                         : "--label",
        " is \"", TerminalText(CutText(label, kLabelBytesShown)), "\"; key and value may be ",
        job::kLabelBytesMax, " bytes long each"));
  }
  if (options.labels.size() > job::kLabelsMax) {
    return absl::InvalidArgumentError(absl::StrCat("--label is given ", options.labels.size(),
                                                   " times; a node may have ", job::kLabelsMax));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::agent

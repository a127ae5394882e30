// coordinator/program/flags.h: the coordinator's flags, and what they mean for the server.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/etcd/client.h"
#include "coordinator/etcd/place.h"
#include "coordinator/rpc/server.h"
#include "coordinator/runtime/quota_file.h"
#include "core/base/host_port.h"
#include "transport/http/http_server.h"
#include "transport/issuance.h"
#include "transport/tls.h"

namespace phalanx::coordinator {

struct Flags {
  std::string listen = "127.0.0.1:4444";
  std::string http = "127.0.0.1:4445";
  std::string store;
  std::string ready_file;
  std::string heartbeat_interval = "3s";
  std::string heartbeat_timeout = "15s";
  std::string grace = "10s";
  int64_t live_jobs_max = CoordinatorOptions().live_jobs_max;
  std::string ended_age_max = "2160h";
  int64_t ended_jobs_max = Retention().count_max;
  transport::TlsFiles tls;
  std::string revoked;
  bool plaintext = false;
  bool http_plaintext = false;
  std::string advertise;
  transport::TlsFiles etcd_tls;
  bool etcd_plaintext = false;
  transport::SignerFiles signer;
  std::string certificate_life = "168h";
  std::string quotas;
  std::string share_half_life = "168h";
  std::string slow_delay = "30s";
  double calls_per_second = CallRateOptions().calls_per_second;
  bool reflection = false;
  bool allow_inject = false;
  bool check_store = false;
  std::string copy_store_to;
};

void AddFlags(CLI::App& app, Flags& flags);

// Flags that have a form of their own.
struct Settings {
  HostPort listen, http;
  std::optional<EtcdPlace> etcd;     // nothing: the store is a folder
  std::optional<EtcdPlace> copy_to;  // nothing: no copy, or one to a folder
  absl::Duration grace, heartbeat_interval, heartbeat_timeout, ended_age_max, certificate_life;
  absl::Duration share_half_life, slow_delay;
  Quotas quotas;
};

// Errors: InvalidArgument, with the flag, its value and its rule.
absl::StatusOr<Settings> ReadSettings(const Flags& flags);

EtcdOptions EtcdOptionsOf(const Flags& flags, const EtcdPlace& place);
// Without a store of join tokens.
ServerOptions OptionsOf(const Flags& flags, const Settings& settings, PlanFunction plan);
// Its address and its TLS. Errors: as ServerTls::Open.
absl::StatusOr<transport::HttpOptions> PagesOf(const Flags& flags, const Settings& settings);

}  // namespace phalanx::coordinator

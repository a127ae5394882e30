#include "coordinator/program/program.h"

#include <malloc.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/program/copying.h"
#include "coordinator/program/flags.h"
#include "coordinator/program/serving.h"
#include "coordinator/program/several.h"
#include "coordinator/program/store_folder.h"
#include "coordinator/store/audit_file.h"
#include "coordinator/store/audit_queue.h"
#include "coordinator/store/etcd_check.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/store/store_check.h"
#include "coordinator/store/token_file.h"
#include "core/base/empty_flags.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/build/build_info.h"
#include "core/posix/signals.h"
#include "core/posix/socket.h"
#include "core/posix/unique_fd.h"
#include "core/posix/whole_file.h"
#include "transport/library_log.h"

namespace phalanx::coordinator {
namespace {

constexpr int kUsage = 2;

// A store is made where there is none, which may be the wrong place. `found`: what was there.
void TellNewStore(const std::string& path, const std::optional<struct stat>& found) {
  if (!found.has_value()) {
    spdlog::info("made a new store reason=\"there was none at {}\"", path);
  } else if (S_ISREG(found->st_mode) && found->st_size == 0) {
    spdlog::warn(
        "made a new store reason=\"{} was empty (0 bytes); jobs that it held are unknown\"", path);
  }
}

absl::StatusOr<StoreReport> ReportOf(const Flags& flags, const Settings& settings) {
  if (!settings.etcd.has_value()) return CheckStoreIn(flags.store);
  EtcdClient client(EtcdOptionsOf(flags, *settings.etcd));
  return CheckEtcdStore(client, settings.etcd->prefix);
}

// --check-store. OK: the store is whole. Else what is said last is what a start would say.
absl::Status Check(const Flags& flags, const Settings& settings) {
  const absl::StatusOr<StoreReport> report = ReportOf(flags, settings);
  if (!report.ok()) return report.status();
  for (const std::string& line : Lines(*report)) std::printf("%s\n", line.c_str());
  return VerdictOn(*report);
}

// --copy-store-to.
absl::Status Copy(const Flags& flags, const Settings& settings) {
  ASSIGN_OR_RETURN(const std::string copied, CopyBetween(flags, settings));
  std::printf("%s\n", copied.c_str());
  return absl::OkStatus();
}

// A damaged store is refused with everything that is wrong with it.
absl::Status Explain(const Flags& flags, const Settings& settings, const sigset_t& signals,
                     absl::Status status) {
  if (!absl::IsDataLoss(status)) return status;
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // nothing serves any more
  const absl::StatusOr<StoreReport> report = ReportOf(flags, settings);
  if (!report.ok()) return status;
  for (const std::string& line : Lines(*report)) spdlog::error("{}", LineText(line));
  return status;
}

// The audit, in files beside the store.
class KeptAudit {
 public:
  explicit KeptAudit(const std::string& folder)
      : done_(AuditIn(folder), {}, &TellChange),
        by_workers_(AuditOfWorkersIn(folder), {}, &TellChange),
        refused_(RefusalsIn(folder), {}, &TellChange) {}

  absl::Status Keep(const std::string& line, AuditKind kind) {
    if (kind == AuditKind::kDone) return done_.Append(line, absl::Now());
    return (kind == AuditKind::kByWorker ? to_workers_ : to_refused_).Put(line, absl::Now());
  }
  AuditCounts Count() const {
    return {.not_written = to_workers_.not_written() + to_refused_.not_written(),
            .files_done = done_.put_aside(),
            .files_workers = by_workers_.put_aside(),
            .files_refused = refused_.put_aside()};
  }

 private:
  static void TellChange(const absl::Status& status) {
    if (status.ok()) return spdlog::info("the audit is written again, beside the store");
    spdlog::critical("the audit is in this log alone reason=\"{}\"", LineText(status.message()));
  }
  static void TellFull() {
    spdlog::critical("lines of the audit are in this log alone reason=\"the disk is too slow\"");
  }

  AuditFile done_, by_workers_, refused_;
  AuditQueue to_workers_{by_workers_, {}, &TellFull};
  AuditQueue to_refused_{refused_, {}, &TellFull};
};

// Over a store in a folder, which is this coordinator's alone.
absl::Status ServeAlone(const Flags& flags, const Settings& settings, PlanFunction plan,
                        const sigset_t& signals) {
  RETURN_IF_ERROR(MakeStoreFolder(flags.store, "--store"));
  // Whoever changes something waits for this file of the audit; the others have threads.
  RETURN_IF_ERROR(CheckAuditPlace(AuditIn(flags.store)));
  const std::string path = JournalIn(flags.store);
  struct stat found {};
  const bool is_new = stat(path.c_str(), &found) != 0;
  absl::StatusOr<std::unique_ptr<SqliteBackend>> backend = SqliteBackend::Open(path);
  if (!backend.ok()) return Explain(flags, settings, signals, backend.status());
  TellNewStore(path, is_new ? std::nullopt : std::optional(found));
  ASSIGN_OR_RETURN(transport::HttpOptions pages, PagesOf(flags, settings));
  ServerOptions options = OptionsOf(flags, settings, std::move(plan));
  options.join.store = std::make_shared<TokenFile>(TokensIn(flags.store));
  const auto audit = std::make_shared<KeptAudit>(flags.store);
  options.keep_audit = [audit](const std::string& line, AuditKind kind) {
    return audit->Keep(line, kind);
  };
  options.audit_counts = [audit] { return audit->Count(); };
  absl::StatusOr<std::unique_ptr<Serving>> serving =
      Serving::Start(std::move(options), std::move(pages), *std::move(backend));
  if (!serving.ok()) return Explain(flags, settings, signals, serving.status());
  const std::string ready =
      absl::StrCat("{\"grpc\":\"", settings.listen.host, ":", (*serving)->grpc_port(),
                   "\",\"http\":\"", settings.http.host, ":", (*serving)->http_port(), "\"}");
  spdlog::info("serving {}", ready);
  if (!flags.ready_file.empty()) {
    RETURN_IF_ERROR(Annotate(WriteWholeFile(flags.ready_file, ready + "\n"), "--ready-file"));
  }

  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("stopping reason=\"{}\"", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second one ends at once
  (*serving)->Stop(settings.grace);
  spdlog::info("stopped");
  return absl::OkStatus();
}

absl::Status Serve(const Flags& flags, const Settings& settings, PlanFunction plan,
                   const sigset_t& signals) {
  const int descriptors = RaiseDescriptorLimit();
  spdlog::info(
      "starting version={} commit={} descriptors={} listen={} http={} store={} "
      "heartbeat_interval={} "
      "heartbeat_timeout={} tls={} http_tls={} joins={} allow_inject={}",
      std::string(BuildVersion()), std::string(BuildCommit()), descriptors, flags.listen,
      flags.http, flags.store, flags.heartbeat_interval, flags.heartbeat_timeout, flags.tls.on(),
      flags.tls.on() && !flags.http_plaintext, flags.signer.on(), flags.allow_inject);
  if (settings.etcd.has_value()) {
    return Explain(flags, settings, signals,
                   ServeAmongOthers(flags, settings, std::move(plan), signals));
  }
  return ServeAlone(flags, settings, std::move(plan), signals);
}

absl::Status Execute(const Flags& flags, const Settings& settings, PlanFunction plan,
                     const sigset_t& signals) {
  if (flags.copy_store_to.empty() && !flags.check_store) {
    return Serve(flags, settings, std::move(plan), signals);
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a copy that is cut is made anew
  return flags.copy_store_to.empty() ? Check(flags, settings) : Copy(flags, settings);
}

}  // namespace

int RunCoordinator(int argc, char** argv, PlanFunction plan) {
  HoldStandardStreams();
  transport::SilenceGrpcLog();
  Flags flags;
  CLI::App app("Phalanx coordinator: plans training jobs and tells nodes what to run.");
  AddFlags(app, flags);
  if (const auto empty = FlagsWithoutValue({argv, static_cast<size_t>(argc)}); !empty.empty())
    return TellEmptyFlags(empty, std::cerr);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool helps = error.get_exit_code() == 0;
    if (const auto empty = EmptyFlagsOf(app); !helps && !empty.empty())
      return TellEmptyFlags(empty, std::cerr);
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (const auto empty = EmptyFlagsOf(app); !empty.empty()) return TellEmptyFlags(empty, std::cerr);
  // Documents are large and short-lived in memory: each goes back to the system when it is freed,
  // where the allocator would keep more and more of them for itself.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  spdlog::set_default_logger(spdlog::stderr_color_mt("phalanx"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l coordinator %v", spdlog::pattern_time_type::utc);
  // Blocked before the first thread, so that only sigwait sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  LetWritesFail();
  const absl::StatusOr<Settings> settings = ReadSettings(flags);
  if (!settings.ok()) {
    spdlog::error("{}", std::string(settings.status().message()));
    return kUsage;
  }
  const absl::Status status = Execute(flags, *settings, std::move(plan), signals);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace phalanx::coordinator

#include "tests/unit/worker/agent/machine_harness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace phalanx::agent {
namespace {

template <typename... Ts>
struct Overload : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overload(Ts...) -> Overload<Ts...>;

MachineOptions Named(MachineOptions options, int32_t devices) {
  options.node = "here";
  options.devices = devices;
  return options;
}

std::string Of(JobId job, Epoch epoch) { return absl::StrCat(ToString(job), "/", epoch.value); }

}  // namespace

std::string ToLine(const Action& action) {
  return std::visit(
      Overload{
          [](const OpenSession& a) {
            std::string running = absl::StrJoin(
                a.running, ",",
                [](std::string* out, const auto& r) { absl::StrAppend(out, Of(r.job, r.epoch)); });
            return absl::StrCat("OpenSession s", a.session.value, " last ", a.last_command_number,
                                " running [", running, "]");
          },
          [](const CloseSession& a) { return absl::StrCat("CloseSession s", a.session.value); },
          [](const SendHeartbeat& a) {
            std::string progress =
                absl::StrJoin(a.progress, ",", [](std::string* out, const auto& p) {
                  absl::StrAppend(out, Of(p.job, p.epoch), "@", p.step);
                  if (p.waits > absl::ZeroDuration())
                    absl::StrAppend(out, " waits ", absl::FormatDuration(p.waits));
                  for (const RankWork& work : p.work)
                    absl::StrAppend(
                        out, " rank ", work.rank, " works ", work.seconds, " as ", work.equal,
                        work.like == 0
                            ? ""
                            : absl::StrCat(", ", work.seconds_per_gflop, " like ", work.like));
                });
            return absl::StrCat("Heartbeat [", progress, "]", a.draining ? " draining" : "");
          },
          [](const SendCommandResult& a) {
            return absl::StrCat(
                "Result ", a.command_number, " ", absl::StatusCodeToString(a.status.code()),
                a.epoch_seen.value > 0 ? absl::StrCat(" seen ", a.epoch_seen.value) : "",
                a.listens_at.empty() ? "" : absl::StrCat(" listens at ", a.listens_at));
          },
          [](const SendReport& a) {
            const std::string what = std::visit(
                Overload{[](const std::string& payload) { return payload; },
                         [](const RankFault& fault) {
                           const bool other = fault.kind != job::FailureKind::kRankError;
                           return absl::StrCat(
                               "fault", other ? absl::StrCat(" ", job::ToString(fault.kind)) : "",
                               ": ", fault.message);
                         },
                         [](const RankNote& note) {
                           return absl::StrCat("note ", note.type, ": ", note.message);
                         },
                         [](const RankDeath&) { return std::string("died"); },
                         [](const RankNeverRan&) { return std::string("never ran"); },
                         [](const RankExit& exit) {
                           return absl::StrCat("exit ", exit.exit_code, " signal ", exit.signal,
                                               exit.expected ? " expected" : "");
                         }},
                a.report);
            return absl::StrCat("Report ", Of(a.job, a.epoch), " rank ", a.rank, " ", what);
          },
          [](const UseStore& a) { return absl::StrCat("UseStore ", a.store); },
          [](const PrepareData& a) {
            return absl::StrCat("PrepareData r", a.request.value, " ", ToString(a.job));
          },
          [](const CancelData& a) { return absl::StrCat("CancelData r", a.request.value); },
          [](const StartProcess& a) {
            return absl::StrCat("StartProcess p", a.process.value, " ", Of(a.job, a.epoch),
                                " rank ", a.rank, " device ", a.device);
          },
          [](const SendRunEpoch& a) {
            return absl::StrCat("RunEpoch p", a.process.value, " ",
                                Of(a.assign->job, a.assign->epoch), " rank ", a.rank, " device ",
                                a.device, a.beside ? " beside" : "", a.keeps ? " keeps" : "");
          },
          [](const SendWarmUp& a) {
            return absl::StrCat("WarmUp p", a.process.value, " ",
                                Of(a.assign->job, a.assign->epoch), " rank ", a.rank, " device ",
                                a.device);
          },
          [](const SendBeginEpoch& a) {
            return absl::StrCat("BeginEpoch p", a.process.value, " ", a.payload);
          },
          [](const SendRendezvous& a) {
            return absl::StrCat("Rendezvous p", a.process.value, " ", a.payload);
          },
          [](const SendPublish& a) {
            return absl::StrCat("Publish p", a.process.value, " ", a.payload);
          },
          [](const SendWriteIncident& a) {
            return absl::StrCat("WriteIncident p", a.process.value, " ", a.payload);
          },
          [](const SendWish& a) { return absl::StrCat("Wish p", a.process.value, " ", a.payload); },
          [](const SendPrepareStandby& a) {
            return absl::StrCat("PrepareStandby p", a.process.value, " ", a.payload);
          },
          [](const SendFault& a) {
            return absl::StrCat("Fault p", a.process.value, " ", job::Describe(a.fault));
          },
          [](const SendStopEpoch& a) {
            return absl::StrCat("StopEpoch p", a.process.value, " ", a.epoch.value);
          },
          [](const SendQuit& a) { return absl::StrCat("Quit p", a.process.value); },
          [](const TerminateProcess& a) { return absl::StrCat("Terminate p", a.process.value); },
          [](const KillProcess& a) { return absl::StrCat("Kill p", a.process.value); },
          [](const StartCheck& a) {
            return absl::StrCat("StartCheck c", a.check.value, " devices ",
                                absl::StrJoin(a.devices, ","));
          },
          [](const KillCheck& a) { return absl::StrCat("KillCheck c", a.check.value); },
          [](const LeaveCheck& a) { return absl::StrCat("LeaveCheck c", a.check.value); },
          [](const FreeHostMemory&) { return std::string(); },
          [](const UploadLogs& a) { return absl::StrCat("UploadLogs ", a.fetch.fetch_id); },
          [](const TryPeer& a) {
            return absl::StrCat("TryPeer of ", a.of.value, " ", a.word, " ",
                                a.peer.empty() ? "listens" : a.peer);
          },
          [](const Exit& a) { return std::string(a.status.ok() ? "Exit" : "Exit failed"); },
          [](const LogLine&) { return std::string(); },
      },
      action);
}

Harness::Harness(int32_t devices, MachineOptions options)
    : machine(Named(std::move(options), devices), now) {}

std::vector<std::string> Harness::Feed(const Event& event) {
  std::vector<std::string> lines;
  for (const Action& action : machine.Step(now, event)) {
    if (const auto* told = std::get_if<LogLine>(&action)) logged.push_back(told->text);
    std::string line = ToLine(action);
    if (line.empty()) continue;
    lines.push_back(std::move(line));
    if (const auto* open = std::get_if<OpenSession>(&action)) {
      session = open->session;
      unconfirmed = 0;
    }
    if (std::holds_alternative<SendHeartbeat>(action) ||
        std::holds_alternative<SendCommandResult>(action) ||
        std::holds_alternative<SendReport>(action)) {
      ++unconfirmed;
    }
    if (const auto* upload = std::get_if<UploadLogs>(&action)) {
      uploads.push_back(*upload);
      logged_stores.insert(upload->store);
    }
    if (const auto* data = std::get_if<PrepareData>(&action)) last_request = data->request.value;
    if (const auto* start = std::get_if<StartProcess>(&action)) {
      started.push_back(start->process.value);
      logged_stores.insert(start->store);
    }
  }
  // The shell answers these at once.
  for (const UploadLogs& upload : std::exchange(uploads, {})) {
    for (std::string& line : Feed(UploadStarted{upload.command_number, upload_status})) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::vector<std::string> Harness::Advance(absl::Duration span) {
  const Instant end = now + span;
  std::vector<std::string> lines;
  while (true) {
    now = std::max(now, std::min(machine.NextDeadline(), end));
    for (std::string& line : Feed(DeadlineReached{})) lines.push_back(std::move(line));
    if (machine.NextDeadline() > end) break;
  }
  now = end;
  return lines;
}

std::vector<std::string> Harness::Welcome(uint64_t coordinator, uint64_t store) {
  std::vector<std::string> lines = Feed(DeadlineReached{});
  if (lines.empty()) lines = Advance(absl::Seconds(5));
  for (std::string& line :
       Feed(SessionWelcomed{session, absl::Seconds(1), Incarnation{coordinator}, store})) {
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> Harness::Command(uint64_t number, agent::Command command) {
  return Feed(CommandReceived{session, number, std::move(command)});
}

std::vector<std::string> Harness::Break(absl::Status status) {
  return Feed(SessionClosed{session, std::move(status)});
}

std::vector<std::string> Harness::ConfirmAll() {
  std::vector<std::string> lines;
  while (unconfirmed > 0) {
    --unconfirmed;
    for (std::string& line : Feed(MessageWritten{session})) lines.push_back(std::move(line));
  }
  return lines;
}

AssignCommand Harness::AnAssign(int64_t epoch, std::vector<int32_t> devices, int64_t job) const {
  return {.job = JobId{job},
          .epoch = Epoch{epoch},
          .document = {"text", "/jobs"},
          .placement = {{"elsewhere", {0, 1}}, {"here", std::move(devices)}}};
}

void Harness::RunJob(int64_t epoch, std::vector<int32_t> devices, uint64_t command_number,
                     int64_t job) {
  const size_t before = started.size();
  Command(command_number, AnAssign(epoch, std::move(devices), job));
  DataReady(last_request);
  for (size_t i = before; i < started.size(); ++i) {
    Feed(ProcessStarted{ProcessNumber{started[i]}, absl::OkStatus()});
    Feed(RankHelloReceived{ProcessNumber{started[i]}});
  }
}

std::vector<std::string> Harness::DataReady(uint64_t request, absl::Status status) {
  DataOutcome outcome;
  outcome.status = std::move(status);
  outcome.digest = "d1";
  outcome.index_path = "/state/indexes/d1.index";
  return Feed(DataPrepared{RequestNumber{request}, std::move(outcome)});
}

std::vector<std::string> Harness::Exited(int64_t process, int32_t exit_code, int32_t signal) {
  return Feed(ProcessExited{ProcessNumber{process}, exit_code, signal, ""});
}

}  // namespace phalanx::agent

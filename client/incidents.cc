#include "client/incidents.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/plan_pictures.h"
#include "core/base/terminal_text.h"
#include "core/job/json.h"
#include "core/wire/incident_json.h"
#include "core/wire/incident_svg.h"

namespace phalanx::client {
namespace {

constexpr size_t kRanksBytesMax = 8;  // of a cell
constexpr size_t kTriedMax = 8;       // lines of what was tried

std::string SecondsText(int64_t microseconds) {
  return absl::StrFormat("%.3f s", static_cast<double>(microseconds) / 1e6);
}

// When the phase ended, since the first evidence; "-": it did not, or not yet.
std::string EndText(const v1::Incident& incident, const std::string& name) {
  const v1::Incident::Phase* phase = wire::FindPhase(incident, name);
  return phase == nullptr || !phase->has_end() ? "-" : SecondsText(phase->end());
}

std::string SafeText(const v1::Incident& incident) {
  const std::string end = EndText(incident, "safe_again");
  return end == "-" && !incident.not_safe().empty() ? "no" : end;
}

std::string CauseText(const v1::Incident& incident) {
  return incident.has_cause() ? incident.cause().cause() : wire::KindWord(incident);
}

// "GPU 2", "slot 2".
std::string DeviceText(const v1::Incident& incident) {
  return absl::StrCat(incident.device_kind() == "gpu" ? "GPU " : "slot ", incident.device());
}

// Training has not gone on behind it.
bool IsEnd(const v1::Incident& incident, const v1::FailureCause& failure) {
  return incident.has_cause() && incident.cause().cause() == failure.cause() &&
         incident.cause().rank() == failure.rank() && incident.cause().node() == failure.node() &&
         EndText(incident, "resumed") == "-" && EndText(incident, "first_step") == "-";
}

// "device 2" of a rank that failed while the job was starting, which is no incident; "": not known.
std::string PlacedDevice(const v1::JobStatus& job) {
  int32_t rank = job.failure().rank();
  for (const v1::NodeDevices& part : job.placement().nodes()) {
    if (rank >= 0 && rank < part.devices_size() && part.node() == job.failure().node())
      return absl::StrCat("device ", part.devices(rank));
    rank -= part.devices_size();
  }
  return "";
}

// Of a cell: "3", "4, 5", "12 ranks".
std::string RanksCell(const v1::Incident& incident) {
  std::vector<int32_t> ranks(incident.lost().begin(), incident.lost().end());
  ranks.insert(ranks.end(), incident.returned().begin(), incident.returned().end());
  if (ranks.empty() && incident.has_cause() && incident.cause().rank() >= 0)
    ranks.push_back(incident.cause().rank());
  std::string text = ranks.empty() ? "-" : absl::StrJoin(ranks, ", ");
  return text.size() <= kRanksBytesMax ? text : absl::StrCat(ranks.size(), " ranks");
}

std::string DetectedText(const v1::Incident& incident, const char* form) {
  return absl::FormatTime(form, ToTime(incident.detected()), absl::LocalTimeZone());
}

void PrintTable(const std::vector<v1::Incident>& incidents, bool wide, Io& io) {
  std::vector<std::string> header = {"N", "DETECTED", "CAUSE", "RANKS", "BACK", "STEP", "SAFE"};
  if (wide) header.insert(header.end(), {"EPOCHS", "SUMMARY"});
  Table table(std::move(header));
  for (const v1::Incident& incident : incidents) {
    std::vector<std::string> row = {
        absl::StrCat(incident.number()),
        DetectedText(incident, wide ? "%Y-%m-%d %H:%M:%E3S" : "%m-%d %H:%M:%S"),
        CauseText(incident),
        RanksCell(incident),
        EndText(incident, "resumed"),
        EndText(incident, "first_step"),
        SafeText(incident)};
    if (wide) {
      row.push_back(absl::StrCat(incident.from_epoch(), " -> ", incident.to_epoch()));
      row.push_back(incident.summary());
    }
    table.Add(std::move(row));
  }
  table.Print(io.out, io.headers);
}

void PrintPhases(const v1::Incident& incident, std::ostream& out) {
  Table table({"PHASE", "BEGIN", "END", "TOOK", "LAST RANK"});
  for (const v1::Incident::Phase& phase : incident.phases()) {
    const bool whole = phase.has_begin() && phase.has_end();
    table.Add({phase.name(), phase.has_begin() ? SecondsText(phase.begin()) : "-",
               phase.has_end() ? SecondsText(phase.end()) : "-",
               whole ? SecondsText(phase.end() - phase.begin()) : "-",
               phase.slowest_rank() < 0 ? "-" : absl::StrCat(phase.slowest_rank())});
  }
  table.Print(out);
}

void PrintEvidence(const v1::Incident& incident, std::ostream& out) {
  for (const std::string& line : incident.evidence()) PrintField("Evidence", line, out);
  PrintField("Confidence", wire::ConfidenceWord(incident), out);
}

void PrintIncident(const v1::Incident& incident, std::ostream& out) {
  PrintField("Incident", absl::StrCat(incident.number(), ", ", wire::KindWord(incident)), out);
  PrintField("Summary", incident.summary(), out);
  PrintField("Detected", DetectedText(incident, "%Y-%m-%d %H:%M:%E3S"), out);
  PrintField("Epochs", absl::StrCat(incident.from_epoch(), " -> ", incident.to_epoch()), out);
  if (incident.has_cause()) {
    const v1::FailureCause& cause = incident.cause();
    PrintField("Cause", absl::StrCat(cause.cause(), ": ", cause.message()), out);
    if (cause.rank() >= 0) {
      PrintField("First rank",
                 absl::StrCat(cause.rank(), " on node ", cause.node(), ", ", DeviceText(incident)),
                 out);
    }
    PrintEvidence(incident, out);
    PrintField("What to do", incident.next(), out);
  }
  PrintField("Lost ranks", absl::StrJoin(incident.lost(), ", "), out);
  PrintField("Ranks back", absl::StrJoin(incident.returned(), ", "), out);
  PrintField("Layout", absl::StrJoin(wire::ChangeWords(incident), ", "), out);
  // Where training stands is known from then on.
  if (EndText(incident, "survivors_quiet") != "-") {
    const bool is_back =
        EndText(incident, "resumed") != "-" || EndText(incident, "first_step") != "-";
    PrintField("Went on behind",
               absl::StrCat("step ", incident.decided_step(),
                            is_back ? absl::StrCat("; ", incident.steps_redone(), " redone") : ""),
               out);
    PrintField("Communicators", incident.standby() ? "standby" : "new", out);
  }
  PrintField("No second home", incident.not_safe(), out);
  PrintPhases(incident, out);
}

}  // namespace

absl::StatusOr<std::vector<v1::Incident>> ListIncidents(Connection& connection,
                                                        const std::string& job) {
  v1::ListIncidentsRequest request;
  request.set_job(job);
  v1::ListIncidentsResponse response;
  const absl::Status status =
      connection.Call(&v1::JobService::Stub::ListIncidents, request, &response);
  if (!status.ok()) return status;
  return std::vector<v1::Incident>(response.incidents().begin(), response.incidents().end());
}

std::vector<std::string> EvidenceLines(const v1::JobStatus& job,
                                       const std::vector<v1::Incident>& incidents) {
  std::vector<std::string> lines;
  if (incidents.empty() || !IsEnd(incidents.back(), job.failure())) return lines;
  for (const std::string& line : incidents.back().evidence())
    lines.push_back(absl::StrCat("evidence: ", line));
  lines.push_back(absl::StrCat("confidence: ", wire::ConfidenceWord(incidents.back())));
  return lines;
}

void PrintTried(const v1::JobStatus& job, const absl::StatusOr<std::vector<v1::Incident>>& told,
                std::ostream& out) {
  const v1::FailureCause& failure = job.failure();
  const std::vector<v1::Incident> incidents = told.ok() ? *told : std::vector<v1::Incident>();
  size_t count = incidents.size();
  std::string device = PlacedDevice(job);
  if (count > 0 && IsEnd(incidents.back(), failure)) {
    if (incidents.back().device() >= 0) device = DeviceText(incidents.back());
    --count;
  }
  if (!device.empty() && failure.rank() >= 0)
    PrintField("Device", absl::StrCat(device, " of node ", failure.node()), out);
  if (count < incidents.size()) PrintEvidence(incidents.back(), out);
  if (!told.ok()) {
    PrintField("Tried", absl::StrCat("not known: ", told.status().message()), out);
  } else if (count == 0) {
    PrintField("Tried",
               job.has_last_step() ? "nothing: no loss came before this one"
                                   : "nothing: no step was trained",
               out);
  }
  const size_t first = count - std::min(count, kTriedMax);
  if (first > 0)
    PrintField("Tried", absl::StrCat(first, " more, of which phalanx incidents list tells"), out);
  for (size_t i = first; i < count; ++i) {
    PrintField("Tried",
               absl::StrCat(DetectedText(incidents[i], "%H:%M:%S"), ", incident ",
                            incidents[i].number(), ": ", incidents[i].summary()),
               out);
  }
}

int IncidentsList(Connection& connection, const std::string& job, Format format, Io& io) {
  const absl::StatusOr<std::vector<v1::Incident>> incidents = ListIncidents(connection, job);
  if (!incidents.ok()) return FailCall(incidents.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    std::vector<job::Tree> trees;
    for (const v1::Incident& incident : *incidents) trees.push_back(wire::IncidentTree(incident));
    PrintTree(job::MappingTree({{"incidents", job::ListTree(std::move(trees))}}), format, io.out);
  } else if (format == Format::kName) {
    for (const v1::Incident& incident : *incidents) io.out << incident.number() << "\n";
  } else if (incidents->empty()) {
    io.talk << "no incidents\n";
  } else {
    PrintTable(*incidents, format == Format::kWide, io);
  }
  return kSuccess;
}

int IncidentsShow(Connection& connection, const ShowIncidentOptions& options, Io& io) {
  const PictureFiles pictures{.svg = options.svg};
  if (const absl::Status sound = CheckPictures(pictures, options.format); !sound.ok()) {
    Fail(sound, io);
    return kUsage;
  }
  const absl::StatusOr<std::vector<v1::Incident>> incidents =
      ListIncidents(connection, options.job);
  if (!incidents.ok()) return FailCall(incidents.status(), io);
  const auto found = std::find_if(
      incidents->begin(), incidents->end(),
      [&](const v1::Incident& incident) { return incident.number() == options.number; });
  if (found == incidents->end()) {
    return Fail(absl::NotFoundError(absl::StrCat(options.job, " has no incident ", options.number,
                                                 "; phalanx incidents list ", options.job,
                                                 " shows those that are kept")),
                io);
  }
  if (!options.svg.empty()) {
    const absl::Status written =
        WritePicture("--svg", options.svg, wire::IncidentSvg(options.job, *found), io);
    if (!written.ok()) {
      Fail(written, io);
      return kCannotCreate;
    }
    if (TakesStandardOutput(pictures)) return kSuccess;
  }
  if (options.format == Format::kJson || options.format == Format::kYaml) {
    PrintTree(wire::IncidentTree(*found), options.format, io.out);
  } else if (options.format == Format::kName) {
    io.out << found->number() << "\n";
  } else {
    PrintIncident(*found, io.out);
  }
  return kSuccess;
}

}  // namespace phalanx::client

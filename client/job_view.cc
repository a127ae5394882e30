#include "client/job_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/incidents.h"
#include "client/node_view.h"
#include "core/base/rough_time.h"
#include "core/base/terminal_text.h"
#include "core/job/devices.h"
#include "core/job/failure.h"
#include "core/plan/memory_fit.h"
#include "core/wire/job_yaml.h"

namespace phalanx::client {
namespace {

constexpr int kCaptionsShown = 12;

std::string StepText(const v1::JobStatus& job) {
  return absl::StrCat(job.has_last_step() ? job.last_step().step() : 0, "/", job.steps());
}

std::string LossText(const v1::JobStatus& job) {
  return job.has_last_step() ? FormatLoss(job.last_step().loss()) : "-";
}

std::string AgeText(const google::protobuf::Timestamp& since, absl::Time now) {
  return since.seconds() == 0 ? "-" : FormatAge(now - ToTime(since));
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", ToTime(time), absl::LocalTimeZone());
}

// Devices of ranks that it has, or goes on without.
std::string PlacementText(const v1::JobStatus& job, bool lost) {
  std::vector<std::string> nodes;
  int32_t rank = 0;
  for (const v1::NodeDevices& part : job.placement().nodes()) {
    std::vector<int32_t> devices;
    for (const int32_t device : part.devices()) {
      if ((std::count(job.lost_ranks().begin(), job.lost_ranks().end(), rank++) != 0) == lost)
        devices.push_back(device);
    }
    if (!devices.empty())
      nodes.push_back(absl::StrCat(part.node(), "[", absl::StrJoin(devices, ","), "]"));
  }
  return nodes.empty() ? "-" : absl::StrJoin(nodes, " ");
}

// "6", or "5 of 6" where it goes on without one.
std::string RanksText(const v1::JobStatus& job) {
  // Behind them are places of spares.
  const auto lost = std::count_if(job.lost_ranks().begin(), job.lost_ranks().end(),
                                  [&job](int32_t rank) { return rank < job.world(); });
  if (lost == 0) return absl::StrCat(job.world());
  return absl::StrCat(job.world() - lost, " of ", job.world());
}

// " (number 3, in about 12 min, by 2026-01-31 12:00:00)": its place in the queue, a guess of when
// it starts, and when at the latest; or that it has none.
std::string QueueText(const v1::JobStatus& job, absl::Time now) {
  if (job.fits_no_nodes()) return " (fits no nodes)";
  if (job.queue_number() == 0) return "";
  std::string text = absl::StrCat(" (number ", job.queue_number());
  if (job.has_starts_about())
    absl::StrAppend(&text, ", in about ", RoughText(ToTime(job.starts_about()) - now));
  if (job.has_starts_by()) absl::StrAppend(&text, ", by ", TimeText(job.starts_by()));
  return text + ")";
}

std::string StateText(const v1::JobStatus& job, absl::Time now) {
  return absl::StrCat(PhaseWord(job.phase()), job.damaged() ? " (damaged)" : "",
                      job.suspended() && !IsTerminal(job.phase()) ? " (suspended)" : "",
                      QueueText(job, now));
}

std::vector<std::string> JobRow(const v1::JobStatus& job, bool wide, absl::Time now) {
  std::vector<std::string> row = {job.name(),    JobName(job),  StateText(job, now),
                                  StepText(job), LossText(job), AgeText(job.submitted(), now)};
  if (wide) {
    row.insert(row.end(), {job.owner().empty() ? "-" : job.owner(), absl::StrCat(job.epoch()),
                           RanksText(job), PlacementText(job, /*lost=*/false), job.reason()});
  }
  return row;
}

Table JobTable(bool wide) {
  std::vector<std::string> header = {"NAME", "ID", "STATE", "STEP", "LOSS", "AGE"};
  if (wide) header.insert(header.end(), {"OWNER", "EPOCH", "RANKS", "DEVICES", "REASON"});
  return Table(std::move(header));
}

// The document's text is a document itself, and shown as one. One that cannot be read stays the
// text that it is.
job::Tree JobTree(const v1::JobStatus& job) {
  job::Tree tree = ToTree(job);
  if (!job.has_document()) return tree;
  const absl::StatusOr<job::Tree> file = wire::ParseYaml(job.document().text());
  if (!file.ok()) return tree;
  for (auto& [name, document] : tree.entries) {
    if (name != "document") continue;
    for (auto& [field, value] : document.entries) {
      if (field == "text") value = *file;
    }
  }
  return tree;
}

const job::Tree* Below(const job::Tree* tree, absl::string_view key) {
  if (tree == nullptr) return nullptr;
  const auto found = std::find_if(tree->entries.begin(), tree->entries.end(),
                                  [key](const auto& entry) { return entry.key == key; });
  return found == tree->entries.end() ? nullptr : &found->value;
}

// The variables of its ranks. Of a secret there is the name of a file, here as elsewhere.
void PrintVariables(const v1::JobStatus& job, std::ostream& out) {
  const absl::StatusOr<job::Tree> file = wire::ParseYaml(job.document().text());
  const job::Tree* spec = file.ok() ? Below(&*file, "spec") : nullptr;
  if (const job::Tree* variables = Below(spec, "env")) {
    for (const auto& [name, value] : variables->entries)
      PrintField("Variable", absl::StrCat(name, "=", value.scalar), out);
  }
  if (const job::Tree* secrets = Below(spec, "secrets")) {
    for (const auto& [name, value] : secrets->entries)
      PrintField("Secret", absl::StrCat(name, ", of file ", value.scalar), out);
  }
}

}  // namespace

std::string JobName(const v1::JobStatus& job) { return absl::StrCat("job-", job.id()); }

std::string PhaseWord(v1::JobPhase phase) {
  const auto* value = v1::JobPhase_descriptor()->FindValueByNumber(phase);
  return value == nullptr ? "Unknown" : EnumWord(*value);
}

bool IsTerminal(v1::JobPhase phase) {
  return phase == v1::JOB_PHASE_SUCCEEDED || phase == v1::JOB_PHASE_FAILED ||
         phase == v1::JOB_PHASE_CANCELLED;
}

void PrintJobs(const std::vector<v1::JobStatus>& jobs, Format format, bool header, absl::Time now,
               std::ostream& out) {
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree("jobs", jobs), format, out);
    return;
  }
  if (format == Format::kName) {
    for (const v1::JobStatus& job : jobs) out << JobName(job) << "\n";
    return;
  }
  PrintRows(jobs, format, header, now, out);
}

void PrintRows(const std::vector<v1::JobStatus>& jobs, Format format, bool header, absl::Time now,
               std::ostream& out) {
  Table table = JobTable(format == Format::kWide);
  for (const v1::JobStatus& job : jobs) table.Add(JobRow(job, format == Format::kWide, now));
  table.Print(out, header);
}

void PrintJob(const v1::JobStatus& job, Format format, bool header, absl::Time now,
              std::ostream& out) {
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(JobTree(job), format, out);
    return;
  }
  PrintJobs({job}, format, header, now, out);
}

std::vector<std::string> FailureLines(const v1::JobStatus& job) {
  std::vector<std::string> lines;
  if (!job.has_failure()) return lines;
  const v1::FailureCause& failure = job.failure();
  std::string what = failure.cause();
  if (failure.rank() >= 0) absl::StrAppend(&what, " rank ", failure.rank());
  if (!failure.node().empty()) absl::StrAppend(&what, " on ", failure.node());
  if (failure.signal() != 0) absl::StrAppend(&what, ", signal ", failure.signal());
  if (failure.exit_code() != 0) absl::StrAppend(&what, ", exit code ", failure.exit_code());
  lines.push_back(TerminalText(what));
  for (absl::string_view line : absl::StrSplit(failure.message(), '\n', absl::SkipEmpty())) {
    lines.push_back(TerminalText(line));
  }
  if (const auto kind = job::ParseFailureKind(failure.cause())) {
    lines.push_back(absl::StrCat("what to do: ", job::NextAfter(*kind, failure.signal())));
  }
  return lines;
}

void DescribeJob(const v1::JobStatus& job, const std::vector<std::string>& reasons,
                 const absl::StatusOr<std::vector<v1::Incident>>& incidents,
                 const std::vector<v1::JobEvent>& events, absl::Time now, std::ostream& out) {
  PrintField("Name", job.name(), out);
  PrintField("Id", JobName(job), out);
  if (!job.owner().empty()) PrintField("Owner", job.owner(), out);
  std::vector<std::string> labels;
  for (const auto& [key, value] : job.labels()) labels.push_back(absl::StrCat(key, "=", value));
  std::sort(labels.begin(), labels.end());
  PrintField("Labels", absl::StrJoin(labels, ", "), out);
  PrintField("State", PhaseWord(job.phase()), out);
  PrintField("Reason", job.reason(), out);
  PrintField("Step", StepText(job), out);
  if (job.has_last_step()) {
    const v1::StepReport& step = job.last_step();
    PrintField("Loss", FormatLoss(step.loss()), out);
    PrintField("Gradient norm", FormatLoss(step.gradient_norm()), out);
    PrintField("Learning rate", absl::StrFormat("%.4g", step.learning_rate()), out);
    if (step.seconds() > 0) {
      PrintField("Tokens/s", FormatCount(static_cast<double>(step.tokens()) / step.seconds()), out);
    }
  }
  if (job.has_last_checkpoint()) {
    const v1::PublishedCheckpoint& last = job.last_checkpoint();
    PrintField(
        "Checkpoint",
        absl::StrCat("step ", last.step(), ", ", AgeText(last.time(), now), " ago: ", last.path()),
        out);
  }
  PrintField("Epoch", absl::StrCat(job.epoch()), out);
  PrintField("Ranks", RanksText(job), out);
  PrintField("Devices", PlacementText(job, /*lost=*/false), out);
  if (!job.lost_ranks().empty()) PrintField("Lost", PlacementText(job, /*lost=*/true), out);
  PrintField("Plan digest", job.plan_digest(), out);
  if (job.has_submitted()) {
    PrintField(
        "Submitted",
        absl::StrCat(TimeText(job.submitted()), " (", AgeText(job.submitted(), now), " ago)"), out);
  }
  if (job.has_started()) PrintField("Started", TimeText(job.started()), out);
  if (job.has_ended()) PrintField("Ended", TimeText(job.ended()), out);
  PrintField("Output", job.output(), out);
  PrintVariables(job, out);
  for (const std::string& warning : job.warnings()) PrintField("Warning", warning, out);
  for (const std::string& line : FailureLines(job)) PrintField("Failure", line, out);
  if (job.has_failure()) PrintTried(job, incidents, out);
  // Why it failed is what the failure says.
  if (!job.has_failure()) {
    for (const std::string& reason : reasons) PrintField("Why", reason, out);
  }
  if (events.empty()) return;
  out << "Events:\n";
  PrintEvents(events, Format::kTable, /*header=*/true, out);
}

void PrintEvents(const std::vector<v1::JobEvent>& events, Format format, bool header,
                 std::ostream& out) {
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree("events", events), format, out);
    return;
  }
  if (format == Format::kName) {
    for (const v1::JobEvent& event : events) out << TerminalText(event.type()) << "\n";
    return;
  }
  Table table({"TIME", "EPOCH", "TYPE", "MESSAGE"});
  for (const v1::JobEvent& event : events) {
    table.Add({TimeText(event.time()), absl::StrCat(event.epoch()), event.type(), event.message()});
  }
  table.Print(out, header);
}

void PrintNodes(const std::vector<v1::NodeStatus>& nodes, Format format, bool header,
                absl::Time now, std::ostream& out) {
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(ToTree("nodes", nodes), format, out);
    return;
  }
  if (format == Format::kName) {
    for (const v1::NodeStatus& node : nodes) out << TerminalText(node.name()) << "\n";
    return;
  }
  const bool wide = format == Format::kWide;
  std::vector<std::string> columns = {"NAME", "STATE", "KIND", "DEVICES", "FREE", "HEARTBEAT"};
  if (wide) columns.insert(columns.end(), {"DOMAIN", "JOBS", "HOST MEMORY", "LABELS", "VERSION"});
  Table table(std::move(columns));
  for (const v1::NodeStatus& node : nodes) {
    std::vector<std::string> row = {node.name(),
                                    NodeState(node),
                                    node.device_kind(),
                                    absl::StrCat(node.devices()),
                                    absl::StrCat(FreeDevices(node)),
                                    AgeText(node.last_heartbeat(), now)};
    if (wide) {
      std::vector<std::string> labels;
      std::string domain = node.name();
      for (const auto& [key, value] : node.labels()) {
        if (key == job::kFailureDomainLabel) {
          domain = value;
        } else {
          labels.push_back(absl::StrCat(key, "=", value));
        }
      }
      std::sort(labels.begin(), labels.end());
      row.insert(row.end(), {domain, absl::StrJoin(node.device_jobs(), ","),
                             node.host_memory() > 0 ? plan::FormatBytes(node.host_memory()) : "-",
                             absl::StrJoin(labels, ","), node.version()});
    }
    table.Add(std::move(row));
  }
  table.Print(out, header);
}

void PrintEvaluation(const v1::EvaluationReport& evaluation, std::ostream& out) {
  out << "validation loss " << FormatLoss(evaluation.loss()) << " over "
      << evaluation.counted_tokens() << " tokens; a uniform guess has "
      << FormatLoss(evaluation.uniform_loss()) << "\n";
  if (evaluation.captions().empty()) return;
  Table table({"SAMPLE", "TRUE", "DECODED"});
  for (int i = 0; i < std::min(kCaptionsShown, evaluation.captions_size()); ++i) {
    const auto& caption = evaluation.captions(i);
    // "shard.tar: key" in full is for scripts.
    const std::vector<std::string> name = absl::StrSplit(caption.sample(), ": ");
    table.Add({name.back(), caption.truth(), caption.decoded()});
  }
  table.Print(out);
}

}  // namespace phalanx::client

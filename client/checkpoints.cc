#include "client/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_file.h"
#include "client/progress.h"
#include "core/base/status.h"
#include "core/base/terminal_text.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint_io/checkpoints.h"
#include "core/job/json.h"
#include "core/plan/memory_fit.h"

namespace phalanx::client {
namespace {

using checkpoint::ListedCheckpoint;
using checkpoint::Manifest;
using job::Tree;

// More read no faster, and take the file system from who trains.
constexpr unsigned kThreadsMax = 8;

std::string UtcText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

std::string NameOf(const std::string& path) {
  return std::filesystem::path(AbsolutePath(path)).filename().string();
}

std::string JobOf(const Manifest& manifest) { return absl::StrCat("job-", manifest.number); }

// The folder of checkpoints that `where` means.
absl::StatusOr<std::string> FolderOf(const std::string& where) {
  std::error_code ignored;
  const std::filesystem::file_status there = std::filesystem::status(where, ignored);
  if (std::filesystem::is_directory(there)) return AbsolutePath(where);
  if (std::filesystem::is_other(there)) {  // reading a pipe would wait for its other end
    return absl::NotFoundError(absl::StrCat(
        where, ": is no folder and no regular file; name a folder of checkpoints, or a job file"));
  }
  ASSIGN_OR_RETURN(const JobFile file, LoadJobFile(where, job::Purpose::kPlan));
  if (!file.job.spec.checkpoint.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat(where,
                     ": spec.checkpoint is not written: the job has no checkpoints; name "
                     "a folder that has some"));
  }
  const std::filesystem::path directory(file.document.directory());
  return AbsolutePath((directory / file.job.spec.checkpoint->directory).string());
}

Tree TreeOf(const ListedCheckpoint& listed) {
  std::vector<Tree::Entry> entries = {{"name", job::TextTree(ToString(listed.name))},
                                      {"path", job::TextTree(listed.path)},
                                      {"step", job::NumberTree(listed.name.step)},
                                      {"epoch", job::NumberTree(listed.name.epoch)}};
  if (listed.manifest.ok()) {
    const Manifest& manifest = *listed.manifest;
    entries.push_back({"job", job::TextTree(manifest.job)});
    entries.push_back({"number", job::NumberTree(manifest.number)});
    entries.push_back({"store", job::TextTree(manifest.store)});
    entries.push_back({"files", job::NumberTree(static_cast<int64_t>(manifest.parts.size()))});
    entries.push_back({"bytes", job::NumberTree(manifest.bytes())});
  }
  if (listed.written > absl::InfinitePast()) {
    entries.push_back({"written", job::TextTree(UtcText(listed.written))});
  }
  entries.push_back({"damage", job::TextTree(std::string(listed.manifest.status().message()))});
  return job::MappingTree(std::move(entries));
}

void PrintTable(const std::vector<ListedCheckpoint>& checkpoints, Format format, absl::Time now,
                Io& io) {
  std::vector<std::string> header = {"NAME", "JOB", "ID", "FILES", "SIZE", "AGE"};
  if (format == Format::kWide) header.insert(header.end(), {"LOSS", "STORE"});
  Table table(header);
  for (const ListedCheckpoint& one : checkpoints) {
    std::vector<std::string> row = {ToString(one.name)};
    if (one.manifest.ok()) {
      const Manifest& manifest = *one.manifest;
      row.insert(row.end(), {manifest.job, JobOf(manifest), absl::StrCat(manifest.parts.size()),
                             plan::FormatBytes(manifest.bytes()), FormatAge(now - one.written),
                             FormatLoss(manifest.decision.loss), manifest.store});
    }
    row.resize(header.size(), "-");
    table.Add(std::move(row));
  }
  table.Print(io.out, io.headers);
  for (const ListedCheckpoint& one : checkpoints) {
    if (one.manifest.ok()) continue;
    io.talk << ToString(one.name) << ": " << TerminalText(one.manifest.status().message()) << "\n";
  }
}

// The error with the path that the user gave before it.
int FailAt(const std::string& path, const absl::Status& status, Io& io) {
  return FailFile(Annotate(status, path), io);
}

// A bar on a terminal, redrawn in place, while files are read.
class VerifyBar {
 public:
  VerifyBar(int64_t bytes, Io& io) : bytes_(bytes), io_(io) {}
  ~VerifyBar() {
    if (drawn_) io_.talk << "\r\x1b[K" << std::flush;
  }

  void Show(int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (!io_.terminal || now < next_) return;
    next_ = now + absl::ToChronoMilliseconds(kRedrawInterval);
    drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(bytes_);
    const std::string text = absl::StrFormat("%3.0f %%  %s of %s", 100 * share,
                                             plan::FormatBytes(done), plan::FormatBytes(bytes_));
    const int room = io_.columns - static_cast<int>(text.size()) - 4;
    io_.talk << "\r" << (room < 10 ? "" : ProgressBar(share, std::min(room, kBarMax)) + " ") << text
             << "\x1b[K" << std::flush;
  }

 private:
  const int64_t bytes_;
  Io& io_;
  std::chrono::steady_clock::time_point next_;
  bool drawn_ = false;
};

int PrintVerified(const std::string& path, const Manifest& manifest,
                  const std::vector<std::string>& damage, Format format, Io& io) {
  const int code = damage.empty() ? kSuccess : kFailure;
  if (format == Format::kJson || format == Format::kYaml) {
    std::vector<Tree> lines;
    for (const std::string& line : damage) lines.push_back(job::TextTree(line));
    PrintTree(
        job::MappingTree({{"path", job::TextTree(path)},
                          {"sound", job::FlagTree(damage.empty())},
                          {"files", job::NumberTree(static_cast<int64_t>(manifest.parts.size()))},
                          {"entries", job::NumberTree(manifest.entries())},
                          {"bytes", job::NumberTree(manifest.bytes())},
                          {"damage", job::ListTree(std::move(lines))}}),
        format, io.out);
    return code;
  }
  for (const std::string& line : damage) io.talk << "error: " << TerminalText(line) << "\n";
  if (!damage.empty()) {
    io.talk << TerminalText(path)
            << " is damaged; phalanx checkpoints list shows others in its folder\n";
  } else if (format == Format::kName) {
    io.out << path << "\n";
  } else {
    io.out << TerminalText(NameOf(path)) << " is sound: " << manifest.parts.size() << " files, "
           << manifest.entries() << " entries, " << plan::FormatBytes(manifest.bytes()) << "\n";
  }
  return code;
}

void PrintModel(const checkpoint::Model& model, std::ostream& out) {
  Table modules({"MODULE", "TRAINS", "ARCHITECTURE"});
  for (const checkpoint::Model::Module& module : model.modules) {
    // Two fields a line: a row that fits a terminal.
    std::vector<std::string> fields;
    for (const auto& [name, value] : module.architecture) {
      fields.push_back(absl::StrCat(name, " ", value));
    }
    for (size_t i = 0; i < std::max<size_t>(1, fields.size()); i += 2) {
      const bool first = i == 0;
      const auto end = std::min(fields.size(), i + 2);
      modules.Add({first ? module.name : "",
                   !first          ? ""
                   : module.trains ? "yes"
                                   : "frozen",
                   absl::StrJoin(fields.begin() + static_cast<std::ptrdiff_t>(i),
                                 fields.begin() + static_cast<std::ptrdiff_t>(end), ", ")});
    }
  }
  for (const checkpoint::Model::Projector& projector : model.projectors) {
    modules.Add({absl::StrCat(projector.from, " -> ", projector.to),
                 projector.trains ? "yes" : "frozen",
                 absl::StrCat("hidden_size ", projector.hidden_size)});
  }
  modules.Print(out);
}

void PrintManifest(const std::string& path, const Manifest& manifest, bool parts, Io& io) {
  std::ostream& out = io.out;
  PrintField("Path", path, out);
  PrintField("Job",
             absl::StrCat(manifest.job, " (", JobOf(manifest), " of store ", manifest.store, ")"),
             out);
  PrintField("Step",
             absl::StrCat(manifest.step, ", ", ToString(manifest.decision.verdict), "; ",
                          manifest.updates, " updates"),
             out);
  PrintField("Epoch", absl::StrCat(manifest.epoch), out);
  PrintField("Loss", FormatLoss(manifest.decision.loss), out);
  PrintField("Gradient norm", FormatLoss(manifest.decision.gradient_norm), out);
  PrintField("Seed", absl::StrCat(manifest.seed), out);
  PrintField("Data", manifest.data_digest, out);
  PrintField("Compute", checkpoint::NameOf(manifest.model.compute), out);
  PrintField("Size",
             absl::StrCat(plan::FormatBytes(manifest.bytes()), " in ", manifest.parts.size(),
                          " files, ", manifest.entries(), " entries"),
             out);
  PrintModel(manifest.model, out);
  if (!parts) return;
  Table files({"FILE", "ENTRIES", "SIZE", "DIGEST"});
  for (const checkpoint::PartFile& part : manifest.parts) {
    files.Add({part.file, absl::StrCat(part.entries), plan::FormatBytes(part.bytes), part.digest});
  }
  files.Print(out);
}

}  // namespace

int CheckpointsList(const std::string& where, Format format, absl::Time now, Io& io) {
  const absl::StatusOr<std::string> folder = FolderOf(where);
  if (!folder.ok()) return FailFile(folder.status(), io);
  const absl::StatusOr<std::vector<ListedCheckpoint>> checkpoints =
      checkpoint::ListCheckpoints(*folder);
  if (!checkpoints.ok()) return FailFile(checkpoints.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    std::vector<Tree> list;
    for (const ListedCheckpoint& one : *checkpoints) list.push_back(TreeOf(one));
    PrintTree(job::MappingTree({{"checkpoints", job::ListTree(std::move(list))}}), format, io.out);
  } else if (format == Format::kName) {
    for (const ListedCheckpoint& one : *checkpoints) io.out << one.path << "\n";
  } else if (checkpoints->empty()) {
    io.talk << "no checkpoints in " << TerminalText(*folder) << "\n";
  } else {
    PrintTable(*checkpoints, format, now, io);
  }
  return kSuccess;
}

int CheckpointsVerify(const std::string& path, Format format, Io& io) {
  const absl::StatusOr<Manifest> manifest = checkpoint::ReadManifestOf(path);
  if (absl::IsDataLoss(manifest.status())) {
    return PrintVerified(path, {}, {std::string(manifest.status().message())}, format, io);
  }
  if (!manifest.ok()) return FailAt(path, manifest.status(), io);
  const absl::Status status = [&] {
    VerifyBar bar(manifest->bytes(), io);
    return checkpoint::VerifyCheckpoint(path, *manifest,
                                        {.threads = static_cast<int32_t>(std::clamp(
                                             std::thread::hardware_concurrency(), 1u, kThreadsMax)),
                                         .on_bytes = [&](int64_t done) {
                                           bar.Show(done);
                                           return absl::OkStatus();
                                         }});
  }();
  if (absl::IsNotFound(status)) return FailAt(path, status, io);
  return PrintVerified(path, *manifest, absl::StrSplit(status.message(), '\n', absl::SkipEmpty()),
                       format, io);
}

int CheckpointsShow(const std::string& path, Format format, Io& io) {
  const absl::StatusOr<Manifest> manifest = checkpoint::ReadManifestOf(path);
  if (!manifest.ok()) return FailAt(path, manifest.status(), io);
  if (format == Format::kJson || format == Format::kYaml) {
    PrintTree(TreeOf(*manifest), format, io.out);
  } else if (format == Format::kName) {
    io.out << path << "\n";
  } else {
    PrintManifest(path, *manifest, format == Format::kWide, io);
  }
  return kSuccess;
}

}  // namespace phalanx::client

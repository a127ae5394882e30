#include "worker/rank/metrics_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/job/failure.h"
#include "core/posix/held_folder.h"
#include "nlohmann/json.hpp"
#include "tensorboard/event.pb.h"

namespace phalanx::rank {
namespace {

constexpr char kLinesFile[] = "metrics.jsonl", kOwnerFile[] = "metrics.owner",
               kEpochFile[] = "metrics.epoch";
// metrics.owner has a name a line: the job that has its records in the folder, then those that it
// went on from, the last first. metrics.epoch has a job a line, the one that opened the folder last
// first.
constexpr size_t kOwnersBytesMax = 4096;
constexpr size_t kOwnersMax = 32;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);

// CRC-32C, bit by bit from a table; TensorBoard's records carry it "masked".
uint32_t MaskedCrc(absl::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> values{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit)
        value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
      values[i] = value;
    }
    return values;
  }();
  uint32_t crc = ~0u;
  for (char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

template <typename T>
void AppendRaw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// As it stands in an event file.
std::string Framed(const tensorboard::Event& event) {
  const std::string bytes = event.SerializeAsString();
  std::string record;
  AppendRaw(record, static_cast<uint64_t>(bytes.size()));
  AppendRaw(record, MaskedCrc(record));
  record.append(bytes);
  AppendRaw(record, MaskedCrc(bytes));
  return record;
}

// How an epoch of a job replaces files of the folder.
struct Replacing {
  std::string aside;                  // behind the name of what is written aside
  std::function<absl::Status()> may;  // refuses an epoch that is over
};

// Writes a whole file of the folder aside and renames it into place, unless it may no more by then.
absl::Status Replace(const HeldFolder& folder, const std::string& name, absl::string_view text,
                     const Replacing& replacing) {
  const int in = folder.descriptor();
  const std::string aside = absl::StrCat(name, replacing.aside), path = folder.PathOf(aside);
  if (unlinkat(in, aside.c_str(), 0) != 0 && errno != ENOENT)
    return OutputError("replace", path, errno);
  const UniqueFd file(openat(in, aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.is_open()) return OutputError("replace", path, errno);
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return OutputError("write", path, written < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<size_t>(written));
  }
  RETURN_IF_ERROR(replacing.may());
  if (renameat(in, aside.c_str(), in, name.c_str()) != 0)
    return OutputError("replace", folder.PathOf(name), errno);
  return absl::OkStatus();
}

// The first `bytes_max` bytes of a file of the folder; nullopt: none is there that can be opened.
absl::StatusOr<std::optional<std::string>> ReadIn(const HeldFolder& folder, const std::string& name,
                                                  size_t bytes_max) {
  RETURN_IF_ERROR(CheckRegular(folder, name));
  const absl::StatusOr<UniqueFd> file = folder.OpenFile(name, O_RDONLY | O_NONBLOCK);
  if (absl::IsInvalidArgument(file.status()))
    return OutputError("open", folder.PathOf(name), file.status());
  if (!file.ok()) return std::nullopt;
  std::string text;
  constexpr size_t kBlockBytes = 1 << 16;
  while (text.size() < bytes_max) {
    const size_t before = text.size();
    text.resize(std::min(bytes_max, before + kBlockBytes));
    ssize_t got = 0;
    do {
      got = read(file->get(), text.data() + before, text.size() - before);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return OutputError("read", folder.PathOf(name), errno);
    text.resize(before + static_cast<size_t>(got));
    if (got == 0) break;
  }
  return text;
}

// Of a file of ours that is no longer than that. None: there is none.
absl::StatusOr<std::vector<std::string>> LinesOf(const HeldFolder& folder,
                                                 const std::string& name) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIn(folder, name, kOwnersBytesMax));
  return std::vector<std::string>(absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty()));
}

// As metrics.owner says; empty: there is none.
absl::StatusOr<std::vector<std::string>> OwnersOf(const HeldFolder& folder) {
  return LinesOf(folder, kOwnerFile);
}

// A line of metrics.epoch: the last epoch of a job that has opened the folder.
struct OpenedBy {
  std::string owner;
  int64_t fence = 0;
  int64_t epoch = 0;
};

// What is no such line is of nobody.
absl::StatusOr<std::vector<OpenedBy>> EpochsOf(const HeldFolder& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, LinesOf(folder, kEpochFile));
  std::vector<OpenedBy> epochs;
  for (const std::string& line : lines) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    OpenedBy opened;
    if (words.size() != 3 || !absl::SimpleAtoi(words[1], &opened.fence) ||
        !absl::SimpleAtoi(words[2], &opened.epoch)) {
      continue;
    }
    opened.owner = std::string(words[0]);
    epochs.push_back(std::move(opened));
  }
  return epochs;
}

// "job-7", of an owner of metrics.owner.
std::string JobOf(const std::string& owner) { return owner.substr(owner.find('/') + 1); }

// Refuses an epoch behind which another one of the job has opened the folder. Whoever stops it may
// not reach it, so it may come at any time.
absl::Status CheckNotOver(const HeldFolder& folder, const MetricsOptions& options) {
  if (options.fence == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<OpenedBy> epochs, EpochsOf(folder));
  for (const OpenedBy& opened : epochs) {
    if (opened.owner != options.owner || opened.fence <= options.fence) continue;
    return absl::AbortedError(absl::StrCat(
        "epoch ", options.epoch, " of ", JobOf(options.owner),
        " may not write to the output folder ", folder.path(), " any more: epoch ", opened.epoch,
        ", which was planned after it, has opened it (", folder.PathOf(kEpochFile), ")"));
  }
  return absl::OkStatus();
}

// "metrics.jsonl.new.STORE-JOB.FENCE": every epoch has names of its own, for one may stand still
// for long between two calls.
std::string AsidePrefix(const MetricsOptions& options) {
  return absl::StrCat(".new.", absl::StrReplaceAll(options.owner, {{"/", "-"}}), ".");
}

// Takes away what earlier epochs of the job have written aside: one that may still replace a file,
// as far as it knows, then finds nothing to rename.
void RemoveEarlierAsides(const HeldFolder& folder, const MetricsOptions& options) {
  const std::string prefix = AsidePrefix(options);
  const absl::StatusOr<std::vector<std::string>> names = folder.Names();
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const size_t at = name.find(prefix);
    int64_t fence = 0;
    if (at == name.npos || !absl::SimpleAtoi(name.substr(at + prefix.size()), &fence)) continue;
    if (fence < options.fence) unlinkat(folder.descriptor(), name.c_str(), 0);
  }
}

// From here on epochs of the job before this one change nothing in the folder.
absl::Status MarkEpoch(const HeldFolder& folder, const MetricsOptions& options,
                       const Replacing& replacing) {
  if (options.fence == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNotOver(folder, options));  // one that is refused leaves nothing aside
  ASSIGN_OR_RETURN(const std::vector<OpenedBy> epochs, EpochsOf(folder));
  std::string text = absl::StrCat(options.owner, " ", options.fence, " ", options.epoch, "\n");
  size_t lines = 1;
  for (const OpenedBy& other : epochs) {
    if (other.owner == options.owner || lines++ >= kOwnersMax) continue;
    absl::StrAppend(&text, other.owner, " ", other.fence, " ", other.epoch, "\n");
  }
  RETURN_IF_ERROR(Replace(folder, kEpochFile, text, replacing));
  RemoveEarlierAsides(folder, options);
  return absl::OkStatus();
}

// The step of a line; 0: it is of none. A person may have edited the file.
int64_t StepOf(absl::string_view line) {
  const nlohmann::json entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = entry.is_object() ? entry.find("step") : entry.end();
  return step != entry.end() && step->is_number_integer() ? step->get<int64_t>() : 0;
}

// Keeps the lines up to the last one of a step before `first_step`: what is behind it is of later
// steps, was cut off, or is nothing. Only that is read as more than bytes. The last step that is
// kept; 0: none.
absl::StatusOr<int64_t> KeepLinesBefore(const HeldFolder& folder, int64_t first_step,
                                        const Replacing& replacing) {
  ASSIGN_OR_RETURN(std::optional<std::string> there,
                   ReadIn(folder, kLinesFile, std::numeric_limits<size_t>::max()));
  if (!there.has_value()) return 0;
  std::string text = *std::move(there);
  int64_t last_step = 0;
  for (absl::string_view left = text; last_step == 0;) {
    absl::ConsumeSuffix(&left, "\n");
    if (left.empty()) {
      text.clear();
      break;
    }
    const size_t begin = left.rfind('\n') == left.npos ? 0 : left.rfind('\n') + 1;
    const int64_t step = StepOf(left.substr(begin));
    if (step > 0 && step < first_step) {
      last_step = step;
      text.resize(left.size());
      text += '\n';
    } else {
      left = left.substr(0, begin);
    }
  }
  RETURN_IF_ERROR(Replace(folder, kLinesFile, text, replacing));
  return last_step;
}

// Whatever another job has left under the name is kept under the first free one that `aside` gives.
absl::Status PutAside(const HeldFolder& folder, const std::string& name,
                      const std::function<std::string(int number)>& aside) {
  const int in = folder.descriptor();
  struct stat place {};
  for (int number = 1;; ++number) {
    const std::string other = aside(number);
    if (fstatat(in, other.c_str(), &place, AT_SYMLINK_NOFOLLOW) == 0) continue;
    if (renameat(in, name.c_str(), in, other.c_str()) == 0) return absl::OkStatus();
    return OutputError("rename", folder.PathOf(name), errno);
  }
}

absl::Status PutLinesAside(const HeldFolder& folder) {
  return PutAside(folder, kLinesFile,
                  [](int number) { return absl::StrCat("metrics.", number, ".jsonl"); });
}

// What another job has left of its incidents, likewise.
absl::Status PutIncidentsAside(const HeldFolder& folder) {
  constexpr char kIncidents[] = "incidents";
  struct stat place {};
  if (fstatat(folder.descriptor(), kIncidents, &place, AT_SYMLINK_NOFOLLOW) != 0)
    return absl::OkStatus();
  return PutAside(folder, kIncidents,
                  [&](int number) { return absl::StrCat(kIncidents, ".", number); });
}

// The job that has its records there, as people know it: "job-7 (store 3f2a)".
std::string HolderOf(const HeldFolder& folder) {
  const absl::StatusOr<std::vector<std::string>> owners = OwnersOf(folder);
  const std::string owner = owners.ok() && !owners->empty() ? owners->front() : "";
  const std::pair<std::string, std::string> parts = absl::StrSplit(owner, absl::MaxSplits('/', 1));
  if (parts.second.empty()) return "a job that has not said its name yet";
  return absl::StrCat(parts.second, " (store ", parts.first, ")");
}

constexpr absl::Duration kOwnPatience = absl::Seconds(1);

// Whether the job that goes on has its records there.
bool IsOwn(const HeldFolder& folder, const MetricsOptions& options) {
  if (options.fence == 0 && options.first_step <= 1) return false;
  const absl::StatusOr<std::vector<std::string>> owners = OwnersOf(folder);
  return owners.ok() && !owners->empty() && owners->front() == options.owner;
}

// Where the job's lines are to be: that they are. Makes nothing.
absl::Status CheckHasLines(const std::string& path, const MetricsOptions& options) {
  const absl::StatusOr<HeldFolder> folder = HeldFolder::Open(path, options.folders);
  if (!folder.ok()) return OutputError("open the output folder", path, folder.status());
  struct stat lines {};
  for (const char* name : {kLinesFile, kOwnerFile}) {
    if (fstatat(folder->descriptor(), name, &lines, AT_SYMLINK_NOFOLLOW) != 0)
      return OutputError("go on with", folder->PathOf(name), errno);
  }
  if (IsOwn(*folder, options)) return absl::OkStatus();
  return OutputError("go on with", folder->PathOf(kLinesFile),
                     absl::UnavailableError(absl::StrCat("it is of ", HolderOf(*folder))));
}

// The folder's descriptor, with its lock where the file system has locks. Who holds it in an
// earlier epoch of the same job may be out of reach for long: it can write no more once the files
// are others (RecordFile::Append), so nobody waits for its end.
absl::StatusOr<UniqueFd> Hold(const HeldFolder& folder, const MetricsOptions& options) {
  absl::StatusOr<UniqueFd> held = folder.OpenToLock();
  if (!held.ok()) return OutputError("open", folder.path(), held.status());
  const bool own = IsOwn(folder, options);
  const auto give_up =
      std::chrono::steady_clock::now() +
      absl::ToChronoNanoseconds(own ? std::min(options.patience, kOwnPatience) : options.patience);
  bool waited = false;
  while (flock(held->get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (options.stop.stop_requested()) return absl::CancelledError("asked to stop");
    const bool first = !std::exchange(waited, true);
    const bool last = std::chrono::steady_clock::now() >= give_up;
    if (own && last) break;
    if (!own && (first || last)) {
      const absl::Status in_use =
          job::WithKind(job::FailureKind::kOutputUnavailable,
                        absl::UnavailableError(absl::StrCat(
                            "the output folder ", folder.path(), " is in use by ", HolderOf(folder),
                            ": jobs that run at one time need folders of their "
                            "own")));
      if (last) return in_use;
      if (options.on_wait != nullptr) options.on_wait(in_use);
    }
    absl::SleepFor(kRetryInterval);
  }
  return held;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& path,
                                                                   MetricsOptions options) {
  const auto give_up =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options.patience);
  bool waited = false;
  while (true) {
    absl::StatusOr<std::unique_ptr<MetricsWriter>> opened = TryToOpen(path, options);
    // Where the job begins, a folder that takes nothing is better known at once.
    const bool may_pass = options.first_step > 1 &&
                          job::KindIn(opened.status()) == job::FailureKind::kOutputUnavailable;
    if (!may_pass || std::chrono::steady_clock::now() >= give_up) return opened;
    if (options.stop.stop_requested()) return absl::CancelledError("asked to stop");
    if (!std::exchange(waited, true) && options.on_wait != nullptr)
      options.on_wait(opened.status());
    absl::SleepFor(kRetryInterval);
  }
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::TryToOpen(const std::string& path,
                                                                        MetricsOptions options) {
  if (options.has_lines) RETURN_IF_ERROR(CheckHasLines(path, options));
  const absl::StatusOr<HeldFolder> made = HeldFolder::Make(path, options.folders);
  if (!made.ok()) return OutputError("make the output folder", path, made.status());
  const HeldFolder& folder = *made;
  ASSIGN_OR_RETURN(UniqueFd held, Hold(folder, options));
  const auto not_over = [&] { return CheckNotOver(folder, options); };
  const Replacing replacing{.aside = absl::StrCat(AsidePrefix(options), options.fence),
                            .may = not_over};
  RETURN_IF_ERROR(MarkEpoch(folder, options, replacing));
  ASSIGN_OR_RETURN(std::vector<std::string> owners, OwnersOf(folder));
  const bool known = !owners.empty() && owners.front() == options.owner;
  // Who begins at the first step had no part in lines that are there, whatever his name: a store
  // that was put back gives names again.
  const bool continues =
      options.first_step > 1 &&
      (known || std::find(owners.begin(), owners.end(), options.predecessor) != owners.end());
  if (!continues) owners.clear();
  if (!known || !continues) {
    owners.insert(owners.begin(), options.owner);
    owners.resize(std::min(owners.size(), kOwnersMax));
  }
  int64_t last_step = 0;
  RETURN_IF_ERROR(not_over());
  if (!known) RETURN_IF_ERROR(PutIncidentsAside(folder));
  if (!continues) {
    struct stat lines {};
    if (fstatat(folder.descriptor(), kLinesFile, &lines, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(lines.st_mode)) {
      RETURN_IF_ERROR(not_over());
      // An earlier epoch that has not done a step may have the file open.
      RETURN_IF_ERROR(lines.st_size > 0 ? PutLinesAside(folder)
                                        : Replace(folder, kLinesFile, "", replacing));
    }
  } else {
    ASSIGN_OR_RETURN(last_step, KeepLinesBefore(folder, options.first_step, replacing));
  }
  if (!known || !continues) {
    RETURN_IF_ERROR(
        Replace(folder, kOwnerFile, absl::StrCat(absl::StrJoin(owners, "\n"), "\n"), replacing));
  }
  ASSIGN_OR_RETURN(RecordFile lines, RecordFile::Open(folder, kLinesFile));
  RETURN_IF_ERROR(not_over());  // else it might be the file of who came meanwhile
  ASSIGN_OR_RETURN(RecordFile events,
                   RecordFile::Open(folder, absl::StrCat("events.out.tfevents.",
                                                         absl::ToUnixSeconds(absl::Now()),
                                                         ".phalanx.", getpid())));
  std::unique_ptr<MetricsWriter> writer(
      new MetricsWriter(std::move(options), std::move(held), std::move(lines), std::move(events)));
  writer->last_step_ = last_step;
  tensorboard::Event version;
  version.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  version.set_file_version("brain.Event:2");
  RETURN_IF_ERROR(writer->Append(writer->events_, Framed(version)));
  // Else TensorBoard draws steps twice that an earlier file has and that are done again.
  tensorboard::Event start;
  start.set_wall_time(version.wall_time());
  start.set_step(last_step + 1);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  RETURN_IF_ERROR(writer->Append(writer->events_, Framed(start)));
  return writer;
}

absl::Status MetricsWriter::Append(RecordFile& file, absl::string_view record) {
  const auto give_up =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options_.patience);
  while (true) {
    absl::Status status = file.Append(record);
    if (status.ok()) {
      waited_ = false;
      return status;
    }
    if (options_.stop.stop_requested()) return absl::CancelledError("asked to stop");
    if (!std::exchange(waited_, true) && options_.on_wait != nullptr) options_.on_wait(status);
    if (std::chrono::steady_clock::now() >= give_up) return status;
    absl::SleepFor(kRetryInterval);
  }
}

absl::Status MetricsWriter::Write(const train::StepSummary& step, int64_t epoch) {
  // Whoever wrote them before may have written this one, and its successor not have known of it.
  if (step.step <= last_step_) return absl::OkStatus();
  nlohmann::ordered_json line;
  line["step"] = step.step;
  line["loss"] = step.loss;
  line["gradient_norm"] = step.gradient_norm;
  line["learning_rate"] = step.learning_rate;
  line["tokens"] = step.tokens;
  line["labelled_tokens"] = step.counted_tokens;
  line["items"] = step.images + step.sounds;
  line["images"] = step.images;
  line["sounds"] = step.sounds;
  line["step_seconds"] = step.seconds;
  line["epoch"] = epoch;
  if (step.skipped) line["skipped"] = true;
  if (step.corrupt_samples > 0) line["corrupt_samples"] = step.corrupt_samples;
  const std::string text = absl::StrCat(line.dump(), "\n");
  RETURN_IF_ERROR(Append(lines_, text));
  last_step_ = step.step;
  tensorboard::Event event;
  event.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  event.set_step(step.step);
  const std::vector<std::pair<const char*, double>> figures = {
      {"train/loss", step.loss},
      {"train/gradient_norm", step.gradient_norm},
      {"train/learning_rate", step.learning_rate},
      {"train/tokens_per_second",
       step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : 0}};
  for (const auto& [tag, value] : figures) {
    auto* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  }
  return Append(events_, Framed(event));
}

}  // namespace phalanx::rank

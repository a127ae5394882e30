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
#include <filesystem>
#include <fstream>
#include <iterator>
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
#include "nlohmann/json.hpp"
#include "tensorboard/event.pb.h"

namespace phalanx::rank {
namespace {

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

// Writes a whole file aside and renames it into place, unless it may no more by then.
absl::Status Replace(const std::string& path, absl::string_view text, const Replacing& replacing) {
  const std::string aside = absl::StrCat(path, replacing.aside);
  if (unlink(aside.c_str()) != 0 && errno != ENOENT) return OutputError("replace", aside, errno);
  const UniqueFd file(open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.is_open()) return OutputError("replace", aside, errno);
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return OutputError("write", aside, written < 0 ? errno : ENOSPC);
    text.remove_prefix(static_cast<size_t>(written));
  }
  RETURN_IF_ERROR(replacing.may());
  if (std::rename(aside.c_str(), path.c_str()) != 0) return OutputError("replace", path, errno);
  return absl::OkStatus();
}

// Of a file of ours that is no longer than that. None: there is none.
absl::StatusOr<std::vector<std::string>> LinesOf(const std::string& path) {
  RETURN_IF_ERROR(CheckRegular(path));
  std::ifstream in(path, std::ios::binary);
  std::string text(kOwnersBytesMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()));
}

// As metrics.owner says; empty: there is none.
absl::StatusOr<std::vector<std::string>> OwnersOf(const std::string& folder) {
  return LinesOf(absl::StrCat(folder, "/metrics.owner"));
}

// A line of metrics.epoch: the last epoch of a job that has opened the folder.
struct OpenedBy {
  std::string owner;
  int64_t fence = 0;
  int64_t epoch = 0;
};

std::string EpochPath(const std::string& folder) { return absl::StrCat(folder, "/metrics.epoch"); }

// What is no such line is of nobody.
absl::StatusOr<std::vector<OpenedBy>> EpochsOf(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, LinesOf(EpochPath(folder)));
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
absl::Status CheckNotOver(const std::string& folder, const MetricsOptions& options) {
  if (options.fence == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<OpenedBy> epochs, EpochsOf(folder));
  for (const OpenedBy& opened : epochs) {
    if (opened.owner != options.owner || opened.fence <= options.fence) continue;
    return absl::AbortedError(absl::StrCat(
        "epoch ", options.epoch, " of ", JobOf(options.owner),
        " may not write to the output folder ", folder, " any more: epoch ", opened.epoch,
        ", which was planned after it, has opened it (", EpochPath(folder), ")"));
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
void RemoveEarlierAsides(const std::string& folder, const MetricsOptions& options) {
  const std::string prefix = AsidePrefix(options);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const size_t at = name.find(prefix);
    int64_t fence = 0;
    if (at == name.npos || !absl::SimpleAtoi(name.substr(at + prefix.size()), &fence)) continue;
    if (fence < options.fence) unlink(entry->path().c_str());
  }
}

// From here on epochs of the job before this one change nothing in the folder.
absl::Status MarkEpoch(const std::string& folder, const MetricsOptions& options,
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
  RETURN_IF_ERROR(Replace(EpochPath(folder), text, replacing));
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
absl::StatusOr<int64_t> KeepLinesBefore(const std::string& path, int64_t first_step,
                                        const Replacing& replacing) {
  RETURN_IF_ERROR(CheckRegular(path));
  std::ifstream in(path, std::ios::binary);
  if (!in) return 0;
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return OutputError("read", path, errno);
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
  RETURN_IF_ERROR(Replace(path, text, replacing));
  return last_step;
}

// Whatever another job has left under the name is kept under the first free one beside it.
absl::Status PutAside(const std::string& folder, const std::string& path) {
  for (int number = 1;; ++number) {
    const std::string aside = absl::StrCat(folder, "/metrics.", number, ".jsonl");
    if (access(aside.c_str(), F_OK) == 0) continue;
    if (std::rename(path.c_str(), aside.c_str()) != 0) return OutputError("rename", path, errno);
    return absl::OkStatus();
  }
}

// What another job has left of its incidents, likewise.
absl::Status PutIncidentsAside(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/incidents");
  struct stat place {};
  if (lstat(path.c_str(), &place) != 0) return absl::OkStatus();
  for (int number = 1;; ++number) {
    const std::string aside = absl::StrCat(path, ".", number);
    if (lstat(aside.c_str(), &place) == 0) continue;
    if (std::rename(path.c_str(), aside.c_str()) != 0) return OutputError("rename", path, errno);
    return absl::OkStatus();
  }
}

// The job that has its records there, as people know it: "job-7 (store 3f2a)".
std::string HolderOf(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> owners = OwnersOf(folder);
  const std::string owner = owners.ok() && !owners->empty() ? owners->front() : "";
  const std::pair<std::string, std::string> parts = absl::StrSplit(owner, absl::MaxSplits('/', 1));
  if (parts.second.empty()) return "a job that has not said its name yet";
  return absl::StrCat(parts.second, " (store ", parts.first, ")");
}

constexpr absl::Duration kOwnPatience = absl::Seconds(1);

// Whether the job that goes on has its records there.
bool IsOwn(const std::string& folder, const MetricsOptions& options) {
  if (options.fence == 0 && options.first_step <= 1) return false;
  const absl::StatusOr<std::vector<std::string>> owners = OwnersOf(folder);
  return owners.ok() && !owners->empty() && owners->front() == options.owner;
}

// The folder's descriptor, with its lock where the file system has locks. Who holds it in an
// earlier epoch of the same job may be out of reach for long: it can write no more once the files
// are others (RecordFile::Append), so nobody waits for its end.
absl::StatusOr<UniqueFd> Hold(const std::string& folder, const MetricsOptions& options) {
  UniqueFd held(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held.is_open()) return OutputError("open", folder, errno);
  const bool own = IsOwn(folder, options);
  const auto give_up =
      std::chrono::steady_clock::now() +
      absl::ToChronoNanoseconds(own ? std::min(options.patience, kOwnPatience) : options.patience);
  bool waited = false;
  while (flock(held.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (options.stop.stop_requested()) return absl::CancelledError("asked to stop");
    const bool first = !std::exchange(waited, true);
    const bool last = std::chrono::steady_clock::now() >= give_up;
    if (own && last) break;
    if (!own && (first || last)) {
      const absl::Status in_use =
          job::WithKind(job::FailureKind::kOutputUnavailable,
                        absl::UnavailableError(absl::StrCat(
                            "the output folder ", folder, " is in use by ", HolderOf(folder),
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

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& folder,
                                                                   MetricsOptions options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return OutputError("make the output folder", folder, error.value());
  ASSIGN_OR_RETURN(UniqueFd held, Hold(folder, options));
  const auto not_over = [&] { return CheckNotOver(folder, options); };
  const Replacing replacing{.aside = absl::StrCat(AsidePrefix(options), options.fence),
                            .may = not_over};
  RETURN_IF_ERROR(MarkEpoch(folder, options, replacing));
  const std::string lines_path = absl::StrCat(folder, "/metrics.jsonl");
  const std::string owner_path = absl::StrCat(folder, "/metrics.owner");
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
    if (lstat(lines_path.c_str(), &lines) == 0 && S_ISREG(lines.st_mode)) {
      RETURN_IF_ERROR(not_over());
      // An earlier epoch that has not done a step may have the file open.
      RETURN_IF_ERROR(lines.st_size > 0 ? PutAside(folder, lines_path)
                                        : Replace(lines_path, "", replacing));
    }
  } else {
    ASSIGN_OR_RETURN(last_step, KeepLinesBefore(lines_path, options.first_step, replacing));
  }
  if (!known || !continues) {
    RETURN_IF_ERROR(
        Replace(owner_path, absl::StrCat(absl::StrJoin(owners, "\n"), "\n"), replacing));
  }
  ASSIGN_OR_RETURN(RecordFile lines, RecordFile::Open(lines_path));
  RETURN_IF_ERROR(not_over());  // else it might be the file of who came meanwhile
  ASSIGN_OR_RETURN(
      RecordFile events,
      RecordFile::Open(absl::StrCat(folder, "/events.out.tfevents.",
                                    absl::ToUnixSeconds(absl::Now()), ".phalanx.", getpid())));
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

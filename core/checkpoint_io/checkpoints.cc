#include "core/checkpoint_io/checkpoints.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/mutex.h"
#include "core/base/path.h"
#include "core/base/status.h"
#include "core/base/violation.h"
#include "core/checkpoint/entry_index.h"
#include "core/checkpoint/model_tensors.h"
#include "core/checkpoint_io/folders.h"
#include "core/checkpoint_io/lock.h"
#include "core/checkpoint_io/part_reader.h"
#include "core/job/failure.h"
#include "core/posix/file.h"
#include "core/posix/held_folder.h"

namespace phalanx::checkpoint {
namespace {

// Of a folder whose checkpoints are deleted while they are looked at.
constexpr int32_t kListingsMax = 8;

absl::Status FolderError(const std::string& folder, const absl::Status& why) {
  // Nobody knows what is behind it: that is not a folder that nobody has made yet.
  if (const std::optional<std::string> dead = DeadLinkOn(folder))
    return absl::UnavailableError(*dead);
  return Annotate(why, folder);
}

// Lines beyond the first `lines_max` become one that counts them.
void CountBeyond(size_t lines_max, std::vector<std::string>& lines) {
  if (lines.size() <= lines_max) return;
  const size_t more = lines.size() - lines_max;
  lines.resize(lines_max);
  lines.push_back(absl::StrCat("and ", more, " more"));
}

// Verifies one checkpoint, part after part, on several threads. Thread-safe.
class Verification {
 public:
  // `spec`: a job of the manifest's model, or nullptr.
  Verification(const std::string& checkpoint, const Manifest& manifest, const job::JobSpec* spec,
               const VerifyOptions& options)
      : checkpoint_(checkpoint),
        manifest_(manifest),
        spec_(spec),
        options_(options),
        headers_(manifest.parts.size()),
        damage_(manifest.parts.size()) {}

  absl::Status Run() {
    const int32_t count =
        std::clamp(options_.threads, 1, static_cast<int32_t>(manifest_.parts.size()));
    {
      std::vector<std::jthread> threads;
      for (int32_t i = 1; i < count; ++i) threads.emplace_back([this] { VerifyParts(); });
      VerifyParts();
    }
    {
      const MutexLock lock(&mutex_);
      RETURN_IF_ERROR(stopped_);
    }
    std::vector<std::string> lines;
    for (const std::vector<std::string>& of_part : damage_) {
      lines.insert(lines.end(), of_part.begin(), of_part.end());
    }
    if (lines.empty()) {
      // Every file is what the manifest says; now all of them together.
      const absl::Status whole = CheckTogether();
      if (whole.ok()) return whole;
      lines.emplace_back(whole.message());
    }
    CountBeyond(kDamageMax, lines);
    return absl::DataLossError(absl::StrJoin(lines, "\n"));
  }

 private:
  void VerifyParts() {
    for (size_t part = next_++; part < manifest_.parts.size(); part = next_++) {
      if (!VerifyPart(part)) return;
    }
  }

  // False: the verification was ended.
  bool VerifyPart(size_t index) {
    const PartFile& part = manifest_.parts[index];
    const absl::StatusOr<PartReader> reader =
        PartReader::Open(checkpoint_, manifest_, part, options_.folders);
    if (!reader.ok()) {
      damage_[index].emplace_back(reader.status().message());
      return Advance(part.bytes);
    }
    if (!Advance(part.header_bytes)) return false;
    std::string bytes;
    for (size_t entry = 0; entry < reader->header().entries.size(); ++entry) {
      const absl::Status read = reader->Read(entry, bytes);
      if (!read.ok()) damage_[index].emplace_back(read.message());
      if (!Advance(reader->header().entries[entry].bytes())) return false;
    }
    headers_[index] = reader->header();
    return true;
  }

  bool Advance(int64_t bytes) {
    const MutexLock lock(&mutex_);
    done_ += bytes;
    if (options_.on_bytes && stopped_.ok()) stopped_ = options_.on_bytes(done_);
    return stopped_.ok();
  }

  absl::Status CheckTogether() const {
    ASSIGN_OR_RETURN(const EntryIndex index, EntryIndex::Create(headers_));
    if (spec_ != nullptr) return index.CheckWhole(TensorsOf(*spec_));
    const absl::StatusOr<std::vector<ModelTensor>> tensors =
        TensorsOf(manifest_.model, manifest_.entries());
    if (!tensors.ok()) return Annotate(tensors.status(), kManifestFile);
    return index.CheckWhole(*tensors);
  }

  // Constant after construction.
  const std::string& checkpoint_;
  const Manifest& manifest_;
  const job::JobSpec* const spec_;
  const VerifyOptions& options_;
  std::atomic<size_t> next_ = 0;  // part that nobody has taken
  // Each element is of the thread that took the part.
  std::vector<PartHeader> headers_;
  std::vector<std::vector<std::string>> damage_;
  Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Verify(const std::string& checkpoint, const Manifest& manifest,
                    const job::JobSpec* spec, const VerifyOptions& options) {
  ASSIGN_OR_RETURN(const CheckpointLock lock, CheckpointLock::ToRead(checkpoint, options.folders));
  return Verification(checkpoint, manifest, spec, options).Run();
}

// Why a job cannot go on from it; empty if it can. Errors: NotFound if it was deleted since it was
// listed; what on_bytes returns.
absl::StatusOr<std::string> WhyNot(const ListedCheckpoint& listed, const job::JobSpec& spec,
                                   const VerifyOptions& options) {
  // Of what is wrong with one that is there no longer nobody wants to know.
  const auto because = [&](std::string reason) -> absl::StatusOr<std::string> {
    std::error_code error;
    const auto there = std::filesystem::symlink_status(listed.path, error);
    if (there.type() != std::filesystem::file_type::not_found) return reason;
    return absl::NotFoundError("was deleted");
  };
  if (!listed.manifest.ok()) return because(std::string(listed.manifest.status().message()));
  const std::vector<Violation> violations =
      Incompatible(spec, ToString(listed.name), *listed.manifest);
  if (!violations.empty()) {
    return absl::StrJoin(violations, "; ", [](std::string* out, const Violation& violation) {
      absl::StrAppend(out, violation.rule);
    });
  }
  const absl::Status sound = Verify(listed.path, *listed.manifest, &spec, options);
  if (!sound.ok() && !absl::IsDataLoss(sound)) return sound;
  if (sound.ok()) return "";
  return because(absl::StrReplaceAll(sound.message(), {{"\n", "; "}}));
}

// Of spec.checkpoint.resume_from, `rules` about its value.
absl::Status CannotResume(const job::JobSpec& spec, const std::vector<std::string>& rules) {
  std::vector<Violation> violations;
  for (const std::string& rule : rules) {
    violations.push_back({"spec.checkpoint.resume_from", *spec.checkpoint->resume_from, rule});
  }
  return job::WithKind(job::FailureKind::kCheckpointInvalid, ViolationsStatus(violations));
}

absl::Status OutOfReach(const std::string& path, const absl::Status& status) {
  return job::WithKind(job::FailureKind::kCheckpointUnavailable,
                       absl::UnavailableError(absl::StrCat("spec.checkpoint.resume_from: ", path,
                                                           ": ", status.message())));
}

// The checkpoint at `path` alone.
absl::StatusOr<Choice> ChooseNamed(const job::JobSpec& spec, const std::string& path,
                                   const VerifyOptions& options) {
  absl::StatusOr<Manifest> manifest = ReadManifestOf(path, options.folders);
  if (absl::IsDataLoss(manifest.status()))
    return CannotResume(spec, {std::string(manifest.status().message())});
  if (!manifest.ok()) return OutOfReach(path, manifest.status());
  std::vector<std::string> rules;
  for (const Violation& violation : Incompatible(spec, path, *manifest))
    rules.push_back(violation.rule);
  if (!rules.empty()) return CannotResume(spec, rules);
  const absl::Status sound = Verify(path, *manifest, &spec, options);
  if (absl::IsNotFound(sound)) return OutOfReach(path, sound);
  if (absl::IsDataLoss(sound)) return CannotResume(spec, absl::StrSplit(sound.message(), '\n'));
  RETURN_IF_ERROR(sound);
  return Choice{.checkpoint = Checkpoint{path, *std::move(manifest)}};
}

// Errors: NotFound if a checkpoint was deleted meanwhile that might have been chosen; as of
// ChooseCheckpoint.
absl::StatusOr<Choice> ChooseListed(const std::string& folder, const job::JobSpec& spec,
                                    const VerifyOptions& options) {
  absl::StatusOr<std::vector<ListedCheckpoint>> listed = ListCheckpoints(folder, options.folders);
  if (absl::IsNotFound(listed.status())) return Choice();
  if (!listed.ok()) return listed.status();
  Choice choice;
  for (ListedCheckpoint& one : *listed) {
    absl::StatusOr<std::string> why_not = WhyNot(one, spec, options);
    if (!why_not.ok()) {
      if (!absl::IsNotFound(why_not.status())) return why_not.status();
      return absl::NotFoundError(absl::StrCat(one.path, ": ", why_not.status().message()));
    }
    if (why_not->empty()) {
      choice.checkpoint = {std::move(one.path), *std::move(one.manifest)};
      break;
    }
    choice.passed_over.push_back(absl::StrCat(ToString(one.name), ": ", *why_not));
  }
  if (choice.passed_over.size() > kPassedOverMax)
    CountBeyond(kPassedOverMax - 1, choice.passed_over);
  return choice;
}

}  // namespace

absl::StatusOr<std::vector<ListedCheckpoint>> ListCheckpoints(
    const std::string& folder, const std::vector<std::string>& below) {
  const absl::StatusOr<HeldFolder> opened = HeldFolder::Open(folder, below);
  const auto entries = opened.ok() ? opened->Names() : opened.status();
  if (!entries.ok()) return FolderError(folder, entries.status());
  std::vector<ListedCheckpoint> listed;
  for (const std::string& entry : *entries) {
    const std::optional<CheckpointName> name = ParseCheckpointName(entry);
    if (!name.has_value()) continue;
    const std::string path = opened->PathOf(entry);
    ListedCheckpoint one{.name = *name, .path = path, .manifest = ReadManifestOf(path, below)};
    if (const absl::StatusOr<FileStamp> stamp = StampOf(ManifestPath(path)); stamp.ok()) {
      one.written = absl::FromUnixNanos(stamp->modified);
    }
    if (one.manifest.ok() &&
        (one.manifest->step != one.name.step || one.manifest->epoch != one.name.epoch)) {
      one.manifest = absl::DataLossError(absl::StrCat(
          kManifestFile, ": is of step ", one.manifest->step, ", epoch ", one.manifest->epoch));
    }
    listed.push_back(std::move(one));
  }
  std::sort(listed.begin(), listed.end(),
            [](const ListedCheckpoint& a, const ListedCheckpoint& b) { return a.name > b.name; });
  return listed;
}

absl::StatusOr<Manifest> ReadManifestOf(const std::string& checkpoint,
                                        const std::vector<std::string>& below) {
  std::error_code error, ignored;
  if (!std::filesystem::exists(ManifestPath(checkpoint), error)) {
    if (error == std::errc::permission_denied) return absl::PermissionDeniedError(error.message());
    const bool is_folder = std::filesystem::is_directory(checkpoint, ignored);
    if (is_folder && error == std::errc::too_many_symbolic_link_levels)
      return absl::DataLossError(absl::StrCat(kManifestFile, ": is a link that leads to itself"));
    if (error) return absl::UnavailableError(error.message());
    if (!is_folder) return absl::NotFoundError("is no folder");
    return absl::NotFoundError(absl::StrCat("has no ", kManifestFile));
  }
  const absl::StatusOr<std::string> text =
      ReadWholeFile(ManifestPath(checkpoint), int64_t{kManifestBytesMax}, below);
  absl::StatusOr<Manifest> manifest =
      text.ok() ? ReadManifest(*text) : absl::StatusOr<Manifest>(text.status());
  if (manifest.ok()) return manifest;
  return absl::DataLossError(absl::StrCat(kManifestFile, ": ", manifest.status().message()));
}

absl::Status VerifyCheckpoint(const std::string& checkpoint, const Manifest& manifest,
                              const VerifyOptions& options) {
  return Verify(checkpoint, manifest, /*spec=*/nullptr, options);
}

absl::StatusOr<Choice> ChooseCheckpoint(const std::string& folder, const job::JobSpec& spec,
                                        const VerifyOptions& options) {
  for (int32_t listing = 1;; ++listing) {
    absl::StatusOr<Choice> choice = ChooseListed(folder, spec, options);
    // One that its job deletes has newer ones beside it, which were not there to be listed.
    if (!absl::IsNotFound(choice.status()) || listing == kListingsMax) return choice;
  }
}

absl::StatusOr<Choice> ChooseToResume(const job::JobSpec& spec, const std::string& directory,
                                      const VerifyOptions& options) {
  const job::Checkpoint& wanted = *spec.checkpoint;
  if (*wanted.resume_from != job::kResumeFromLatest)
    return ChooseNamed(spec, ResolvePath(directory, *wanted.resume_from), options);
  const std::string folder = ResolvePath(directory, wanted.directory);
  absl::StatusOr<Choice> choice = ChooseCheckpoint(folder, spec, options);
  if (!choice.ok() && !absl::IsCancelled(choice.status())) {
    return job::WithKind(job::FailureKind::kCheckpointUnavailable,
                         Annotate(choice.status(), "spec.checkpoint.directory"));
  }
  if (!choice.ok() || choice->checkpoint.has_value() || choice->passed_over.empty()) return choice;
  // Whoever has checkpoints and can use none would not want to begin anew without a word.
  return CannotResume(spec, choice->passed_over);
}

}  // namespace phalanx::checkpoint

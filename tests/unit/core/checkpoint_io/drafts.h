// tests/unit/core/checkpoint_io/drafts.h: writes and publishes checkpoints of made-up values, as
// the ranks of a job would.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint_io/part_writer.h"
#include "core/checkpoint_io/publish.h"
#include "tests/support/checkpoints.h"

namespace phalanx::checkpoint {

class Drafts {
 public:
  Drafts(const plan::Plan& plan, std::string directory, int64_t job = 7)
      : parts_(support::MakeParts(plan)),
        manifest_(support::ManifestOf(plan, parts_)),
        directory_(std::move(directory)) {
    manifest_.parts.clear();
    manifest_.number = job;
  }

  size_t parts() const { return parts_.size(); }
  std::string DraftOf(const CheckpointName& name) const {
    return absl::StrCat(directory_, "/", DraftName(name, manifest_.store, manifest_.number));
  }

  PartWrite WriteOf(size_t part, const CheckpointName& name) const {
    const support::MadePart& made = parts_[part];
    PartWrite write{.draft = DraftOf(name), .info = made.header.info};
    write.info.job = manifest_.number;
    write.info.step = name.step;
    write.info.epoch = name.epoch;
    for (const Entry& entry : made.header.entries) {
      write.entries.push_back(entry);
      write.sources.push_back({.first = made.data.data() + entry.offset, .stride = entry.line()});
    }
    return write;
  }
  absl::StatusOr<std::vector<PartFile>> WriteAll(const CheckpointName& name) const {
    std::vector<PartFile> files;
    for (size_t part = 0; part < parts_.size(); ++part) {
      absl::StatusOr<PartFile> file = WritePartFile(WriteOf(part, name));
      if (!file.ok()) return file.status();
      files.push_back(*std::move(file));
    }
    return files;
  }

  Publication PublicationOf(const CheckpointName& name, const std::vector<PartFile>& files) const {
    Publication publication{
        .directory = directory_, .manifest = manifest_, .parts_digest = DigestOf(files), .keep = 2};
    publication.manifest.step = name.step;
    publication.manifest.epoch = name.epoch;
    publication.manifest.updates = name.step;
    return publication;
  }
  absl::StatusOr<Published> WriteAndPublish(const CheckpointName& name) const {
    absl::StatusOr<std::vector<PartFile>> files = WriteAll(name);
    if (!files.ok()) return files.status();
    return Publish(PublicationOf(name, *files));
  }

 private:
  const std::vector<support::MadePart> parts_;
  Manifest manifest_;
  const std::string directory_;
};

}  // namespace phalanx::checkpoint

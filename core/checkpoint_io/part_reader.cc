#include "core/checkpoint_io/part_reader.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/base/status.h"
#include "core/checkpoint/names.h"

namespace phalanx::checkpoint {
namespace {

// Of a header that is the one that the manifest has the digest of.
absl::Status CheckHeader(const PartHeader& header, const Manifest& manifest, const PartFile& part) {
  const PartInfo expected{.store = manifest.store,
                          .job = manifest.number,
                          .epoch = manifest.epoch,
                          .step = manifest.step,
                          .rank = ParsePartFileName(part.file).value_or(-1)};
  if (header.info != expected) {
    const auto text = [](const PartInfo& info) {
      return absl::StrCat("job ", info.job, ", epoch ", info.epoch, ", step ", info.step, ", rank ",
                          info.rank, " of store ", info.store);
    };
    return absl::DataLossError(
        absl::StrCat("is of ", text(header.info), "; must be of ", text(expected)));
  }
  for (const Entry& entry : header.entries) {
    const DType type = DTypeOf(entry.kind, manifest.model.compute);
    if (entry.dtype != type) {
      return absl::DataLossError(absl::StrCat("entry ", NameOf(entry), ": has type ",
                                              ToString(entry.dtype), ", must have ",
                                              ToString(type)));
    }
  }
  const Entry& last = header.entries.back();
  const int64_t bytes = part.header_bytes + last.offset + last.bytes();
  if (bytes != part.bytes || static_cast<int64_t>(header.entries.size()) != part.entries) {
    return absl::DataLossError(absl::StrCat("its header has ", header.entries.size(),
                                            " entries and ends at byte ", bytes, ", the manifest ",
                                            part.entries, " and ", part.bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<PartHeader> ReadCheckedHeader(const File& file, const Manifest& manifest,
                                             const PartFile& part) {
  if (file.stamp().bytes != part.bytes) {
    return absl::DataLossError(
        absl::StrCat("has ", file.stamp().bytes, " bytes, the manifest says ", part.bytes));
  }
  std::string bytes;
  RETURN_IF_ERROR(file.Read(0, part.header_bytes, bytes));
  if (const std::string digest = Digest(bytes); digest != part.digest) {
    return absl::DataLossError(
        absl::StrCat("its header has digest ", digest, ", the manifest says ", part.digest));
  }
  ASSIGN_OR_RETURN(PartHeader header, ReadHeader(bytes));
  RETURN_IF_ERROR(CheckHeader(header, manifest, part));
  return header;
}

absl::Status Lost(absl::string_view what, const absl::Status& why) {
  return absl::DataLossError(absl::StrCat(what, ": ", why.message()));
}

}  // namespace

absl::StatusOr<PartReader> PartReader::Open(const std::string& checkpoint, const Manifest& manifest,
                                            const PartFile& part,
                                            const std::vector<std::string>& below) {
  absl::StatusOr<File> file = File::Open(absl::StrCat(checkpoint, "/", part.file), below);
  if (!file.ok()) return Lost(part.file, file.status());
  absl::StatusOr<PartHeader> header = ReadCheckedHeader(*file, manifest, part);
  if (!header.ok()) return Lost(part.file, header.status());
  return PartReader(*std::move(file), part.file, part.header_bytes, *std::move(header));
}

absl::Status PartReader::Read(size_t entry, std::string& bytes) const {
  const Entry& wanted = header_.entries[entry];
  const absl::Status read = file_.Read(data_ + wanted.offset, wanted.bytes(), bytes);
  const std::string what = absl::StrCat(name_, ": entry ", NameOf(wanted));
  if (!read.ok()) return Lost(what, read);
  if (Digest64(bytes) == wanted.digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ": is damaged: its digest does not fit"));
}

}  // namespace phalanx::checkpoint

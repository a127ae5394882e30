#include "core/checkpoint/names.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace phalanx::checkpoint {
namespace {

// The number behind `before`; -1 where there is none.
template <typename Number>
Number NumberBehind(absl::string_view before, absl::string_view text) {
  Number number = -1;
  return absl::ConsumePrefix(&text, before) && absl::SimpleAtoi(text, &number) ? number : -1;
}

}  // namespace

std::string ManifestPath(const std::string& checkpoint) {
  return absl::StrCat(checkpoint, "/", kManifestFile);
}

std::string ToString(const CheckpointName& name) {
  return absl::StrCat(absl::StrFormat("step-%08d.epoch-%d", name.step, name.epoch),
                      name.copy == 0 ? "" : absl::StrCat(".", name.copy));
}

std::optional<CheckpointName> ParseCheckpointName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  if (parts.size() != 2 && parts.size() != 3) return std::nullopt;
  const CheckpointName name{.step = NumberBehind<int64_t>("step-", parts[0]),
                            .epoch = NumberBehind<int64_t>("epoch-", parts[1]),
                            .copy = parts.size() == 2 ? 0 : NumberBehind<int64_t>("", parts[2])};
  if (name.step < 1 || name.epoch < 1 || name.copy < 0 || name.copy == 1 ||
      ToString(name) != text) {
    return std::nullopt;
  }
  return name;
}

std::string DraftName(const CheckpointName& name, absl::string_view store, int64_t job) {
  return absl::StrCat(".", ToString(name), ".", store, "-job-", job);
}

std::optional<CheckpointName> ParseDraftName(absl::string_view text, absl::string_view store,
                                             int64_t job) {
  if (!absl::ConsumePrefix(&text, ".") ||
      !absl::ConsumeSuffix(&text, absl::StrCat(".", store, "-job-", job))) {
    return std::nullopt;
  }
  return ParseCheckpointName(text);
}

std::string PartFileName(int32_t rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

std::optional<int32_t> ParsePartFileName(absl::string_view text) {
  absl::string_view stem = text;
  if (!absl::ConsumeSuffix(&stem, ".safetensors")) return std::nullopt;
  const auto rank = NumberBehind<int32_t>("rank-", stem);
  if (rank < 0 || PartFileName(rank) != text) return std::nullopt;
  return rank;
}

}  // namespace phalanx::checkpoint

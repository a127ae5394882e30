// Any bytes taken as a checkpoint's manifest or as the header of a part: read, or refused with a
// sentence.
#include "absl/strings/str_cat.h"
#include "core/base/digest.h"
#include "core/checkpoint/entry.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/model_tensors.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/support/checkpoints.h"
#include "tests/support/specs.h"

namespace phalanx::fuzz {
namespace {

const plan::Plan& ThePlan() {
  static const auto& plan = *new absl::StatusOr<plan::Plan>(
      plan::MakePlan(support::AJob()
                         .Module("vision", support::ClipVision(), {.frozen = true})
                         .Module("language", support::Llama(), {.tp = 2})
                         .Edge("vision", "language", {.projector = 48}),
                     plan::MakeCluster(1, 3), Epoch{1}));
  return *plan;
}

const std::string& TheManifest() {
  static const auto& text = *new std::string(
      checkpoint::WriteManifest(support::ManifestOf(ThePlan(), support::MakeParts(ThePlan()))));
  return text;
}

std::string Refused(const absl::Status& status) {
  return status.ok() || status.message().size() > 10 ? "" : "refused without a sentence";
}

// With a digest that fits, so that what is before it is looked at.
std::string Sealed(absl::string_view text) {
  constexpr size_t kTail = 32 + 4;
  if (text.size() < kTail) return std::string(text);
  const std::string body(text.substr(0, text.size() - kTail));
  return absl::StrCat(body, Digest(body), "\"\n}\n");
}

// A length that fits.
std::string Measured(absl::string_view bytes) {
  std::string header(bytes.substr(0, bytes.size() / 64 * 64));
  for (size_t i = 0; i < 8 && !header.empty(); ++i)
    header[i] = static_cast<char>(((header.size() - 8) >> (8 * i)) & 0xFF);
  return header;
}

std::string CheckManifest(absl::string_view text) {
  const auto raw = checkpoint::ReadManifest(text);
  if (raw.ok() && text != TheManifest()) return "damage is not seen";
  const auto lying = checkpoint::ReadManifest(Sealed(text));
  for (const absl::Status& status : {raw.status(), lying.status()}) {
    if (std::string wrong = Refused(status); !wrong.empty()) return wrong;
  }
  if (!lying.ok()) return "";
  const auto again = checkpoint::ReadManifest(checkpoint::WriteManifest(*lying));
  if (!again.ok()) return absl::StrCat("refuses what it writes: ", again.status().ToString());
  return Refused(checkpoint::TensorsOf(lying->model, lying->entries()).status());
}

std::string CheckHeader(absl::string_view bytes) {
  const auto header = checkpoint::ReadHeader(bytes);
  if (!header.ok()) return Refused(header.status());
  const auto again = checkpoint::ReadHeader(checkpoint::WriteHeader(*header));
  if (!again.ok()) return absl::StrCat("refuses what it writes: ", again.status().ToString());
  return again->entries == header->entries ? "" : "reads its own header otherwise";
}

}  // namespace

std::string Check(absl::string_view bytes) {
  if (std::string wrong = CheckManifest(bytes); !wrong.empty()) return wrong;
  if (std::string wrong = CheckHeader(bytes); !wrong.empty()) return wrong;
  return CheckHeader(Measured(bytes));
}

std::vector<std::string> Corpus() {
  return {TheManifest(), checkpoint::WriteHeader(support::MakeParts(ThePlan())[1].header)};
}

}  // namespace phalanx::fuzz

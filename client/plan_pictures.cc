#include "client/plan_pictures.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output.h"
#include "core/base/status.h"
#include "core/wire/plan_dot.h"
#include "core/wire/timeline_json.h"
#include "core/wire/timeline_svg.h"

namespace phalanx::client {
namespace {

// Some 200 bytes each; viewers take no more.
constexpr size_t kTracedMax = 250'000;

// Flags whose picture goes to standard output.
std::vector<std::string> OnStandardOutput(const PictureFiles& files) {
  std::vector<std::string> flags;
  if (files.svg == "-") flags.push_back("--svg -");
  if (files.trace == "-") flags.push_back("--trace -");
  if (files.dot == "-") flags.push_back("--dot -");
  return flags;
}

}  // namespace

absl::Status WritePicture(absl::string_view flag, const std::string& path, const std::string& text,
                          Io& io) {
  if (path != "-") return WriteOutput(flag, path, text);
  io.out << text;
  return absl::OkStatus();
}

absl::Status CheckPictures(const PictureFiles& files, Format format) {
  std::vector<std::string> flags = OnStandardOutput(files);
  if (!flags.empty() && format != Format::kTable) flags.push_back("-o");
  if (flags.size() <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(flags, " and "), ": only one may go to standard output"));
}

bool TakesStandardOutput(const PictureFiles& files) { return !OnStandardOutput(files).empty(); }

absl::Status WritePictures(const PictureFiles& files, const plan::Plan& plan,
                           const wire::PlanFigures& figures,
                           const std::vector<schedule::TimedInstruction>& timeline, Io& io) {
  if (!files.trace.empty() && timeline.size() > kTracedMax) {  // before anything is written
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: a step of this job has ", timeline.size(),
                     " instructions; a trace holds at most ", kTracedMax));
  }
  if (!files.svg.empty()) {
    RETURN_IF_ERROR(
        WritePicture("--svg", files.svg, wire::TimelineSvg(plan, figures, timeline), io));
  }
  if (!files.trace.empty()) {
    RETURN_IF_ERROR(WritePicture("--trace", files.trace, wire::TraceJson(plan, timeline), io));
  }
  if (!files.dot.empty())
    RETURN_IF_ERROR(WritePicture("--dot", files.dot, wire::PlanDot(plan), io));
  return absl::OkStatus();
}

}  // namespace phalanx::client

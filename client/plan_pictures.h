// client/plan_pictures.h: the pictures that `phalanx plan` draws beside what it prints.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/format.h"
#include "core/plan/plan.h"
#include "core/schedule/simulator.h"
#include "core/wire/plan_text.h"

namespace phalanx::client {

// Paths of the pictures that are wanted, "-" for standard output, empty for none.
struct PictureFiles {
  std::string svg;    // the timeline (core/wire/timeline_svg.h)
  std::string trace;  // the timeline for Perfetto (core/wire/timeline_json.h)
  std::string dot;    // the module graph (core/wire/plan_dot.h)
};

// To a file, as WriteOutput (output.h), or where `path` is "-" to io.out. Errors: Unavailable,
// naming flag and file.
absl::Status WritePicture(absl::string_view flag, const std::string& path, const std::string& text,
                          Io& io);

// Standard output holds one thing: at most one picture, and with it no `format` but the table,
// which then is not printed. Errors: InvalidArgument naming the flags.
absl::Status CheckPictures(const PictureFiles& files, Format format);
// Whether one of them goes to standard output.
bool TakesStandardOutput(const PictureFiles& files);

// `timeline`: of every rank or of one of each class. Errors: InvalidArgument for a trace that no
// viewer takes; Unavailable for a file that cannot be written, naming it and its flag.
absl::Status WritePictures(const PictureFiles& files, const plan::Plan& plan,
                           const wire::PlanFigures& figures,
                           const std::vector<schedule::TimedInstruction>& timeline, Io& io);

}  // namespace phalanx::client

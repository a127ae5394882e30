// core/wire/search_text.h: what a search for a layout found, as people and scripts read it, and as
// job files.
//
// The JSON is that of `phalanx plan --search -o json` (docs/cli.md). Functions of their arguments
// alone; they throw nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/schedule/search.h"

namespace phalanx::wire {

std::string SearchTable(const schedule::SearchResult& result,
                        const schedule::SearchOptions& options);
std::string SearchJson(const schedule::SearchResult& result,
                       const schedule::SearchOptions& options);

// "vision dp4, language dp4 on 0-3 | audio tp2 dp2 on 4-7".
std::string LayoutText(const job::JobSpec& spec);

// The job file with the layout of `chosen`, a job that came of its spec: parallel, offset and
// recompute of every module, batch.micro, schedule and resources.devices are replaced, and
// batch.labelled_share is written where the text leaves it out and the job does not; everything
// else stays as it is written, comments aside. Where `open` says that a module's layout was not
// free, its `parallel` stays; empty: all were.
// Errors: InvalidArgument for a text that is no job file.
absl::StatusOr<std::string> WithLayoutOf(absl::string_view text, const job::JobSpec& chosen,
                                         const std::vector<bool>& open);

}  // namespace phalanx::wire

// tests/bench/faults/recoveries.h: how long a job stands still that loses a rank.
#pragma once

#include <cstdint>

namespace phalanx::e2e {

// kill -9 of a rank of jobs on three nodes, `tries` times, a part of them in each of eight layouts
// (layouts.h), each once all ranks are back. Each job has one rank that is not hit, another one
// from job to job, whose process goes through all losses. Prints a line of JSON with, of kill to
// all that are left having stopped, and of kill to the next decided step having been read by a
// watcher: percentiles; of each layout the same, its steps, for how long returns held it up, and
// what coordinator, daemons and the rank that was not hit hold early and at the end; how much of
// the throughput is back (throughput.h); and as `in_a_line` what docs/performance-control-plane.md
// says of it.
// Early is, of coordinator and daemons, the end of the layout's first job, or, where a layout has
// no other (at most 20 kills, so at most 160 `tries`), behind half of its kills; of the rank,
// behind half of the kills of its job. Whether both are as fast as they must be, every step is done
// once with the loss of a run that was not hit (to 1e-9 of it), no process but the killed ones has
// restarted, nothing has grown, and that 99 % of the throughput are back is not ruled out, which
// six jobs can tell at the least.
bool KillAndReturn(int64_t tries);

// The same of a single job, whose rank 0 is never hit, so that its process goes through all of
// them. Behind the last return so many jobs of the same layout without losses train beside it, one
// after the other, for as many steps each: both have the machine at the same time, however busy it
// is. The line says whether it is shown that the job is as fast as they are (99 % of it,
// throughput.h), ruled out, or neither, which more of them make less likely. Whether that is not
// ruled out, losses at every step are those of a run that was not hit, to 1e-9, and fall, nothing
// has grown since a fifth of the kills, of that process either, and no other one has restarted.
// Gradient norms are told and not judged, and neither are times.
inline constexpr int64_t kJobsBeside = 12;  // unless asked for otherwise
bool KillOneJob(int64_t tries, int64_t jobs_beside);

// Of a job on two nodes whose steps take about a second on this machine, `tries` times: a rank is
// killed and comes back. Prints a line of JSON with how long a step is, and for how long the
// returns held up those that trained. Whether 99 of 100 of these are less than one step.
bool ReturnBesideTraining(int64_t tries);

}  // namespace phalanx::e2e

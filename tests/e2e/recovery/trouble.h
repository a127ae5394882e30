// tests/e2e/recovery/trouble.h: jobs that are hit while they train, and runs that were not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/e2e/jobs/cluster.h"
#include "tests/e2e/jobs/job.h"

namespace phalanx::e2e {

// With it what another layout rounds otherwise does not grow to more than is looked for.
inline constexpr double kSmallLearningRate = 1e-5;

// Few samples, so that steps are short.
DataFolder MakeSmallData();

// Of the job's events of that type, a line each.
std::string MessagesOf(Cluster& cluster, int64_t job, const std::string& type);

std::vector<std::string> EventsOf(Cluster& cluster, int64_t job, const std::string& type);

// `phalanx inject` of a fault on that rank, to its end.
support::Finished Inject(const Cluster& cluster, int64_t job, int32_t rank,
                         std::vector<std::string> more);

// Of a job with communicators for losses: returns once those of its newest epoch are there, or some
// are missing and are not tried again. While the job trains on; else it throws.
void AwaitStandby(Cluster& cluster, int64_t job);

// "" if both runs have the same losses, norms and tokens at every step, to `tolerance` of them, and
// every step once; else what is wrong.
std::string CurvesFault(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                        int64_t steps, double tolerance = 1e-9);
// The same but for norms, which may differ: what other widths round otherwise grows in them first.
std::string LossesFault(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                        int64_t steps, double tolerance = 1e-9);
// CurvesFault() must find nothing.
void ExpectSameCurves(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                      int64_t steps, double tolerance = 1e-9);
// Cancels a job that has no end of its own once it has done `step`, runs the same one, which is of
// `options`, for as many steps without a failure, and expects the same curves.
void ExpectCurvesOfAnUndisturbedRun(Cluster& cluster, const DataFolder& data, JobOptions options,
                                    int64_t job, int64_t step);

}  // namespace phalanx::e2e

#include "tests/e2e/recovery/trouble.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace phalanx::e2e {
namespace {

// What cannot be made is tried once more after a minute.
constexpr absl::Duration kStandbyPatience = absl::Minutes(4);

// With infinite `norm_tolerance` norms may be anything.
std::string FaultOf(const std::vector<Metric>& hit, const std::vector<Metric>& whole, int64_t steps,
                    double tolerance, double norm_tolerance) {
  if (std::string fault = StepsFault(whole, steps); !fault.empty())
    return absl::StrCat("without a failure: ", fault);
  if (std::string fault = StepsFault(hit, steps); !fault.empty()) return fault;
  const auto near = [](double a, double b, double part) {
    return std::abs(a - b) <= part * std::abs(b);  // false of what is no number
  };
  for (size_t i = 0; i < hit.size(); ++i) {
    const Metric &a = hit[i], &b = whole[i];
    if (near(a.loss, b.loss, tolerance) && near(a.gradient_norm, b.gradient_norm, norm_tolerance) &&
        a.tokens == b.tokens)
      continue;
    return absl::StrFormat(
        "step %d: loss %.17g, norm %.17g, %d tokens; without a failure %.17g, %.17g, %d", b.step,
        a.loss, a.gradient_norm, a.tokens, b.loss, b.gradient_norm, b.tokens);
  }
  return "";
}

}  // namespace

DataFolder MakeSmallData() {
  return MakeData({.samples = 30, .images_min = 0, .images_max = 2, .words = 4});
}

std::vector<std::string> EventsOf(Cluster& cluster, int64_t job, const std::string& type) {
  std::vector<std::string> messages;
  for (const v1::JobEvent& event : cluster.Events(job)) {
    if (event.type() == type) messages.push_back(event.message());
  }
  return messages;
}

std::string MessagesOf(Cluster& cluster, int64_t job, const std::string& type) {
  std::string messages;
  for (const std::string& message : EventsOf(cluster, job, type))
    absl::StrAppend(&messages, message, "\n");
  return messages;
}

support::Finished Inject(const Cluster& cluster, int64_t job, int32_t rank,
                         std::vector<std::string> more) {
  std::vector<std::string> arguments = {"inject", "--job", absl::StrCat("job-", job), "--rank",
                                        absl::StrCat(rank)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return cluster.Phalanx(std::move(arguments));
}

void AwaitStandby(Cluster& cluster, int64_t job) {
  const absl::Time give_up = absl::Now() + kStandbyPatience;
  while (true) {
    const v1::JobStatus status = cluster.Get(job);
    std::optional<v1::JobEvent> last;
    for (const v1::JobEvent& event : cluster.Events(job)) {
      if (event.epoch() == status.epoch() && absl::StartsWith(event.type(), "Standby"))
        last = event;
    }
    if (last.has_value() && !absl::StrContains(last->message(), "tried once more")) return;
    support::Require(absl::Now() < give_up, "communicators for losses are there");
    cluster.AwaitStep(job, status.last_step().step() + 5);
  }
}

std::string CurvesFault(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                        int64_t steps, double tolerance) {
  return FaultOf(hit, whole, steps, tolerance, tolerance);
}

std::string LossesFault(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                        int64_t steps, double tolerance) {
  return FaultOf(hit, whole, steps, tolerance, std::numeric_limits<double>::infinity());
}

void ExpectCurvesOfAnUndisturbedRun(Cluster& cluster, const DataFolder& data, JobOptions options,
                                    int64_t job, int64_t step) {
  cluster.AwaitStep(job, step);
  cluster.Cancel(job);
  ASSERT_EQ(cluster.AwaitEnd(job).phase(), v1::JOB_PHASE_CANCELLED);
  const std::vector<Metric> hit = MetricsOf(data, options.output);
  ASSERT_GE(static_cast<int64_t>(hit.size()), step);
  options.name = options.output = "whole";
  const int64_t whole = cluster.Submit(Document(data, options)).id();
  cluster.AwaitStep(whole, static_cast<int64_t>(hit.size()) + 1);
  cluster.Cancel(whole);
  cluster.AwaitEnd(whole);
  std::vector<Metric> expected = MetricsOf(data, "whole");
  ASSERT_GE(expected.size(), hit.size());
  expected.resize(hit.size());
  ExpectSameCurves(hit, expected, static_cast<int64_t>(hit.size()));
}

void ExpectSameCurves(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                      int64_t steps, double tolerance) {
  ASSERT_EQ(CurvesFault(hit, whole, steps, tolerance), "");
}

}  // namespace phalanx::e2e

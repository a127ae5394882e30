#include "tests/e2e/recovery/trouble.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace phalanx::e2e {

DataFolder MakeSmallData() {
  return MakeData({.samples = 30, .images_min = 0, .images_max = 2, .words = 4});
}

std::vector<Metric> MetricsOf(const DataFolder& data, const std::string& output) {
  return ReadMetrics((std::filesystem::path(data.path) / output).string());
}

std::string MessagesOf(Cluster& cluster, int64_t job, const std::string& type) {
  std::string messages;
  for (const v1::JobEvent& event : cluster.Events(job)) {
    if (event.type() == type) absl::StrAppend(&messages, event.message(), "\n");
  }
  return messages;
}

void ExpectSameCurves(const std::vector<Metric>& hit, const std::vector<Metric>& whole,
                      int64_t steps, double tolerance) {
  ASSERT_EQ(StepsFault(whole, steps), "");
  ASSERT_EQ(StepsFault(hit, steps), "");
  for (size_t i = 0; i < hit.size(); ++i) {
    EXPECT_NEAR(hit[i].loss, whole[i].loss, tolerance * whole[i].loss) << "step " << i + 1;
    EXPECT_NEAR(hit[i].gradient_norm, whole[i].gradient_norm, tolerance * whole[i].gradient_norm)
        << "step " << i + 1;
    EXPECT_EQ(hit[i].tokens, whole[i].tokens) << "step " << i + 1;
  }
}

}  // namespace phalanx::e2e

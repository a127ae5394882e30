#include "worker/checkpoint/loader.h"

#include <stop_token>

#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/specs.h"

namespace phalanx::checkpoint {
namespace {

TEST(LoaderTest, RankThatIsToldToStop_ReadsNoMore) {
  const plan::Plan plan =
      *plan::MakePlan(support::AJob().Module("language", support::Llama()).Steps(9),
                      plan::MakeCluster(1, 1), Epoch{1});
  const auto state = *train::TrainingState::CreateEmpty(plan, Rank{0}, {});
  Manifest manifest = ManifestOf(plan, "store", 7, {.step = 4}, {});
  manifest.parts.push_back({.file = "not there"});
  const std::string folder = support::MakeFolder("checkpoint");
  std::stop_source stop;
  const absl::Status missing = Load(folder, manifest, plan, *state, 1, stop.get_token());
  EXPECT_TRUE(absl::IsDataLoss(missing)) << missing;
  stop.request_stop();
  const absl::Status stopped = Load(folder, manifest, plan, *state, 1, stop.get_token());
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
}

}  // namespace
}  // namespace phalanx::checkpoint

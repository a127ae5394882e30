// Event files are what TensorBoard's own reader reads, and draws once (scripts/setup brings it).
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"
#include "tests/support/tools.h"
#include "worker/rank/metrics_writer.h"

namespace phalanx::rank {
namespace {

using Curves = std::map<std::string, std::vector<std::pair<int64_t, float>>>;  // by tag

// As that process writes them; `loss` tells whose they are.
void Write(const std::string& folder, const std::string& owner, int64_t from, int64_t to,
           double loss) {
  MetricsOptions options;
  options.owner = owner;
  options.first_step = from;
  auto writer = MetricsWriter::Open(folder, std::move(options));
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (int64_t step = from; step <= to; ++step) {
    ASSERT_TRUE((*writer)
                    ->Write({.step = step,
                             .loss = loss,
                             .gradient_norm = 1.0 / static_cast<double>(step),
                             .learning_rate = 1e-3,
                             .tokens = 100 * step,
                             .seconds = 0.25},
                            1)
                    .ok());
  }
}

// The file that was written last gets the name of that second: a name has the time and the process,
// so two of this test would be one.
void Name(const std::string& folder, int second) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != absl::StrCat(".", getpid())) continue;
    std::filesystem::rename(entry.path(),
                            absl::StrCat(folder, "/events.out.tfevents.", second, ".phalanx.1"));
    return;
  }
  FAIL() << "no event file of this process";
}

Curves Drawn(const std::string& library, const std::string& folder) {
  const std::string said = folder + "/said",
                    command = absl::StrCat("PYTHONPATH=", library, " /usr/bin/python3 ",
                                           tests::SourceDir(),
                                           "/tests/unit/worker/rank/read_with_tensorboard.py ",
                                           folder, " >", said, " 2>", said, ".err");
  EXPECT_EQ(std::system(command.c_str()), 0) << support::ReadFile(said + ".err");
  Curves curves;
  for (const absl::string_view line :
       absl::StrSplit(support::ReadFile(said), '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int64_t step = 0;
    float value = 0;
    EXPECT_TRUE(words.size() == 3 && absl::SimpleAtoi(words[1], &step) &&
                absl::SimpleAtof(words[2], &value))
        << line;
    if (words.size() == 3) curves[words[0]].emplace_back(step, value);
  }
  return curves;
}

class TensorBoardTest : public testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(std::filesystem::exists(library_ + "/tensorboard")
                                  ? ""
                                  : "no TensorBoard: scripts/setup brings it");
  }
  // From step `from` on with that loss, until the next one.
  static std::vector<std::pair<int64_t, float>> Losses(std::map<int64_t, float> from, int64_t to) {
    std::vector<std::pair<int64_t, float>> losses;
    for (int64_t step = 1; step <= to; ++step)
      losses.emplace_back(step, std::prev(from.upper_bound(step))->second);
    return losses;
  }

  const std::string library_ = tests::DepsDir() + "/tensorboard-2.21.0";
  const std::string folder_ = support::MakeFolder("tensorboard");
};

TEST_F(TensorBoardTest, Run_IsDrawnWithAllOfItsFigures) {
  Write(folder_, "s/job-1", 1, 300, 2.5);
  Curves expected{{"train/loss", Losses({{1, 2.5F}}, 300)}};
  for (int64_t step = 1; step <= 300; ++step) {
    expected["train/gradient_norm"].emplace_back(
        step, static_cast<float>(1.0 / static_cast<double>(step)));
    expected["train/learning_rate"].emplace_back(step, 1e-3F);
    expected["train/tokens_per_second"].emplace_back(step, static_cast<float>(400 * step));
  }
  EXPECT_EQ(Drawn(library_, folder_), expected);
}

// A rank that wrote them is lost, and the next begins a file behind the step that is committed.
TEST_F(TensorBoardTest, StepsThatAreDoneAgain_AreDrawnOnce) {
  Write(folder_, "s/job-1", 1, 9, 3);
  Name(folder_, 1);
  Write(folder_, "s/job-1", 7, 8, 2);
  Name(folder_, 2);
  Write(folder_, "s/job-1", 9, 12, 1);
  Name(folder_, 3);
  EXPECT_EQ(Drawn(library_, folder_)["train/loss"], Losses({{1, 3}, {7, 2}, {9, 1}}, 12));
}

TEST_F(TensorBoardTest, AnotherJobInTheFolder_IsDrawnAlone) {
  Write(folder_, "s/job-1", 1, 9, 3);
  Name(folder_, 1);
  Write(folder_, "s/job-2", 1, 4, 1);
  Name(folder_, 2);
  EXPECT_EQ(Drawn(library_, folder_)["train/loss"], Losses({{1, 1}}, 4));
}

}  // namespace
}  // namespace phalanx::rank

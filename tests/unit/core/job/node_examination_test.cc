#include "core/job/node_examination.h"

#include <string>

#include "gtest/gtest.h"

namespace phalanx::job {
namespace {

TEST(NodeExaminationTest, CheckNames_AreShortWords) {
  for (const char* name : {"driver", "shared memory", "fp8-2"}) EXPECT_TRUE(IsCheckName(name));
  const std::string long_one(kCheckNameBytesMax + 1, 'a');
  for (const std::string& name : {std::string(), std::string("Driver"), std::string("a\nb"),
                                  std::string("a\x1b[2J"), long_one}) {
    EXPECT_FALSE(IsCheckName(name)) << name;
  }
}

TEST(NodeExaminationTest, Trouble_IsAWarningOrAProblem) {
  using Verdict = Finding::Verdict;
  EXPECT_FALSE(IsTrouble({.verdict = Verdict::kOk}));
  EXPECT_FALSE(IsTrouble({.verdict = Verdict::kSkipped}));
  EXPECT_TRUE(IsTrouble({.verdict = Verdict::kWarning}));
  EXPECT_TRUE(IsTrouble({.verdict = Verdict::kProblem}));
}

}  // namespace
}  // namespace phalanx::job

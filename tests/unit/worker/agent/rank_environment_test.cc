// The variables that a job's ranks get, secrets of the node among them.
#include "worker/agent/rank_environment.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/violation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"
#include "tests/support/paths.h"

namespace phalanx::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string JobWith(const std::string& fields) {
  std::string text = support::ReadFile(tests::SourceDir() + "/examples/emoji-captions.yaml");
  return text.replace(text.find("spec:\n"), 6, absl::StrCat("spec:\n  ", fields, "\n"));
}

TEST(RankEnvironmentTest, Job_ThatNamesNothing_HasNone) {
  const auto variables = RankEnvironment(JobWith("trace: false"), "");
  ASSERT_TRUE(variables.ok()) << variables.status();
  EXPECT_THAT(variables->all, IsEmpty());
  EXPECT_FALSE(variables->has_secrets);
}

TEST(RankEnvironmentTest, Secrets_AreWhatTheirFilesHold) {
  const std::string folder = support::MakeFolder("secrets");
  support::WriteFile(folder + "/token", "s3cret = value\r\n\n");
  const auto variables =
      RankEnvironment(JobWith("env: {NCCL_DEBUG: INFO}\n  secrets: {TOKEN: token}"), folder);
  ASSERT_TRUE(variables.ok()) << variables.status();
  EXPECT_THAT(variables->all, ElementsAre("NCCL_DEBUG=INFO", "TOKEN=s3cret = value"));
  EXPECT_TRUE(variables->has_secrets);
}

TEST(RankEnvironmentTest, NamesThatMayNotBeSetAnyMore_AreLeftOut) {
  const auto variables = RankEnvironment(
      JobWith("env: {HOME: /elsewhere, NCCL_DEBUG: INFO}\n  secrets: {LD_PRELOAD: token}"), "");
  ASSERT_TRUE(variables.ok()) << variables.status();
  EXPECT_THAT(variables->all, ElementsAre("NCCL_DEBUG=INFO"));
}

TEST(RankEnvironmentTest, SecretsOutsideTheFolder_OrThatLibrariesTell_AreLeftOut) {
  const std::string outside = support::MakeFolder("secrets-outside"), folder = outside + "/secrets";
  std::filesystem::create_directory(folder);
  support::WriteFile(outside + "/token", "other");
  for (const char* file : {"/token", "/.token"}) support::WriteFile(folder + file, "s3cret");
  const auto variables = RankEnvironment(
      JobWith("secrets: {A: ../token, B: .token, NCCL_C: token, TOKEN: token}"), folder);
  ASSERT_TRUE(variables.ok()) << variables.status();
  EXPECT_THAT(variables->all, ElementsAre("TOKEN=s3cret"));
}

TEST(RankEnvironmentTest, SecretsThatAreNone_AreAllNamed_AndNoneShown) {
  const std::string folder = support::MakeFolder("secrets-bad");
  support::WriteFile(folder + "/zero", std::string("s3cret\0more", 11));
  support::WriteFile(folder + "/large", std::string((64 << 10) + 1, 's'));
  const auto variables =
      RankEnvironment(JobWith("secrets: {A: absent, L: large, Z: zero}"), folder);
  const std::vector<Violation> violations = ViolationsOf(variables.status());
  ASSERT_EQ(violations.size(), 3u) << variables.status();
  EXPECT_EQ(violations[0].field, "spec.secrets.A");
  EXPECT_EQ(violations[0].value, "absent");
  EXPECT_EQ(violations[1].field, "spec.secrets.L");
  EXPECT_EQ(violations[2].rule, "has a zero byte, which no variable can hold");
  EXPECT_THAT(std::string(variables.status().message()), Not(HasSubstr("s3cret")));
}

TEST(RankEnvironmentTest, NodeWithoutAFolder_SaysHowToGiveItOne) {
  const auto variables = RankEnvironment(JobWith("secrets: {A: absent}"), "");
  ASSERT_EQ(ViolationsOf(variables.status()).size(), 1u);
  EXPECT_EQ(ViolationsOf(variables.status())[0].rule,
            "this node has no folder of secrets: start phalanx-worker with --secrets");
}

}  // namespace
}  // namespace phalanx::agent

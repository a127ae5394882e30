#include "core/base/empty_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace phalanx {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const std::vector<Violation>& violations) {
  std::vector<std::string> texts;
  for (const Violation& one : violations) texts.push_back(ToString(one));
  return texts;
}

class EmptyFlagsTest : public ::testing::Test {
 protected:
  EmptyFlagsTest() {
    app_.add_option("--server", server_);
    CLI::App* rerun = app_.add_subcommand("rerun");
    rerun->fallthrough();
    rerun->add_option("JOB,-f", job_)->required();
    rerun->add_option("--name", name_);
    rerun->add_option("--rank", ranks_)->check(CLI::Range(0, 9));
    rerun->add_flag("--wait", wait_);
    rerun->add_option("--reason", reason_)->required();
  }
  // As they are told, also where the parser does not understand the rest.
  std::vector<std::string> Read(std::vector<std::string> arguments) {
    try {
      app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError&) {
    }
    return Texts(EmptyFlagsOf(app_));
  }

  CLI::App app_;
  std::string server_, job_, name_, reason_;
  std::vector<int> ranks_;
  bool wait_ = false;
};

TEST_F(EmptyFlagsTest, ValuesThatAreEmpty_AreToldAllAtOnceByTheirNames) {
  EXPECT_THAT(
      Read({"--server", "", "rerun", "", "--name", "", "--reason", "", "--wait"}),
      ElementsAre("--server: \"\": must have a value, or be left out",
                  "JOB: \"\": must have a value", "--name: \"\": must have a value, or be left out",
                  "--reason: \"\": must have a value"));
}

TEST_F(EmptyFlagsTest, ValueThatBreaksAnotherRuleToo_IsTold) {
  EXPECT_THAT(Read({"rerun", "a", "--reason", "b", "--rank", "", "--name", ""}),
              ElementsAre("--name: \"\": must have a value, or be left out",
                          "--rank: \"\": must have a value, or be left out"));
}

TEST_F(EmptyFlagsTest, FlagsThatAreLeftOut_AreNotEmpty) {
  EXPECT_THAT(Read({"rerun", "a", "--reason", " ", "--wait"}), IsEmpty());
}

TEST_F(EmptyFlagsTest, ValuesThatAreNoText_AreToldAllAtOnceByTheirNames) {
  Read({"--server", "\xff", "rerun", "caf\xc3\xa9", "--name", "caf\xe9", "--reason", "b"});
  EXPECT_THAT(Texts(FlagsOfNoText(app_)), ElementsAre("--server: \"\xff\": must be UTF-8",
                                                      "--name: \"caf\xe9\": must be UTF-8"));
}

TEST(FlagsWithoutValueTest, ThatEndInEquals_AreTold) {
  const char* arguments[] = {"phalanx", "rerun",  "--name=",     "--server=a:1", "server=",
                             "--wait",  "--svg=", "--filter=a=", "--",           "--output="};
  EXPECT_THAT(Texts(FlagsWithoutValue(arguments)),
              ElementsAre("--name: \"\": must have a value, or be left out",
                          "--svg: \"\": must have a value, or be left out"));
}

TEST(TellEmptyFlagsTest, EachIsALineThatATerminalMayShow) {
  std::ostringstream out;
  EXPECT_EQ(TellEmptyFlags({EmptyFlag("--name", false), EmptyFlag("--\x1b[2J", true)}, out), 2);
  EXPECT_EQ(out.str(),
            "--name: \"\": must have a value, or be left out\n--\\x1b[2J: \"\": must have a "
            "value\n");
}

}  // namespace
}  // namespace phalanx

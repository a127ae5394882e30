#include "worker/rank/incident_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::rank {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct IncidentFilesTest : public ::testing::Test {
  const std::string folder = support::MakeFolder("incident");
  const std::string path = folder + "/incidents/3/incident.json";
};

TEST_F(IncidentFilesTest, File_IsReplacedWhole) {
  ASSERT_TRUE(WriteIncidentFile(folder, 3, "one").ok());
  EXPECT_EQ(support::ReadFile(path), "one");
  support::WriteFile(folder + "/incidents/3/.incident.json.new", "left by one that was killed");
  ASSERT_TRUE(WriteIncidentFile(folder, 3, "two").ok());
  EXPECT_EQ(support::ReadFile(path), "two");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/incidents/3"))
    names.push_back(entry.path().filename());
  EXPECT_THAT(names, ElementsAre("incident.json"));
}

TEST_F(IncidentFilesTest, Links_AreNotFollowed) {
  const std::string elsewhere = support::MakeFolder("elsewhere");
  support::WriteFile(elsewhere + "/file", "mine");
  std::filesystem::create_directories(folder + "/incidents/3");
  std::filesystem::create_symlink(elsewhere + "/file", path);
  ASSERT_TRUE(WriteIncidentFile(folder, 3, "one").ok()) << "the link itself is replaced";
  EXPECT_EQ(support::ReadFile(elsewhere + "/file"), "mine");
  EXPECT_EQ(support::ReadFile(path), "one");
  std::filesystem::create_directory_symlink(elsewhere, folder + "/incidents/4");
  const absl::Status refused = WriteIncidentFile(folder, 4, "one");
  EXPECT_THAT(std::string(refused.message()), HasSubstr(folder + "/incidents/4"));
  EXPECT_FALSE(std::filesystem::exists(elsewhere + "/incident.json"));
}

TEST_F(IncidentFilesTest, OutputThatLeadsOutOfTheFoldersOfTheNodeByNow_GetsNone) {
  namespace fs = std::filesystem;
  const std::string mine = fs::canonical(folder);
  const std::string other = fs::canonical(support::MakeFolder("elsewhere"));
  fs::create_directory(mine + "/out");
  ASSERT_TRUE(WriteIncidentFile(mine + "/out", 3, "one", {mine}).ok());
  EXPECT_EQ(support::ReadFile(mine + "/out/incidents/3/incident.json"), "one");
  fs::rename(mine + "/out", mine + "/moved");
  fs::create_directory_symlink(other, mine + "/out");
  std::vector<std::string> told;
  {
    IncidentFiles files([&](const v1::WriteIncident&, const absl::Status& status) {
      told.emplace_back(status.message());
    });
    v1::WriteIncident order;
    order.set_output(mine + "/out");
    order.set_number(4);
    order.add_folders(mine);
    files.Write(order);
  }
  EXPECT_THAT(told,
              ElementsAre(absl::StrCat("cannot open the output folder ", mine, "/out: leads to ",
                                       other, "; must lead below ", mine)));
  EXPECT_TRUE(fs::is_empty(other));
}

TEST_F(IncidentFilesTest, WhatCannotBeWritten_IsTold) {
  support::WriteFile(folder + "/incidents", "a file in its place");
  std::vector<std::string> told;
  {
    IncidentFiles files([&](const v1::WriteIncident& order, const absl::Status& status) {
      told.push_back(absl::StrCat(order.number(), ": ", status.message()));
    });
    v1::WriteIncident order;
    order.set_output(folder);
    order.set_number(3);
    files.Write(order);
    order.set_output(support::MakeFolder("other"));
    files.Write(order);
  }
  EXPECT_THAT(told, ElementsAre(HasSubstr(absl::StrCat("3: cannot open the folder ", folder))));
}

}  // namespace
}  // namespace phalanx::rank

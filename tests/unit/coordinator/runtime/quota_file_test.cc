#include "coordinator/runtime/quota_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <string>

#include "core/posix/whole_file.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(60);

class QuotaFileTest : public testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteWholeFile(path_, text).ok()); }

  const std::string path_ = testing::TempDir() + "/quotas-" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".yaml";
};

TEST_F(QuotaFileTest, Violations_AreNamedWithFileAndLine) {
  Write("default: {}\nowners: {alice: {devices_max: x, jobs_max: y}}\n");
  const absl::Status status = ReadQuotaFile(path_, "--quotas").status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--quotas: " + path_ + ":2: owners.alice.devices_max: x: must be"),
                    HasSubstr("owners.alice.jobs_max: y: must be")));
}

TEST_F(QuotaFileTest, FileThatIsNotThere_IsNamed) {
  std::filesystem::remove(path_);
  EXPECT_THAT(std::string(ReadQuotaFile(path_, "--quotas").status().message()),
              HasSubstr("--quotas: " + path_));
}

TEST_F(QuotaFileTest, FileThatChanges_IsReadAgain_AndOneThatIsSpoiltChangesNothing) {
  Write("default: {jobs_max: 1}");
  const auto first = ReadQuotaFile(path_, "--quotas");
  ASSERT_TRUE(first.ok());
  std::promise<std::string> told;
  std::promise<Quotas> changed;
  const QuotaFile file({.file = path_,
                        .name = "--quotas",
                        .quotas = *first,
                        .refresh_interval = absl::Milliseconds(1),
                        .warn = [&](const std::string& line) { told.set_value(line); },
                        .changed = [&](const Quotas& quotas) { changed.set_value(quotas); }});
  Write("default: {jobs_max: none}");
  std::future<std::string> line = told.get_future();
  ASSERT_EQ(line.wait_for(kPatience), std::future_status::ready);
  EXPECT_THAT(line.get(), HasSubstr("the quotas of before hold"));
  Write("default: {jobs_max: 2}");
  std::future<Quotas> quotas = changed.get_future();
  ASSERT_EQ(quotas.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(quotas.get().others.jobs_max, 2);
}

}  // namespace
}  // namespace phalanx::coordinator

// phalanx-coordinator --check-store, the program, on stores of every condition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "coordinator/store/sqlite.h"
#include "coordinator/store/sqlite_backend.h"
#include "coordinator/wire/record_codec.h"
#include "tests/support/files.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckStoreTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_ + "/journal.db"; }
  // A store with `jobs` queued jobs.
  void Make(int64_t jobs) {
    auto backend = *SqliteBackend::Open(path());
    Batch batch;
    for (int64_t job = 1; job <= jobs; ++job) {
      const Record record{.time = absl::FromUnixSeconds(1'700'000'000),
                          .job = JobId{job},
                          .body = JobSubmitted{std::make_shared<const JobRequest>(JobRequest{
                                                   .document = {.text = "text", .directory = "/d"},
                                                   .name = absl::StrCat("job-of-", job),
                                                   .steps = 1}),
                                               ""}};
      const auto number = static_cast<uint64_t>(job);
      batch.records.push_back(
          {.number = number, .job = JobId{job}, .bytes = EncodeRecord(record, number)});
    }
    ASSERT_TRUE(backend->Commit(batch).ok());
  }
  void Execute(const std::string& sql) {
    ASSERT_TRUE(sqlite::Connection::Open(path(), SQLITE_OPEN_READWRITE)->Execute(sql).ok());
  }
  support::Finished Check() const {
    return support::RunToEnd(
        {support::Program("phalanx-coordinator"), "--store", folder_, "--check-store"});
  }

  const std::string folder_ = support::MakeFolder("check-store");
};

TEST_F(CheckStoreTest, Sound_IsWholeAndEndsWithZero) {
  Make(2);
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  EXPECT_THAT(check.out, AllOf(HasSubstr("2 records, 0 ended jobs"), HasSubstr("is whole")));
}

TEST_F(CheckStoreTest, WithoutARecord_IsWhole) {
  Make(0);
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 0) << check.talk;
  EXPECT_THAT(check.out, AllOf(HasSubstr("0 records"), HasSubstr("is whole")));
}

TEST_F(CheckStoreTest, DamagedRecord_IsNamedAndEndsWithOne) {
  Make(2);
  Execute(
      "UPDATE journal SET record = substr(record, 1, 20) || x'FF' || substr(record, 22) "
      "WHERE number = 2");
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out, AllOf(HasSubstr("record 2 of job-2"), HasSubstr("checksum"),
                               HasSubstr("the store is damaged")));
  EXPECT_THAT(check.talk, HasSubstr("the store is damaged"));
}

TEST_F(CheckStoreTest, FileThatIsNoDatabase_EndsWithOne) {
  std::ofstream(path()) << std::string(10'000, 'x');
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.out + check.talk, HasSubstr("not a database"));
}

TEST_F(CheckStoreTest, NoStore_SaysSoAndMakesNone) {
  const support::Finished check = Check();
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_THAT(check.talk, HasSubstr("there is no store at " + path()));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace phalanx::coordinator

// Stores on etcd that are damaged, and what is said of them.
#include "coordinator/store/etcd_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/store/archive.h"
#include "coordinator/store/etcd_tokens.h"
#include "coordinator/wire/record_codec.h"
#include "tests/support/tools.h"
#include "tests/unit/coordinator/store/entries.h"
#include "tests/unit/coordinator/store/etcd_disk.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class EtcdCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PHALANX_SKIP_WITHOUT_TOOL(support::EtcdMissing());
    disk_.emplace();
  }
  EtcdKeys Keys() const { return EtcdKeys(disk_->place.prefix); }
  absl::StatusOr<StoreReport> Check() const {
    return CheckEtcdStore(*disk_->NewClient(), disk_->place.prefix);
  }
  // A live job with a record of several parts, and one that has ended.
  void MakeStore() {
    auto backend = *disk_->Open();
    const std::vector<StoredRecord> records = SomeRecords(std::string(600'000, 'x'));
    ASSERT_TRUE(backend->Commit({.records = records}).ok());
    const auto ended = *MakeEndedJob(JobId{2}, *backend->RecordsOf(JobId{2}));
    ASSERT_TRUE(backend->Commit({.ended = {*ended}}).ok());
  }
  void Put(const std::string& key, const std::string& value) {
    etcdserverpb::TxnRequest request;
    etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(key);
    put.set_value(value);
    ASSERT_TRUE(disk_->NewClient()->Write(request).ok());
  }
  void Delete(const std::string& key) {
    etcdserverpb::TxnRequest request;
    request.add_success()->mutable_request_delete_range()->set_key(key);
    ASSERT_TRUE(disk_->NewClient()->Write(request).ok());
  }
  std::string Get(const std::string& key) {
    return EtcdPage(*disk_->NewClient(), key, "", 1)->kvs(0).value();
  }

  std::optional<EtcdDisk> disk_;
};

TEST_F(EtcdCheckTest, PrefixWithoutAStore_IsNotFound) {
  EXPECT_EQ(Check().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EtcdCheckTest, WholeStore_HasNoProblems_AlsoWhileItIsOpen) {
  MakeStore();
  EXPECT_THAT(Lines(*Check()),
              ElementsAre("schema 1, 1 records, 1 ended jobs: the store is whole"));
  const auto backend = *disk_->Open();
  EXPECT_THAT(Check()->problems, IsEmpty());
}

TEST_F(EtcdCheckTest, DamagedRecord_IsNamed) {
  MakeStore();
  const std::string key = EtcdKeys::Part(Keys().Record(JobId{1}, 1), 1);
  std::string bytes = Get(key);
  bytes[100] ^= 1;
  Put(key, bytes);
  EXPECT_THAT(Check()->problems, ElementsAre(HasSubstr("record 1 of job-1")));
  EXPECT_THAT(Lines(*Check()).back(), HasSubstr("the store is damaged"));
}

TEST_F(EtcdCheckTest, RecordWithoutOneOfItsParts_IsNamed) {
  MakeStore();
  Delete(EtcdKeys::Part(Keys().Record(JobId{1}, 1), 1));
  EXPECT_THAT(Check()->problems, ElementsAre(HasSubstr("record 1 of job-1 lacks a part")));
}

TEST_F(EtcdCheckTest, RecordAboveTheLastNumber_IsNamed) {
  MakeStore();
  Put(EtcdKeys::Part(Keys().Record(JobId{1}, 9), 0), SomeRecords("text", 9)[0].bytes);
  EXPECT_THAT(Check()->problems,
              ElementsAre(HasSubstr("record 9 of job-1 has a number above the last")));
}

TEST_F(EtcdCheckTest, WhatAnEndedJobLacks_IsNamed) {
  MakeStore();
  Delete(EtcdKeys::Part(Keys().Details(JobId{2}), 0));
  Delete(Keys().NameOf("b", JobId{2}));
  EXPECT_THAT(Check()->problems,
              UnorderedElementsAre(HasSubstr("the details of job-2 cannot be found"),
                                   HasSubstr("the key of the name of job-2 cannot be found")));
}

TEST_F(EtcdCheckTest, WhatBelongsToNoEndedJob_IsNamed_AndSoIsTheCount) {
  MakeStore();
  Delete(Keys().Entry(JobId{2}));
  const StoreReport report = *Check();
  EXPECT_THAT(report.problems, Contains(HasSubstr("belongs to no job that has ended")));
  EXPECT_THAT(report.problems, Contains(HasSubstr("is the name of no job that has ended")));
  EXPECT_THAT(report.problems, Contains(HasSubstr("is the end of no job that has ended")));
  EXPECT_THAT(report.problems, Contains(HasSubstr("above that of their entries by 1")));
}

TEST_F(EtcdCheckTest, DamagedTokenAndRequestId_AreNamed) {
  MakeStore();
  Put(Keys().Token("0123456789abcdef"), "no token");
  Put(Keys().Request("r"), "no request");
  EXPECT_THAT(Check()->problems,
              UnorderedElementsAre(HasSubstr("the join token"), HasSubstr("request/")));
}

TEST_F(EtcdCheckTest, StoreOfANewerVersion_IsNamed) {
  MakeStore();
  v1::EtcdState state;
  ASSERT_TRUE(state.ParseFromString(Get(Keys().State())));
  state.set_schema(kEtcdSchema + 1);
  Put(Keys().State(), state.SerializeAsString());
  const StoreReport report = *Check();
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr("has schema version 2")));
  EXPECT_FALSE(report.damaged);
  EXPECT_EQ(Lines(report).back(), "this coordinator cannot read the store");
}

}  // namespace
}  // namespace phalanx::coordinator

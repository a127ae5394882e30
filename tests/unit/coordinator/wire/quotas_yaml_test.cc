#include "coordinator/wire/quotas_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReadQuotas, WhatIsWritten_Holds_AndTheRestHasNoBound) {
  const auto quotas = ReadQuotas(R"(
default: {devices_max: 16, jobs_max: 4, queued_max: 100}
owners:
  alice: {devices_max: 64, weight: 2.5, priority_max: -3}
  build: {jobs_max: 1}
)");
  ASSERT_TRUE(quotas.ok()) << quotas.status();
  EXPECT_EQ(quotas->Of("anybody"), (Quota{.devices_max = 16, .jobs_max = 4, .queued_max = 100}));
  EXPECT_EQ(quotas->Of("alice"), (Quota{.devices_max = 64, .priority_max = -3, .weight = 2.5}));
  EXPECT_EQ(quotas->Of("build"), (Quota{.jobs_max = 1}));
}

TEST(ReadQuotas, EmptyText_SaysNoMoreThanNone) {
  const auto quotas = ReadQuotas("");
  ASSERT_TRUE(quotas.ok());
  EXPECT_EQ(quotas->Of("alice"), Quota());
}

TEST(ReadQuotas, Violations_AreNamedAllAtOnce) {
  const absl::Status status = ReadQuotas(R"(
default: {devices_max: -1, job_max: 4}
owners:
  alice: {devices_max: many, weight: 0, priority_max: high}
  bob: 7
owner: {}
)")
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("default.devices_max: -1: must be a whole number of at least 0"),
            HasSubstr("default.job_max: 4: unknown field; did you mean jobs_max?"),
            HasSubstr("owners.alice.devices_max: many: must be a whole number of at least 0"),
            HasSubstr("owners.alice.weight: 0: must be a number above 0"),
            HasSubstr("owners.alice.priority_max: high: must be a whole number"),
            HasSubstr("owners.bob: 7: must be a mapping"),
            HasSubstr("owner: {}: unknown field; did you mean owners?")));
}

TEST(ReadQuotas, OwnerThatIsThereTwice_IsRefused) {
  EXPECT_THAT(std::string(ReadQuotas("owners: {a: {}, a: {}}").status().message()),
              HasSubstr("owners.a: {}: is there twice"));
}

}  // namespace
}  // namespace phalanx::coordinator

// Whose a job is, and who else may end it.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
using ::testing::Eq;
using ::testing::HasSubstr;

TEST_F(AccessTest, Job_IsOfWhoeverSubmittedIt) {
  Be("sue", "submitter");
  MustSubmit(JobText("sues"));
  Be("sam", "submitter");
  const int64_t job = MustSubmit(JobText("sams"));
  EXPECT_EQ(Get("sams").owner(), "sam");
  EXPECT_THAT(NamesOf("sam"), ::testing::ElementsAre("sams"));
  EXPECT_THAT(NamesOf("nobody"), ::testing::IsEmpty());

  server_.reset();
  Open();
  Be("sue", "submitter");
  v1::SuspendJobResponse suspended;
  EXPECT_THAT(Cancel("sams").error_message(),
              Eq("job-2 is sam's; only they or an operator may cancel it"));
  EXPECT_EQ(Ask(&v1::JobService::Stub::SuspendJob, "sams", &suspended).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Get("sams").phase(), v1::JOB_PHASE_QUEUED) << "nothing has changed";
  EXPECT_FALSE(Get("sams").suspended());

  Be("olga", "operator");
  EXPECT_TRUE(Ask(&v1::JobService::Stub::SuspendJob, "sams", &suspended).ok());
  EXPECT_EQ(Get("sams").reason(), "suspended by olga");
  Be("sam", "submitter");
  EXPECT_TRUE(Cancel("sams").ok());
  EXPECT_EQ(Get("sams").reason(), "cancelled by sam");
  EXPECT_THAT(Audit(), Contains(absl::StrCat("audit who=sam role=submitter method=CancelJob job=",
                                             job, " outcome=OK")));
  EXPECT_THAT(Audit(),
              Contains(HasSubstr(absl::StrCat("audit who=sue role=submitter method=CancelJob job=",
                                              job, " outcome=PERMISSION_DENIED reason="))));
}

TEST_F(AccessTest, JobThatHasEnded_IsStillItsOwners) {
  Be("sam", "submitter");
  MustSubmit(JobText("sams"));
  EXPECT_TRUE(Cancel("sams").ok());
  server_.reset();
  Open();
  Be("sue", "submitter");
  EXPECT_EQ(Get("sams").owner(), "sam");
  EXPECT_EQ(Delete("sams").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Cancel("sams").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  Be("sam", "submitter");
  EXPECT_TRUE(Delete("sams").ok());
}

TEST_F(AccessTest, JobOfTimesOfPlaintext_IsForOperators) {
  server_.reset();
  Start();  // in plaintext
  MustSubmit(JobText("old"));
  EXPECT_EQ(Get("old").owner(), "");
  server_.reset();
  Open();
  Be("sam", "submitter");
  EXPECT_THAT(Cancel("old").error_message(),
              Eq("job-1 has no owner; only an operator may cancel it"));
  Be("olga", "operator");
  EXPECT_TRUE(Cancel("old").ok());
}

TEST_F(AccessTest, RequestIdOfSomebodyElse_IsAnother) {
  v1::SubmitJobResponse first, second, again;
  Be("sam", "submitter");
  ASSERT_TRUE(Submit(JobText("sams"), first, "1").ok());
  Be("sue", "submitter");
  const grpc::Status status = Submit(JobText("sues"), second, "1");
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(Submit(JobText("sues"), again, "1").ok());
  EXPECT_NE(second.job().id(), first.job().id());
  EXPECT_EQ(again.job().id(), second.job().id());
}

}  // namespace
}  // namespace phalanx::coordinator

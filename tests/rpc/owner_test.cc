// Whose a job is, and who else may end it.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

// What methods do to a job that is there: a verb of those that change it; empty: they look, or ask
// for no such job. A new method fails the test below until it stands here.
const std::map<std::string, std::string>& VerbsOfMethods() {
  static const auto& verbs = *new std::map<std::string, std::string>{
      {"CancelJob", "cancel"}, {"DeleteJob", "delete"},   {"InjectFault", "harm"},
      {"ResumeJob", "resume"}, {"SuspendJob", "suspend"}, {"ExplainJob", ""},
      {"GetJob", ""},          {"GetLogs", ""},           {"ListEvents", ""},
      {"ListIncidents", ""},   {"ListJobs", ""},          {"WatchJob", ""},
      {"PlanJob", ""},         {"SubmitJob", ""},         {"CheckSubmit", ""},
      {"CordonNode", ""},      {"DrainNode", ""},         {"ListNodes", ""},
      {"ReserveNode", ""},     {"UncordonNode", ""},      {"UnreserveNode", ""},
      {"TryConnection", ""}};
  return verbs;
}

TEST_F(AccessTest, WhateverChangesAJob_IsForItsOwnerAndOperators) {
  Be("sam", "submitter");
  MustSubmit(JobText("over"));
  ASSERT_TRUE(Cancel("over").ok());
  MustSubmit(JobText("waits"));
  const std::string before = Everything();
  Be("sue", "submitter");
  const google::protobuf::ServiceDescriptor& service =
      *v1::SubmitJobRequest::descriptor()->file()->service(0);
  int changing = 0;
  for (int i = 0; i < service.method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *service.method(i);
    const auto known = VerbsOfMethods().find(method.name());
    ASSERT_TRUE(known != VerbsOfMethods().end()) << method.name() << " is new";
    const google::protobuf::FieldDescriptor* of_job = method.input_type()->FindFieldByName("job");
    if (known->second.empty()) continue;
    ++changing;
    ASSERT_NE(of_job, nullptr) << method.name();
    const std::string path = absl::StrCat("/", service.full_name(), "/", method.name());
    for (const char* job : {"over", "waits"}) {
      const std::unique_ptr<google::protobuf::Message> request(
          google::protobuf::MessageFactory::generated_factory()
              ->GetPrototype(method.input_type())
              ->New());
      request->GetReflection()->SetString(request.get(), of_job, job);
      const grpc::Status refused = Call(channel, path, request->SerializeAsString());
      EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED) << path;
      EXPECT_THAT(refused.error_message(),
                  HasSubstr(absl::StrCat(" is sam's; only they or an operator may ", known->second,
                                         " it")));
      EXPECT_THAT(Audit().back(),
                  ::testing::AllOf(HasSubstr(absl::StrCat(
                                       "who=sue role=submitter method=", method.name(), " job=")),
                                   HasSubstr(" outcome=PERMISSION_DENIED reason=")));
      EXPECT_EQ(Everything(), before) << path;
    }
  }
  EXPECT_EQ(changing, 5);
  Be("olga", "operator");
  v1::SuspendJobResponse suspended;
  EXPECT_TRUE(Ask(&v1::JobService::Stub::SuspendJob, "waits", &suspended).ok());
  Be("sam", "submitter");
  v1::ResumeJobResponse resumed;
  EXPECT_TRUE(Ask(&v1::JobService::Stub::ResumeJob, "waits", &resumed).ok());
}

// Also where a layout is still to be searched for.
TEST_F(AccessTest, NameOfALiveJob_IsTakenForAllOwners_AsADryRunSaysToo) {
  Be("sam", "submitter");
  const std::string taken = absl::StrCat("job-", MustSubmit(JobText("a")));
  const std::string open = absl::StrReplaceAll(
      JobText("a"),
      {{"{ranks: 1, tp: 1}", "auto"}, {"{device: cpu}", "{device: cpu, devices: 2}"}});
  const auto expect_taken = [&](const std::string& message) {
    for (const std::string& text : {JobText("a"), open}) {
      v1::SubmitJobResponse response;
      for (const grpc::Status& refused : {CheckSubmit(text), Submit(text, response)}) {
        EXPECT_EQ(refused.error_code(), grpc::StatusCode::ALREADY_EXISTS);
        EXPECT_EQ(refused.error_message(), message);
      }
    }
  };
  expect_taken(taken + " is named \"a\" and has not ended; cancel it or choose another name");
  Be("sue", "submitter");
  expect_taken(taken + " of sam is named \"a\" and has not ended; choose another name");
  EXPECT_TRUE(CheckSubmit(JobText("b")).ok());
  Be("sam", "submitter");
  ASSERT_TRUE(Cancel("a").ok());
  Be("sue", "submitter");
  EXPECT_TRUE(CheckSubmit(JobText("a")).ok());
  MustSubmit(JobText("a"));
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

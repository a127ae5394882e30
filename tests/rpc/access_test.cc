// Who may do what: the table of methods, identities, and lines of the audit.
#include "coordinator/rpc/access.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/audit.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(AccessTableTest, EveryMethod_HasARow) {
  ASSERT_GT(Methods().size(), 23u);
  for (const std::string& method : Methods()) {
    bool any = false;
    for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kWorker})
      any = any || MayCall(role, method).ok();
    EXPECT_TRUE(any) << method << " has no row in coordinator/rpc/access.cc";
  }
}

TEST(AccessTableTest, MethodWithoutARow_IsForNobody) {
  for (const Role role : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kWorker}) {
    for (const char* path : {"/phalanx.v1.JobService/Other", "GetJob", ""})
      EXPECT_TRUE(absl::IsPermissionDenied(MayCall(role, path))) << path;
  }
  EXPECT_EQ(MethodOf("/phalanx.v1.JobService/Other"), "unknown");
}

TEST(AccessTableTest, Identity_IsARoleAndAName) {
  const absl::StatusOr<Identity> identity = ParseIdentity("phalanx:operator/olga@example.org");
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->name, "olga@example.org");
  EXPECT_EQ(identity->role, Role::kOperator);
  for (const std::string& uri :
       {std::string("phalanx:operator/"), std::string("phalanx:root/a"),
        std::string("phalanx:operator"), std::string("operator/a"),
        std::string("phalanx:operator/a b"), std::string("phalanx:operator/a/b"),
        std::string("phalanx:operator/a\n"),
        absl::StrCat("phalanx:viewer/", std::string(254, 'a'))}) {
    EXPECT_TRUE(absl::IsUnauthenticated(ParseIdentity(uri).status())) << uri;
  }
}

TEST(AuditTest, TextOfACaller_EndsNeitherTheQuotesNorTheLine) {
  EXPECT_EQ(AuditLine(Identity{"sam", Role::kSubmitter}, "CancelJob", "",
                      absl::NotFoundError("no \"x\\\" outcome=OK\n\x1b[2J")),
            "audit who=sam role=submitter method=CancelJob outcome=NOT_FOUND "
            "reason=\"no \\\"x\\\\\\\" outcome=OK\\n\\x1b[2J\"");
  EXPECT_EQ(AuditLine(std::nullopt, "DrainNode", "node=\"a\"", absl::OkStatus()),
            "audit who=- role=- method=DrainNode node=\"a\" outcome=OK");
}

TEST_F(AccessTest, Worker_ServesTheNodeOfItsCertificate) {
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  FakeWorker other(to);
  other.SayHello(FakeWorker::Hello("there", 1, 1));
  EXPECT_FALSE(other.Read().has_value());
  const grpc::Status refused = other.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("of node here"));
  FakeWorker own(to);
  own.Join("here", 1);
}

}  // namespace
}  // namespace phalanx::coordinator

// Who may do what: the table of methods, and a call of each role to each of them.
#include "coordinator/rpc/access.h"

#include <google/protobuf/descriptor.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/audit.h"
#include "gmock/gmock.h"
#include "phalanx/v1/join_service.pb.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// Every method of ours, as "/phalanx.v1.JobService/GetJob".
std::vector<std::string> Methods() {
  std::vector<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::SubmitJobRequest::descriptor()->file(), v1::WorkerHello::descriptor()->file(),
        v1::JoinRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor& service = *file->service(i);
      for (int k = 0; k < service.method_count(); ++k)
        methods.push_back(absl::StrCat("/", service.full_name(), "/", service.method(k)->name()));
    }
  }
  return methods;
}

// What is not for viewers and up, as docs/security.md has it.
bool Expected(Role role, const std::string& path) {
  static const std::set<std::string> submitters = {"SubmitJob", "CancelJob", "SuspendJob",
                                                   "ResumeJob", "DeleteJob", "InjectFault"};
  static const std::set<std::string> operators = {"CordonNode",  "UncordonNode",  "DrainNode",
                                                  "ReserveNode", "UnreserveNode", "CreateToken",
                                                  "ListTokens",  "RevokeToken"};
  const std::string method = path.substr(path.rfind('/') + 1);
  if (method == "Join") return true;
  if (path.find("WorkerService") != std::string::npos || method == "RenewCertificate")
    return role == Role::kWorker;
  if (role == Role::kWorker) return false;
  if (operators.contains(method)) return role == Role::kOperator;
  return role != Role::kViewer || !submitters.contains(method);
}

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

class RoleTest : public AccessTest, public ::testing::WithParamInterface<Role> {};

TEST_P(RoleTest, EachMethod_IsForItsRolesAlone) {
  server_.reset();
  const std::string folder = support::MakeFolder("roles");
  Open([&](ServerOptions& options) { LetNodesJoin(options, folder + "/join-tokens"); });
  const std::shared_ptr<grpc::Channel> to = ChannelOf(FilesOf(GetParam()));
  for (const std::string& method : Methods()) {
    const grpc::Status status = Call(to, method);
    const bool denied = status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
    EXPECT_EQ(!denied, Expected(GetParam(), method)) << method << ": " << status.error_message();
    // What is let pass gets to our code, and an empty request says nothing to it.
    EXPECT_THAT(status.error_code(),
                AnyOf(grpc::StatusCode::OK, grpc::StatusCode::PERMISSION_DENIED,
                      grpc::StatusCode::NOT_FOUND, grpc::StatusCode::INVALID_ARGUMENT))
        << method << ": " << status.error_message();
  }
  EXPECT_TRUE(Call(to, "/grpc.health.v1.Health/Check").ok());
  EXPECT_EQ(Call(to, "/phalanx.v1.JobService/Other").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  if (GetParam() == Role::kOperator) return;
  const std::string refused = absl::StrCat("role=", RoleName(GetParam()), " method=DrainNode ");
  EXPECT_THAT(Audit(), Contains(AllOf(HasSubstr(refused), HasSubstr("PERMISSION_DENIED"))));
}

INSTANTIATE_TEST_SUITE_P(All, RoleTest,
                         ::testing::Values(Role::kViewer, Role::kSubmitter, Role::kOperator,
                                           Role::kWorker),
                         [](const auto& info) { return std::string(RoleName(info.param)); });

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

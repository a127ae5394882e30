// Who may do what: the table of methods, identities, and lines of the audit.
#include "coordinator/rpc/access.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/rpc/audit.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::Contains;
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

class ReflectionTest : public AccessTest {
 protected:
  // By gRPC's reflection, whose messages the library brings without a header; empty: it was
  // refused.
  static std::set<std::string> ServicesOf(const std::shared_ptr<grpc::Channel>& to) {
    using google::protobuf::Message;
    const auto message = [](const char* name) {
      const auto* const type =
          google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(
              absl::StrCat("grpc.reflection.v1alpha.ServerReflection", name));
      return std::unique_ptr<Message>(
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
    };
    const auto field = [](const Message& of, const char* name) {
      return of.GetDescriptor()->FindFieldByName(name);
    };
    const std::unique_ptr<Message> request = message("Request"), response = message("Response");
    request->GetReflection()->SetString(request.get(), field(*request, "list_services"), "all");
    // A stream of one message either way is no different from a call of one, to the server.
    const std::string path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
    std::string bytes;
    if (!Call(to, path, request->SerializeAsString(), &bytes).ok()) return {};
    EXPECT_TRUE(response->ParseFromString(bytes));
    const Message& list = response->GetReflection()->GetMessage(
        *response, field(*response, "list_services_response"));
    std::set<std::string> names;
    for (const Message& service :
         list.GetReflection()->GetRepeatedFieldRef<Message>(list, field(list, "service"))) {
      names.insert(service.GetReflection()->GetString(service, field(service, "name")));
    }
    return names;
  }
};

// What the server itself says that it serves: no service escapes the tests of roles, which have a
// case for each of Methods(), and no method of another one is open by chance.
TEST_F(ReflectionTest, ServicesThatAreServed_AreThoseWhoseMethodsHaveCases) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.reflection = true;
    LetNodesJoin(options, support::MakeFolder("services") + "/join-tokens");
  });
  std::set<std::string> expected = {"grpc.health.v1.Health",
                                    "grpc.reflection.v1alpha.ServerReflection"};
  for (const std::string& method : Methods())
    expected.insert(method.substr(1, method.rfind('/') - 1));
  EXPECT_EQ(ServicesOf(ChannelOf(FilesOf(Role::kOperator))), expected);
  EXPECT_THAT(ServicesOf(ChannelOf(FilesOf(Role::kWorker))), ::testing::IsEmpty());
  EXPECT_THAT(Audit(), Contains(HasSubstr("who=here role=worker method=ServerReflectionInfo "
                                          "outcome=PERMISSION_DENIED")));
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
  EXPECT_THAT(Audit(), Contains("audit who=here role=worker method=OpenSession node=\"there\" "
                                "outcome=PERMISSION_DENIED reason=\"the certificate is of node "
                                "here, and the worker says that it is node there\""));
  EXPECT_THAT(server_->MetricsText(),
              HasSubstr("phalanx_rpc_handled_total{code=\"PERMISSION_DENIED\","
                        "method=\"OpenSession\"} 1"));
  FakeWorker own(to);
  own.Join("here", 1);
  EXPECT_THAT(Audit(), Contains("audit who=here role=worker method=OpenSession node=\"here\" "
                                "outcome=OK"));
}

TEST_F(AccessTest, Worker_WithTooManyLabels_IsRefusedAndRecorded) {
  v1::WorkerHello hello = FakeWorker::Hello("here", 1, 1);
  for (int i = 0; i < 65; ++i) (*hello.mutable_labels())[absl::StrCat("k", i)] = "v";
  const std::string before = Everything();
  FakeWorker worker(ChannelOf(authority().Worker("here")));
  worker.SayHello(hello);
  EXPECT_FALSE(worker.Read().has_value());
  const grpc::Status refused = worker.Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("hello has 65 labels"));
  EXPECT_THAT(Audit(), Contains(HasSubstr("who=here role=worker method=OpenSession node=\"here\" "
                                          "outcome=INVALID_ARGUMENT reason=\"hello has 65 ")));
  EXPECT_EQ(Everything(), before) << "nothing has changed";
}

// A flood of one worker's refusals is cut, and hides no line of others.
TEST_F(AccessTest, Worker_WhoIsRefusedTooOften_HidesNobodysLine) {
  server_.reset();
  Open([](ServerOptions& options) {
    options.refusals = {.calls_per_second = 0.001, .calls_at_once = 2};
  });
  const std::shared_ptr<grpc::Channel> to = ChannelOf(authority().Worker("here"));
  for (int i = 0; i < 5; ++i) {
    FakeWorker other(to);
    other.SayHello(FakeWorker::Hello("there", 1, 1));
    EXPECT_FALSE(other.Read().has_value());
  }
  FakeWorker neighbour(ChannelOf(authority().Worker("neighbour")));
  neighbour.Join("neighbour", 1);
  const std::vector<std::string> lines = Audit();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) {
                            return absl::StrContains(line, "outcome=PERMISSION_DENIED");
                          }),
            2);
  EXPECT_THAT(lines, Contains("audit left_out=3 reason=\"who=worker/here is refused too often\""));
  EXPECT_THAT(lines, Contains(HasSubstr("who=neighbour role=worker method=OpenSession "
                                        "node=\"neighbour\" outcome=OK")));
}

}  // namespace
}  // namespace phalanx::coordinator

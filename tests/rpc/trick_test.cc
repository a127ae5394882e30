// Names and paths that are tricks: out of their folder, with a NUL or a line end, or too long. Each
// is refused with its field and recorded, and nothing changes.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/terminal_text.h"
#include "gmock/gmock.h"
#include "tests/rpc/access_fixture.h"

namespace phalanx::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kLong(10240, 'a');

class TrickTest : public AccessTest {
 protected:
  void SetUp() override {
    AccessTest::SetUp();
    static const transport::TlsFiles olga = authority().User("olga", "operator");
    channel = ChannelOf(olga);
    jobs = v1::JobService::NewStub(channel);
  }
  void TearDown() override {
    EXPECT_TRUE(disk->records().empty()) << "something was stored";
    v1::ListJobsResponse list;
    v1::ListNodesResponse nodes;
    grpc::ClientContext of_jobs, of_nodes;
    SetDeadline(of_jobs);
    SetDeadline(of_nodes);
    EXPECT_TRUE(jobs->ListJobs(&of_jobs, {}, &list).ok());
    EXPECT_TRUE(jobs->ListNodes(&of_nodes, {}, &nodes).ok());
    EXPECT_EQ(list.jobs_size(), 0);
    EXPECT_EQ(nodes.nodes_size(), 0);
    AccessTest::TearDown();
  }
  // The audit's last line is of this method and outcome, short, and one line.
  void ExpectTold(const std::string& who, const std::string& method, const std::string& outcome) {
    const std::vector<std::string> lines = Audit();
    ASSERT_FALSE(lines.empty());
    EXPECT_THAT(lines.back(),
                AllOf(StartsWith(absl::StrCat("audit ", who, " method=", method, " ")),
                      HasSubstr(absl::StrCat(" outcome=", outcome, " reason=\""))));
    EXPECT_LT(lines.back().size(), 2048u);
    EXPECT_TRUE(std::all_of(lines.back().begin(), lines.back().end(), [](unsigned char c) {
      return c >= 0x20 && c != 0x7F;
    })) << lines.back();
  }
  // Calls that look are counted alone.
  int Counted(const std::string& method, const std::string& code) const {
    const std::string metrics = server_->MetricsText();
    const std::string series =
        absl::StrCat("phalanx_rpc_handled_total{code=\"", code, "\",method=\"", method, "\"} ");
    const size_t at = metrics.find(series);
    return at == std::string::npos ? 0 : std::stoi(metrics.substr(at + series.size()));
  }
  // What the refusal says.
  std::string Refusal(const std::string& text, const std::string& directory) {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory(directory);
    v1::SubmitJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status status = jobs->SubmitJob(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    ExpectTold("who=olga role=operator", "SubmitJob", "INVALID_ARGUMENT");
    return status.error_message();
  }
  std::string RefusalOf(const v1::ListJobsRequest& request) {
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    const int before = Counted("ListJobs", "INVALID_ARGUMENT");
    const grpc::Status status = jobs->ListJobs(&context, request, &response);
    EXPECT_EQ(Counted("ListJobs", "INVALID_ARGUMENT"), before + 1);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    return status.error_message();
  }
};

TEST_F(TrickTest, Directory) {
  for (const auto& [directory, refusal] : std::vector<std::pair<std::string, std::string>>{
           {"", "must be an absolute path"},
           {"../x", "../x: must be an absolute path"},
           {"/tmp/../etc", "/tmp/../etc: must have no '..' in it"},
           {"/tmp/..", "/tmp/..: must have no '..' in it"},
           {"/tmp/a\nb", "/tmp/a b: must have no control characters"},
           {"/tmp/\x1b[2J", "/tmp/ [2J: must have no control characters"},
           {std::string("/tmp/\0b", 7), "/tmp/ b: must have no control characters"},
           {"/" + kLong, absl::StrCat("/", kLong.substr(0, 79),
                                      "... (10161 bytes more): may be at most 4096 bytes long")}}) {
    EXPECT_EQ(Refusal(JobText("a"), directory), "document.directory: " + refusal);
  }
}

TEST_F(TrickTest, NameOfAJob) {
  const std::string rule =
      "must be lower-case letters, digits and '-', at most 63, starting with a letter and not "
      "ending with '-'";
  EXPECT_EQ(Refusal(JobText("../x"), "/tmp"), "metadata.name: ../x: " + rule);
  EXPECT_EQ(Refusal(JobText("\"a\\nb\""), "/tmp"), "metadata.name: \"a b\": " + rule);
  EXPECT_THAT(Refusal(JobText("\"a\\0b\""), "/tmp"),
              EndsWith("control characters are not allowed"));
  EXPECT_EQ(Refusal(JobText(kLong), "/tmp"), absl::StrCat("metadata.name: ", kLong.substr(0, 80),
                                                          "...: may be at most 4096 bytes long"));
}

TEST_F(TrickTest, Label) {
  const auto refusal = [this](const std::string& label) {
    return Refusal(
        absl::StrReplaceAll(JobText("a"),
                            {{"{name: a}", absl::StrCat("{name: a, labels: {", label, "}}")}}),
        "/tmp");
  };
  EXPECT_EQ(refusal("k: \"x\\ny\""), "metadata.labels.k: \"x y\": must have no control characters");
  EXPECT_THAT(refusal("\"k\\nl\": x"), EndsWith(": x: must have no control characters"));
  EXPECT_THAT(refusal("k: \"x\\0y\""), EndsWith("control characters are not allowed"));
  EXPECT_EQ(refusal(absl::StrCat("k: \"", kLong, "\"")),
            absl::StrCat("metadata.labels.k: \"", kLong.substr(0, 79),
                         "...: may be at most 253 bytes long"));
  EXPECT_THAT(refusal(absl::StrCat(kLong.substr(0, 1000), ": x")),
              EndsWith(": x: a key has 1 to 253 bytes"));
}

TEST_F(TrickTest, PathOfAJob) {
  const auto refusal = [this](const std::string& more) {
    return Refusal(JobText("a") + more, "/tmp");
  };
  EXPECT_EQ(refusal("  output: \"a\\nb\"\n"),
            "spec.output: \"a b\": must have no control characters");
  EXPECT_EQ(refusal("  checkpoint: {directory: \"c\\td\", resume_from: \"d\\te\"}\n"),
            "spec.checkpoint.directory: \"c d\": must have no control characters (and 1 more "
            "violations)");
}

// It would be taken for a folder that is called so.
TEST_F(TrickTest, AddressWhereAPathIsMeant) {
  EXPECT_EQ(Refusal(JobText("a") + "  output: s3://bucket/a\n", "/tmp"),
            "spec.output: s3://bucket/a: must name files or folders of the nodes: this release "
            "knows no s3://");
}

TEST_F(TrickTest, FilterOfAList) {
  const auto owner = [this](const std::string& name) {
    v1::ListJobsRequest request;
    request.set_owner(name);
    return RefusalOf(request);
  };
  EXPECT_EQ(owner("../x"), "owner: \"../x\": must be letters, digits and ._@+-");
  EXPECT_EQ(owner("a\nb"), "owner: \"a\\nb\": must be letters, digits and ._@+-");
  EXPECT_EQ(owner(std::string("a\0z", 3)), "owner: \"a\\x00z\": must be letters, digits and ._@+-");
  EXPECT_EQ(owner(kLong), "owner: 10240 bytes: at most 253");
  v1::ListJobsRequest node;
  node.set_node("../x");
  EXPECT_EQ(RefusalOf(node), "node: \"../x\": must be letters, digits and ._-");
  node.set_node(kLong);
  EXPECT_EQ(RefusalOf(node), "node: 10240 bytes: at most 253");
}

TEST_F(TrickTest, JobAndNodeThatAreNotThere) {
  for (const std::string& name :
       {std::string("../x"), std::string("a\nb"), std::string("a\0b", 3), kLong}) {
    grpc::ClientContext get, cordon;
    SetDeadline(get);
    SetDeadline(cordon);
    v1::GetJobRequest job;
    job.set_job(name);
    v1::GetJobResponse got;
    const grpc::Status no_job = jobs->GetJob(&get, job, &got);
    EXPECT_EQ(no_job.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_EQ(no_job.error_message(),
              absl::StrCat("there is no job \"", LineText(name.substr(0, 128)), "\""));
    v1::CordonNodeRequest node;
    node.set_node(name);
    node.set_reason("why");
    v1::CordonNodeResponse cordoned;
    const grpc::Status no_node = jobs->CordonNode(&cordon, node, &cordoned);
    EXPECT_EQ(no_node.error_code(), grpc::StatusCode::NOT_FOUND);
    ExpectTold("who=olga role=operator", "CordonNode", "NOT_FOUND");
    EXPECT_EQ(no_node.error_message(),
              absl::StrCat("there is no node \"", LineText(name.substr(0, 128)),
                           "\"; phalanx nodes lists those there are"));
  }
}

TEST_F(TrickTest, NameOfANode) {
  const std::shared_ptr<grpc::Channel> here = ChannelOf(authority().Worker("here"));
  for (const std::string& name :
       {std::string(), std::string("../x"), std::string("a\nb"), std::string("a\0b", 3), kLong}) {
    FakeWorker worker(here);
    worker.SayHello(FakeWorker::Hello(name, 1, 1));
    EXPECT_FALSE(worker.Read().has_value());
    const grpc::Status refused = worker.Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refused.error_message(),
              "hello.node must be 1 to 253 bytes of letters, digits, '.', '_' and '-'");
    ExpectTold("who=here role=worker", "OpenSession", "INVALID_ARGUMENT");
  }
}

// What a worker says of its node is shown to people.
TEST_F(TrickTest, LabelOfANode) {
  const std::shared_ptr<grpc::Channel> here = ChannelOf(authority().Worker("here"));
  for (const auto& [value, shown] : std::vector<std::pair<std::string, std::string>>{
           {"a\nb", "a\\nb"}, {std::string("a\0b", 3), "a\\x00b"}, {"\x1b[2J", "\\x1b[2J"}}) {
    v1::WorkerHello hello = FakeWorker::Hello("here", 1, 1);
    (*hello.mutable_labels())["zone"] = value;
    FakeWorker worker(here);
    worker.SayHello(hello);
    EXPECT_FALSE(worker.Read().has_value());
    const grpc::Status refused = worker.Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refused.error_message(),
              absl::StrCat("hello.labels: ", shown, ": must have no control characters"));
    ExpectTold("who=here role=worker", "OpenSession", "INVALID_ARGUMENT");
  }
}

TEST_F(TrickTest, ReasonOfAMark) {
  for (const std::string& reason : {std::string("a\nb \x1b[2J"), kLong}) {
    v1::DrainNodeRequest request;
    request.set_node("../x");
    request.set_reason(reason);
    v1::DrainNodeResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_FALSE(jobs->DrainNode(&context, request, &response).ok());
    const std::vector<std::string> lines = Audit();
    EXPECT_THAT(lines.back(), HasSubstr("who=olga role=operator method=DrainNode "));
    EXPECT_EQ(lines.back().find_first_of("\n\x1b"), std::string::npos);
    EXPECT_LT(lines.back().size(), 2048u);
  }
}

}  // namespace
}  // namespace phalanx::coordinator

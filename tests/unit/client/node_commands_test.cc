// What a person reads of nodes that are taken out of service.
#include "client/node_commands.h"

#include <string>

#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "core/base/terminal_text.h"
#include "core/job/json.h"
#include "core/wire/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/client/fake_server.h"

namespace phalanx::client {
namespace {

using ::testing::HasSubstr;

TEST(NodeCommandsTest, Drain_SaysWhatBecomesOfEachJob) {
  FakeServer server;
  server.drain = [](const v1::DrainNodeRequest& request, v1::DrainNodeResponse* response) {
    EXPECT_EQ(request.node(), "a");
    EXPECT_EQ(request.reason(), "new fan");
    EXPECT_TRUE(request.force());
    response->mutable_node()->set_name("a");
    v1::JobOnNode* job = response->add_jobs();
    job->set_job(7);
    job->set_name("demo");
    job->set_what("saves its state, and then goes on elsewhere");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured, names;
  EXPECT_EQ(Drain(connection, {.node = "a", .reason = "new fan", .force = true}, captured.io),
            kSuccess);
  EXPECT_EQ(captured.talk.str(),
            "node a drains: nothing new is placed on it\n"
            "job-7 (demo) saves its state, and then goes on elsewhere\n");
  EXPECT_EQ(
      Drain(connection, {.node = "a", .reason = "new fan", .format = Format::kName, .force = true},
            names.io),
      kSuccess);
  EXPECT_EQ(names.out.str(), "a\n");
}

TEST(NodeCommandsTest, CordonAndUncordon_SayHowTheNodeIs) {
  FakeServer server;
  server.cordon = [](const v1::CordonNodeRequest& request, v1::CordonNodeResponse* response) {
    EXPECT_EQ(request.reason(), "new fan");
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  server.uncordon = [](const v1::UncordonNodeRequest& request, v1::UncordonNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured cordoned, uncordoned;
  EXPECT_EQ(Cordon(connection, {.node = "a", .reason = "new fan"}, cordoned.io), kSuccess);
  EXPECT_EQ(cordoned.talk.str(),
            "node a is cordoned: its jobs go on, and nothing new is placed on it\n");
  EXPECT_EQ(Uncordon(connection, {.node = "a"}, uncordoned.io), kSuccess);
  EXPECT_EQ(uncordoned.talk.str(), "node a takes jobs again\n");
}

class DescribeNodeTest : public ::testing::Test {
 protected:
  DescribeNodeTest() {
    server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
      response->add_nodes()->set_name("other");
      v1::NodeStatus& node = *response->add_nodes();
      node.set_name("a");
      node.set_state(v1::NodeStatus::STATE_READY);
      node.set_device_kind("gpu");
      node.set_devices(3);
      for (const int64_t job : {0, 0, 7}) node.add_device_jobs(job);
      for (const int32_t degrees : {41, 0, 63}) node.add_device_temperatures(degrees);
      for (int i = 0; i < 3; ++i) node.add_device_memory(i == 1 ? 0 : int64_t{80} << 30);
      for (const int64_t mib : {512, 0, 70'000}) node.add_device_used_memory(mib << 20);
      for (const char* name : {"NVIDIA H200", "", "NVIDIA H200"}) node.add_device_names(name);
      v1::SlowDevice& slow = *node.add_slow_devices();
      slow.set_job(7);
      slow.set_rank(5);
      slow.set_device(2);
      slow.set_ratio(2.5);
      slow.set_others(3);
      node.add_failed_devices(1);
      v1::DeviceCheck& sound = *node.mutable_check()->add_devices();
      sound.set_verdict(v1::DeviceCheck::VERDICT_PASSED);
      sound.set_memory_bytes(16 << 20);
      v1::DeviceCheck& failed = *node.mutable_check()->add_devices();
      failed.set_device(1);
      failed.set_verdict(v1::DeviceCheck::VERDICT_FAILED);
      failed.set_reason("memory: 1 word is wrong");
      node.mutable_check()->mutable_loopback()->set_bytes_per_second(3.1e9);
      node.mutable_check()->mutable_loopback()->set_round_trip_seconds(2e-5);
      return grpc::Status::OK;
    };
  }

  FakeServer server_;
  Connection connection_ = server_.Connect();
  Captured captured_;
};

TEST_F(DescribeNodeTest, Table_SaysOfEachDeviceWhatItsCheckFound) {
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kTable, captured_.io), kSuccess);
  const std::string out = captured_.out.str();
  EXPECT_THAT(out, HasSubstr("gpu, NVIDIA H200\n"));
  EXPECT_THAT(out, HasSubstr("3, 1 free"));
  EXPECT_THAT(out,
              HasSubstr("Slow:          device 2: 2.50 times as long for the work of rank 5 of "
                        "job-7 as others with the same, since "));
  EXPECT_THAT(out, HasSubstr("3.1 GB/s, 20 us there and back"));
  EXPECT_THAT(out, HasSubstr("DEVICE  JOB    MEMORY              TEMPERATURE  CHECK   AGE"));
  EXPECT_THAT(out, HasSubstr("0       -      512.0 MiB/80.0 GiB  41 C         passed  "));
  EXPECT_THAT(out, HasSubstr("16.0 MiB kept"));
  EXPECT_THAT(out, HasSubstr("1       -      -                   -            failed  "));
  EXPECT_THAT(out, HasSubstr("memory: 1 word is wrong"));
  EXPECT_THAT(out, HasSubstr("2       job-7  68.4 GiB/80.0 GiB   63 C         -       -"));
}

TEST_F(DescribeNodeTest, Machine_HasALineForEachThingThatIsWrong) {
  server_.nodes = [](const v1::ListNodesRequest& request, v1::ListNodesResponse* response) {
    EXPECT_TRUE(request.examinations());
    v1::NodeStatus& node = *response->add_nodes();
    node.set_name("a");
    const auto say = [&node](const char* check, v1::MachineFinding::Verdict verdict,
                             const char* found, const char* next) {
      v1::MachineFinding& finding = *node.mutable_examination()->add_findings();
      finding.set_check(check);
      finding.set_verdict(verdict);
      finding.set_found(found);
      finding.set_next(next);
    };
    say("nccl", v1::MachineFinding::VERDICT_OK, "NCCL 2.18.3", "");
    say("limits", v1::MachineFinding::VERDICT_WARNING, "open files 1024", "ulimit -Hn 16384");
    say("folders", v1::MachineFinding::VERDICT_PROBLEM, "/data: gone\nState: Ready", "");
    return grpc::Status::OK;
  };
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kTable, captured_.io), kSuccess);
  const std::string out = captured_.out.str();
  EXPECT_THAT(out,
              HasSubstr("Machine:       limits: warning: open files 1024; ulimit -Hn 16384\n"));
  EXPECT_THAT(out, HasSubstr("Machine:       folders: problem: /data: gone\\nState: Ready\n"));
  EXPECT_THAT(out, ::testing::Not(HasSubstr("NCCL"))) << "only what is wrong";
  Captured json;
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kJson, json.io), kSuccess);
  EXPECT_THAT(json.out.str(), HasSubstr("NCCL 2.18.3"));
}

TEST_F(DescribeNodeTest, SoundMachine_IsSaidToBe_AndOneThatIsUnknownIsNot) {
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), ::testing::Not(HasSubstr("Machine:")));
  server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    v1::NodeStatus& node = *response->add_nodes();
    node.set_name("a");
    v1::MachineFinding& finding = *node.mutable_examination()->add_findings();
    finding.set_check("nccl");
    finding.set_verdict(v1::MachineFinding::VERDICT_OK);
    node.mutable_examination()->mutable_received()->set_seconds(
        absl::ToUnixSeconds(absl::Now() - absl::Minutes(3)));
    return grpc::Status::OK;
  };
  Captured sound;
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kTable, sound.io), kSuccess);
  EXPECT_THAT(sound.out.str(), HasSubstr("Machine:       nothing is wrong, as of 3m0"));
}

TEST_F(DescribeNodeTest, NodeThatHasNotSpokenYet_ShowsWhatIsKnownToHaveFailed) {
  server_.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    v1::NodeStatus& node = *response->add_nodes();
    node.set_name("a");
    node.set_state(v1::NodeStatus::STATE_DISCONNECTED);
    node.add_failed_devices(5);
    v1::DeviceCheck& failed = *node.mutable_check()->add_devices();
    failed.set_device(5);
    failed.set_verdict(v1::DeviceCheck::VERDICT_FAILED);
    failed.set_reason("memory: 1 word is wrong");
    return grpc::Status::OK;
  };
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("5       -    -       -            failed  "));
  EXPECT_THAT(captured_.out.str(), HasSubstr("memory: 1 word is wrong"));
}

TEST_F(DescribeNodeTest, Json_IsTheNode) {
  EXPECT_EQ(DescribeNode(connection_, "a", Format::kJson, captured_.io), kSuccess);
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"verdict\": \"Failed\""));
  EXPECT_THAT(captured_.out.str(), HasSubstr("\"reason\": \"memory: 1 word is wrong\""));
}

TEST_F(DescribeNodeTest, NodeThatIsNotThere_IsNotFound) {
  EXPECT_NE(DescribeNode(connection_, "b", Format::kTable, captured_.io), kSuccess);
  EXPECT_THAT(captured_.talk.str(), HasSubstr("there is no node \"b\""));
}

TEST(NodeCommandsTest, ReserveAndUnreserve_SayHowTheNodeIs) {
  FakeServer server;
  server.reserve = [](const v1::ReserveNodeRequest& request, v1::ReserveNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->mutable_reserve()->set_reason(request.reason());
    return grpc::Status::OK;
  };
  server.unreserve = [](const v1::UnreserveNodeRequest& request,
                        v1::UnreserveNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured reserved, data, unreserved;
  EXPECT_EQ(Reserve(connection, {.node = "a", .reason = "spares"}, reserved.io), kSuccess);
  EXPECT_EQ(reserved.talk.str(),
            "node a is in reserve: its jobs go on, and its devices are for jobs that lose one\n");
  EXPECT_EQ(
      Reserve(connection, {.node = "a", .reason = "spares", .format = Format::kJson}, data.io),
      kSuccess);
  EXPECT_THAT(data.out.str(), HasSubstr("\"reason\": \"spares\""));
  EXPECT_EQ(Unreserve(connection, {.node = "a"}, unreserved.io), kSuccess);
  EXPECT_EQ(unreserved.talk.str(), "node a is not in reserve any more\n");
}

TEST(NodeCommandsTest, UncordonOfANodeOfTheReserve_SaysThatItIsThereAgain) {
  FakeServer server;
  server.uncordon = [](const v1::UncordonNodeRequest& request, v1::UncordonNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->mutable_reserve()->set_reason("spares");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Uncordon(connection, {.node = "a"}, captured.io), kSuccess);
  EXPECT_EQ(captured.talk.str(), "node a is in reserve again\n");
}

TEST(NodeCommandsTest, LabelsWithHiddenCharacters_AreTheSameInYamlAndJson) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    v1::NodeStatus& node = *response->add_nodes();
    node.set_name("a");
    (*node.mutable_labels())["te\u202Eam"] = "de\u202Emo";
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured json, yaml;
  EXPECT_EQ(Nodes(connection, Format::kJson, json.io), kSuccess);
  EXPECT_EQ(Nodes(connection, Format::kYaml, yaml.io), kSuccess);
  const auto read = wire::ParseYaml(yaml.out.str());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(EscapedText(job::EmitJson(*read), Escapes::kJson), json.out.str());
  EXPECT_THAT(json.out.str(), HasSubstr("\"te\\u202eam\": \"de\\u202emo\""));
}

TEST(NodeCommandsTest, Nodes_ShowsTheMarkWithItsReason) {
  FakeServer server;
  server.nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    for (const bool drains : {false, true}) {
      v1::NodeStatus* node = response->add_nodes();
      node->set_name(drains ? "b" : "a");
      node->set_state(v1::NodeStatus::STATE_READY);
      node->mutable_mark()->set_drains(drains);
      node->mutable_mark()->set_reason("new fan");
      node->mutable_mark()->set_by("ops");
    }
    v1::NodeStatus* spare = response->add_nodes();
    spare->set_name("c");
    spare->set_state(v1::NodeStatus::STATE_READY);
    spare->mutable_reserve()->set_reason("spares");
    spare->mutable_reserve()->set_by("ops");
    v1::NodeStatus* full = response->add_nodes();
    full->set_name("d");
    full->set_state(v1::NodeStatus::STATE_READY);
    full->set_unfit("cannot prepare data: the disk is full");
    return grpc::Status::OK;
  };
  Connection connection = server.Connect();
  Captured captured;
  EXPECT_EQ(Nodes(connection, Format::kTable, captured.io), kSuccess);
  EXPECT_THAT(captured.out.str(), HasSubstr("Ready, cordoned by ops: new fan"));
  EXPECT_THAT(captured.out.str(), HasSubstr("Ready, drained by ops: new fan"));
  EXPECT_THAT(captured.out.str(), HasSubstr("Ready, reserved by ops: spares"));
  EXPECT_THAT(captured.out.str(),
              HasSubstr("Ready, gets nothing new: cannot prepare data: the disk is full"));
}

}  // namespace
}  // namespace phalanx::client

// The store fails for good: nothing is accepted any more, reads go on, sessions stay.
#include <gmock/gmock.h>

#include "tests/rpc/fixture.h"

namespace phalanx::coordinator {
namespace {

TEST_F(RpcTest, StoreThatFails_RefusesTheSubmitAndEndsServing) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  disk->next_commit = absl::ResourceExhaustedError("disk full");
  v1::SubmitJobResponse response;
  const grpc::Status status = Submit(JobText("a"), response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("disk full"));
  EXPECT_FALSE(server_->serving());
  EXPECT_EQ(Submit(JobText("b"), response).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ListNodesResponse nodes;
  grpc::ClientContext context;
  SetDeadline(context);
  EXPECT_TRUE(jobs->ListNodes(&context, {}, &nodes).ok());
  EXPECT_EQ(nodes.nodes(0).state(), v1::NodeStatus::STATE_READY);
}

TEST(ServerTest, RecordOfAnUnknownKind_IsRefusedAtStart) {
  auto disk = std::make_shared<MemoryDisk>();
  disk->records.push_back({1, "\xFF\xFF"});
  const auto server = Server::Start({}, std::make_unique<MemoryBackend>(disk));
  EXPECT_EQ(server.status().code(), absl::StatusCode::kDataLoss);
}

TEST(ServerTest, PortThatIsTaken_IsUnavailable) {
  auto first = Server::Start({}, std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  ASSERT_TRUE(first.ok());
  const auto second =
      Server::Start({.listen = absl::StrCat("127.0.0.1:", (*first)->port())},
                    std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::coordinator

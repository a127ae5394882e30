// What a stream of changes makes of answers of a coordinator that loses things.
#include "tests/e2e/jobs/submitter.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tests/e2e/jobs/job.h"
#include "tests/support/process.h"

namespace phalanx::e2e {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// By their turns: the first two jobs that are deleted, and one behind a second cordon.
constexpr char kFirst[] = "waits-1-5", kSecond[] = "waits-1-12", kLast[] = "waits-1-24";

const grpc::Status kCutOff(grpc::StatusCode::UNAVAILABLE, "the connection broke");
const grpc::Status kNotFound(grpc::StatusCode::NOT_FOUND, "there is none");
const grpc::Status kRefused(grpc::StatusCode::FAILED_PRECONDITION, "it is drained");

grpc::Status StandsBy() {
  google::rpc::ErrorInfo info;
  info.set_reason("STANDBY");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  return {grpc::StatusCode::UNAVAILABLE, "stands by", details.SerializeAsString()};
}

// Answers what is asked one after the other, with what it was told and then with OK. It has one
// node, whose mark and reserve it forgets where it says that it knows no such node.
class LosingCoordinator final : public v1::JobService::Service {
 public:
  using Answers = std::map<std::string, std::deque<grpc::Status>>;  // by call

  explicit LosingCoordinator(Answers answers) : answers_(std::move(answers)) {
    node_.set_name("here");
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    support::Require(server_ != nullptr, "no server");
  }
  ~LosingCoordinator() override { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Until kLast is submitted.
  void AwaitLast() {
    support::Require(last_.get_future().wait_for(absl::ToChronoSeconds(support::kPatience)) ==
                         std::future_status::ready,
                     "too few jobs");
  }

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override {
    response->mutable_job()->set_id(++jobs_);
    if (request->request_id() == kLast) last_.set_value();
    return grpc::Status::OK;
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*,
                         v1::CancelJobResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status SuspendJob(grpc::ServerContext*, const v1::SuspendJobRequest*,
                          v1::SuspendJobResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status ResumeJob(grpc::ServerContext*, const v1::ResumeJobRequest*,
                         v1::ResumeJobResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest*,
                         v1::DeleteJobResponse*) override {
    return Next("DeleteJob");
  }
  grpc::Status ListNodes(grpc::ServerContext*, const v1::ListNodesRequest*,
                         v1::ListNodesResponse* response) override {
    *response->add_nodes() = node_;
    return grpc::Status::OK;
  }
  grpc::Status CordonNode(grpc::ServerContext*, const v1::CordonNodeRequest* request,
                          v1::CordonNodeResponse*) override {
    return Change("CordonNode", [&] { Mark(request->reason(), false); });
  }
  grpc::Status DrainNode(grpc::ServerContext*, const v1::DrainNodeRequest* request,
                         v1::DrainNodeResponse*) override {
    return Change("DrainNode", [&] { Mark(request->reason(), true); });
  }
  grpc::Status UncordonNode(grpc::ServerContext*, const v1::UncordonNodeRequest*,
                            v1::UncordonNodeResponse*) override {
    return Change("UncordonNode", [&] { node_.clear_mark(); });
  }
  grpc::Status ReserveNode(grpc::ServerContext*, const v1::ReserveNodeRequest* request,
                           v1::ReserveNodeResponse*) override {
    return Change("ReserveNode", [&] { node_.mutable_reserve()->set_reason(request->reason()); });
  }
  grpc::Status UnreserveNode(grpc::ServerContext*, const v1::UnreserveNodeRequest*,
                             v1::UnreserveNodeResponse*) override {
    return Change("UnreserveNode", [&] { node_.clear_reserve(); });
  }

 private:
  grpc::Status Next(const std::string& call) {
    std::deque<grpc::Status>& answers = answers_[call];
    if (answers.empty()) return grpc::Status::OK;
    grpc::Status next = answers.front();
    answers.pop_front();
    return next;
  }
  grpc::Status Change(const std::string& call, const std::function<void()>& change) {
    grpc::Status next = Next(call);
    if (next.ok()) change();
    if (next.error_code() == grpc::StatusCode::NOT_FOUND) {
      node_.clear_mark();
      node_.clear_reserve();
    }
    return next;
  }
  void Mark(const std::string& reason, bool drains) {
    node_.mutable_mark()->set_reason(reason);
    node_.mutable_mark()->set_drains(drains);
  }

  // Of the call that is being answered; there is never another one.
  Answers answers_;
  v1::NodeStatus node_;
  int64_t jobs_ = 0;
  std::promise<void> last_;

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

Acknowledged Told(LosingCoordinator::Answers answers) {
  LosingCoordinator coordinator(std::move(answers));
  const DataFolder data = MakeData();
  Submitter submitter(coordinator.address(), data, {.number = 1, .changes = true, .node = "here"});
  coordinator.AwaitLast();
  return submitter.Finish();
}

TEST(SubmitterTest, AllThatIsAnswered_IsAcknowledged) {
  const Acknowledged told = Told({});
  EXPECT_THAT(told.deletes, Contains(kFirst));
  EXPECT_THAT(told.deletes, Contains(kSecond));
  EXPECT_THAT(told.deletes_unsure, IsEmpty());
  EXPECT_GE(told.marks, 4) << "cordoned, drained, uncordoned, and cordoned again";
  EXPECT_GE(told.reserves, 3);
  EXPECT_EQ(told.marks_missing, 0);
  EXPECT_EQ(told.reserves_missing, 0);
  EXPECT_EQ(told.refused, 0);
}

// Either the first attempt did it, or whoever was killed meanwhile has lost the job.
TEST(SubmitterTest, DeleteThatIsCutOffAndThenNotFound_IsNoneThatWasAcknowledged) {
  const Acknowledged told = Told({{"DeleteJob", {kCutOff, kNotFound}}});
  EXPECT_THAT(told.deletes_unsure, ElementsAre(kFirst));
  EXPECT_THAT(told.deletes, Not(Contains(kFirst)));
  EXPECT_THAT(told.deletes, Contains(kSecond));
  EXPECT_THAT(told.unsure, Not(Contains(kFirst))) << "it is not there later";
  EXPECT_EQ(told.refused, 0);
}

TEST(SubmitterTest, DeleteThatIsNotFoundAtOnce_IsRefused) {
  const Acknowledged told = Told({{"DeleteJob", {kNotFound}}});
  EXPECT_EQ(told.refused, 1);
  EXPECT_THAT(told.deletes_unsure, IsEmpty());
  EXPECT_THAT(told.deletes, Not(Contains(kFirst)));
}

// A coordinator that stands by has done nothing that would explain it.
TEST(SubmitterTest, DeleteThatIsNotFoundBehindOneWhoStandsBy_IsRefused) {
  const Acknowledged told = Told({{"DeleteJob", {StandsBy(), kNotFound}}});
  EXPECT_EQ(told.refused, 1);
  EXPECT_THAT(told.deletes_unsure, IsEmpty());
}

// The node was marked when it was looked at, just before.
TEST(SubmitterTest, UncordonOfANodeThatIsNotThere_HasLostTheMarkOnce) {
  const Acknowledged told = Told({{"UncordonNode", {kNotFound}}});
  EXPECT_EQ(told.marks_missing, 1);
  EXPECT_EQ(told.reserves_missing, 0) << "it was taken out before";
  EXPECT_EQ(told.refused, 0);
}

TEST(SubmitterTest, UncordonThatIsCutOffAndThenNotFound_HasLostNothing) {
  const Acknowledged told = Told({{"UncordonNode", {kCutOff, kNotFound}}});
  EXPECT_EQ(told.marks_missing, 0);
  EXPECT_EQ(told.reserves_missing, 0);
}

// Whether it was done or not, the node was marked before and is so after.
TEST(SubmitterTest, DrainThatIsCutOffAndThenNotFound_HasLostTheMarkAndTheReserve) {
  const Acknowledged told = Told({{"DrainNode", {kCutOff, kNotFound}}});
  EXPECT_EQ(told.marks_missing, 1);
  EXPECT_EQ(told.reserves_missing, 1);
}

TEST(SubmitterTest, FirstCordonOfANodeThatIsNotThere_HasLostNothing) {
  const Acknowledged told = Told({{"CordonNode", {kNotFound}}});
  EXPECT_EQ(told.marks_missing, 0);
  EXPECT_EQ(told.reserves_missing, 0);
  EXPECT_EQ(told.refused, 0);
}

TEST(SubmitterTest, NodeInReserveThatIsNotThere_HasLostTheReserveAndItsMarkOnce) {
  const Acknowledged told = Told({{"UnreserveNode", {kNotFound}}});
  EXPECT_EQ(told.reserves_missing, 1);
  EXPECT_EQ(told.marks_missing, 1) << "it was drained";
}

TEST(SubmitterTest, UnreserveThatIsCutOffAndThenNotFound_HasLostTheMarkAlone) {
  const Acknowledged told = Told({{"UnreserveNode", {kCutOff, kNotFound}}});
  EXPECT_EQ(told.reserves_missing, 0);
  EXPECT_EQ(told.marks_missing, 1);
}

// As it is where the uncordon before it was lost.
TEST(SubmitterTest, CordonThatIsRefused_IsCounted) {
  const Acknowledged told = Told({{"CordonNode", {grpc::Status::OK, kRefused}}});
  EXPECT_EQ(told.refused, 1);
  EXPECT_EQ(told.marks_missing, 0);
}

}  // namespace
}  // namespace phalanx::e2e

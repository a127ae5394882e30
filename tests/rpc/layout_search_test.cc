// Searches for layouts, which may take longer than anybody waits: they end with their callers and
// with the coordinator, and whoever asks again for a job that there is waits for none.
#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/posix/waker.h"
#include "tests/rpc/fixture.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr int kManyDevices = 256;
// Until a call is on its way, and a search for such a job begins.
constexpr absl::Duration kUnderWay = absl::Milliseconds(300);

// Which a search finds a layout of at once.
std::string OpenJobText(const std::string& name) {
  return absl::StrReplaceAll(JobText(name), {{"{ranks: 1, tp: 1}", "auto"},
                                             {"{device: cpu}", "{device: cpu, devices: 2}"}});
}

// Which one looks at for many seconds.
std::string LargeOpenJobText(const std::string& name) {
  return absl::StrCat("metadata: {name: ", name, R"(}
spec:
  steps: 10
  modules:
    - name: vision
      architecture: {family: clip_vision, hidden_size: 1024, layers: 24, heads: 16, mlp_size: 4096, image_size: 336, patch_size: 14}
      parallel: auto
    - name: audio
      architecture: {family: whisper, hidden_size: 1280, layers: 32, heads: 20, mlp_size: 5120, mel_bins: 128, frames: 3000}
      parallel: auto
    - name: language
      architecture: {family: llama, hidden_size: 8192, layers: 80, heads: 64, kv_heads: 8, mlp_size: 28672, vocabulary: 128256, context: 8192}
      parallel: auto
  edges:
    - {from: vision, to: language, projector: {hidden_size: 4096}}
    - {from: audio, to: language, projector: {hidden_size: 4096}}
  batch: {global: 1024, micro: 64}
  data: {shards: "a-{0..1}.tar", tokenizer: t.model}
  resources: {device: cpu, devices: )",
                      kManyDevices, "}\n");
}

class LayoutSearchTest : public RpcTest {
 protected:
  static v1::SubmitJobRequest SubmitOf(const std::string& text) {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory("/tmp");
    return request;
  }
  // Whether a call of the method ended so, as the coordinator sees it.
  bool Ended(const std::string& method, const std::string& code) const {
    return absl::StrContains(
        server_->MetricsText(),
        absl::StrCat("phalanx_rpc_handled_total{code=\"", code, "\",method=\"", method, "\"} "));
  }
  // Makes calls until one of them ended so. One that is given up on its way is never seen.
  template <typename Call>
  void CallUntilOneEnds(const std::string& method, const std::string& code, Call call) {
    const SteadyTime start = SteadyNow();
    while (!Ended(method, code)) {
      ASSERT_LT(Since(start), support::kPatience) << "its search goes on";
      call();
      for (int i = 0; i < 100 && !Ended(method, code); ++i) absl::SleepFor(absl::Milliseconds(10));
    }
  }
  // What one that nobody waits for any longer has left.
  void ExpectNoJob() {
    v1::ListJobsResponse list;
    grpc::ClientContext context;
    SetDeadline(context);
    EXPECT_TRUE(jobs->ListJobs(&context, {}, &list).ok());
    EXPECT_EQ(list.jobs_size(), 0);
  }
};

TEST_F(LayoutSearchTest, CallerThatHangsUp_EndsTheSearchOfItsSubmit) {
  CallUntilOneEnds("SubmitJob", "CANCELLED", [this] {
    grpc::ClientContext context;
    SetDeadline(context, 120);
    std::jthread hangs_up([&context] {
      absl::SleepFor(kUnderWay);
      context.TryCancel();
    });
    v1::SubmitJobResponse response;
    EXPECT_EQ(jobs->SubmitJob(&context, SubmitOf(LargeOpenJobText("a")), &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  ExpectNoJob();
}

TEST_F(LayoutSearchTest, CallerWhoseTimeIsOver_EndsTheSearchOfItsSubmit) {
  CallUntilOneEnds("SubmitJob", "DEADLINE_EXCEEDED", [this] {
    grpc::ClientContext context;
    context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(400, GPR_TIMESPAN)));
    v1::SubmitJobRequest request = SubmitOf(LargeOpenJobText("a"));
    request.set_request_id("r");
    v1::SubmitJobResponse response;
    EXPECT_EQ(jobs->SubmitJob(&context, request, &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  });
  ExpectNoJob();
}

TEST_F(LayoutSearchTest, CallerThatHangsUp_EndsTheSearchOfItsPlan) {
  FakeWorker worker(channel, 120);
  worker.Join("n", kManyDevices);
  CallUntilOneEnds("PlanJob", "CANCELLED", [this] {
    grpc::ClientContext context;
    SetDeadline(context, 120);
    std::jthread hangs_up([&context] {
      absl::SleepFor(kUnderWay);
      context.TryCancel();
    });
    v1::PlanJobRequest request;
    request.mutable_document()->set_text(LargeOpenJobText("a"));
    v1::PlanJobResponse response;
    EXPECT_EQ(jobs->PlanJob(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
}

TEST_F(LayoutSearchTest, CoordinatorThatStops_WaitsForNoSearch) {
  MustSubmit(OpenJobText("first"));  // over a connection that is there from now on
  grpc::Status status;
  std::jthread caller([this, &status] {
    grpc::ClientContext context;
    SetDeadline(context, 120);
    v1::SubmitJobResponse response;
    status = jobs->SubmitJob(&context, SubmitOf(LargeOpenJobText("a")), &response);
  });
  absl::SleepFor(kUnderWay);
  server_->Shutdown(support::kPatience);
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("stopping"));
}

TEST_F(LayoutSearchTest, RepeatedSubmit_IsAnsweredWithItsJob_WhileAllThreadsThatSearchAreTaken) {
  v1::SubmitJobResponse first, again, other;
  const grpc::Status accepted = Submit(OpenJobText("a"), first, "r");
  ASSERT_TRUE(accepted.ok()) << accepted.error_message();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::jthread> callers;
  for (int i = 0; i < 24; ++i) {  // two are searched for, the others wait or are refused
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetDeadline(*contexts.back(), 120);
    callers.emplace_back([this, i, context = contexts.back().get()] {
      v1::SubmitJobResponse response;
      jobs->SubmitJob(context, SubmitOf(LargeOpenJobText(absl::StrCat("large-", i))), &response);
    });
  }
  absl::SleepFor(kUnderWay);
  const grpc::Status repeated = Submit(OpenJobText("a"), again, "r");
  EXPECT_TRUE(repeated.ok()) << repeated.error_message();
  EXPECT_EQ(again.job().id(), first.job().id());
  // A layout that was written needs no such thread either.
  EXPECT_TRUE(Submit(JobText("b"), other, "s").ok());
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(LayoutSearchTest, RequestIdOfAnotherDocument_IsRefused_AlsoOfOneThatIsSearchedFor) {
  v1::SubmitJobResponse first, other;
  ASSERT_TRUE(Submit(JobText("a"), first, "r").ok());
  const grpc::Status reused = Submit(OpenJobText("b"), other, "r");
  EXPECT_EQ(reused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(reused.error_message(), HasSubstr("was given with another document"));
}

}  // namespace
}  // namespace phalanx::coordinator

// The status page and what is behind it, as a browser gets it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "coordinator/status/status_page.h"
#include "nlohmann/json.hpp"
#include "tests/rpc/fixture.h"
#include "tests/rpc/plain_http.h"
#include "tests/support/job_text.h"
#include "transport/http/http_server.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string BodyOf(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

// Reads events as a browser does.
class EventReader {
 public:
  EventReader(int port, const std::string& path) : fd_(Connect(port)) {
    const std::string request = absl::StrCat("GET /api/stream?", path, " HTTP/1.1\r\n\r\n");
    send(fd_, request.data(), request.size(), MSG_NOSIGNAL);
    head_ = Until("\r\n\r\n");
    if (absl::StrContains(head_, "200 OK")) Until("\n\n");  // retry
  }
  ~EventReader() { close(fd_); }
  const std::string& head() const { return head_; }
  // The data of the next event of that type; "" at the end.
  std::string Next(const std::string& type) {
    std::string event = Until("\n\n");
    const std::string begin = absl::StrCat("event: ", type, "\n");
    if (!absl::StartsWith(event, begin)) return "";
    std::string data;
    for (absl::string_view line : absl::StrSplit(event.substr(begin.size()), '\n')) {
      if (absl::ConsumePrefix(&line, "data: ")) absl::StrAppend(&data, line, "\n");
    }
    return data;
  }
  bool AtEnd() {
    char byte;
    return buffer_.empty() && recv(fd_, &byte, 1, 0) == 0;
  }

 private:
  std::string Until(const std::string& end) {
    char bytes[4096];
    size_t at = 0;
    while ((at = buffer_.find(end)) == std::string::npos) {
      const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
      if (n <= 0) return "";
      buffer_.append(bytes, static_cast<size_t>(n));
    }
    const std::string text = buffer_.substr(0, at);
    buffer_.erase(0, at + end.size());
    return text;
  }

  const int fd_;
  std::string buffer_, head_;
};

class StatusTest : public RpcTest {
 protected:
  void SetUp() override {
    RpcTest::SetUp();
    Serve({.interval = absl::Milliseconds(10)});
  }
  void TearDown() override {
    http_.reset();
    page_.reset();
    RpcTest::TearDown();
  }
  void Serve(transport::StreamOptions streams) {
    http_.reset();
    page_ = std::make_unique<StatusPage>(server_->board(),
                                         [this](std::vector<JobId> jobs, QueueCallback answer) {
                                           server_->AskQueue(std::move(jobs), std::move(answer));
                                         });
    auto http = transport::HttpServer::Start(
        {.metrics = [] { return std::string(); },
         .ready = [] { return Health(); },
         .pages = [this](const std::string& target,
                         transport::HttpAnswer answer) { page_->Serve(target, std::move(answer)); },
         .streams = streams});
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  int port() const { return http_->port(); }
  std::string Fetch(const std::string& path) { return coordinator::Get(port(), path); }
  nlohmann::json Json(const std::string& path) {
    const std::string answer = Fetch(path);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: application/json"));
    return nlohmann::json::parse(BodyOf(answer));
  }
  void Step(FakeWorker& worker, const v1::Assign& assign, int64_t number, double loss) {
    v1::OpenSessionRequest request;
    v1::StepReport* report = worker.Report(request, assign, 0)->mutable_step();
    report->set_step(number);
    report->set_epoch(assign.epoch());
    report->set_loss(loss);
    report->set_tokens(512);
    report->set_seconds(0.5);
    worker.Write(request);
  }

  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<transport::HttpServer> http_;
};

TEST_F(StatusTest, Page_BringsAllThatItNeeds_AndAllowsNothingElse) {
  const std::string page = Fetch("/");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/html"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none'; script-src 'self';"));
  EXPECT_THAT(page, HasSubstr("X-Content-Type-Options: nosniff"));
  EXPECT_THAT(page, HasSubstr("<script src=\"/page.js\" defer></script>"));
  EXPECT_THAT(page, HasSubstr("href=\"/page.css\""));
  EXPECT_THAT(Fetch("/page.css"), HasSubstr("text/css"));
  const std::string script = Fetch("/page.js");
  EXPECT_THAT(script, HasSubstr("text/javascript"));
  for (const char* markup : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"}) {
    EXPECT_THAT(script, Not(HasSubstr(markup)));
  }
  for (const std::string& text : {page, script, Fetch("/page.css")}) {
    EXPECT_THAT(text, Not(HasSubstr("https://")));
  }
}

TEST_F(StatusTest, Overview_HasNodesJobsAndTheQueue) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  MustSubmit(JobText("waits"));
  const nlohmann::json page = Json("/api/overview");
  ASSERT_EQ(page["nodes"].size(), 1u);
  EXPECT_EQ(page["nodes"][0]["name"], "n");
  EXPECT_EQ(page["nodes"][0]["state"], "ready");
  EXPECT_EQ(page["nodes"][0]["device_jobs"], nlohmann::json({assign.job()}));
  EXPECT_EQ(page["devices_used"], 1);
  ASSERT_EQ(page["jobs"].size(), 2u);
  EXPECT_EQ(page["jobs"][0]["name"], "waits");
  EXPECT_EQ(page["jobs"][0]["phase"], "Queued");
  EXPECT_EQ(page["jobs"][1]["phase"], "Starting");
}

TEST_F(StatusTest, JobThatWaits_HasItsNumber_AndWhenItStartsAtTheLatest) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  const auto limited = [](const std::string& name) {
    std::string text = JobText(name);
    return text.replace(text.find("steps: 10"), 9, "steps: 10\n  time_limit: 1h");
  };
  MustSubmit(limited("runs"));
  worker.Ready(worker.TakeAssignment(), 0);
  WaitFor("runs", v1::JOB_PHASE_RUNNING);
  MustSubmit(limited("first"));
  MustSubmit(limited("second"));
  EventReader overview(port(), "/api/overview");
  nlohmann::json page;
  do {
    page = nlohmann::json::parse(overview.Next("page"));
  } while (!page["jobs"][0].contains("queue_number"));
  EXPECT_EQ(page["jobs"][0]["name"], "second");
  EXPECT_EQ(page["jobs"][0]["queue_number"], 2);
  EXPECT_EQ(page["jobs"][1]["queue_number"], 1);
  EXPECT_FALSE(page["jobs"][2].contains("queue_number")) << "it runs";
  const double first = page["jobs"][1]["starts_by"], second = page["jobs"][0]["starts_by"];
  EXPECT_GT(first, absl::ToUnixSeconds(absl::Now()) + 3000);
  EXPECT_GE(second, first + 3600);
  EventReader job(port(), "/api/jobs/2");
  do {
    page = nlohmann::json::parse(job.Next("page"));
  } while (!page.contains("queue_number"));
  EXPECT_EQ(page["queue_number"], 1);
  EXPECT_EQ(page["starts_by"], first);
}

TEST_F(StatusTest, JobThatWaits_HasAGuessOfItsStart) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("runs"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  for (int64_t step = 1; step <= 9; ++step) worker.Step(assign, step, 24 * 3600.0);
  Await("runs", [](const v1::JobStatus& job) { return job.last_step().step() == 9; });
  MustSubmit(JobText("waits"));
  EventReader overview(port(), "/api/overview");
  nlohmann::json page;
  do {
    page = nlohmann::json::parse(overview.Next("page"));
  } while (!page["jobs"][0].contains("queue_number"));
  const double about = page["jobs"][0]["starts_about"];
  EXPECT_GT(about, absl::ToUnixSeconds(absl::Now()) + 22 * 3600);
  EXPECT_TRUE(page["jobs"][0]["starts_by"].is_null());
}

TEST_F(StatusTest, Overview_SaysWhyDevicesGetNoJob) {
  v1::WorkerHello hello = FakeWorker::Hello("n", 2, 1);
  v1::DeviceCheck& check = *hello.mutable_check()->add_devices();
  check.set_device(1);
  check.set_verdict(v1::DeviceCheck::VERDICT_FAILED);
  check.set_reason("memory: 1 word is wrong");
  FakeWorker worker(channel);
  worker.SayHello(hello);
  EventReader overview(port(), "/api/overview");
  nlohmann::json page;
  do {
    page = nlohmann::json::parse(overview.Next("page"));
  } while (page["nodes"].empty() || page["nodes"][0]["failed_devices"].empty());
  EXPECT_EQ(page["nodes"][0]["failed_devices"],
            nlohmann::json::parse(
                R"([{"device": 1, "reason": "failed its check: memory: 1 word is wrong"}])"));
  EXPECT_EQ(page["devices_failed"], 1);
  EXPECT_EQ(page["devices_free"], 1);
}

TEST_F(StatusTest, Overview_SaysWhichNodesAreInReserveAndWhy) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  v1::ReserveNodeRequest request;
  request.set_node("n");
  request.set_reason("spares");
  v1::ReserveNodeResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->ReserveNode(&context, request, &response).ok());
  const nlohmann::json page = Json("/api/overview");
  EXPECT_EQ(page["nodes"][0]["reserved"], true);
  EXPECT_EQ(page["nodes"][0]["reserved_reason"], "spares");
  EXPECT_EQ(page["nodes"][0]["mark"], "");
  EXPECT_EQ(page["devices_reserved"], 1);
  EXPECT_EQ(page["devices_free"], 0);
}

TEST_F(StatusTest, Job_HasItsCurveEventsAndPicture_AndEndedOnesToo) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  Step(worker, assign, 1, 3.5);
  Step(worker, assign, 2, 3.25);
  worker.Succeed(assign, 0);
  WaitFor("a", v1::JOB_PHASE_SUCCEEDED);
  const nlohmann::json page = Json("/api/jobs/1");
  EXPECT_EQ(page["name"], "a");
  EXPECT_EQ(page["phase"], "Succeeded");
  EXPECT_EQ(page["steps"], 10);
  ASSERT_EQ(page["curve"].size(), 2u);
  EXPECT_EQ(page["curve"][0], nlohmann::json({1, 3.5, 1024}));
  EXPECT_EQ(page["curve"][1][1], 3.25);
  EXPECT_EQ(page["incidents"].size(), 0u);
  EXPECT_EQ(page["events"].back()["type"], "Succeeded");
  const std::string picture = Fetch("/api/jobs/1/timeline.svg");
  EXPECT_THAT(picture, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: image/svg+xml"));
  EXPECT_THAT(BodyOf(picture), StartsWith("<svg"));
  EXPECT_EQ(BodyOf(Fetch("/api/jobs/1/timeline.svg?again")), BodyOf(picture));
}

TEST_F(StatusTest, Pipeline_IsThatOfTheEpochThatRuns) {
  FakeWorker worker(channel);
  worker.Join("n", 2);
  MustSubmit(support::JobText({.name = "a", .ranks = 2}));
  const v1::Assign assign = worker.TakeAssignment();
  for (const int rank : {0, 1}) worker.Ready(assign, rank);
  WaitFor("a", v1::JOB_PHASE_RUNNING);
  EXPECT_EQ(Json("/api/jobs/1")["without"], 0);
  const std::string whole = BodyOf(Fetch("/api/jobs/1/timeline.svg"));
  worker.Die(assign, 1, SIGKILL);
  Await("a", [](const v1::JobStatus& job) { return job.epoch() == 2; });
  EXPECT_EQ(Json("/api/jobs/1")["without"], 1);
  const std::string left = BodyOf(Fetch("/api/jobs/1/timeline.svg?epoch=2"));
  EXPECT_THAT(left, StartsWith("<svg"));
  EXPECT_NE(left, whole);
  // Of one that has ended only the healthy plan is known, whatever was looked at before.
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  v1::CancelJobResponse cancelled;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->CancelJob(&context, cancel, &cancelled).ok());
  EXPECT_EQ(Json("/api/jobs/1")["without"], 0);
  EXPECT_EQ(BodyOf(Fetch("/api/jobs/1/timeline.svg?epoch=2&without=0")), whole);
}

TEST_F(StatusTest, Curve_OutlivesTheCoordinator_AndTheEndOfItsJob) {
  ServerOptions options;
  options.driver.machine.step_record_interval = absl::ZeroDuration();
  const auto restart = [&] {
    http_.reset();
    page_.reset();
    server_.reset();
    Start(options);
    Serve({.interval = absl::Milliseconds(10)});
  };
  restart();
  FakeWorker worker(channel);
  worker.Join("n", 1);
  MustSubmit(JobText("a"));
  const v1::Assign assign = worker.TakeAssignment();
  worker.Ready(assign, 0);
  Step(worker, assign, 1, 3.5);
  Step(worker, assign, 2, 3.25);
  Await("a", [](const v1::JobStatus& job) { return job.last_step().step() == 2; });
  const nlohmann::json curve = nlohmann::json::parse("[[1, 3.5, 1024], [2, 3.25, 1024]]");
  restart();
  EXPECT_EQ(Json("/api/jobs/1")["phase"], "Running");
  EXPECT_EQ(Json("/api/jobs/1")["curve"], curve);
  v1::CancelJobRequest cancel;
  cancel.set_job("a");
  v1::CancelJobResponse cancelled;
  grpc::ClientContext context;
  SetDeadline(context);
  ASSERT_TRUE(jobs->CancelJob(&context, cancel, &cancelled).ok());
  restart();
  EXPECT_EQ(Json("/api/jobs/1")["phase"], "Cancelled");
  EXPECT_EQ(Json("/api/jobs/1")["curve"], curve);
}

TEST_F(StatusTest, WhatAUserWrites_IsTextAndNothingElse) {
  std::string text = JobText("a");
  text.replace(text.find("steps: 10"), 9, "steps: 10\n  output: \"</script><img src=x>\\\"\\\\n\"");
  MustSubmit(text);
  const std::string answer = Fetch("/api/jobs/1");
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff"));
  EXPECT_EQ(nlohmann::json::parse(BodyOf(answer))["output"], "/tmp/</script><img src=x>\"\\n");
  EXPECT_THAT(Fetch("/api/jobs/<script>"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Fetch("/api/jobs/<script>"), HasSubstr("Content-Type: text/plain"));
  EXPECT_THAT(Fetch("/api/jobs/<script>"), Not(HasSubstr("<script>")));
}

TEST_F(StatusTest, WhatIsNotThere_IsNotFound) {
  MustSubmit(JobText("a"));
  for (const char* path : {"/api/jobs/2", "/api/jobs/2/timeline.svg", "/api/jobs/1/timeline.svg",
                           "/api/jobs/1/incidents/1.svg", "/api/jobs/", "/api/jobs/1/x",
                           "/api/jobs/99999999999999999999", "/index.html", "/../page.css"}) {
    EXPECT_THAT(Fetch(path), StartsWith("HTTP/1.1 404 Not Found")) << path;
  }
}

TEST_F(StatusTest, Stream_TellsOfEachChange_AndEndsWithThePage) {
  FakeWorker worker(channel);
  worker.Join("n", 1);
  EventReader overview(port(), "/api/overview");
  EXPECT_THAT(overview.head(), HasSubstr("Content-Type: text/event-stream"));
  EXPECT_EQ(nlohmann::json::parse(overview.Next("page"))["jobs"].size(), 0u);
  MustSubmit(JobText("a"));
  while (nlohmann::json::parse(overview.Next("page"))["jobs"].empty()) continue;
  EventReader job(port(), "/api/jobs/1");
  EXPECT_EQ(nlohmann::json::parse(job.Next("page"))["name"], "a");
  EventReader nobody(port(), "/api/jobs/2");
  EXPECT_EQ(nobody.Next("gone"), "gone\n");
  EXPECT_TRUE(nobody.AtEnd());
}

TEST_F(StatusTest, Streams_AreBounded_AndProbesDoNotWaitForThem) {
  Serve({.streams_max = 2, .interval = absl::Milliseconds(10)});
  {
    EventReader first(port(), "/api/overview"), second(port(), "/api/overview");
    EXPECT_NE(first.Next("page"), "");
    EXPECT_NE(second.Next("page"), "");
    EXPECT_THAT(EventReader(port(), "/api/overview").head(),
                HasSubstr("503 Service Unavailable\r\nRetry-After: 1\r\n"));
    EXPECT_THAT(EventReader(port(), "http://elsewhere/").head(), HasSubstr("400 Bad Request"));
    EXPECT_THAT(Fetch("/healthz"), HasSubstr("200 OK"));
    EXPECT_THAT(Fetch("/api/overview"), HasSubstr("200 OK"));
  }
  // Readers who are gone have made room.
  while (EventReader(port(), "/api/overview").head().find("200 OK") == std::string::npos) continue;
}

TEST_F(StatusTest, Stream_EndsAfterItsLife) {
  Serve({.interval = absl::Milliseconds(10), .life = absl::Milliseconds(100)});
  EventReader reader(port(), "/api/overview");
  EXPECT_NE(reader.Next("page"), "");
  EXPECT_TRUE(reader.AtEnd());
}

// Pages of a megabyte, each another one.
TEST(HttpStreamTest, SlowReader_IsDropped_AndHoldsUpNobody) {
  int made = 0;  // on the server's thread alone
  auto http = transport::HttpServer::Start(
      {.metrics = [] { return std::string(); },
       .ready = [] { return Health(); },
       .pages =
           [&made](const std::string&, const transport::HttpAnswer& answer) {
             answer({.body = absl::StrCat(++made, std::string(1 << 20, 'x'))});
           },
       .streams = {.streams_max = 1,
                   .interval = absl::Milliseconds(10),
                   .slow_max = absl::Milliseconds(200)}});
  ASSERT_TRUE(http.ok()) << http.status();
  const int port = (*http)->port();
  const int slow = Connect(port);
  const std::string request = "GET /api/stream?/api/big HTTP/1.1\r\n\r\n";
  send(slow, request.data(), request.size(), MSG_NOSIGNAL);
  char byte;
  ASSERT_EQ(recv(slow, &byte, 1, 0), 1);  // it is a stream, and reads no further
  EXPECT_THAT(Get(port, "/healthz"), HasSubstr("200 OK"));
  std::string next;
  do {
    EventReader reader(port, "/api/big");
    if (absl::StrContains(reader.head(), "200 OK")) next = reader.Next("page");
  } while (next.empty());
  EXPECT_GT(next.size(), size_t{1} << 20);
  close(slow);
}

}  // namespace
}  // namespace phalanx::coordinator

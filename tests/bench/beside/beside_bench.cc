// What others see of a coordinator while it plans the worst jobs: submits, watches and heartbeats,
// over gRPC on loopback, with the store in memory so that no disk has a part in it.
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/memory_backend.h"
#include "coordinator/wire/session_codec.h"
#include "core/base/mutex.h"
#include "core/job/job_reader.h"
#include "core/wire/job_yaml.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/support/specs.h"

namespace phalanx::coordinator {
namespace {

using support::AJob;

constexpr int32_t kWorld = 131072;
constexpr int32_t kPreviewed = 2048;          // ranks: the answer fits a message
constexpr int kRounds = 300, kPlannings = 3;  // at least
constexpr double kSeenMax = 20;               // milliseconds, beside one planning

enum Beside { kNothing, kEncoders, kAuto, kPreviews };
constexpr const char* kNames[] = {"nothing is planned",
                                  "63 encoders on the ranks of the language model",
                                  "schedule: auto over 64 stages, an encoder on the same ranks",
                                  "the same, and four callers of PlanJob at a time"};

std::string WorstJob(Beside beside, int32_t world = kWorld) {
  AJob job;
  const int32_t encoders = beside == kEncoders ? 63 : 1;
  for (int32_t i = 0; i < encoders; ++i) {
    job.Module(absl::StrCat("encoder", i), support::ClipVision({.layers = 24}),
               {.tp = 2, .dp = world / 2, .offset = 0});
  }
  job.Module("language",
             support::Llama(
                 {.hidden_size = 8192, .layers = 512, .heads = 64, .kv_heads = 8, .context = 4096}),
             {.tp = 8, .dp = world / 512, .pp = 64, .offset = 0});
  for (int32_t i = 0; i < encoders; ++i) {
    job.Edge(absl::StrCat("encoder", i), "language", {.projector = 8192});
  }
  if (beside == kEncoders) {
    job.Batch(world / 512 * 3, 1).Schedule(job::ScheduleName::kInterleaved, 8);
  } else {
    job.Batch(world, 1).Schedule(job::ScheduleName::kAuto);
  }
  job.spec().name = "worst";
  job.spec().resources.device = job::DeviceKind::kGpu;
  job.spec().data = job::Data{.shards = {"a.tar"}, .tokenizer = "t.model"};
  return wire::EmitYaml(job::WriteJobSpec(job.spec()));
}

std::string SmallJob(const std::string& name) {
  AJob job;
  job.Module("language", support::Llama());
  job.spec().name = name;
  job.spec().data = job::Data{.shards = {"a.tar"}, .tokenizer = "t.model"};
  return wire::EmitYaml(job::WriteJobSpec(job.spec()));
}

// A worker daemon's stream that only tells what it has.
class Node {
 public:
  Node(const std::shared_ptr<grpc::Channel>& channel, const std::string& name,
       const std::string& kind, int32_t devices)
      : stub_(v1::WorkerService::NewStub(channel)), stream_(stub_->OpenSession(&context_)) {
    v1::OpenSessionRequest request;
    v1::WorkerHello* hello = request.mutable_hello();
    hello->set_node(name);
    hello->set_incarnation(1);
    hello->set_protocol_version(kProtocolVersion);
    hello->set_device_kind(kind);
    hello->set_devices(devices);
    v1::OpenSessionResponse welcome;
    if (!stream_->Write(request) || !stream_->Read(&welcome)) std::abort();
  }
  ~Node() { context_.TryCancel(); }
  void Heartbeat(bool draining) {
    v1::OpenSessionRequest request;
    request.mutable_heartbeat()->set_draining(draining);
    if (!stream_->Write(request)) std::abort();
  }

 private:
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
};

// The machine says in its log that a heartbeat of the node "probe" has told it something new.
class HeardProbe {
 public:
  void Line(const std::string& line) {
    if (!absl::StrContains(line, "node=probe") || !absl::StrContains(line, "draining")) return;
    MutexLock lock(&mu_);
    ++count_;
    changed_.SignalAll();
  }
  void Await(int count) {
    MutexLock lock(&mu_);
    while (count_ < count) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int count_ = 0;
};

double Milliseconds(const std::function<void()>& body) {
  const absl::Time start = absl::Now();
  body();
  return absl::ToDoubleMilliseconds(absl::Now() - start);
}

void Require(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error_message().c_str());
  std::abort();
}

class World {
 public:
  World() {
    ServerOptions options;
    options.sessions.heartbeat_timeout = absl::Hours(1);  // most nodes send none
    options.driver.log = [this](const std::string& line) { heard_.Line(line); };
    server_ = *Server::Start(std::move(options),
                             std::make_unique<MemoryBackend>(std::make_shared<MemoryDisk>()));
    for (int32_t i = 0; i < kWorld / kDevicesMax; ++i) {
      nodes_.push_back(
          std::make_unique<Node>(Connect(), absl::StrCat("node-", i), "gpu", kDevicesMax));
    }
    probe_ = std::make_unique<Node>(Connect(), "probe", "cpu", 0);
    jobs_ = v1::JobService::NewStub(Connect());
  }

  // A connection of its own, as separate processes have.
  std::shared_ptr<grpc::Channel> Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                     grpc::InsecureChannelCredentials(), arguments);
  }

  int64_t Submit(v1::JobService::Stub& stub, const std::string& text) {
    v1::SubmitJobRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory("/tmp");
    v1::SubmitJobResponse response;
    grpc::ClientContext context;
    Require(stub.SubmitJob(&context, request, &response));
    return response.job().id();
  }
  void Cancel(v1::JobService::Stub& stub, int64_t job) {
    v1::CancelJobRequest request;
    request.set_job(absl::StrCat(job));
    v1::CancelJobResponse response;
    grpc::ClientContext context;
    Require(stub.CancelJob(&context, request, &response));
  }
  // From the call until the job is in `phase`.
  void Watch(v1::JobService::Stub& stub, int64_t job, v1::JobPhase phase) {
    v1::WatchJobRequest request;
    request.set_job(absl::StrCat(job));
    grpc::ClientContext context;
    const auto stream = stub.WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response) && response.job().phase() != phase) {
      if (response.job().phase() == v1::JOB_PHASE_FAILED) {
        Require({grpc::StatusCode::UNKNOWN, response.job().reason()});
      }
    }
    context.TryCancel();
  }
  void Preview(v1::JobService::Stub& stub, const std::string& text) {
    v1::PlanJobRequest request;
    request.mutable_document()->set_text(text);
    request.mutable_document()->set_directory("/tmp");
    v1::PlanJobResponse response;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    stub.PlanJob(&context, request, &response);
  }

  v1::JobService::Stub& jobs() { return *jobs_; }
  Node& probe() { return *probe_; }
  HeardProbe& heard() { return heard_; }

 private:
  HeardProbe heard_;
  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::unique_ptr<Node> probe_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

void Report(benchmark::State& state, const std::string& what, std::vector<double> latencies) {
  std::sort(latencies.begin(), latencies.end());
  state.counters[what + "_p50_ms"] = latencies[latencies.size() / 2];
  state.counters[what + "_p99_ms"] = latencies[latencies.size() * 99 / 100];
  state.counters[what + "_max_ms"] = latencies.back();
}

void SeenBesidePlanning(benchmark::State& state) {
  const auto beside = static_cast<Beside>(state.range(0));
  World world;
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  std::vector<double> planning;
  std::atomic<int> planned = 0;
  if (beside != kNothing) {
    threads.emplace_back([&] {
      const auto stub = v1::JobService::NewStub(world.Connect());
      const std::string text = WorstJob(beside);
      while (!done) {
        const int64_t job = world.Submit(*stub, text);
        planning.push_back(Milliseconds([&] { world.Watch(*stub, job, v1::JOB_PHASE_STARTING); }));
        world.Cancel(*stub, job);
        ++planned;
      }
    });
  }
  for (int i = 0; beside == kPreviews && i < 4; ++i) {
    threads.emplace_back([&] {
      const auto stub = v1::JobService::NewStub(world.Connect());
      const std::string text = WorstJob(beside, kPreviewed);
      while (!done) world.Preview(*stub, text);
    });
  }
  std::vector<double> submits, watches, heartbeats;
  for (auto _ : state) {
    const int enough = beside == kNothing ? 0 : kPlannings;
    for (int round = 1; round <= kRounds || planned < enough; ++round) {
      int64_t job = 0;
      submits.push_back(Milliseconds(
          [&] { job = world.Submit(world.jobs(), SmallJob(absl::StrCat("small-", round))); }));
      watches.push_back(Milliseconds([&] {
        world.Cancel(world.jobs(), job);
        world.Watch(world.jobs(), job, v1::JOB_PHASE_CANCELLED);
      }));
      heartbeats.push_back(Milliseconds([&] {
        world.probe().Heartbeat(round % 2 == 1);
        world.heard().Await(round);
      }));
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  Report(state, "submit", submits);
  Report(state, "watch", watches);
  Report(state, "heartbeat", heartbeats);
  double worst = 0;
  for (const auto* seen : {&submits, &watches, &heartbeats}) {
    worst = std::max(worst, *std::max_element(seen->begin(), seen->end()));
  }
  if (beside != kPreviews && worst > kSeenMax) {
    state.SkipWithError(absl::StrCat("others saw ", worst, " ms, at most ", kSeenMax).c_str());
  }
  if (!planning.empty()) Report(state, "planning", planning);
  state.counters["planned"] = static_cast<double>(planning.size());
  state.SetLabel(kNames[beside]);
}
BENCHMARK(SeenBesidePlanning)
    ->DenseRange(kNothing, kPreviews)
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace phalanx::coordinator

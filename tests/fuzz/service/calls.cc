#include "tests/fuzz/service/calls.h"

#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/client_unary_call.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/job_filter.h"
#include "coordinator/wire/record_codec.h"
#include "core/base/mutex.h"
#include "core/wire/job_yaml.h"
#include "google/protobuf/duration.pb.h"
#include "phalanx/v1/job_service.grpc.pb.h"
#include "phalanx/v1/join_service.grpc.pb.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "tests/fuzz/service/world.h"

namespace phalanx::fuzz {
namespace {

using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MessageLite;
using google::protobuf::MethodDescriptor;

constexpr char kSession[] = "phalanx.v1.WorkerService.OpenSession";
constexpr char kUpload[] = "phalanx.v1.WorkerService.UploadLogs";
constexpr char kWatch[] = "phalanx.v1.JobService.WatchJob";
constexpr char kLogs[] = "phalanx.v1.JobService.GetLogs";
constexpr char kDelete[] = "phalanx.v1.JobService.DeleteJob";
constexpr size_t kStreamsMax = 8;
constexpr int64_t kTimeMax = 3600;
// For a command that is about to come, so that what answers it comes behind it.
constexpr auto kCommandPatience = std::chrono::milliseconds(50);

void SetDeadline(grpc::ClientContext& context, int64_t seconds = 60) {
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(seconds, GPR_TIMESPAN)));
}

// Whether its layout is left to the planner.
bool NeedsSearch(const v1::JobDocument& document) {
  const auto read = wire::ReadJobFile(document.text(), job::Purpose::kPlan);
  return read.ok() && read->spec.HasOpenLayout();
}

// What is said to a caller: a fault of ours, or nothing at all, is wrong.
std::string Judge(const std::string& method, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return "";
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      // It waits for the ranks of a job that has ended, and their node may never say more.
      if (method == kDelete) return "";
      [[fallthrough]];
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::UNIMPLEMENTED:
    case grpc::StatusCode::DATA_LOSS:
      return absl::StrCat(method, " ended with code ", status.error_code(), ": ",
                          status.error_message());
    default:
      return status.error_message().empty() ? method + " was refused without a word" : "";
  }
}

// One worker's stream. Answers are read on a thread of their own.
class Session {
 public:
  Session(std::shared_ptr<grpc::Channel> channel, Answers& answers, Mutex& mutex)
      : answers_(answers), mutex_(mutex), stub_(std::move(channel)) {
    SetDeadline(context_);
    stream_ = stub_.OpenSession(&context_);
    reader_ = std::jthread([this] { Read(); });
  }
  ~Session() { static_cast<void>(End()); }

  // Returns when the coordinator has dealt with it; false: the stream has ended.
  bool Write(const v1::OpenSessionRequest& message) {
    if (message.has_command_result()) AwaitCommand(message.command_result().command_number());
    // The second is read once the first is dealt with, and asks for nothing.
    return stream_->Write(message) && stream_->Write({});
  }
  grpc::Status End() {
    if (ended_) return grpc::Status::OK;
    ended_ = true;
    stream_->WritesDone();
    reader_.join();
    return stream_->Finish();
  }

 private:
  // Only for the next one: who knows whether any other will ever come.
  void AwaitCommand(uint64_t number) {
    MutexLock lock(&mutex_);
    if (number != commands_ + 1) return;
    const auto deadline = std::chrono::steady_clock::now() + kCommandPatience;
    while (!over_ && commands_ < number && !came_.WaitUntil(&mutex_, deadline)) {
    }
  }
  void Read() {
    v1::OpenSessionResponse response;
    while (stream_->Read(&response)) {
      MutexLock lock(&mutex_);
      answers_.Learn(response);
      if (response.has_command()) ++commands_;
      came_.SignalAll();
    }
    MutexLock lock(&mutex_);
    over_ = true;
    came_.SignalAll();
  }

  Answers& answers_;
  Mutex& mutex_;  // of answers_ and the two below
  uint64_t commands_ = 0;
  bool over_ = false;
  CondVar came_;
  bool ended_ = false;
  v1::WorkerService::Stub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::OpenSessionRequest, v1::OpenSessionResponse>>
      stream_;
  std::jthread reader_;
};

// A call that is answered with a stream, read until somebody ends it.
template <typename Response>
class Stream {
 public:
  template <typename Open>
  Stream(Answers& answers, Mutex& mutex, const Open& open) {
    SetDeadline(context_);
    reader_ = open(&context_);
    thread_ = std::jthread([this, &answers, &mutex] {
      Response response;
      while (reader_->Read(&response)) {
        MutexLock lock(&mutex);
        answers.Learn(response);
      }
      status_ = reader_->Finish();
    });
  }
  grpc::Status End() {
    context_.TryCancel();
    thread_.join();
    return status_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<Response>> reader_;
  grpc::Status status_;
  std::jthread thread_;
};

class Upload {
 public:
  explicit Upload(std::shared_ptr<grpc::Channel> channel) : stub_(std::move(channel)) {
    SetDeadline(context_);
    writer_ = stub_.UploadLogs(&context_, &response_);
  }
  bool Write(const v1::UploadLogsRequest& request) { return writer_->Write(request); }
  grpc::Status End() {
    writer_->WritesDone();
    return writer_->Finish();
  }

 private:
  v1::WorkerService::Stub stub_;
  grpc::ClientContext context_;
  v1::UploadLogsResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadLogsRequest>> writer_;
};

// One script against one coordinator.
class Player {
 public:
  explicit Player(World& world) : world_(world), jobs_(world.channel()) {}

  void Play(const Step& step) {
    const Kind& kind = Kinds()[step.kind];
    std::unique_ptr<Message> request(kind.request->New());
    if (!request->ParseFromString(step.bytes)) return;
    {
      MutexLock lock(&mutex_);
      answers_.Recall(*request);
    }
    if (kind.method == nullptr) {
      const auto& span = static_cast<const google::protobuf::Duration&>(*request);
      return world_.Advance(absl::Seconds(std::clamp<int64_t>(span.seconds(), 0, kTimeMax)));
    }
    Call(kind, *request);
  }
  void End() {
    if (upload_ != nullptr) Note(kUpload, upload_->End());
    for (auto& stream : watches_) Note(kWatch, stream->End(), /*cancelled=*/true);
    for (auto& stream : logs_) Note(kLogs, stream->End(), /*cancelled=*/true);
    for (auto& session : sessions_) {
      if (session != nullptr) Note(kSession, session->End());
    }
  }
  const Outcome& outcome() const { return outcome_; }

 private:
  void Call(const Kind& kind, const Message& request) {
    const std::string& name = kind.method->full_name();
    if (name == kSession) {
      Say(sessions_[static_cast<size_t>(kind.caller)],
          static_cast<const v1::OpenSessionRequest&>(request));
    } else if (name == kUpload) {
      if (upload_ == nullptr) upload_ = std::make_unique<Upload>(world_.channel());
      if (upload_->Write(static_cast<const v1::UploadLogsRequest&>(request))) return;
      Note(kUpload, upload_->End());
      upload_.reset();
    } else if (name == kWatch && watches_.size() < kStreamsMax) {
      const auto open = [&](grpc::ClientContext* context) {
        return jobs_.WatchJob(context, static_cast<const v1::WatchJobRequest&>(request));
      };
      watches_.push_back(std::make_unique<Stream<v1::WatchJobResponse>>(answers_, mutex_, open));
    } else if (name == kLogs && logs_.size() < kStreamsMax) {
      const auto open = [&](grpc::ClientContext* context) {
        return jobs_.GetLogs(context, static_cast<const v1::GetLogsRequest&>(request));
      };
      logs_.push_back(std::make_unique<Stream<v1::GetLogsResponse>>(answers_, mutex_, open));
    } else if (!kind.method->client_streaming() && !kind.method->server_streaming()) {
      Ask(*kind.method, request);
    }
  }
  void Say(std::unique_ptr<Session>& session, const v1::OpenSessionRequest& message) {
    if (session == nullptr) session = std::make_unique<Session>(world_.channel(), answers_, mutex_);
    if (session->Write(message)) return;
    Note(kSession, session->End());
    session.reset();
  }
  void Ask(const MethodDescriptor& method, const Message& request) {
    // A search for a layout takes seconds.
    if (const auto* submit = dynamic_cast<const v1::SubmitJobRequest*>(&request);
        submit != nullptr && NeedsSearch(submit->document()))
      return;
    if (const auto* plan = dynamic_cast<const v1::PlanJobRequest*>(&request);
        plan != nullptr && NeedsSearch(plan->document()))
      return;
    const std::string path = absl::StrCat("/", method.service()->full_name(), "/", method.name());
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    std::unique_ptr<Message> response(
        MessageFactory::generated_factory()->GetPrototype(method.output_type())->New());
    grpc::ClientContext context;
    SetDeadline(context, method.full_name() == kDelete ? 1 : 60);
    const grpc::Status status =
        grpc::internal::BlockingUnaryCall<MessageLite, MessageLite, MessageLite, MessageLite>(
            world_.channel().get(), rpc, &context, request, response.get());
    Note(method.full_name(), status);
    if (!status.ok()) return;
    MutexLock lock(&mutex_);
    answers_.Learn(*response);
  }
  void Note(const std::string& method, const grpc::Status& status, bool cancelled = false) {
    if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) outcome_.answered.push_back(method);
    if (cancelled && status.error_code() == grpc::StatusCode::CANCELLED) return;
    if (outcome_.wrong.empty()) outcome_.wrong = Judge(method, status);
  }

  World& world_;
  Mutex mutex_;  // of answers_
  Answers answers_;
  Outcome outcome_;
  v1::JobService::Stub jobs_;
  std::array<std::unique_ptr<Session>, 2> sessions_;
  std::vector<std::unique_ptr<Stream<v1::WatchJobResponse>>> watches_;
  std::vector<std::unique_ptr<Stream<v1::GetLogsResponse>>> logs_;
  std::unique_ptr<Upload> upload_;
};

// All that was stored is read again, and is the same when it is written.
std::string CheckStored(const coordinator::MemoryDisk& disk) {
  for (const coordinator::StoredRecord& stored : disk.records()) {
    const auto record = coordinator::DecodeRecord(stored.bytes, stored.number);
    if (!record.ok()) return absl::StrCat("stored, and not read: ", record.status().ToString());
    if (coordinator::EncodeRecord(*record, stored.number) != stored.bytes)
      return "stored, and read otherwise";
  }
  return "";
}

Step StepOf(size_t kind, const Message& request) {
  return {.kind = kind, .bytes = request.SerializeAsString()};
}

}  // namespace

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *[] {
    auto* made = new std::vector<Kind>;
    for (const google::protobuf::FileDescriptor* file :
         {v1::SubmitJobRequest::descriptor()->file(), v1::OpenSessionRequest::descriptor()->file(),
          v1::JoinRequest::descriptor()->file()}) {
      for (int s = 0; s < file->service_count(); ++s) {
        for (int m = 0; m < file->service(s)->method_count(); ++m) {
          const MethodDescriptor* method = file->service(s)->method(m);
          const Message* request =
              MessageFactory::generated_factory()->GetPrototype(method->input_type());
          made->push_back({.method = method, .request = request});
          if (method->full_name() == kSession)
            made->push_back({.method = method, .request = request, .caller = 1});
        }
      }
    }
    made->push_back({.request = &google::protobuf::Duration::default_instance()});
    return made;
  }();
  return kinds;
}

Step CallOf(const std::string& method, const Message& request, int caller) {
  const std::vector<Kind>& kinds = Kinds();
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].method != nullptr && kinds[i].method->full_name() == method &&
        kinds[i].caller == caller)
      return StepOf(i, request);
  }
  std::fprintf(stderr, "no method %s\n", method.c_str());
  std::abort();
}

Step TimeOf(int64_t seconds) {
  google::protobuf::Duration span;
  span.set_seconds(seconds);
  return StepOf(Kinds().size() - 1, span);
}

Outcome Run(absl::Span<const Step> steps) {
  const auto disk = std::make_shared<coordinator::MemoryDisk>();
  Outcome outcome;
  {
    World world(disk);
    Player player(world);
    for (const Step& step : steps) player.Play(step);
    player.End();
    outcome = player.outcome();
  }
  if (outcome.wrong.empty()) outcome.wrong = CheckStored(*disk);
  // Whatever was asked of it, the next coordinator starts from what it has left.
  if (outcome.wrong.empty() && !disk->records().empty()) const World again(disk);
  return outcome;
}

}  // namespace phalanx::fuzz

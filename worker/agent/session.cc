#include "worker/agent/session.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_split.h"
#include "core/wire/check_codec.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "worker/agent/translate.h"

namespace phalanx::agent {

Channels ConnectTo(const std::string& coordinators, const transport::TlsFiles& tls) {
  const std::vector<std::string> addresses = absl::StrSplit(coordinators, ',');
  const bool several = addresses.size() > 1;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, several ? 2'000 : 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, several ? 2'000 : 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The machine has the real backoff; the channel's own must not hide a coordinator that is back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // For how long one attempt may take, a TLS handshake on a busy machine included; one that is
  // refused is made again no sooner either.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, several || tls.on() ? 1000 : 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, several ? 500 : 1000);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  Channels channels;
  for (const std::string& address : addresses) {
    channels.push_back(
        grpc::CreateCustomChannel(address, transport::ClientCredentials(tls), arguments));
  }
  return channels;
}

// One stream. Lives until its last reaction through `self_`.
class SessionClient::Stream final
    : public grpc::ClientBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse> {
 public:
  // The machine sends a bounded number of messages ahead; more is a mistake of ours.
  static constexpr size_t kOutboxMax = 65'536;

  Stream(SessionNumber session, Inbox& inbox, std::shared_ptr<Living> living)
      : session_(session), inbox_(inbox), living_(std::move(living)) {
    MutexLock lock(&living_->mutex);
    ++living_->count;
  }

  void Start(const std::shared_ptr<grpc::Channel>& channel, v1::OpenSessionRequest hello,
             std::shared_ptr<Stream> self) {
    self_ = std::move(self);
    stub_ = v1::WorkerService::NewStub(channel);
    stub_->async()->OpenSession(&context_, this);
    // Writes are started outside reactions, until the coordinator has ended the stream.
    AddHold();
    {
      MutexLock lock(&mutex_);
      outbox_.push_back(std::move(hello));
      StartWrite(&outbox_.front());
    }
    StartRead(&response_);
    StartCall();
  }

  void Send(v1::OpenSessionRequest message) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (broken_ || closing_) return;
    if (outbox_.size() == kOutboxMax) return context_.TryCancel();
    outbox_.push_back(std::move(message));
    if (outbox_.size() == 1) StartWrite(&outbox_.front());
  }

  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (broken_ || closing_) return;
    closing_ = true;
    if (!welcomed_) return context_.TryCancel();
    if (outbox_.empty()) StartWritesDone();
  }

  void Cut() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      {
        MutexLock lock(&mutex_);
        broken_ = true;
      }
      return RemoveHold();
    }
    if (std::optional<Event> event = EventOf(session_, response_)) {
      if (std::holds_alternative<SessionWelcomed>(*event)) {
        MutexLock lock(&mutex_);
        welcomed_ = true;
      }
      inbox_.Post(*std::move(event));
    }
    response_.Clear();
    StartRead(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (ok && !hello_written_) {
      hello_written_ = true;
    } else if (ok) {
      inbox_.Post(MessageWritten{session_});
    }
    MutexLock lock(&mutex_);
    outbox_.pop_front();
    if (!ok || broken_) {
      broken_ = true;
    } else if (!outbox_.empty()) {
      StartWrite(&outbox_.front());
    } else if (closing_) {
      StartWritesDone();
    }
  }

  // Whether whoever we are was the reason why it ended.
  bool refused() const { return refused_; }

  void OnDone(const grpc::Status& status) override {
    refused_ = status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    inbox_.Post(SessionClosed{
        session_,
        absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message())});
    const std::shared_ptr<Living> living = living_;
    self_.reset();  // may delete this
    MutexLock lock(&living->mutex);
    --living->count;
    living->changed.SignalAll();
  }

 private:
  const SessionNumber session_;
  Inbox& inbox_;
  const std::shared_ptr<Living> living_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::shared_ptr<Stream> self_;
  std::atomic<bool> refused_ = false;
  v1::OpenSessionResponse response_;  // of the read under way
  bool hello_written_ = false;        // owned by the write reactions
  Mutex mutex_;
  // The front is being written.
  std::deque<v1::OpenSessionRequest> outbox_ ABSL_GUARDED_BY(mutex_);
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is written any more
};

SessionClient::SessionClient(std::function<Channels()> connect, v1::WorkerHello hello, Inbox& inbox)
    : connect_(std::move(connect)),
      channels_(connect_()),
      hello_(std::move(hello)),
      inbox_(inbox),
      living_(std::make_shared<Living>()) {}

SessionClient::~SessionClient() {
  if (stream_ != nullptr) stream_->Cut();
  stream_.reset();
  MutexLock lock(&living_->mutex);
  while (living_->count > 0) living_->changed.Wait(&living_->mutex);
}

void SessionClient::Open(const OpenSession& order) {
  v1::OpenSessionRequest request;
  v1::WorkerHello& hello = *request.mutable_hello();
  hello = hello_;
  hello.set_last_command_number(order.last_command_number);
  hello.set_store(order.store);
  hello.set_last_job(order.last_job.value);
  if (order.check != nullptr) wire::ToProto(*order.check, hello.mutable_check());
  for (const RunningAssignment& running : order.running) {
    v1::RunningAssignment& entry = *hello.add_running();
    entry.set_job(running.job.value);
    entry.set_epoch(running.epoch.value);
  }
  if (stream_ != nullptr) at_ = (at_ + 1) % channels_.size();
  if (stream_ != nullptr && stream_->refused()) {
    // A connection shows the certificate that it began with, and there may be another one by now.
    channels_ = connect_();
    aside_.clear();
  }
  stream_ = std::make_shared<Stream>(order.session, inbox_, living_);
  stream_->Start(channels_[at_], std::move(request), stream_);
}

const std::shared_ptr<grpc::Channel>& SessionClient::Aside() {
  if (aside_.empty()) aside_ = connect_();
  return aside_[at_];
}

void SessionClient::Send(v1::OpenSessionRequest message) {
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

void SessionClient::Close(const CloseSession&) {
  if (stream_ != nullptr) stream_->Close();
}

}  // namespace phalanx::agent

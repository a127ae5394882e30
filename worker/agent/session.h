// worker/agent/session.h: the daemon's stream to the coordinator. Translates and queues; decides
// nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "grpcpp/channel.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "transport/tls.h"
#include "worker/agent/inbox.h"
#include "worker/agent/machine/actions.h"

namespace phalanx::agent {

// Arguments of a channel to the coordinator: keepalive, and a quick return after it was away.
std::shared_ptr<grpc::Channel> ConnectTo(const std::string& coordinator,
                                         const transport::TlsFiles& tls);

// Opens one stream at a time. Events go to the inbox: a SessionWelcomed for a welcome, a
// MessageWritten for each message but the hello, at last exactly one SessionClosed a stream. Owned
// by the agent's thread.
class SessionClient {
 public:
  // `hello` is what every session begins with, but for what OpenSession brings.
  SessionClient(std::shared_ptr<grpc::Channel> channel, v1::WorkerHello hello, Inbox& inbox);
  // Cuts what is open and waits for it.
  ~SessionClient();

  void Open(const OpenSession& order);
  void Send(v1::OpenSessionRequest message);
  // Half-closes after what was sent; cuts the stream if it was never welcomed.
  void Close(const CloseSession& order);

 private:
  class Stream;
  // How many streams live; shared with them.
  struct Living {
    Mutex mutex;
    CondVar changed;
    int32_t count ABSL_GUARDED_BY(mutex) = 0;
  };

  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  const v1::WorkerHello hello_;
  Inbox& inbox_;
  const std::shared_ptr<Living> living_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace phalanx::agent

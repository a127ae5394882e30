// worker/agent/session.h: the daemon's stream to the coordinator. Translates and queues; decides
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/base/mutex.h"
#include "grpcpp/channel.h"
#include "phalanx/v1/worker_service.grpc.pb.h"
#include "transport/tls.h"
#include "worker/agent/inbox.h"
#include "worker/agent/machine/actions.h"

namespace phalanx::agent {

// One channel to each of "HOST:PORT[,HOST:PORT...]", which is sound: with keepalive, and a quick
// return after it was away. Of several, whoever stops answering is given up after seconds, for
// another one leads by then. Over connections that no other channel has.
using Channels = std::vector<std::shared_ptr<grpc::Channel>>;
Channels ConnectTo(const std::string& coordinators, const transport::TlsFiles& tls);

// Opens one stream at a time, each with the coordinator behind that of the one before, where there
// are several: one that stands by ends it at once. Events go to the inbox: a SessionWelcomed for a
// welcome, a MessageWritten for each message but the hello, at last exactly one SessionClosed a
// stream. Owned by the agent's thread.
class SessionClient {
 public:
  // `connect` makes at least one channel, always as many; `hello` is what every session begins
  // with, but for what OpenSession brings.
  SessionClient(std::function<Channels()> connect, v1::WorkerHello hello, Inbox& inbox);
  // Cuts what is open and waits for it.
  ~SessionClient();

  void Open(const OpenSession& order);
  // To the coordinator that has the stream that is open, or had it last, over another connection:
  // what is left of calls that nobody reads to their end counts against the connection that they
  // came over, which may be closed for it.
  const std::shared_ptr<grpc::Channel>& Aside();
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

  const std::function<Channels()> connect_;
  Channels channels_;
  Channels aside_;  // empty until one is asked for
  const v1::WorkerHello hello_;
  Inbox& inbox_;
  const std::shared_ptr<Living> living_;
  size_t at_ = 0;
  std::shared_ptr<Stream> stream_;
};

}  // namespace phalanx::agent

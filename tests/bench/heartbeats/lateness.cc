#include "tests/bench/heartbeats/lateness.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/bench/heartbeats/daemon.h"
#include "tests/bench/heartbeats/nodes.h"
#include "tests/support/process.h"

namespace phalanx::coordinator {
Lateness::Lateness(const std::string& address,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials, size_t nodes)
    : stub_(ConnectReader(address, credentials)),
      nodes_(nodes),
      thread_([this](const std::stop_token& stop) {
        auto next = std::chrono::steady_clock::now();
        while (!stop.stop_requested()) {
          Look();
          std::this_thread::sleep_until(next += absl::ToChronoNanoseconds(kPause));
        }
      }) {}

int64_t Lateness::Send(size_t node) {
  nodes_[node].sent.push_back(absl::Now());
  return static_cast<int64_t>(nodes_[node].sent.size());
}

void Lateness::Stop() {
  thread_.request_stop();
  thread_.join();
  const absl::Time deadline = absl::Now() + kPatience;
  for (Look(); !AllHeard() && failure_.empty() && absl::Now() < deadline; Look())
    absl::SleepFor(absl::Milliseconds(50));
  support::Require(failure_.empty(), failure_);
}

void Lateness::Look() {
  v1::ListNodesResponse response;
  grpc::ClientContext context;
  SetDeadline(context);
  const grpc::Status status = stub_->ListNodes(&context, v1::ListNodesRequest(), &response);
  if (!status.ok()) {
    if (failure_.empty())
      failure_ = absl::StrCat("nodes cannot be listed: ", status.error_message());
    return;
  }
  for (Node& node : nodes_) node.ready = false;
  for (const v1::NodeStatus& status_of : response.nodes()) {
    absl::string_view name = status_of.name();
    size_t index = 0;
    if (!absl::ConsumePrefix(&name, "node-") || !absl::SimpleAtoi(name, &index) ||
        index >= nodes_.size())
      continue;
    Node& node = nodes_[index];
    node.ready = status_of.state() == v1::NodeStatus::STATE_READY;
    const int64_t number = status_of.device_used_memory().empty()
                               ? 0
                               : status_of.device_used_memory(0) - Daemon::kUsedMemoryAtLeast;
    if (number <= node.last_heard()) continue;
    node.heard.push_back(
        {number, absl::FromUnixNanos(status_of.last_heartbeat().seconds() * 1'000'000'000 +
                                     status_of.last_heartbeat().nanos())});
  }
}

bool Lateness::AllHeard() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return node.all_heard(); });
}

std::vector<double> Lateness::MillisecondsOf(absl::Time begin, absl::Time end) const {
  std::vector<double> milliseconds;
  for (const Node& node : nodes_) {
    size_t next = 0;
    for (const Heard& heard : node.heard) {
      for (; next < static_cast<size_t>(heard.number) && next < node.sent.size(); ++next) {
        if (node.sent[next] >= begin && node.sent[next] < end)
          milliseconds.push_back(absl::ToDoubleMilliseconds(heard.at - node.sent[next]));
      }
    }
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  return milliseconds;
}

size_t Lateness::lost() const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return !node.ready || !node.all_heard();
  }));
}

}  // namespace phalanx::coordinator

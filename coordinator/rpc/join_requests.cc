#include "coordinator/rpc/join_requests.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/posix/peer_name.h"

namespace phalanx::coordinator {
namespace {

constexpr absl::string_view kPath = "/phalanx.v1.JoinService/Join";

// Lives until its call is done.
class Unimplemented final : public grpc::ServerGenericBidiReactor {
 public:
  Unimplemented() { Finish({grpc::StatusCode::UNIMPLEMENTED, ""}); }
  void OnDone() override { delete this; }
};

bool Parse(const grpc::ByteBuffer& bytes, v1::JoinRequest& request) {
  grpc::Slice whole;
  return bytes.DumpToSingleSlice(&whole).ok() &&
         request.ParseFromArray(whole.begin(), static_cast<int>(whole.size()));
}

}  // namespace

// Lives until its call is done, which is not before it was ended. It is ended once: by whoever has
// taken it from those that are read.
class JoinRequests::Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(JoinRequests& all, grpc::GenericCallbackServerContext* context)
      : context(context),
        all_(all),
        end_(context, "Join", all.world_.metrics, all.world_.audit,
             [this](const grpc::Status& status) { Answer(status); }) {
    // Whatever is begun here waits in the reactor until the constructor has returned.
    if (const absl::Status status = all_.Add(*this); !status.ok()) {
      End(status);
    } else {
      StartRead(&bytes_);
    }
  }

  void OnReadDone(bool ok) override {
    if (!all_.Take(number)) return;
    if (!ok) return End(absl::CancelledError("the call ended before its request was there"));
    if (!Parse(bytes_, request_))
      return End(absl::InvalidArgumentError("the request does not parse as JoinRequest"));
    bytes_.Clear();
    // Not before: whoever sends none would hold up a coordinator that stops, for all of its grace.
    counted_ = all_.world_.metrics.CallBegins();
    // The answer may be the end of this object.
    const Ending end = end_;
    all_.handle_(end, request_, &response_);
  }
  void OnDone() override {
    all_.Forget(number);
    if (counted_) all_.world_.metrics.CallEnds();
    delete this;
  }

  void End(const absl::Status& status) {
    // As in OnReadDone.
    const Ending end = end_;
    end(status);
  }

  grpc::GenericCallbackServerContext* const context;
  uint64_t number = 0;  // that Add gives it, before anybody else knows of it

 private:
  void Answer(const grpc::Status& status) {
    if (!status.ok()) return Finish(status);
    const grpc::Slice text(response_.SerializeAsString());
    bytes_ = grpc::ByteBuffer(&text, 1);
    StartWriteAndFinish(&bytes_, grpc::WriteOptions(), status);
  }

  JoinRequests& all_;
  bool counted_ = false;
  const Ending end_;
  grpc::ByteBuffer bytes_;  // of the request, then of the answer
  v1::JoinRequest request_;
  v1::JoinResponse response_;
};

JoinRequests::JoinRequests(JoinRequestBounds bounds, World world, Handle handle)
    : bounds_(bounds),
      world_(std::move(world)),
      handle_(std::move(handle)),
      thread_([this] { Run(); }) {}

JoinRequests::~JoinRequests() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.SignalAll();
}

grpc::ServerGenericBidiReactor* JoinRequests::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  if (context->method() != kPath) return new Unimplemented;
  return new Call(*this, context);
}

absl::Status JoinRequests::Add(Call& call) {
  Reading reading{.call = &call, .peer = call.context->peer()};
  reading.network = NetworkOf(reading.peer);
  reading.bytes_max = world_.received(reading.peer) + bounds_.bytes_max;
  std::vector<Verdict> verdicts;
  absl::Status room;
  {
    MutexLock lock(&mu_);
    const SteadyTime now = SteadyNow();
    reading.begun = now;
    reading.deadline = now + absl::ToChronoNanoseconds(bounds_.patience);
    call.number = ++last_number_;
    room = MakeRoomLocked(reading.network, bounds_.of_network_max, bounds_.of_network_burst_max,
                          now, verdicts);
    if (room.ok()) room = MakeRoomLocked("", bounds_.reading_max, bounds_.burst_max, now, verdicts);
    if (room.ok()) {
      reading_.emplace(call.number, std::move(reading));
    } else {
      LeaveLocked(call.number, call, now);
    }
    changed_.Signal();
  }
  CarryOut(verdicts);
  return room;
}

bool JoinRequests::Take(uint64_t number) {
  MutexLock lock(&mu_);
  return reading_.erase(number) != 0;
}

void JoinRequests::Forget(uint64_t number) {
  MutexLock lock(&mu_);
  leaving_.erase(number);
}

absl::Status JoinRequests::MakeRoomLocked(const std::string& network, size_t count_max,
                                          size_t burst_max, SteadyTime now,
                                          std::vector<Verdict>& verdicts) {
  const auto is_of = [&network](const Reading& reading) {
    return network.empty() || reading.network == network;
  };
  auto count = static_cast<size_t>(std::count_if(
      reading_.begin(), reading_.end(), [&](const auto& entry) { return is_of(entry.second); }));
  const absl::Status full = absl::ResourceExhaustedError(
      absl::StrCat(network.empty() ? "nodes" : network, network.empty() ? " send " : " sends ",
                   count, " requests to join that are not there yet; ask again in 1 s"));
  const SteadyTime young = now - absl::ToChronoNanoseconds(bounds_.youth);
  for (auto at = reading_.begin();
       at != reading_.end() && count >= count_max && at->second.begun <= young;) {
    if (is_of(at->second)) {
      at = TakeLocked(at, full, now, verdicts);
      --count;
    } else {
      ++at;
    }
  }
  return count < burst_max ? absl::OkStatus() : full;
}

JoinRequests::ReadingMap::iterator JoinRequests::TakeLocked(ReadingMap::iterator reading,
                                                            absl::Status why, SteadyTime now,
                                                            std::vector<Verdict>& verdicts) {
  LeaveLocked(reading->first, *reading->second.call, now);
  verdicts.push_back({reading->second.call, std::move(why)});
  return reading_.erase(reading);
}

void JoinRequests::LeaveLocked(uint64_t number, const Call& call, SteadyTime now) {
  leaving_[number] = {call.context, now + absl::ToChronoNanoseconds(bounds_.answer_patience)};
}

void JoinRequests::CarryOut(const std::vector<Verdict>& verdicts) {
  // Each call is there until it is ended.
  for (const Verdict& verdict : verdicts) verdict.call->End(verdict.why);
}

std::vector<JoinRequests::Verdict> JoinRequests::LookLocked(SteadyTime now) {
  std::vector<Verdict> verdicts;
  for (auto at = reading_.begin(); at != reading_.end();) {
    const Reading& reading = at->second;
    if (now >= reading.deadline) {
      at = TakeLocked(
          at,
          absl::DeadlineExceededError(absl::StrCat("the request did not come whole within ",
                                                   absl::FormatDuration(bounds_.patience))),
          now, verdicts);
    } else if (world_.received(reading.peer) > reading.bytes_max) {
      at = TakeLocked(at,
                      absl::InvalidArgumentError(absl::StrCat("the request does not end within ",
                                                              bounds_.bytes_max, " bytes")),
                      now, verdicts);
    } else {
      ++at;
    }
  }
  for (auto at = leaving_.begin(); at != leaving_.end();) {
    if (now >= at->second.deadline) {
      // Its caller reads nothing, and the answer waits.
      at->second.context->TryCancel();
      at = leaving_.erase(at);
    } else {
      ++at;
    }
  }
  return verdicts;
}

std::vector<JoinRequests::Verdict> JoinRequests::AwaitVerdicts() {
  MutexLock lock(&mu_);
  while (!stopped_) {
    if (reading_.empty() && leaving_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    if (const SteadyTime now = SteadyNow(); now >= next_look_) {
      next_look_ = now + absl::ToChronoNanoseconds(bounds_.look_interval);
      std::vector<Verdict> verdicts = LookLocked(now);
      if (!verdicts.empty()) return verdicts;
    }
    changed_.WaitUntil(&mu_, next_look_);
  }
  return {};
}

void JoinRequests::Run() {
  pthread_setname_np(pthread_self(), "join-requests");
  while (true) {
    const std::vector<Verdict> verdicts = AwaitVerdicts();
    if (verdicts.empty()) return;
    CarryOut(verdicts);
  }
}

}  // namespace phalanx::coordinator

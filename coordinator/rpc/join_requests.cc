#include "coordinator/rpc/join_requests.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <pthread.h>

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

// Lives until its call is done.
class JoinRequests::Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(JoinRequests& all, grpc::GenericCallbackServerContext* context)
      : all_(all),
        end_(context, "Join", all.world_.metrics, all.world_.audit,
             [this](const grpc::Status& status) { Answer(status); }),
        number_(all.Add(context)) {
    StartRead(&bytes_);
  }

  void OnReadDone(bool ok) override {
    // The answer may be the end of this object.
    const Ending end = end_;
    if (const absl::Status ended = all_.Take(number_); !ended.ok()) return end(ended);
    if (!ok) return end(absl::CancelledError("the call ended before its request was there"));
    if (!Parse(bytes_, request_))
      return end(absl::InvalidArgumentError("the request does not parse as JoinRequest"));
    bytes_.Clear();
    all_.handle_(end, request_, &response_);
  }
  void OnDone() override { delete this; }

 private:
  void Answer(const grpc::Status& status) {
    if (!status.ok()) return Finish(status);
    const grpc::Slice text(response_.SerializeAsString());
    bytes_ = grpc::ByteBuffer(&text, 1);
    StartWriteAndFinish(&bytes_, grpc::WriteOptions(), status);
  }

  JoinRequests& all_;
  const Ending end_;
  grpc::ByteBuffer bytes_;  // of the request, then of the answer
  v1::JoinRequest request_;
  v1::JoinResponse response_;
  const uint64_t number_;
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

uint64_t JoinRequests::Add(grpc::GenericCallbackServerContext* context) {
  Reading reading{.context = context,
                  .peer = context->peer(),
                  .deadline = SteadyNow() + absl::ToChronoNanoseconds(bounds_.patience)};
  reading.network = NetworkOf(reading.peer);
  reading.bytes_max = world_.received(reading.peer) + bounds_.bytes_max;
  MutexLock lock(&mu_);
  MakeRoomLocked(reading.network, bounds_.of_network_max);
  MakeRoomLocked("", bounds_.reading_max);
  reading_.emplace(++last_number_, std::move(reading));
  changed_.Signal();
  return last_number_;
}

absl::Status JoinRequests::Take(uint64_t number) {
  MutexLock lock(&mu_);
  const auto found = reading_.find(number);
  absl::Status ended = std::move(found->second.ended);
  reading_.erase(found);
  return ended;
}

void JoinRequests::MakeRoomLocked(const std::string& network, size_t count_max) {
  size_t count = 0;
  Reading* oldest = nullptr;
  for (auto& [number, reading] : reading_) {
    if (!reading.ended.ok() || (!network.empty() && reading.network != network)) continue;
    if (++count == 1) oldest = &reading;
  }
  if (count < count_max) return;
  End(*oldest, absl::ResourceExhaustedError(absl::StrCat(
                   network.empty() ? "nodes" : network, network.empty() ? " send " : " sends ",
                   count, " requests to join that are not there yet; ask again in 1 s")));
}

void JoinRequests::End(Reading& reading, absl::Status why) {
  reading.ended = std::move(why);
  // Not by an answer, which waits for a caller who reads nothing.
  reading.context->TryCancel();
}

void JoinRequests::LookLocked(SteadyTime now) {
  for (auto& [number, reading] : reading_) {
    if (!reading.ended.ok()) continue;
    if (now >= reading.deadline) {
      End(reading,
          absl::DeadlineExceededError(absl::StrCat("the request did not come whole within ",
                                                   absl::FormatDuration(bounds_.patience))));
    } else if (world_.received(reading.peer) > reading.bytes_max) {
      End(reading, absl::InvalidArgumentError(absl::StrCat("the request does not end within ",
                                                           bounds_.bytes_max, " bytes")));
    }
  }
}

void JoinRequests::Run() {
  pthread_setname_np(pthread_self(), "join-requests");
  MutexLock lock(&mu_);
  SteadyTime next;
  while (!stopped_) {
    if (reading_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    if (const SteadyTime now = SteadyNow(); now >= next) {
      LookLocked(now);
      next = now + absl::ToChronoNanoseconds(bounds_.look_interval);
    }
    changed_.WaitUntil(&mu_, next);
  }
}

}  // namespace phalanx::coordinator

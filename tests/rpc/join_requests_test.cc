// Requests to join of those who send them slowly, in part, or all at once.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/posix/waker.h"
#include "gmock/gmock.h"
#include "tests/rpc/join_fixture.h"
#include "tests/rpc/raw_http2.h"
#include "worker/agent/join.h"

namespace phalanx::coordinator {
namespace {

using ::testing::HasSubstr;

class JoinRequestsTest : public JoinTest {
 protected:
  void OpenWith(const std::function<void(JoinOptions&)>& change) {
    server_.reset();
    Open([&](ServerOptions& options) {
      LetNodesJoin(options, folder_ + "/join-tokens");
      change(options.join);
    });
  }
};

// Begins a request to join of `bytes` bytes, and sends all of it but the last byte, as fast as the
// server takes it.
class HalfRequest {
 public:
  HalfRequest(std::unique_ptr<TlsClient> client, uint32_t bytes)
      : client_(std::move(client)), left_(bytes - 1) {
    client_->Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JoinService/Join"),
                               PartOfMessage(bytes, "")));
    SendOn();
  }
  // Whether the server ends the call with an answer, rather than the connection, or nothing for
  // 10 s.
  bool IsEnded() {
    std::string got;
    while (true) {
      const std::string more = client_->ReadSome();
      if (more.empty()) return false;
      got += more;
      while (got.size() >= kHead && got.size() >= kHead + NumberAt(got, 0, 3)) {
        const std::string frame = got.substr(0, kHead + NumberAt(got, 0, 3));
        got.erase(0, frame.size());
        if (frame[3] == 3) return false;
        if (frame[3] == 1 && (frame[4] & 1) != 0) {
          answer_ = frame.substr(kHead);
          return true;
        }
        Take(frame);
      }
      SendOn();
    }
  }
  // Has the words of the status as they are; there once it is ended.
  const std::string& answer() const { return answer_; }

 private:
  static constexpr size_t kHead = 9;
  static int64_t NumberAt(absl::string_view text, size_t at, size_t bytes) {
    int64_t number = 0;
    for (const char c : text.substr(at, bytes)) number = number << 8 | static_cast<uint8_t>(c);
    return number;
  }
  void SendOn() {
    while (true) {
      const int64_t part = std::min({left_, of_call_, of_connection_, int64_t{16'384}});
      if (part <= 0) return;
      client_->Send(Frame(0, 0, 1, std::string(static_cast<size_t>(part), 'a')));
      for (int64_t* room : {&left_, &of_call_, &of_connection_}) *room -= part;
    }
  }
  // Pings, settings and how much more may be sent.
  void Take(const std::string& frame) {
    const std::string payload = frame.substr(kHead);
    const bool asks = frame[4] == 0;
    if (frame[3] == 6 && asks) client_->Send(Frame(6, 1, 0, payload));
    if (frame[3] == 8)
      (NumberAt(frame, 5, 4) == 0 ? of_connection_ : of_call_) += NumberAt(payload, 0, 4);
    if (frame[3] != 4 || !asks) return;
    for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
      if (NumberAt(payload, at, 2) != 4) continue;
      of_call_ += NumberAt(payload, at + 2, 4) - first_;
      first_ = NumberAt(payload, at + 2, 4);
    }
    client_->Send(Frame(4, 1, 0, ""));
  }

  const std::unique_ptr<TlsClient> client_;
  std::string answer_;
  int64_t left_;
  int64_t first_ = 65'535;  // that a call may send at its beginning
  int64_t of_call_ = first_ - 5, of_connection_ = first_ - 5;
};

TEST_F(JoinRequestsTest,
       StrangersWhoHoldHalfOfLargeRequests_AreEnded_AndWorkersAndPeopleNoticeNothing) {
  // By what they send, and by nothing else.
  OpenWith([&](JoinOptions& join) {
    join.requests.patience = absl::Minutes(10);
    for (size_t JoinRequestBounds::*bound :
         {&JoinRequestBounds::reading_max, &JoinRequestBounds::of_network_max,
          &JoinRequestBounds::burst_max, &JoinRequestBounds::of_network_burst_max})
      join.requests.*bound = 1000;
  });
  FakeWorker worker(ChannelOf(authority().Worker("here")), 120);
  worker.Join("here", 1);
  std::vector<std::unique_ptr<HalfRequest>> strangers;
  for (int i = 0; i < 130; ++i)
    strangers.push_back(std::make_unique<HalfRequest>(Connected(), (8 << 20) - 1));
  int ended = 0;
  for (const auto& stranger : strangers) ended += stranger->IsEnded() ? 1 : 0;
  EXPECT_EQ(ended, 130);
  ExpectTold(
      "who=- role=- method=Join outcome=INVALID_ARGUMENT reason=\"the request does not end within "
      "65536 bytes\"",
      130);
  v1::OpenSessionRequest heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_TRUE(worker.Write(heartbeat));
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(support::kPatience);
  const std::string counted = "\nphalanx_heartbeats_total 1\n";
  while (!absl::StrContains(server_->MetricsText(), counted) &&
         std::chrono::steady_clock::now() < deadline)
    absl::SleepFor(absl::Milliseconds(5));
  EXPECT_THAT(server_->MetricsText(), HasSubstr(counted));
  Be("sam", "submitter");
  MustSubmit(JobText("a"));
  MustJoin(Create().token(), "new");
}

TEST_F(JoinRequestsTest, RequestThatDrips_IsEndedInTime) {
  OpenWith([&](JoinOptions& join) { join.requests.patience = absl::Milliseconds(100); });
  HalfRequest drips(Connected(), 1000);
  EXPECT_TRUE(drips.IsEnded());
  ExpectTold(
      "who=- role=- method=Join outcome=DEADLINE_EXCEEDED reason=\"the request did not come whole "
      "within 100ms\"");
}

TEST_F(JoinRequestsTest, RequestThatHasNoRoom_EndsTheOneThatWaitsLongest_WithAnAnswer) {
  OpenWith([&](JoinOptions& join) {
    join.requests.of_network_max = 1;
    join.requests.youth = absl::ZeroDuration();
    join.requests.patience = absl::Minutes(10);
  });
  HalfRequest first(Connected(), 1000), second(Connected(), 1000);
  ExpectTold("reason=\"127.0.0.1 sends 1 requests to join that are not there yet");
  MustJoin(Create().token(), "new");
  for (HalfRequest* half : {&first, &second}) {
    EXPECT_TRUE(half->IsEnded());
    EXPECT_THAT(half->answer(), HasSubstr("127.0.0.1 sends 1 requests to join that are not there "
                                          "yet; ask again in 1 s"));
  }
}

TEST_F(JoinRequestsTest, RequestThatIsNotThere_HoldsUpNoCoordinatorThatStops) {
  server_.reset();
  Open([&](ServerOptions& options) {
    LetNodesJoin(options, folder_ + "/join-tokens");
    options.join.requests.of_network_max = 1;
    options.join.requests.youth = absl::ZeroDuration();
    options.join.requests.patience = absl::Minutes(10);
  });
  // One of them makes room for the other, which is being read from then on.
  HalfRequest first(Connected(), 1000), second(Connected(), 1000);
  ExpectTold("reason=\"127.0.0.1 sends 1 requests to join that are not there yet");
  const SteadyTime asked = SteadyNow();
  server_->Shutdown(support::kPatience);
  EXPECT_LT(Since(asked), support::kPatience / 2);
}

TEST_F(JoinRequestsTest, RequestsOfAllAddresses_AreBoundedTogether) {
  OpenWith([&](JoinOptions& join) {
    join.requests.reading_max = 2;
    join.requests.youth = absl::ZeroDuration();
    join.requests.patience = absl::Minutes(10);
  });
  std::vector<std::unique_ptr<HalfRequest>> strangers;
  for (const std::string from : {"127.0.0.1", "127.0.0.2", "127.0.0.3"})
    strangers.push_back(std::make_unique<HalfRequest>(Connected(from), 1000));
  ExpectTold("reason=\"nodes send 2 requests to join that are not there yet");
  MustJoin(Create().token(), "new");
}

TEST_F(JoinRequestsTest, NodesOfOneAddressThatComeAtOnce_AreNotTakenForSlowOnes) {
  OpenWith([&](JoinOptions& join) {
    join.rate = JoinOptions().rate;
    join.network_rate = JoinOptions().network_rate;
  });
  constexpr size_t kNodes = 50;  // as many as the rate lets in
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<v1::JoinRequest> requests(kNodes);
  for (size_t i = 0; i < kNodes; ++i) {
    requests[i].set_token(Create().token());
    requests[i].set_node(absl::StrCat("node-", i));
    requests[i].set_certificate_request(transport::MakeKeyAndRequest()->request);
    channels.push_back(ChannelOfStranger());
    ASSERT_TRUE(channels.back()->WaitForConnected(std::chrono::system_clock::now() +
                                                  absl::ToChronoNanoseconds(support::kPatience)));
  }
  std::vector<grpc::Status> answers(kNodes);
  {
    std::vector<std::jthread> nodes;
    for (size_t i = 0; i < kNodes; ++i) {
      nodes.emplace_back([&, i] {
        v1::JoinResponse response;
        answers[i] = Do(channels[i], &v1::JoinService::Stub::Join, requests[i], &response);
      });
    }
  }
  for (const grpc::Status& answer : answers) EXPECT_TRUE(answer.ok()) << answer.error_message();
}

TEST_F(JoinRequestsTest, NodeThatFindsTooManyOthers_JoinsOnceTheyAreGone) {
  OpenWith([&](JoinOptions& join) {
    join.requests.of_network_max = 1;
    join.requests.of_network_burst_max = 1;
    join.requests.youth = join.requests.patience = absl::Minutes(10);
  });
  const std::string state = support::MakeFolder("crowd"), token = state + "/token";
  support::WriteFile(token, Create().token());
  chmod(token.c_str(), 0600);
  // Until one of them has the place; who finds it taken is refused.
  std::vector<std::unique_ptr<HalfRequest>> others;
  grpc::Status refused;
  while (refused.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) {
    others.push_back(std::make_unique<HalfRequest>(Connected(), 1000));
    refused = Join("phx_0123456789abcdef_x", "other");
    ASSERT_LT(others.size(), 1000u) << refused.error_message();
  }
  EXPECT_THAT(refused.error_message(), HasSubstr("127.0.0.1 sends 1 requests to join"));
  std::vector<std::string> told;
  const absl::StatusOr<transport::TlsFiles> files =
      agent::ObtainIdentity({.coordinator = absl::StrCat("127.0.0.1:", server_->port()),
                             .ca = authority().folder() + "/ca.pem",
                             .node = "new",
                             .state = state,
                             .token_file = token,
                             .crowd_pause_min = absl::Milliseconds(10),
                             .crowd_pause_max = absl::Milliseconds(10),
                             .log =
                                 [&](const std::string& line) {
                                   told.push_back(line);
                                   others.clear();
                                 }},
                            [] { return false; });
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(told, ::testing::ElementsAre(HasSubstr("waits to join")));
  FakeWorker worker(ChannelOf(*files));
  worker.Join("new", 1);
}

TEST_F(JoinRequestsTest,
       StrangersOfOneAddress_TakeNothingFromThoseOfAnother_AndAllTogetherAreBounded) {
  OpenWith([&](JoinOptions& join) {
    join.network_rate = {.calls_per_second = 0.001, .calls_at_once = 2};
    join.rate = {.calls_per_second = 0.001, .calls_at_once = 3};
  });
  std::vector<std::unique_ptr<TlsClient>> open;
  const auto ask = [&](const std::string& from) {
    open.push_back(Connected(from));
    open.back()->Send(absl::StrCat(kPreface, Settings(), Headers("/phalanx.v1.JoinService/Join"),
                                   PartOfMessage(0, "")));
  };
  const std::string heard = "method=Join outcome=INVALID_ARGUMENT reason=\"token has 0 bytes";
  for (int i = 0; i < 5; ++i) ask("127.0.0.1");
  ExpectTold("reason=\"127.0.0.1 calls more often than 0.001 times a second", 3);
  ExpectTold(heard, 2);
  ask("127.0.0.2");
  ExpectTold(heard, 3);
  ask("127.0.0.2");
  ExpectTold("reason=\"whoever joins calls more often than 0.001 times a second");
}

}  // namespace
}  // namespace phalanx::coordinator

#include "worker/channel/frame_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "phalanx/v1/rank.pb.h"
#include "tests/unit/worker/channel/patience.h"

namespace phalanx::channel {
namespace {

struct Ends {
  std::unique_ptr<FrameSocket> daemon, rank;
};

Ends Connect() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {std::make_unique<FrameSocket>(fds[0]), std::make_unique<FrameSocket>(fds[1])};
}

v1::ToRank QuitBecause(std::string reason) {
  v1::ToRank message;
  message.mutable_quit()->set_reason(std::move(reason));
  return message;
}

TEST(FrameSocketTest, Message_Sent_ArrivesWhole) {
  Ends ends = Connect();
  ASSERT_TRUE(ends.daemon->Send(QuitBecause("done"), kPatience).ok());
  v1::ToRank received;
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "done");
}

TEST(FrameSocketTest, LargeMessages_BeyondTheSocketBuffer_ArriveInOrder) {
  Ends ends = Connect();
  std::jthread sender([&] {
    for (char c = 'a'; c < 'e'; ++c) {
      EXPECT_TRUE(ends.daemon->Send(QuitBecause(std::string(5 << 20, c)), kPatience).ok());
    }
  });
  for (char c = 'a'; c < 'e'; ++c) {
    v1::ToRank received;
    ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
    EXPECT_EQ(received.quit().reason(), std::string(5 << 20, c));
  }
}

TEST(FrameSocketTest, Senders_OnSeveralThreads_DoNotMixFrames) {
  Ends ends = Connect();
  std::vector<std::jthread> senders;
  for (char c = 'a'; c < 'e'; ++c) {
    senders.emplace_back([&ends, c] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(ends.daemon->Send(QuitBecause(std::string(3000, c)), kPatience).ok());
      }
    });
  }
  for (int i = 0; i < 400; ++i) {
    v1::ToRank received;
    ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
    const std::string& reason = received.quit().reason();
    EXPECT_EQ(reason, std::string(3000, reason[0]));
  }
}

// Frames before and behind them do not take them along.
TEST(FrameSocketTest, Descriptors_ArriveWithTheirFrame) {
  Ends ends = Connect();
  ASSERT_TRUE(ends.daemon->Send(QuitBecause("before"), kPatience).ok());
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd read_end(pipe_ends[0]);
  std::string frame;
  ASSERT_TRUE(AppendFrame(QuitBecause("with"), &frame).ok());
  {
    const UniqueFd write_end(pipe_ends[1]);
    ASSERT_EQ(SendSome(ends.daemon->fd(), frame, {write_end.get()}),
              static_cast<ssize_t>(frame.size()));
  }
  ASSERT_TRUE(ends.daemon->Send(QuitBecause("behind"), kPatience).ok());

  v1::ToRank received;
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "before");
  EXPECT_TRUE(ends.rank->TakeDescriptors(0).empty()) << "it may be there, and is of the next one";
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "with");
  std::vector<UniqueFd> descriptors = ends.rank->TakeDescriptors(1);
  ASSERT_EQ(descriptors.size(), 1u);
  ASSERT_EQ(write(descriptors[0].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "behind");
  EXPECT_TRUE(ends.rank->TakeDescriptors().empty());
}

TEST(FrameSocketTest, Message_AboveTheLimit_IsRefusedAndHarmless) {
  Ends ends = Connect();
  EXPECT_EQ(ends.daemon->Send(QuitBecause(std::string(kFrameBytesMax, 'x')), kPatience).code(),
            absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(ends.daemon->Send(QuitBecause("small"), kPatience).ok());
  v1::ToRank received;
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "small");
}

TEST(FrameSocketTest, Receive_PastItsDeadline_KeepsThePartOfAFrameThatCame) {
  Ends ends = Connect();
  std::string frame;
  ASSERT_TRUE(AppendFrame(QuitBecause("slow"), &frame).ok());
  ASSERT_EQ(send(ends.daemon->fd(), frame.data(), 5, 0), 5);
  v1::ToRank received;
  EXPECT_EQ(ends.rank->Receive(&received, absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(send(ends.daemon->fd(), frame.data() + 5, frame.size() - 5, 0),
            static_cast<ssize_t>(frame.size() - 5));
  ASSERT_TRUE(ends.rank->Receive(&received, kPatience).ok());
  EXPECT_EQ(received.quit().reason(), "slow");
}

TEST(FrameSocketTest, Send_CutShortByItsDeadline_LeavesTheStreamUnusable) {
  Ends ends = Connect();
  EXPECT_EQ(ends.daemon->Send(QuitBecause(std::string(8 << 20, 'x')), absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ends.daemon->Send(QuitBecause("next"), kPatience).code(),
            absl::StatusCode::kUnavailable);
}

TEST(FrameSocketTest, OtherEnd_Closed_IsUnavailable) {
  Ends ends = Connect();
  ends.daemon.reset();
  v1::ToRank received;
  EXPECT_EQ(ends.rank->Receive(&received, kPatience).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ends.rank->Send(v1::ToDaemon(), kPatience).code(), absl::StatusCode::kUnavailable);
}

TEST(FrameSocketTest, Shutdown_FromAnotherThread_WakesTheReceiver) {
  Ends ends = Connect();
  absl::Status status;
  std::jthread receiver([&] {
    v1::ToRank received;
    status = ends.rank->Receive(&received, absl::InfiniteDuration());
  });
  ends.rank->Shutdown();
  receiver.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(FrameSocketTest, Length_BeyondTheLimit_IsInvalid) {
  Ends ends = Connect();
  ASSERT_EQ(send(ends.daemon->fd(), "\xFF\xFF\xFF\xFF", 4, 0), 4);
  v1::ToRank received;
  EXPECT_EQ(ends.rank->Receive(&received, kPatience).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameSocketTest, Frame_ThatIsNoMessage_IsInvalid) {
  Ends ends = Connect();
  ASSERT_EQ(send(ends.daemon->fd(), "\x02\x00\x00\x00\xFF\xFF", 6, 0), 6);
  v1::ToRank received;
  EXPECT_EQ(ends.rank->Receive(&received, kPatience).code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameDecoderTest, Bytes_OneAtATime_GiveTheSameFrames) {
  std::string stream;
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(AppendFrame(QuitBecause(std::string(i * 37, 'y')), &stream).ok());
  FrameDecoder decoder;
  int frames = 0;
  for (char c : stream) {
    decoder.Append(absl::string_view(&c, 1));
    while (true) {
      auto frame = decoder.Next();
      ASSERT_TRUE(frame.ok());
      if (!frame->has_value()) break;
      v1::ToRank message;
      ASSERT_TRUE(message.ParseFromString(**frame));
      EXPECT_EQ(message.quit().reason(), std::string(frames++ * 37, 'y'));
    }
  }
  EXPECT_EQ(frames, 50);
}

}  // namespace
}  // namespace phalanx::channel

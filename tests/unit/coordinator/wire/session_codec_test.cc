#include "coordinator/wire/session_codec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/wire/layout_codec.h"
#include "phalanx/v1/worker_service.pb.h"

namespace phalanx::coordinator {
namespace {

v1::WorkerHello GoodHello() {
  v1::WorkerHello hello;
  hello.set_node("node-1.example");
  hello.set_incarnation(7);
  hello.set_protocol_version(kProtocolVersion);
  hello.set_device_kind("cpu");
  hello.set_devices(6);
  return hello;
}

absl::StatusCode CodeOf(const std::function<void(v1::WorkerHello&)>& spoil) {
  v1::WorkerHello hello = GoodHello();
  spoil(hello);
  return HelloFromProto(hello).status().code();
}

TEST(HelloTest, GoodOne_IsTaken) {
  const WorkerHello hello = *HelloFromProto(GoodHello());
  EXPECT_EQ(hello.node, "node-1.example");
  EXPECT_EQ(hello.devices, 6);
  EXPECT_TRUE(hello.device_memory.empty());
}

TEST(HelloTest, DeviceMemory_IsThatOfEachDevice) {
  v1::WorkerHello hello = GoodHello();
  hello.set_devices(2);
  hello.add_device_memory(int64_t{80} << 30);
  hello.add_device_memory(0);
  EXPECT_EQ(HelloFromProto(hello)->device_memory, (std::vector<int64_t>{int64_t{80} << 30, 0}));
}

TEST(HelloTest, OtherProtocolVersion_IsFailedPrecondition) {
  EXPECT_EQ(CodeOf([](v1::WorkerHello& h) { h.set_protocol_version(kProtocolVersion + 1); }),
            absl::StatusCode::kFailedPrecondition);
}

TEST(HelloTest, MalformedFields_AreInvalidArgument) {
  const std::function<void(v1::WorkerHello&)> spoils[] = {
      [](v1::WorkerHello& h) { h.set_node(""); },
      [](v1::WorkerHello& h) { h.set_node("a/../b"); },
      [](v1::WorkerHello& h) { h.set_node(std::string("a\0b", 3)); },
      [](v1::WorkerHello& h) { h.set_node("line\nbreak"); },
      [](v1::WorkerHello& h) { h.set_node(std::string(254, 'n')); },
      [](v1::WorkerHello& h) { h.set_incarnation(0); },
      [](v1::WorkerHello& h) { h.set_device_kind("tpu"); },
      [](v1::WorkerHello& h) { h.set_devices(-1); },
      [](v1::WorkerHello& h) { h.set_devices(kDevicesMax + 1); },
      [](v1::WorkerHello& h) { h.add_device_memory(1); },  // of six devices
      [](v1::WorkerHello& h) {
        for (int i = 0; i < 6; ++i) h.add_device_memory(-1);
      },
      [](v1::WorkerHello& h) { h.set_version(std::string(100'000, 'v')); }};
  for (const auto& spoil : spoils) EXPECT_EQ(CodeOf(spoil), absl::StatusCode::kInvalidArgument);
}

TEST(MessageTest, EmptyOrUnknown_IsPassedOver) {
  EXPECT_FALSE(EventFromProto(SessionId{1}, {}).has_value());
  v1::OpenSessionRequest report;
  report.mutable_rank_report()->set_job(1);
  EXPECT_FALSE(EventFromProto(SessionId{1}, report).has_value());
}

TEST(MessageTest, SecondHello_IsPassedOver) {
  v1::OpenSessionRequest message;
  *message.mutable_hello() = GoodHello();
  EXPECT_FALSE(EventFromProto(SessionId{1}, message).has_value());
}

TEST(CommandTest, Assign_CarriesEverything) {
  auto request = std::make_shared<JobRequest>();
  request->document = {.text = "text", .directory = "/d"};
  v1::Command command;
  const plan::Layout layout{.epoch = Epoch{2},
                            .schedule = {.name = job::ScheduleName::k1F1B},
                            .nodes = {{"n", {1, 3}}},
                            .data_digest = "data"};
  ToProto(4, Assign{JobId{1}, Epoch{2}, request, layout, "plan"}, &command);
  EXPECT_EQ(command.command_number(), 4u);
  EXPECT_EQ(command.assign().epoch(), 2);
  EXPECT_EQ(command.assign().document().text(), "text");
  EXPECT_EQ(*wire::FromProto(command.assign().layout()), layout);
  EXPECT_EQ(command.assign().plan_digest(), "plan");
}

}  // namespace
}  // namespace phalanx::coordinator

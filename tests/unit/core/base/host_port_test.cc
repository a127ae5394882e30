#include "core/base/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phalanx {
namespace {

TEST(HostPortTest, HostAndPort_AreTakenApart) {
  for (const auto& [text, host] : {std::pair("127.0.0.1:4444", "127.0.0.1"),
                                   std::pair("[::1]:4444", "[::1]"), std::pair("n:04444", "n")}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text, 1);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->host, host);
    EXPECT_EQ(address->port, 4444);
  }
}

TEST(HostPortTest, PortOutsideItsRange_IsRefusedWithTheRule) {
  for (const char* text : {"a:999999", "a:65536", "a:0", "a:-1", "a:+1", "a: 1", "a:", "a", ":1",
                           "", "a:99999999999999999999", "unix:/tmp/a"}) {
    const absl::Status status = ParseHostPort(text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(),
              std::string("\"") + text + "\": must be HOST:PORT with a port from 1 to 65535");
  }
  EXPECT_EQ(ParseHostPort("a:0", 0)->port, 0);
}

TEST(HostPortTest, ControlCharacters_AreWrittenOut) {
  EXPECT_THAT(std::string(ParseHostPort("\x1b[31m", 1).status().message()),
              ::testing::StartsWith("\"\\x1b[31m\""));
}

}  // namespace
}  // namespace phalanx

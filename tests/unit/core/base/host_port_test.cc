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
  for (const char* text : {"a:999999", "a:65536", "a:0", "a:-1", "a:+1", "a: 1", "a:", "a", "",
                           "a:99999999999999999999", "unix:/tmp/a"}) {
    const absl::Status status = ParseHostPort(text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(status.message(),
              std::string("\"") + text + "\": must be HOST:PORT with a port from 1 to 65535");
  }
  EXPECT_EQ(ParseHostPort("a:0", 0)->port, 0);
}

TEST(HostPortTest, HostThatIsNone_IsRefusedWithTheRule) {
  for (const char* text : {"[::1", "[::1:4444", "a b:1", "::1:4444", ":1", "[]:1", "[a]:1",
                           "[::1%]:1", "[::1]x:1", "x[::1]:1", "dns:///a:1", "a/b:1", "a,b:1",
                           // Numbers that are no address, and what no name server can have.
                           "256.1.1.1:1", "1.2.3:1", "1.2.3.4.5:1", "1.2.3.4.:1", "4444:80",
                           "a.1:1", "-a:1", "a-:1", "a..b:1", ".a:1", ".:1", "a..:1"}) {
    const absl::Status status = ParseHostPort(text, 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(
        std::string(status.message()),
        ::testing::StartsWith(std::string("\"") + text + "\": must be HOST:PORT, where HOST"));
  }
  EXPECT_TRUE(ParseHostPort("[fe80::1%eth0]:1", 1).ok());
  EXPECT_TRUE(ParseHostPort("coordinator.example.:1", 1).ok()) << "a name from the root";
  EXPECT_TRUE(ParseHostPort("10-0-0-1.nodes:1", 1).ok());
  EXPECT_TRUE(ParseHostPort("node_1.cluster-a.example:1", 1).ok());
}

TEST(HostPortTest, NameThatIsTooLong_IsRefused) {
  const std::string label(63, 'a');
  std::string name = label + "." + label + "." + label + "." + std::string(61, 'a');
  EXPECT_TRUE(IsHost(name));
  EXPECT_FALSE(IsHost(name + "a"));
  EXPECT_FALSE(IsHost(label + "a"));
  EXPECT_FALSE(IsHost(std::string(300, 'a')));
}

TEST(HostPortTest, HostAlone_IsANameOrAnAddress) {
  for (const char* text : {"a", "node_1.cluster-a.example", "10.0.0.1", "::1", "fe80::1%eth0.7"})
    EXPECT_TRUE(IsHost(text)) << text;
  for (const char* text :
       {"", "bad host", "a:1", "[::1]", "256.1.1.1", "-a", "a..b", "a/b", "\x1b[31m"})
    EXPECT_FALSE(IsHost(text)) << text;
}

TEST(HostPortTest, Loopback_IsWhatOnlyThisMachineReaches) {
  for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]"})
    EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"0.0.0.0", "[::]", "10.0.0.5", "127.0.0.1.example", "node", ""})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

TEST(HostPortTest, SeveralAddresses_StandBetweenCommasOnceEach) {
  EXPECT_THAT(*ParseHostPorts("a:1,[::1]:2", 1), ::testing::ElementsAre("a:1", "[::1]:2"));
  EXPECT_THAT(*ParseHostPorts("a:1", 1), ::testing::ElementsAre("a:1"));
  for (const char* text : {"", "a:1,", ",a:1", "a:1 ,b:1", "a:1,b", "a:1,b:0", "a:1,b:1,a:1"})
    EXPECT_FALSE(ParseHostPorts(text, 1).ok()) << text;
  std::string many = "a:1";
  for (int port = 2; port <= 17; ++port) many += ",a:" + std::to_string(port);
  EXPECT_THAT(std::string(ParseHostPorts(many, 1).status().message()),
              ::testing::HasSubstr("17 addresses"));
}

TEST(HostPortTest, ControlCharacters_AreWrittenOut) {
  EXPECT_THAT(std::string(ParseHostPort("\x1b[31m", 1).status().message()),
              ::testing::StartsWith("\"\\x1b[31m\""));
}

}  // namespace
}  // namespace phalanx

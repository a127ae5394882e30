#include "core/posix/peer_name.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

TEST(NetworkOfTest, Name_IsThatOfAnAddress_OrOfAHalfOfOne) {
  EXPECT_EQ(NetworkOf("ipv4:127.0.0.1:4444"), "127.0.0.1");
  EXPECT_EQ(NetworkOf("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:80"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("ipv6:%5B2001:db8:1:2:ffff::1%5D:81"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("ipv6:%5Bfe80::1%25eth0%5D:81"), "fe80::/64");
  EXPECT_EQ(NetworkOf("ipv6:%5B::1%5D:4444"), "::/64");
  EXPECT_EQ(NetworkOf("inproc"), "inproc");
  EXPECT_EQ(NetworkOf("ipv6:%5Bspoilt%5D:1"), "ipv6:%5Bspoilt%5D:1");
  EXPECT_EQ(NetworkOf(""), "");
}

}  // namespace
}  // namespace phalanx

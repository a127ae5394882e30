#include "worker/comm/interface.h"

#include <net/if.h>

#include "gtest/gtest.h"

namespace phalanx::comm {
namespace {

TEST(InterfaceTest, LoopbackAddress_IsOfTheLoopbackInterface) {
  const std::string name = InterfaceOf("127.0.0.1");
  EXPECT_NE(if_nametoindex(name.c_str()), 0) << name;
  EXPECT_EQ(InterfaceOf("localhost"), name);
}

// Which no other node reaches, and workers without --address have it.
TEST(InterfaceTest, LoopbackAddress_LeavesTheChoiceToNccl) {
  for (const char* address : {"127.0.0.1", "localhost", "192.0.2.1"})
    EXPECT_EQ(NcclInterfaceOf(address), "") << address;
}

TEST(InterfaceTest, LabelOfAnAddress_IsOfItsInterface) {
  EXPECT_EQ(WithoutLabel("eth0:1"), "eth0");
  EXPECT_EQ(WithoutLabel("eth0"), "eth0");
}

TEST(InterfaceTest, AddressThatNoInterfaceHas_IsOfNone) {
  for (const char* address : {"192.0.2.1", "2001:db8::1", "no such host", ""})
    EXPECT_EQ(InterfaceOf(address), "") << address;
}

}  // namespace
}  // namespace phalanx::comm

// libtorch_cpu exports gloo symbols of another version. In a program that is linked with both, ours
// have to come from Debian's libgloo.
#include <dlfcn.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <link.h>

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/comm/worlds.h"

namespace phalanx::comm {
namespace {

using testing::HasSubstr;

std::string LibraryOf(const void* address) {
  Dl_info info = {};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}
std::string LibraryOf(const char* symbol) { return LibraryOf(dlsym(RTLD_DEFAULT, symbol)); }

TEST(BesideTorchTest, GlooSymbols_AreThoseOfLibgloo) {
  bool torch = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        *static_cast<bool*>(found) |=
            std::string(info->dlpi_name).find("libtorch_cpu") != std::string::npos;
        return 0;
      },
      &torch);
  ASSERT_TRUE(torch) << "this program is not linked with LibTorch, so it shows nothing";
  EXPECT_THAT(LibraryOf(reinterpret_cast<const void*>(&::gloo::transport::tcp::CreateDevice)),
              HasSubstr("libgloo"));
  const ::gloo::rendezvous::Context context(0, 1);
  EXPECT_THAT(LibraryOf(*reinterpret_cast<const void* const*>(&context)),
              HasSubstr("libgloo"));  // its vtable
  for (const char* symbol :
       {"_ZN4gloo7Context19createUnboundBufferEPvm", "_ZTVN4gloo11IoExceptionE",
        "_ZN4gloo9transport3tcp12CreateDeviceERKNS1_4attrE"}) {
    EXPECT_THAT(LibraryOf(symbol), HasSubstr("libgloo")) << symbol;
  }
}

TEST(BesideTorchTest, AWorld_Works) {
  RunWorld(Kind::kGlooTcp, 3, Everyone(3), [](Member& me) {
    int64_t value = me.rank;
    ASSERT_TRUE(me.all().AllReduceSum(&value, 1, DType::kInt64).ok());
    EXPECT_EQ(value, 3);
  });
}

}  // namespace
}  // namespace phalanx::comm

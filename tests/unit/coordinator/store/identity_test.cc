#include "coordinator/store/identity.h"

#include <fstream>

#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace phalanx::coordinator {
namespace {

std::string Folder() { return support::MakeFolder("identity"); }

TEST(StoreIdentityTest, Identity_IsDrawnOnceForAStore) {
  const std::string a = Folder(), b = Folder();
  const absl::StatusOr<uint64_t> first = StoreIdentity(a);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*StoreIdentity(a), *first);
  EXPECT_NE(*StoreIdentity(b), *first);
}

TEST(StoreIdentityTest, DamagedFile_IsDataLossAndNotReplaced) {
  const std::string folder = Folder();
  std::ofstream(folder + "/identity") << "who knows\n";
  EXPECT_EQ(StoreIdentity(folder).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StoreIdentity(folder).status().code(), absl::StatusCode::kDataLoss);
}

TEST(StoreIdentityTest, FolderThatIsNotThere_IsUnavailable) {
  EXPECT_EQ(StoreIdentity(Folder() + "/none").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace phalanx::coordinator

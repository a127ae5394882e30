#include "core/base/node_name.h"

#include <gtest/gtest.h>

#include <string>

namespace phalanx {
namespace {

TEST(NodeNameTest, LettersDigitsAndThreeSigns_AreANodesName_UpToSoManyBytes) {
  EXPECT_TRUE(IsNodeName("Rack-7_node.0"));
  EXPECT_TRUE(IsNodeName(std::string(kNodeNameBytesMax, 'n')));
  EXPECT_FALSE(IsNodeName(std::string(kNodeNameBytesMax + 1, 'n')));
  for (const char* name : {"", "a b", "a/b", "a@b", "a\n", "n\xC3\xB6"})
    EXPECT_FALSE(IsNodeName(name)) << name;
}

}  // namespace
}  // namespace phalanx

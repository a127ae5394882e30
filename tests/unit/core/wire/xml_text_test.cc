#include "core/wire/xml_text.h"

#include <gtest/gtest.h>

namespace phalanx::wire {
namespace {

TEST(XmlTextTest, MarkupAndControlCharacters_AreNeither) {
  EXPECT_EQ(XmlText("a<b>\t& \"c\"\n"), "a&lt;b&gt; &amp; &quot;c&quot; ");
}

}  // namespace
}  // namespace phalanx::wire

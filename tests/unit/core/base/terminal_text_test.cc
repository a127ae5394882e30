#include "core/base/terminal_text.h"

#include <string>
#include <tuple>
#include <utility>

#include "gtest/gtest.h"

namespace phalanx {
namespace {

TEST(TerminalTextTest, WhatIsNoUtf8_IsWrittenOut) {
  for (const auto& [text, shown] : std::initializer_list<std::pair<std::string, std::string>>{
           {"\xC0\x9B", "\\xc0\\x9b"},
           {"\xE0\x80\x9B", "\\xe0\\x80\\x9b"},  // ESC to a lenient decoder
           {"\xE0\x9F\xBF", "\\xe0\\x9f\\xbf"},
           {"\xF0\x80\x80\x9B", "\\xf0\\x80\\x80\\x9b"},
           {"\xF0\x8F\xBF\xBF", "\\xf0\\x8f\\xbf\\xbf"},
           {"\xED\xA0\x80", "\\xed\\xa0\\x80"},           // a surrogate
           {"\xF4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // U+110000
           {"\xF5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
           {"\xE2\x82", "\\xe2\\x82"},  // cut short
       }) {
    EXPECT_EQ(TerminalText(text), shown);
  }
}

TEST(TerminalTextTest, TheFirstAndLastOfEachLength_AreShown) {
  const std::string text =
      "\xC2\xA0\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF"
      "\xBF";
  EXPECT_EQ(TerminalText(text), text);
}

TEST(TerminalTextTest, CharactersThatHideOrTurnText_AreWrittenOut) {
  EXPECT_EQ(TerminalText("a\u202Eb"), "a\\xe2\\x80\\xaeb");
  for (const std::string text :
       {"\u200B", "\u200F", "\u2028", "\u202A", "\u202E", "\u2060", "\u2066", "\u2069", "\u206F",
        "\u180E", "\uFEFF", "\uFFF9", "\uFFFB"}) {
    EXPECT_EQ(TerminalText(text).size(), 12u);
  }
  EXPECT_EQ(TerminalText("\u00AD\u061C"), "\\xc2\\xad\\xd8\\x9c");
  for (const std::string text : {"\U000E0001", "\U000E007F"}) {
    EXPECT_EQ(TerminalText(text).size(), 16u);
  }
  for (const std::string text :
       {"\u00AC", "\u00AE", "\u200A", "\u2010", "\u2027", "\u202F", "\u205F", "\u2070", "\uFE0F",
        "\uFFFC", "\U000E0080", "\U0001F600"}) {
    EXPECT_EQ(TerminalText(text), text);
  }
}

TEST(LineTextTest, WhatWouldEndTheLine_IsWrittenOut) {
  EXPECT_EQ(LineText("last\n2026 info forged\t\x1b[31m"), "last\\n2026 info forged\\t\\x1b[31m");
}

TEST(EscapedTextTest, CharactersThatHideOrTurnText_AreEscapedAsTheFormatHasThem) {
  for (const auto& [text, json, yaml] :
       std::initializer_list<std::tuple<std::string, std::string, std::string>>{
           {"\"a\n\"", "\"a\n\"", "\"a\n\""},
           {"\x1b[2J", "\\u001b[2J", "\\u001b[2J"},
           {"\x7F", "\\u007f", "\\u007f"},
           {"\u0085\u202E", "\\u0085\\u202e", "\\u0085\\u202e"},
           {"\U000E0001", "\\udb40\\udc01", "\\U000e0001"},
           {"gr\u00FC\u00DFe \U0001F642", "gr\u00FC\u00DFe \U0001F642",
            "gr\u00FC\u00DFe \U0001F642"},
           {"\xE2\x80", "\xE2\x80", "\xE2\x80"},
           {"\xFF", "\xFF", "\xFF"}}) {
    EXPECT_EQ(EscapedText(text, Escapes::kJson), json);
    EXPECT_EQ(EscapedText(text, Escapes::kYaml), yaml);
  }
}

}  // namespace
}  // namespace phalanx

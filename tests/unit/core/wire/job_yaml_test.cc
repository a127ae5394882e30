#include "core/wire/job_yaml.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/terminal_text.h"
#include "core/base/violation.h"
#include "core/job/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/paths.h"

namespace phalanx::wire {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Rule(absl::string_view text) {
  const auto violations = ViolationsOf(ParseYaml(text).status());
  return violations.size() == 1 ? violations[0].rule : "";
}

TEST(ParseYamlTest, KeepsWhatAnInterpreterWouldLose) {
  const auto tree = ParseYaml("a: 007\nb: \"007\"\na: ~\n");
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->entries.size(), 3u);
  EXPECT_EQ(tree->entries[0].value.scalar, "007");
  EXPECT_FALSE(tree->entries[0].value.quoted);
  EXPECT_TRUE(tree->entries[1].value.quoted);
  EXPECT_EQ(tree->entries[2].key, "a");
  EXPECT_EQ(tree->entries[2].value.kind, job::Tree::Kind::kNull);
  EXPECT_EQ(tree->entries[1].value.line, 2);
  EXPECT_EQ(tree->entries[1].value.column, 4);
}

TEST(ParseYamlTest, SyntaxError_SaysWhere) {
  EXPECT_THAT(Rule("a: 1\nb: [1, 2\nc: 3"), StartsWith("line "));
  EXPECT_THAT(Rule("a: 1\n b: 2"), StartsWith("line 2, column "));
}

TEST(ParseYamlTest, SyntaxError_SaysWhatIsWrong) {
  const std::pair<const char*, const char*> rows[] = {
      {"a: 1\n b: 2", "line 2, column 3: no mapping may begin here"},
      {"a: b: c", "line 1, column 5: no mapping may begin here"},
      {"a: - b", "line 1, column 4: no list may begin here"},
      {"a: 1\nsteps:3\nb: 2",
       "line 2, column 1: here must be a key on one line, with a colon and a space behind it"},
      {"a: @x", "line 1, column 4: no value begins with @ but in quotes"},
      {"a:\n\tb: 1", "line 2, column 1: a tab may not stand before a value; indent with spaces"},
      {"a: b\n\tc", "line 2, column 1: a tab may not stand before a value; indent with spaces"},
      {"a: [1,, 2]", "line 1, column 7: here must be a value"},
      {"a: {b:}", "line 1, column 6: a space must follow the colon"},
      {"a: *b", "line 1, column 4: the referenced anchor is not defined"},
      {"\"a\" b", "line 1, column 5: there must be one document only"},
      {"a: 1\nb: [1, 2\nc: 3",
       "line 3, column 2: did not find expected ',' or ']' while parsing a flow sequence that "
       "begins in line 2"},
      {"a: 1\nb: \"x\n",
       "line 3, column 1: found unexpected end of stream while scanning a quoted scalar that "
       "begins "
       "in line 2"},
      {"a: 1\n- b\n",
       "line 2, column 1: did not find expected key while parsing a block mapping that begins in "
       "line 1"},
      {"%YAML 3.0\n---\na: 1", "line 1, column 1: found incompatible YAML document"},
  };
  for (const auto& [text, rule] : rows) EXPECT_EQ(Rule(text), rule) << text;
}

TEST(ParseYamlTest, EveryNode_HasItsPlace) {
  const auto tree = ParseYaml("\xEF\xBB\xBF# c\r\na:\r\n  - \xC3\xA9: {x: 1}\r\n  -\r\nb: 'q'\r\n");
  ASSERT_TRUE(tree.ok()) << tree.status();
  const auto place = [](const job::Tree& node) { return std::pair(node.line, node.column); };
  EXPECT_EQ(place(*tree), std::pair(2, 1));
  const job::Tree& list = tree->entries[0].value;
  EXPECT_EQ(place(list), std::pair(3, 3));
  EXPECT_EQ(place(list.items[0]), std::pair(3, 5));
  EXPECT_EQ(place(list.items[0].entries[0].value), std::pair(3, 8));
  EXPECT_EQ(place(list.items[0].entries[0].value.entries[0].value), std::pair(3, 12));
  EXPECT_EQ(list.items[1].kind, job::Tree::Kind::kNull);
  EXPECT_EQ(list.items[1].line, 4);
  EXPECT_EQ(place(tree->entries[1].value), std::pair(5, 4));
}

TEST(ParseYamlTest, NothingOrAWordForIt_IsNull) {
  for (const char* text : {"", "# c", "---", "~", "null", "Null", "NULL", "&x", "&x ~"}) {
    const auto tree = ParseYaml(text);
    ASSERT_TRUE(tree.ok()) << text << tree.status();
    EXPECT_EQ(tree->kind, job::Tree::Kind::kNull) << text;
  }
  for (const char* text : {"nULL", "'~'", "\"\"", "''", "|\n null", "! null", "!!str null", "!"}) {
    const auto tree = ParseYaml(text);
    ASSERT_TRUE(tree.ok()) << text << tree.status();
    EXPECT_EQ(tree->kind, job::Tree::Kind::kScalar) << text;
    EXPECT_EQ(tree->quoted, text[0] != 'n') << text;
  }
}

TEST(ParseYamlTest, TextMarkedAsSuch_IsQuoted) {
  for (const char* text : {"! 17", "!!str 17", "&x ! 17", "! &x 17", "!<tag:yaml.org,2002:str> 17",
                           "'17'", "\"17\"", ">-\n 17"}) {
    const auto tree = ParseYaml(text);
    ASSERT_TRUE(tree.ok()) << text << tree.status();
    EXPECT_EQ(tree->scalar, "17") << text;
    EXPECT_TRUE(tree->quoted) << text;
  }
  EXPECT_FALSE(ParseYaml("&x 17 # !")->quoted);
  for (const char* text : {"!!int 17", "!x 17", "!!int '17'", "! [a]", "!!seq [a]", "!!map {}"}) {
    EXPECT_THAT(Rule(text), HasSubstr("tags are not understood")) << text;
  }
}

TEST(ParseYamlTest, CharactersThatSomeTakeForLineEnds_AreLetters) {
  for (const char* letter :
       {"\u0085", "\u0090", "\u2028", "\u2029", "\uFEFF", "\uFFFE", "\uFFFF"}) {
    const std::string word = std::string("x ") + letter + " y";
    for (const std::string& text :
         {word + ": " + word + " # " + word, "\"" + word + "\": '" + word + "'",
          "{" + word + ": " + word + "}"}) {
      const auto tree = ParseYaml(text + "\n");
      ASSERT_TRUE(tree.ok()) << text << tree.status();
      ASSERT_EQ(tree->entries.size(), 1u) << text;
      EXPECT_EQ(tree->entries[0].key, word) << text;
      EXPECT_EQ(tree->entries[0].value.scalar, word) << text;
      EXPECT_EQ(tree->entries[0].value.line, 1) << text;
    }
  }
  EXPECT_EQ(ParseYaml("\U0010FF05")->scalar, "\U0010FF05");
  EXPECT_THAT(Rule("\U0010FF05\u2028"), HasSubstr("not allowed together"));
}

TEST(ParseYamlTest, TabsInLinesWithoutAValue_AreNothing) {
  const auto tree = ParseYaml("\t\na: \"x\n\t\n \t# y\"\n\t# c\n \t\r\nb:\t[1,\n\t2]\t\n\t");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->entries[0].value.scalar, "x\n# y");
  EXPECT_EQ(tree->entries[1].value.items.size(), 2u);
  EXPECT_EQ(tree->entries[1].value.line, 7);
  EXPECT_EQ(ParseYaml("a: |\n  x\n  \t\n  y\n")->entries[0].value.scalar, "x\n\t\ny\n");
}

TEST(ParseYamlTest, AliasesThatRepeatMoreThanADocument_AreRefused) {
  std::string text = "- &a " + std::string(100'000, 'x') + "\n";
  for (int i = 0; i < 10; ++i) text += "- *a\n";
  EXPECT_TRUE(ParseYaml(text).ok());
  EXPECT_EQ(Rule(text + "- *a\n"), "line 12, column 3: aliases repeat more than 1048576 bytes");
}

TEST(ParseYamlTest, AnchorSetAgain_IsTheLaterOne) {
  const auto tree = ParseYaml("- &x 1\n- *x\n- &x 2\n- *x\n");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->items[1].scalar, "1");
  EXPECT_EQ(tree->items[3].scalar, "2");
  EXPECT_EQ(Rule("- &x 1\n- &x [*x]"), "line 2, column 7: an alias may not lie within its anchor");
}

TEST(ParseYamlTest, LargestDocuments_AreRead) {
  const auto filled = [](std::string text, const std::string& part, const std::string& end) {
    while (text.size() + part.size() + end.size() <= kDocumentBytesMax) text += part;
    return text + end;
  };
  for (const std::string& text :
       {filled("a: ", "x y ", "z"), filled("a: \"", "\\u0041", "\""), filled("a: |\n", "  x\n", ""),
        filled("a: 1\n", "\n", ""), filled("#", " x", "\na: 1"), filled("a: 1\n", "# x\n", ""),
        filled("", "- some words of a list's item\n", ""),
        filled("[",
               "{name: \"words\", other: more words of the same list, which has few of them}, ",
               "]")}) {
    const auto tree = ParseYaml(text);
    EXPECT_TRUE(tree.ok()) << text.substr(0, 40) << tree.status();
  }
}

TEST(ParseYamlTest, SecondDocument_IsRefused) {
  EXPECT_THAT(Rule("a: 1\n---\nb: 2"), HasSubstr("one document only"));
  EXPECT_EQ(Rule("a: 1\n--- b\n"), "line 2, column 5: there must be one document only");
  EXPECT_EQ(Rule("a: 1\n...\nb: 2"), "line 3, column 1: there must be one document only");
  EXPECT_TRUE(ParseYaml("---\na: 1\n...\n").ok());
}

TEST(ParseYamlTest, Alias_IsTheAnchoredValue) {
  const auto tree = ParseYaml("a: &x {k: [1, 2]}\nb: *x\n");
  ASSERT_TRUE(tree.ok());
  EXPECT_EQ(EmitYaml(tree->entries[1].value), EmitYaml(tree->entries[0].value));
}

TEST(ParseYamlTest, AliasBomb_IsRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1) + " ";
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) text += (k > 0 ? ", " : "") + before;
    text += "]\n";
  }
  EXPECT_THAT(Rule(text), HasSubstr("more than 100000 values"));
}

TEST(ParseYamlTest, SelfReference_IsRefused) { EXPECT_FALSE(ParseYaml("a: &x [*x]").ok()); }

TEST(ParseYamlTest, DeepNesting_IsRefused) {
  EXPECT_THAT(Rule(std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested deeper than 32"));
  EXPECT_FALSE(ParseYaml(std::string(200'000, '[')).ok());
  EXPECT_FALSE(ParseYaml(std::string(200'000, '{')).ok());
  std::string indented;
  for (int i = 0; i < 1000; ++i) indented += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_FALSE(ParseYaml(indented).ok());
}

TEST(ParseYamlTest, TooLong_IsRefused) {
  EXPECT_THAT(Rule(std::string(kDocumentBytesMax + 1, 'a')), HasSubstr("at most 1048576"));
}

TEST(ParseYamlTest, BytesThatAreNoText_AreRefused) {
  EXPECT_THAT(Rule(absl::string_view("a: \0b", 5)), HasSubstr("control characters"));
  EXPECT_THAT(Rule("a: \"\\x1e\""), HasSubstr("control characters"));
  EXPECT_THAT(Rule("a: \xff\xfe"), HasSubstr("not UTF-8"));
  EXPECT_THAT(Rule("a: \xed\xa0\x80"), HasSubstr("not UTF-8"));
}

TEST(ParseYamlTest, Tags_AreRefused) { EXPECT_THAT(Rule("a: !!binary aGk="), HasSubstr("tags")); }

TEST(ParseYamlTest, ComplexKeys_AreRefused) {
  EXPECT_THAT(Rule("? [a, b]\n: 1"), HasSubstr("a key must be a word"));
  for (const char* text : {"[a, b]: 1", "{a: b}: 1", "~: 1", "{~: 1}", "a: &x [b]\n*x : 1"}) {
    EXPECT_THAT(Rule(text), HasSubstr("a key must be a word")) << text;
  }
  EXPECT_EQ(ParseYaml("a: &x b\n*x : 1")->entries[1].key, "b");
}

TEST(ParseYamlTest, BracketsWithoutEnd_AreNestedTooDeep) {
  EXPECT_THAT(Rule(std::string(100'000, '[')), HasSubstr("nested deeper than 32"));
  EXPECT_THAT(Rule("a: " + std::string(100'000, '{')), HasSubstr("nested deeper than 32"));
}

TEST(EmitYamlTest, AwkwardStrings_ReadBackAsThemselves) {
  for (const char* text :
       {"",   "~",  "true", "17", "a: b", "- a", "#x",  "\"q\"",    "a\nb", "  pad  ", "*x",
        "&x", "!x", "%x",   "@x", "`x`",  "{a}", "[a]", "\xC3\xA9", "'",    "a #b"}) {
    job::Tree tree;
    tree.kind = job::Tree::Kind::kScalar;
    tree.scalar = text;
    tree.quoted = true;
    const auto back = ParseYaml(EmitYaml(tree));
    ASSERT_TRUE(back.ok()) << text << back.status();
    EXPECT_EQ(back->scalar, text);
    const auto json = ParseYaml(job::EmitJson(tree));
    ASSERT_TRUE(json.ok()) << text << json.status();
    EXPECT_EQ(json->scalar, text);
  }
}

TEST(EmitYamlTest, Words_StandPlainWhereTheyRead) {
  const auto tree = ParseYaml(
      "{name: a, labels: {}, empty: [], none: , size: 16Gi, rate: -1e-5, text: \"17\", "
      "shards: \"a-{000..003}.tar\", words: [x, -1, \"true\", a-b, \"a,b\", http://h:1/p], path: "
      "/x y, "
      "nested: {list: [{from: a, to: {}}, [[1, ~], {}], ~, [x]]}, \"a: b\": 'it''s', \"1\": "
      "\"a\\tb\"}");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(EmitYaml(*tree), R"(name: a
labels: {}
empty: []
none: ~
size: 16Gi
rate: -1e-5
text: "17"
shards: "a-{000..003}.tar"
words: [x, -1, "true", a-b, "a,b", http://h:1/p]
path: /x y
nested:
  list:
    - from: a
      to: {}
    -
      -
        - 1
        - ~
      - {}
    - ~
    - [x]
"a: b": "it's"
"1": "a\tb"
)");
}

// All words of two of what means something to a parser, with something between them or nothing.
std::vector<std::string> AwkwardWords() {
  const std::vector<std::string> parts = {
      "",       "a",          " ",  ":",  "-",      "#",      "?",      "!",      "&",
      "*",      "\"",         "'",  "\\", "{",      "}",      "[",      "]",      ",",
      "\n",     "\t",         "\r", "~",  "%",      "@",      "`",      "|",      ">",
      "=",      ".",          "1",  "<<", "\u0085", "\u00A0", "\u00E9", "\u2028", "\uFEFF",
      "\uFFFF", "\U0001F600", "--", "..", "null",   "true"};
  std::vector<std::string> words;
  for (const std::string& a : parts) {
    for (const char* between : {"", " ", ":", "#", "\n", "x"}) {
      for (const std::string& b : parts) words.push_back(a + between + b);
    }
  }
  return words;
}

TEST(EmitYamlTest, AwkwardWords_ReadBackWhereverTheyStand) {
  const auto word = [](const std::string& text) { return job::ScalarTree(text, false); };
  const std::vector<std::string> words = AwkwardWords();
  constexpr size_t kTogether = 500;
  for (size_t first = 0; first < words.size(); first += kTogether) {
    std::vector<job::Tree> items;
    std::vector<job::Tree::Entry> entries;
    for (size_t i = first; i < std::min(words.size(), first + kTogether); ++i) {
      items.push_back(job::ListTree({word(words[i]), word(words[i])}));
      items.push_back(word(words[i]));
      entries.push_back({words[i], word(words[i])});
      const auto root = ParseYaml(EmitYaml(word(words[i])));
      ASSERT_TRUE(root.ok()) << words[i] << root.status();
      ASSERT_EQ(root->scalar, words[i]);
    }
    items.push_back({});
    const std::string text = EmitYaml(job::MappingTree(
        {{"list", job::ListTree(std::move(items))}, {"map", job::MappingTree(entries)}}));
    const auto back = ParseYaml(text);
    ASSERT_TRUE(back.ok()) << text << back.status();
    const job::Tree &list = back->entries[0].value, &map = back->entries[1].value;
    ASSERT_EQ(map.entries.size(), entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(map.entries[i].key, entries[i].key) << text;
      ASSERT_EQ(map.entries[i].value.scalar, entries[i].key) << text;
      ASSERT_EQ(list.items[2 * i].items.size(), 2u) << text;
      ASSERT_EQ(list.items[2 * i].items[1].scalar, entries[i].key) << text;
      ASSERT_EQ(list.items[2 * i + 1].scalar, entries[i].key) << text;
    }
  }
}

TEST(EmitYamlTest, KeysOfAnyLength_ReadBack) {
  for (const size_t length : {1u, 1022u, 1024u, 1025u, 5000u}) {
    for (const char* begin : {"", "\""}) {
      const std::string key = begin + std::string(length, 'k');
      const job::Tree inner = job::MappingTree({{key, job::TextTree("x")}});
      const auto back = ParseYaml(EmitYaml(job::MappingTree({{key, inner}, {"a", {}}})));
      ASSERT_TRUE(back.ok()) << length << back.status();
      ASSERT_EQ(back->entries.size(), 2u) << length;
      EXPECT_EQ(back->entries[0].key, key);
      ASSERT_EQ(back->entries[0].value.entries.size(), 1u) << length;
      EXPECT_EQ(back->entries[0].value.entries[0].key, key);
    }
  }
}

TEST(EmitYamlTest, BytesThatAreNoText_AreWrittenAsSuch) {
  EXPECT_EQ(EmitYaml(job::ScalarTree("a\xff", false)), "\"a\uFFFD\"\n");
  EXPECT_EQ(EmitYaml(job::ScalarTree("a\x1f\x7f", false)), "\"a\\x1f\\x7f\"\n");
}

TEST(EmitYamlTest, TextThatATerminalWouldObey_ReadsBackAsItselfWhereItIsEscaped) {
  for (const char* said : {"a\u202Eb", "a\u200Bb", "\u00AD", "\U000E0041", "plain", "\u00E9"}) {
    job::Tree tree;
    tree.kind = job::Tree::Kind::kMapping;
    tree.entries.push_back({said, job::ScalarTree(said, false)});
    const std::string text = EscapedText(EmitYaml(tree), Escapes::kYaml);
    EXPECT_EQ(EscapedText(text, Escapes::kYaml), text);
    const auto back = ParseYaml(text);
    ASSERT_TRUE(back.ok()) << text << back.status();
    ASSERT_EQ(back->entries.size(), 1u) << text;
    EXPECT_EQ(back->entries[0].key, said) << text;
    EXPECT_EQ(back->entries[0].value.scalar, said) << text;
  }
}

TEST(ReadJobFileTest, Examples_AreRight) {
  for (const char* name : {"emoji-captions.yaml", "language-tp3.yaml"}) {
    std::ifstream file(tests::SourceDir() + "/examples/" + name);
    std::stringstream text;
    text << file.rdbuf();
    const auto job = ReadJobFile(text.str(), job::Purpose::kSubmit);
    EXPECT_TRUE(job.ok()) << name << ": " << job.status();
  }
}

TEST(ReadJobFileTest, SyntaxError_IsTheOnlyViolation) {
  const auto job = ReadJobFile("a: [", job::Purpose::kSubmit);
  EXPECT_EQ(ViolationsOf(job.status()).size(), 1u);
}

}  // namespace
}  // namespace phalanx::wire

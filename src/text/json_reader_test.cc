#include "text/json_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"

namespace fathom::text {
namespace {

// The library in base/json.h is the judge, but for numbers beyond a double, which RFC 8259 allows and it refuses.
TEST(JsonReader, AgreesWithTheLibraryAboutWhatJsonIs) {
  const std::vector<std::string> cases = {"{}",
                                          "[]",
                                          "null",
                                          "true",
                                          "false",
                                          "0",
                                          "-0",
                                          "1.5e-7",
                                          "\"\"",
                                          " [1 , 2 ]\n",
                                          "{\"a\":{\"b\":[null]}}",
                                          "[[[[]]]]",
                                          "{\"a\":1,\"a\":2}",
                                          "\"\\ud83d\\ude00\\u00e9\\n\"",
                                          "\"\u20AC\"",
                                          "",
                                          " ",
                                          "[",
                                          "]",
                                          "[1,]",
                                          "[,1]",
                                          "{\"a\":}",
                                          "{\"a\"}",
                                          "{a:1}",
                                          "{\"a\":1,}",
                                          "01",
                                          "1.",
                                          ".5",
                                          "+1",
                                          "1e",
                                          "-",
                                          "nul",
                                          "True",
                                          "NaN",
                                          "Infinity",
                                          "\"",
                                          "\"\\x\"",
                                          "\"\\u12\"",
                                          "\"\\ud800\"",
                                          "\"\\udc00\\ud800\"",
                                          "\"\\ud800\\u0041\"",
                                          "\"\n\"",
                                          "\"\x01\"",
                                          "\"\xFF\"",
                                          "1 2",
                                          "[] x",
                                          "// c\n1",
                                          "'a'",
                                          "[1 2]",
                                          "{\"a\":1 \"b\":2}",
                                          "[1}",
                                          "{\"a\":1]",
                                          "\xEF\xBB\xBF[]"};
  for (const std::string& text : cases) {
    const bool bom = text.starts_with("\xEF\xBB\xBF");  // the library forgives a byte order mark; RFC 8259 need not
    EXPECT_EQ(is_json(text), Json::accept(text) && !bom) << text;
  }
  EXPECT_TRUE(is_json("1e999"));
  EXPECT_TRUE(is_json("123456789012345678901234567890"));
}

TEST(JsonReader, AgreesWithTheLibraryOnRandomTexts) {
  std::mt19937 random(7);
  const std::string alphabet = "[]{}:,\"\\ue1-0.tnfalsr \n";
  int good = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (auto n = random() % 9; n > 0; --n) text.push_back(alphabet[random() % alphabet.size()]);
    const bool expected = Json::accept(text);
    good += expected ? 1 : 0;
    ASSERT_EQ(is_json(text), expected) << text;
  }
  EXPECT_GT(good, 500);
}

TEST(JsonReader, WalksAndUnescapes) {
  JsonReader r(R"({"a\u00e9": [1, -2.50, "x\"\u0041\ud83d\ude00"], "b": true, "c": null, "d": {"e": [[], {}]}})");
  std::string_view key;
  std::string_view text;
  bool flag = false;
  ASSERT_TRUE(r.enter_object());
  ASSERT_TRUE(r.member(key));
  EXPECT_EQ(key, "a\u00e9");
  ASSERT_TRUE(r.enter_array());
  ASSERT_TRUE(r.element() && r.number(text));
  EXPECT_EQ(text, "1");
  ASSERT_TRUE(r.element() && r.number(text));
  EXPECT_EQ(text, "-2.50");
  ASSERT_TRUE(r.element() && r.string(text));
  EXPECT_EQ(text, "x\"A\U0001F600");
  EXPECT_FALSE(r.element());
  ASSERT_TRUE(r.member(key) && r.boolean(flag));
  EXPECT_TRUE(flag);
  ASSERT_TRUE(r.member(key) && r.null());
  ASSERT_TRUE(r.member(key) && r.skip());
  EXPECT_FALSE(r.member(key));
  EXPECT_TRUE(r.finish());
}

TEST(JsonReader, SaysWhereAndWhat) {
  JsonReader r("{\"a\": 1, \"b\": x}");
  EXPECT_FALSE(r.skip());
  EXPECT_EQ(r.error(), "byte 14: expected a value");
  JsonReader type("{\"a\": 1}");
  std::string_view s;
  type.enter_object();
  type.member(s);
  EXPECT_FALSE(type.string(s));
  EXPECT_EQ(type.error(), "byte 6: expected a string");
  EXPECT_FALSE(type.member(s));  // after a mistake nothing moves
}

TEST(JsonReader, BoundsTheDepth) {
  const std::string deep = std::string(128, '[') + std::string(128, ']');
  EXPECT_TRUE(is_json(deep));
  EXPECT_FALSE(is_json("[" + deep + "]"));
  EXPECT_FALSE(is_json(std::string(1'000'000, '[')));
  EXPECT_FALSE(is_json(std::string(1'000'000, '{')));
}

TEST(JsonEscape, WritesWhatThePromptHas) {
  std::string out;
  append_json_escaped(std::string("\"\\/\n\r\t\b\f\x01\x1F\x7F\0\u2028\u00e9", 17), out);
  EXPECT_EQ(out, std::string("\\\"\\\\/\\n\\r\\t\\b\\f\\u0001\\u001f\x7F\\u0000\u2028\u00e9"));
}

}  // namespace
}  // namespace fathom::text

#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fathom::text {
namespace {

// Valid by definition: every scalar value, written by append_utf8.
TEST(Utf8, EveryCharacterIsValidAndComesBack) {
  std::string s;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    s.clear();
    append_utf8(c, s);
    ASSERT_EQ(find_invalid_utf8(s), std::string_view::npos) << static_cast<std::uint32_t>(c);
    const CodePoint back = decode_utf8(s, 0);
    ASSERT_EQ(back.value, c);
    ASSERT_EQ(back.length, s.size());
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"abcdefghij\x80", 10},   // a continuation byte alone
      {"\xC0\xAF", 0},          // overlong
      {"\xE0\x80\xAF", 0},      // overlong
      {"ab\xED\xA0\x80", 2},    // a surrogate
      {"\xF4\x90\x80\x80", 0},  // above U+10FFFF
      {"x\xE2\x82", 1},         // cut short
      {"\xF5", 0},
      {std::string("a\0b\xFF", 4), 3},  // NUL is an ordinary character
  };
  for (const auto& [bytes, at] : cases) EXPECT_EQ(find_invalid_utf8(bytes), at) << bytes;
}

struct Broken {
  std::string bytes;
  std::string text;
};

// One U+FFFD per maximal subpart, however the bytes are cut.
TEST(Utf8Stream, ReplacesMaximalSubpartsForEveryCut) {
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<Broken> cases = {
      {"plain", "plain"},
      {"\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!"},
      {"\xF0\x9F\x98", r},  // cut short: one
      {"\xF0\x9F\x98g", r + "g"},
      {"\xF0\x80\x80\x41", r + r + r + "A"},                          // F0 80 begins nothing
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},  // Unicode 15, table 3-11
      {"\xC3\xC3\xA9", r + "\xC3\xA9"},
      {"\x80\xBF", r + r},
      {"\xED\xA0\x80", r + r + r},
  };
  for (const Broken& c : cases) {
    for (std::size_t first = 0; first <= c.bytes.size(); ++first) {
      for (std::size_t second = first; second <= c.bytes.size(); ++second) {
        Utf8Stream stream;
        std::string out;
        stream.push(std::string_view(c.bytes).substr(0, first), out);
        EXPECT_EQ(find_invalid_utf8(out), std::string_view::npos);
        stream.push(std::string_view(c.bytes).substr(first, second - first), out);
        stream.push(std::string_view(c.bytes).substr(second), out);
        stream.finish(out);
        EXPECT_EQ(out, c.text);
      }
    }
  }
}

TEST(Utf8Stream, HoldsBackOnlyAnIncompleteTail) {
  Utf8Stream stream;
  std::string out;
  stream.push("a\xE2\x82", out);
  EXPECT_EQ(out, "a");
  EXPECT_TRUE(stream.holds());
  stream.push("\xAC", out);
  EXPECT_EQ(out, "a\u20AC");
  EXPECT_FALSE(stream.holds());
}

}  // namespace
}  // namespace fathom::text

#include "text/json_value.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace fathom::text {
namespace {

std::string prompt_text(const std::string& json) {
  const auto value = parse_json_value(json, "test");
  if (!value) return "parse error: " + value.error().what;
  std::string out;
  const auto done = append_json_text(*value, out);
  return done ? out : "error: " + done.error().what;
}

// What Python 3 writes for json.dumps(json.loads(x), ensure_ascii=False).
TEST(JsonText, IsPythonsDefaultStyle) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"b\":1,\"a\":[ ]}", "{\"b\": 1, \"a\": []}"},
      {"[1,2 ,{}]", "[1, 2, {}]"},
      {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\": 3, \"b\": 2}"},
      {"\"\\u00e9\\u2028\\/\\u007f\\u001f\"", "\"\u00e9\u2028/\x7F\\u001f\""},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"-7", "-7"},
      {"1.0", "1.0"},
      {"1.50", "1.5"},
      {"1e2", "100.0"},
      {"1E-5", "1e-05"},
      {"0.0001", "0.0001"},
      {"0.00001234", "1.234e-05"},
      {"15e-8", "1.5e-07"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345678.0", "1.2345678901234568e+17"},
      {"1.5e300", "1.5e+300"},
      {"1e-400", "0.0"},
      {"0.1", "0.1"},
      {"100000.0", "100000.0"},
      {"5e-324", "5e-324"},
      {"2.5", "2.5"},
      {"1e22", "1e+22"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"true", "true"},
      {"[false,null]", "[false, null]"}};
  for (const auto& [json, text] : cases) EXPECT_EQ(prompt_text(json), text) << json;
}

TEST(JsonText, RefusesNumbersWithoutAText) {
  EXPECT_EQ(prompt_text("[1e999]").substr(0, 6), "error:");
  EXPECT_EQ(prompt_text("-1e309").substr(0, 6), "error:");
}

TEST(JsonValue, ManyMembersKeepPlaceAndLastValue) {
  std::string json = "{";
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 50'000; ++i) {
      json += (json.size() > 1 ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i + round);
    }
  }
  const auto value = parse_json_value(json + "}", "test");
  ASSERT_TRUE(value) << value.error().what;
  ASSERT_EQ(value->keys.size(), 50'000U);
  EXPECT_EQ(value->keys[7], "k7");
  EXPECT_EQ(value->items[7].text, "8");
  EXPECT_EQ(value->find("k49999")->text, "50000");
}

TEST(JsonValue, Bounds) {
  EXPECT_FALSE(parse_json_value("[1,2,3]", "test", {.max_depth = 8, .max_values = 3}));
  EXPECT_TRUE(parse_json_value("[1,2,3]", "test", {.max_depth = 8, .max_values = 4}));
  const auto deep = parse_json_value(std::string(200, '[') + std::string(200, ']'), "body");
  ASSERT_FALSE(deep);
  EXPECT_EQ(deep.error().what, "body: byte 128: nested deeper than 128 levels");
}

TEST(JsonValue, FindAndGet) {
  const auto v = parse_json_value("{\"a\": null, \"b\": \"x\"}", "test").value();
  EXPECT_TRUE(v.find("a") != nullptr && v.find("a")->is_null());
  EXPECT_EQ(v.get("a"), nullptr);
  EXPECT_EQ(v.get("b")->text, "x");
  EXPECT_EQ(v.items[1].find("x"), nullptr);
}

}  // namespace
}  // namespace fathom::text

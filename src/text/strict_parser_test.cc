#include "text/strict_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/json_value.h"
#include "text/test_support.h"

namespace fathom::text {
namespace {

const ChatFormat& tiny_format() {
  static const auto f = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!f) ADD_FAILURE() << f.error().what;
  return f.value();
}

TEST(StrictParserVectors, AllOfThePublishedParser) {
  const Json vectors = read_vectors("encoding/parse-strict.json");
  ASSERT_EQ(vectors["cases"].size(), 26U);
  for (const Json& c : vectors["cases"]) {
    const auto got = parse_strict(c["text"].get<std::string>(), c["thinking_mode"] == "thinking");
    ASSERT_EQ(got.has_value(), !c["expect"].contains("error")) << c["id"];
    if (!got) continue;
    const Json& message = c["expect"]["message"];
    EXPECT_EQ(got->content, message["content"].get<std::string>()) << c["id"];
    EXPECT_EQ(got->reasoning, message["reasoning_content"].get<std::string>()) << c["id"];
    ASSERT_EQ(got->calls.size(), message["tool_calls"].size()) << c["id"];
    for (std::size_t i = 0; i < got->calls.size(); ++i) {
      EXPECT_EQ(got->calls[i].name, message["tool_calls"][i]["function"]["name"].get<std::string>()) << c["id"];
      EXPECT_EQ(got->calls[i].arguments, message["tool_calls"][i]["function"]["arguments"].get<std::string>())
          << c["id"];
    }
  }
}

std::string random_text(std::mt19937& random, std::size_t at_most) {
  const std::vector<std::string> words = {"a",  " ",      "\n",     "\n\n", "<", "</",     ">",    "\"",
                                          "\\", "\uFF5C", "\u00e9", "{}",   "7", "invoke", "&amp;"};
  std::string s;
  for (auto n = random() % (at_most + 1); n > 0; --n) s += words[random() % words.size()];
  return s;
}

Message random_answer(std::mt19937& random) {
  Message m;
  m.role = Role::kAssistant;
  m.content = random_text(random, 8);
  m.reasoning = random_text(random, 8);
  for (auto n = random() % 3; n > 0; --n) {
    ToolCall call;
    call.name = "tool_" + std::to_string(random() % 9);
    call.arguments = "{";
    for (auto k = random() % 3; k > 0; --k) {
      call.arguments += (call.arguments.size() > 1 ? ", \"" : "\"") + std::string("k") + std::to_string(k) + "\": ";
      const std::vector<std::string> values = {"7", "true", "null", "[1, {\"a\": \"\\n\"}]", "1.5"};
      if (random() % 2 == 0) {
        call.arguments += values[random() % values.size()];
      } else {
        call.arguments += "\"";
        append_json_escaped(random_text(random, 6), call.arguments);
        call.arguments += "\"";
      }
    }
    call.arguments += "}";
    m.tool_calls.push_back(std::move(call));
  }
  return m;
}

std::string rendered(const Message& answer, bool thinking) {
  Message user;
  user.content = "q";
  const std::vector<Message> messages = {user, answer};
  const auto prompt = render_chat(tiny_format(), messages, {.thinking = thinking});
  const std::string all = prompt_string(prompt.value(), tiny_format().tokenizer());
  const std::string mark = thinking ? "<think>" : "</think>";
  return all.substr(all.find(mark) + mark.size());
}

// What the encoder writes, both parsers read; rendered again it is the same, byte for byte.
TEST(ParserProperty, RenderParseRender) {
  std::mt19937 random(6);
  int calls = 0;
  for (int i = 0; i < 4'000; ++i) {
    const bool thinking = i % 2 == 0;
    Message sent = random_answer(random);
    if (!thinking) sent.reasoning.clear();
    const std::string text = rendered(sent, thinking);
    ParserOptions options;
    options.initial = thinking ? ParserState::kReasoning : ParserState::kContent;
    options.tools.emplace();
    StreamParser parser(options);
    parse_raw(parser, text);
    parser.finish(End::kTurn);
    Message back;
    back.role = Role::kAssistant;
    for (const ParserEvent& e : parser.take_events()) {
      if (e.kind == ParserEvent::Kind::kContent) back.content += e.text;
      if (e.kind == ParserEvent::Kind::kReasoning) back.reasoning += e.text;
    }
    for (const ParsedCall& c : parser.calls()) back.tool_calls.push_back({"", c.name, c.arguments});
    ASSERT_EQ(rendered(back, thinking), text);
    ASSERT_EQ(back.content, sent.content);
    ASSERT_EQ(back.reasoning, sent.reasoning);
    const auto strict = parse_strict(text, thinking);
    ASSERT_TRUE(strict) << strict.error().what << "\n" << text;
    ASSERT_EQ(strict->content, back.content);
    ASSERT_EQ(strict->reasoning, back.reasoning);
    ASSERT_EQ(strict->calls.size(), back.tool_calls.size());
    for (std::size_t k = 0; k < strict->calls.size(); ++k, ++calls) {
      ASSERT_EQ(strict->calls[k].name, back.tool_calls[k].name);
      ASSERT_EQ(strict->calls[k].arguments, back.tool_calls[k].arguments);
    }
  }
  EXPECT_GT(calls, 1000);
}

}  // namespace
}  // namespace fathom::text

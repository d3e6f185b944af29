// Structured output on the wire: a model whose every word is random, at a high temperature, answers as it is asked to.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "engine/engine.h"
#include "server/server_fixture.h"
#include "support/fake_runner.h"

namespace fathom::server {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kUser = R"("messages": [{"role": "user", "content": "Hi"}], "max_tokens": 600)";
constexpr std::string_view kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0,
        "maximum": 150}, "kind": {"enum": ["a", "b"]}}, "required": ["name", "age"], "additionalProperties": false})";
constexpr std::string_view kWeather =
    R"({"name": "get_weather", "strict": true, "parameters": {"type": "object", "properties": {"days": {"type": "integer",
        "minimum": 1, "maximum": 9}, "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["days", "unit"],
        "additionalProperties": false}})";

class StructuredTest : public ::testing::Test {
 protected:
  StructuredTest() {
    fathom::testing::FakeRunnerOptions model;
    model.vocab = tiny_format().tokenizer().vocab_size();
    runner = std::make_unique<fathom::testing::FakeRunner>(model);
    engine::CoreOptions core;
    core.cache_bytes = std::size_t{64} << 20U;
    core.slots = 4;
    core.max_drafts = 3;
    core.fixed_drafts = true;
    engine = std::move(*engine::Engine::start(*runner, core));
    generator = std::make_unique<EngineGenerator>(*engine);
    ApiOptions api;
    api.vocab = model.vocab;
    api.context = 4000;
    api.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex);
      logged += std::string(line) + "\n";
    };
    server = std::move(*Server::start(tiny_format(), *generator, std::move(api), {}));
  }
  ~StructuredTest() override { engine->stop(false); }

  Reply post(std::string_view path, std::string_view body) { return fetch(server->port(), "POST", path, body); }
  // What is said more, with what makes a random model come to an end: quotes and closing tags are likely.
  static std::string body(std::string_view more, unsigned seed = 1, bool thinking = false) {
    const text::ControlTokens& c = tiny_format().control();
    std::string bias =
        fmt::format(R"("{}": {}, "{}": 60, "{}": 20)", c.dsml, thinking ? 25 : 100, c.eos, c.think_close);
    for (const char* s : {"\"", "</"}) {
      const auto ids = tiny_format().tokenizer().encode(s, text::Mode::kPlain);
      bias += fmt::format(R"(, "{}": 10)", ids[0]);
    }
    return fmt::format(R"({{{}, "temperature": 1.5, "seed": {}, "enable_thinking": {}, "logit_bias": {{{}}}, {}}})",
                       kUser, seed, thinking, bias, more);
  }
  Json chat(std::string_view more, unsigned seed = 1, bool thinking = false) {
    const Reply r = post("/v1/chat/completions", body(more, seed, thinking));
    EXPECT_EQ(r.status, 200) << r.body;
    return json_of(r.body);
  }
  void expect_refusal(std::string_view path, const std::string& body, std::string_view param, std::string_view code) {
    const Reply r = post(path, body);
    EXPECT_EQ(r.status, 400) << r.body;
    const Json error = json_of(r.body)["error"];
    EXPECT_EQ(error["param"], param) << r.body;
    EXPECT_EQ(error["code"], code) << r.body;
    EXPECT_THAT(error["message"].get<std::string>(), ::testing::StartsWith(std::string(param))) << r.body;
  }
  static void expect_person(const std::string& text) {
    const Json person = json_of(text);
    ASSERT_TRUE(person.is_object()) << text;
    EXPECT_TRUE(person["name"].is_string()) << text;
    EXPECT_TRUE(person["age"].is_number_integer()) << text;
    EXPECT_LE(person["age"].get<int>(), 150) << text;
    if (person.contains("kind")) {
      EXPECT_TRUE(person["kind"] == "a" || person["kind"] == "b") << text;
    }
    EXPECT_LE(person.size(), 3U) << text;
  }
  static void expect_weather(const std::string& arguments) {
    const Json a = json_of(arguments);
    ASSERT_EQ(a.size(), 2U) << arguments;
    EXPECT_TRUE(a["days"].is_number_integer() && a["days"] >= 1 && a["days"] <= 9) << arguments;
    EXPECT_TRUE(a["unit"] == "C" || a["unit"] == "F") << arguments;
  }

  std::unique_ptr<fathom::testing::FakeRunner> runner;
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<EngineGenerator> generator;
  std::mutex mutex;
  std::string logged;              // guarded
  std::unique_ptr<Server> server;  // goes first
};

std::string schema_format(std::string_view schema, bool strict = true) {
  return fmt::format(
      R"("response_format": {{"type": "json_schema", "json_schema": {{"name": "n", "strict": {}, "schema": {}}}}})",
      strict, schema);
}

TEST_F(StructuredTest, ChatFollowsAJsonSchema) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const Json answer = chat(schema_format(kPerson, seed % 2 == 0), seed);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    expect_person(answer["choices"][0]["message"]["content"]);
  }
  EXPECT_GT(engine->stats().speculation.accepted, 0U) << "guesses follow the grammar too";
}

TEST_F(StructuredTest, ReasoningIsFreeAndTheAnswerIsNot) {
  const Json answer = chat(schema_format(kPerson), 3, true);
  const Json& message = answer["choices"][0]["message"];
  expect_person(message["content"]);
  EXPECT_NE(message["reasoning_content"], "");
}

TEST_F(StructuredTest, EveryChoiceAndLogprobsAndMinTokens) {
  const Json answer =
      chat(schema_format(kPerson) + R"(, "n": 4, "logprobs": true, "top_logprobs": 2, "min_tokens": 500)", 5);
  ASSERT_EQ(answer["choices"].size(), 4U);
  for (const Json& choice : answer["choices"]) {
    expect_person(choice["message"]["content"]);
    EXPECT_FALSE(choice["logprobs"]["content"].empty());
  }
  EXPECT_NE(answer["choices"][0]["message"], answer["choices"][1]["message"]);
}

TEST_F(StructuredTest, IgnoringTheEndDoesNotGoBeyondTheGrammar) {
  const Json answer = chat(schema_format(R"({"enum": ["x", "y"]})") + R"(, "ignore_eos": true)");
  EXPECT_THAT(answer["choices"][0]["message"]["content"].get<std::string>(), ::testing::AnyOf("\"x\"", "\"y\""));
  EXPECT_LT(answer["usage"]["completion_tokens"], 20);
}

TEST_F(StructuredTest, TheSameSeedGivesTheSameAnswerStreamedOrNot) {
  const std::string more = schema_format(kPerson);
  const std::string whole = chat(more, 7)["choices"][0]["message"]["content"];
  EXPECT_EQ(chat(more, 7)["choices"][0]["message"]["content"], whole);
  const Reply r = post("/v1/chat/completions", body(more + R"(, "stream": true)", 7));
  std::string streamed;
  for (const std::string& event : events_of(r.body)) {
    if (event == "[DONE]") continue;
    const Json delta = json_of(event)["choices"][0]["delta"];
    if (delta.contains("content")) streamed += delta["content"].get<std::string>();
  }
  EXPECT_EQ(streamed, whole);
}

TEST_F(StructuredTest, JsonObject) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Json answer = chat(R"("response_format": {"type": "json_object"})", seed);
    if (answer["choices"][0]["finish_reason"] == "length") continue;
    EXPECT_TRUE(json_of(answer["choices"][0]["message"]["content"]).is_object());
  }
}

TEST_F(StructuredTest, VllmsFields) {
  const auto content = [&](const char* more) {
    return chat(more)["choices"][0]["message"]["content"].get<std::string>();
  };
  EXPECT_THAT(content(R"("guided_regex": "[ab]{3}-[0-9]")"), ::testing::MatchesRegex("[ab][ab][ab]-[0-9]"));
  EXPECT_THAT(content(R"("structured_outputs": {"regex": "[ab]{3}-[0-9]"})"),
              ::testing::MatchesRegex("[ab][ab][ab]-[0-9]"));
  EXPECT_THAT(content(R"("guided_choice": ["red", "green"])"), ::testing::AnyOf("red", "green"));
  EXPECT_THAT(content(R"("structured_outputs": {"choice": ["red", "green"]})"), ::testing::AnyOf("red", "green"));
  EXPECT_THAT(content(R"("guided_grammar": "root ::= [xy] \"!\"")"), ::testing::AnyOf("x!", "y!"));
  EXPECT_EQ(content(R"("guided_json": "{\"const\": 12}")"), "12");
  EXPECT_EQ(content(R"("structured_outputs": {"json": {"const": 12}})"), "12");
}

TEST_F(StructuredTest, RawCompletions) {
  const auto text = [&](const std::string& more, int prompts) {
    const Reply r = post("/v1/completions",
                         fmt::format(R"({{"prompt": ["a", "b"], "max_tokens": 100, "temperature": 1.5, {}}})", more));
    EXPECT_EQ(r.status, 200) << r.body;
    const Json answer = json_of(r.body);
    EXPECT_EQ(answer["choices"].size(), static_cast<std::size_t>(prompts));
    return answer["choices"][1]["text"].get<std::string>();
  };
  EXPECT_THAT(text(R"("guided_choice": ["red", "green"])", 2), ::testing::AnyOf("red", "green"));
  EXPECT_THAT(text(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}})", 2),
              ::testing::AnyOf("1", "2"));
}

TEST_F(StructuredTest, TheOtherDialects) {
  const Reply responses = post(
      "/v1/responses",
      fmt::format(R"({{"input": "Hi", "max_output_tokens": 600, "temperature": 1.5, "reasoning": {{"effort": "none"}},
          "text": {{"format": {{"type": "json_schema", "name": "n", "strict": true, "schema": {}}}}}}})",
                  kPerson));
  ASSERT_EQ(responses.status, 200) << responses.body;
  expect_person(json_of(responses.body)["output"][0]["content"][0]["text"]);
  const Reply messages =
      post("/v1/messages", fmt::format(R"({{{}, "temperature": 1.5, "thinking": {{"type": "disabled"}},
          "output_config": {{"format": {{"type": "json_schema", "schema": {}}}}}}})",
                                       kUser, kPerson));
  ASSERT_EQ(messages.status, 200) << messages.body;
  expect_person(json_of(messages.body)["content"][0]["text"]);
}

TEST_F(StructuredTest, WhatAnAnswerBeginsWithCounts) {
  const std::string prefix = R"({\"name\": \"Zo)";
  const std::string more = fmt::format(
      R"("messages": [{{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "{}", "prefix": true}}], {})",
      prefix, schema_format(kPerson));
  const Json answer = chat(more, 2);
  expect_person(R"({"name": "Zo)" + answer["choices"][0]["message"]["content"].get<std::string>());
  const std::string wrong = fmt::format(
      R"("messages": [{{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Sure", "prefix": true}}], {})",
      schema_format(kPerson));
  expect_refusal("/v1/chat/completions", body(wrong), "response_format.json_schema.schema", "unsupported_schema");
}

std::string tools(std::string_view more) {
  return fmt::format(
      R"("tools": [{{"type": "function", "function": {}}}, {{"type": "function", "function": {{"name": "note",
      "parameters": {{"type": "object"}}}}}}], {})",
      kWeather, more);
}

TEST_F(StructuredTest, RequiredAndNamedCalls) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const bool thinking = seed % 2 == 0;
    const Json named = chat(tools(R"("tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": false)"),
                            seed, thinking)["choices"][0];
    ASSERT_EQ(named["finish_reason"], "tool_calls") << named;
    ASSERT_EQ(named["message"]["tool_calls"].size(), 1U);
    EXPECT_EQ(named["message"]["tool_calls"][0]["function"]["name"], "get_weather");
    expect_weather(named["message"]["tool_calls"][0]["function"]["arguments"]);

    const Json any = chat(tools(R"("tool_choice": "required")"), seed, thinking)["choices"][0];
    if (any["finish_reason"] == "length") continue;
    ASSERT_EQ(any["finish_reason"], "tool_calls") << any;
    for (const Json& call : any["message"]["tool_calls"]) {
      if (call["function"]["name"] == "get_weather") {
        expect_weather(call["function"]["arguments"]);
      } else {
        EXPECT_TRUE(json_of(call["function"]["arguments"]).is_object());
      }
    }
  }
}

TEST_F(StructuredTest, StrictToolsAreHeldToTheirSchemaWhenTheModelCallsOne) {
  // The marker's bias makes the model begin a block by itself, right away.
  const Json choice = chat(tools(R"("tool_choice": "auto", "parallel_tool_calls": false)"), 1)["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice;
  const Json call = choice["message"]["tool_calls"][0];
  if (call["function"]["name"] == "get_weather") {
    expect_weather(call["function"]["arguments"]);
  } else {
    EXPECT_EQ(call["function"]["name"], "note");
  }
}

TEST_F(StructuredTest, AnswerOrCallWhereBothAreAsked) {
  const Json choice = chat(tools(schema_format(kPerson)), 4)["choices"][0];
  if (choice["finish_reason"] == "stop") {
    expect_person(choice["message"]["content"]);
  } else {
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
}

TEST_F(StructuredTest, StreamedCallsAreWhole) {
  const Reply r = post("/v1/chat/completions",
                       body(tools(R"("tool_choice": {"type": "function", "function": {"name": "get_weather"}},
      "parallel_tool_calls": false, "stream": true)"),
                            2));
  std::string arguments;
  std::string finish;
  for (const std::string& event : events_of(r.body)) {
    if (event == "[DONE]") continue;
    const Json choice = json_of(event)["choices"][0];
    if (choice["delta"].contains("tool_calls"))
      arguments += choice["delta"]["tool_calls"][0]["function"]["arguments"].get<std::string>();
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
  }
  expect_weather(arguments);
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(StructuredTest, ToolsOfTheOtherDialects) {
  const Reply responses = post(
      "/v1/responses",
      fmt::format(R"({{"input": "Hi", "max_output_tokens": 600, "temperature": 1.5, "reasoning": {{"effort": "none"}},
          "tool_choice": "required", "parallel_tool_calls": false, "tools": [{{"type": "function", {}]}})",
                  kWeather.substr(1)));
  ASSERT_EQ(responses.status, 200) << responses.body;
  expect_weather(json_of(responses.body)["output"][0]["arguments"]);
  std::string weather(kWeather);
  weather.replace(weather.find("parameters"), 10, "input_schema");
  const Reply messages =
      post("/v1/messages", fmt::format(R"({{{}, "temperature": 1.5, "thinking": {{"type": "disabled"}}, "tools": [{}],
          "tool_choice": {{"type": "any", "disable_parallel_tool_use": true}}}})",
                                       kUser, weather));
  ASSERT_EQ(messages.status, 200) << messages.body;
  const Json block = json_of(messages.body)["content"][0];
  EXPECT_EQ(block["type"], "tool_use");
  expect_weather(block["input"].dump());
}

TEST_F(StructuredTest, ErrorsNameTheField) {
  const char* path = "/v1/chat/completions";
  const std::string field = "response_format.json_schema.schema";
  expect_refusal(path, body(schema_format(R"({"type": "thing"})")), field + ".type", "invalid_value");
  expect_refusal(path, body(schema_format(R"({"properties": {"a": {"type": "array", "uniqueItems": true}}})")),
                 field + ".properties.a.uniqueItems", "unsupported_schema");
  expect_refusal(path, body(schema_format(R"({"type": "integer", "minimum": 2, "maximum": 1})")), field,
                 "unsupported_schema");
  expect_refusal(path, body(R"("guided_regex": "(?=a)b")"), "guided_regex", "unsupported_schema");
  expect_refusal(path, body(R"("guided_regex": 3)"), "guided_regex", "invalid_value");
  expect_refusal(path, body(R"("guided_choice": [])"), "guided_choice", "invalid_value");
  expect_refusal(path, body(R"("guided_grammar": "start ::= \"a\"")"), "guided_grammar", "unsupported_schema");
  expect_refusal(path, body(R"("guided_json": "{")"), "guided_json", "invalid_value");
  expect_refusal(path, body(R"("guided_regex": "a", "guided_choice": ["a"])"), "guided_choice", "invalid_value");
  expect_refusal(path, body(R"("structured_outputs": {"structural_tag": {}})"), "structured_outputs.structural_tag",
                 "unsupported");
  const std::string tool = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
      "parameters": {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 2}}}}}])";
  expect_refusal(path, body(tool), "tools[0].function.parameters.properties.a.multipleOf", "unsupported_schema");
  EXPECT_EQ(
      post("/v1/responses", R"({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
      "schema": {"not": {}}}}})")
          .status,
      400);
  const Reply messages = post("/v1/messages", fmt::format(R"({{{}, "output_config": {{"format": {{"type": "json_schema",
      "schema": {{"type": 3}}}}}}}})",
                                                          kUser));
  EXPECT_EQ(messages.status, 400);
  EXPECT_EQ(json_of(messages.body)["error"]["type"], "invalid_request_error");
  EXPECT_THAT(messages.body, HasSubstr("output_config.format.schema.type"));
}

TEST_F(StructuredTest, WhatIsLeftOutIsLogged) {
  chat(schema_format(R"({"type": "array", "items": {"const": 1}, "maxItems": 2, "uniqueItems": true})", false));
  const std::lock_guard lock(mutex);
  EXPECT_THAT(logged, HasSubstr("ignored=\"uniqueItems\""));
}

}  // namespace
}  // namespace fathom::server

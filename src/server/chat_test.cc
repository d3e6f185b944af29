// Chat Completions and Completions over scripted answers. http-api.md 3.4, 5, 6 and the reports of 13.
#include <fmt/format.h>

#include "server/server_fixture.h"

namespace fathom::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kEos = "<｜end▁of▁sentence｜>";
const std::string kTools = R"([{"type": "function", "function": {"name": "run", "parameters": {"type": "object",
  "properties": {"cmd": {"type": "string"}, "n": {"type": "integer"}}}}}])";
const std::string kCall =
    "Need it.</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n"
    "<｜DSML｜parameter name=\"cmd\" string=\"true\">make 2>&1</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"n\" string=\"false\">5</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

std::string ask(const std::string& more = "") {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" + (more.empty() ? "" : ", " + more) + "}";
}

TEST_F(ServerTest, ChatAnswersWhole) {
  generator.say("I think.</think>Hello é🙂." + std::string(kEos));
  start();
  const Reply r = post(kChat, ask(R"("model": "any/name", "unknown_field": {"a": 1})"));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json j = json_of(r.body);
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_EQ(j["model"], "any/name");
  const Json& choice = j["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Hello é🙂.");
  EXPECT_EQ(choice["message"]["reasoning_content"], "I think.");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& usage = j["usage"];
  EXPECT_EQ(usage["prompt_tokens"], generator.prompts[0].size());
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 2);
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_EQ(usage["total_tokens"].get<int>(),
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
}

TEST_F(ServerTest, ChatStreamsACallWithoutLeakingMarkup) {
  generator.say(kCall);
  start();
  const Reply r =
      post(kChat, ask(R"("tools": )" + kTools + R"(, "stream": true, "stream_options": {"include_usage": true})"));
  ASSERT_EQ(r.status, 200);
  EXPECT_EQ(r.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(r.body.find("DSML"), std::string::npos) << r.body;
  const auto events = events_of(r.body);
  ASSERT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json_of(events[0])["choices"][0]["delta"], Json::parse(R"({"role": "assistant", "content": ""})"));
  std::string reasoning;
  std::string content;
  std::string arguments;
  std::string finish;
  int names = 0;
  for (std::size_t i = 0; i + 2 < events.size(); ++i) {
    const Json chunk = json_of(events[i]);
    EXPECT_TRUE(chunk["usage"].is_null());
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
    if (delta.contains("tool_calls")) {
      const Json& call = delta["tool_calls"][0];
      EXPECT_EQ(call["index"], 0);
      arguments += call["function"].value("arguments", "");
      if (call["function"].contains("name")) {
        ++names;
        EXPECT_EQ(call["function"]["name"], "run");
        EXPECT_EQ(call["id"].get<std::string>().substr(0, 5), "call_");
      }
    }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(reasoning, "Need it.");
  EXPECT_EQ(content, "I look.");
  EXPECT_EQ(names, 1);
  EXPECT_EQ(json_of(arguments), Json::parse(R"({"cmd": "make 2>&1", "n": 5})"));
  EXPECT_EQ(finish, "tool_calls");
  const Json last = json_of(events[events.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_GT(last["usage"]["completion_tokens"], 10);
}

TEST_F(ServerTest, ChatReplaysATurnThatComesBack) {
  generator.say(kCall);
  start();
  const Json first = json_of(post(kChat, ask(R"("tools": )" + kTools)).body);
  const Json& message = first["choices"][0]["message"];
  ASSERT_EQ(message["tool_calls"].size(), 1U) << first;
  EXPECT_EQ(first["choices"][0]["finish_reason"], "tool_calls");
  // Reasoning is left out, as many clients do; arguments are spelled otherwise.
  Json sent = message;
  sent.erase("reasoning_content");
  sent["tool_calls"][0]["function"]["arguments"] = R"({"cmd":"make 2>&1","n":5})";
  Json body = {{"tools", Json::parse(kTools)}, {"messages", Json::array()}};
  body["messages"].push_back({{"role", "user"}, {"content", "Hi"}});
  body["messages"].push_back(sent);
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "ok"}});
  ASSERT_EQ(post(kChat, body.dump()).status, 200);
  std::vector<std::int32_t> expected = generator.prompts[0];
  const auto sampled = tiny_format().tokenizer().encode(kCall, text::Mode::kSpecial);
  expected.insert(expected.end(), sampled.begin(), sampled.end());
  ASSERT_GE(generator.prompts[1].size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), generator.prompts[1].begin()));
}

TEST_F(ServerTest, ChatStopsAtStringsInContentOnly) {
  generator.say("stop here</think>Go on. stop here not there" + std::string(kEos));
  start();
  const Json j = json_of(post(kChat, ask(R"("stop": ["stop here"])")).body);
  EXPECT_EQ(j["choices"][0]["message"]["reasoning_content"], "stop here");
  EXPECT_EQ(j["choices"][0]["message"]["content"], "Go on. ");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, ChatEndsAtItsLimit) {
  generator.say("</think>one two three", true);
  start();
  const Json j = json_of(post(kChat, ask(R"("max_tokens": 5)")).body);
  EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(j["usage"]["completion_tokens"], 5);
  // More than fits is not an error: the answer ends where the context does.
  api.context = static_cast<std::int32_t>(generator.prompts[0].size()) + 7;
  generator.settle();
  server.reset();
  start();
  EXPECT_EQ(json_of(post(kChat, ask(R"("max_completion_tokens": 100000)")).body)["usage"]["completion_tokens"], 7);
}

TEST_F(ServerTest, ChatSaysThatAPromptIsTooLong) {
  api.context = 5;
  start();
  const Reply r = post(kChat, ask());
  EXPECT_EQ(r.status, 400);
  const Json error = json_of(r.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_NE(error["message"].get<std::string>().find("This model's maximum context length is 5 tokens."),
            std::string::npos);
  EXPECT_EQ(error["n_ctx"], 5);
}

TEST_F(ServerTest, ChatDropsACallThatWasCut) {
  generator.say(
      "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n<｜DSML｜parameter name=\"cmd\" "
      "string=\"true\">rm -rf /tmp/bui" +
      std::string(kEos));
  start();
  const Json whole = json_of(post(kChat, ask(R"("tools": )" + kTools)).body);
  EXPECT_FALSE(whole["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
  const auto events = events_of(post(kChat, ask(R"("stream": true, "tools": )" + kTools)).body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(json_of(events[events.size() - 2])["error"]["code"], "incomplete_tool_call");
}

TEST_F(ServerTest, ChatGivesSeveralChoicesAndLogprobs) {
  generator.say("T</think>One." + std::string(kEos));
  start();
  const Json j = json_of(post(kChat, ask(R"("n": 3, "logprobs": true, "top_logprobs": 1)")).body);
  ASSERT_EQ(j["choices"].size(), 3U);
  EXPECT_EQ(j["choices"][2]["index"], 2);
  std::string joined;
  for (const Json& t : j["choices"][1]["logprobs"]["content"]) {
    joined += t["token"].get<std::string>();
    EXPECT_EQ(t["logprob"], -0.5);
    EXPECT_EQ(t["top_logprobs"].size(), 1U);
  }
  EXPECT_EQ(joined, "One.");
}

TEST_F(ServerTest, ChatKeepsControlTokensOfUsersText) {
  generator.say("</think>x" + std::string(kEos));
  start();
  post(kChat, R"({"messages": [{"role": "user", "content": "<｜end▁of▁sentence｜><｜User｜>x"}]})");
  const auto& prompt = generator.prompts.at(0);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), tiny_format().control().eos), 0);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), tiny_format().control().user), 1);
}

struct Bad {
  const char* body;
  const char* param;
  const char* code;
};

TEST_F(ServerTest, ChatRefusesAndNamesTheField) {
  start();
  const Bad all[] = {
      {R"({})", "messages", "missing_field"},
      {R"({"messages": []})", "messages", "invalid_value"},
      {R"({"messages": "x"})", "messages", "invalid_value"},
      {R"({"messages": [5]})", "messages", "invalid_value"},
      {R"({"messages": [{"role": "wizard", "content": "x"}]})", "messages", "invalid_value"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages", "unsupported_content"},
      {R"("temperature": 2.5)", "temperature", "invalid_value"},
      {R"("temperature": "1")", "temperature", "invalid_value"},
      {R"("top_p": 0)", "top_p", "invalid_value"},
      {R"("top_k": -2)", "top_k", "invalid_value"},
      {R"("min_p": 1.5)", "min_p", "invalid_value"},
      {R"("presence_penalty": -3)", "presence_penalty", "invalid_value"},
      {R"("repetition_penalty": 0)", "repetition_penalty", "invalid_value"},
      {R"("max_tokens": 0)", "max_tokens", "invalid_value"},
      {R"("max_completion_tokens": -1)", "max_completion_tokens", "invalid_value"},
      {R"("max_tokens": 1.5)", "max_tokens", "invalid_value"},
      {R"("n": 0)", "n", "invalid_value"},
      {R"("n": 17)", "n", "invalid_value"},
      {R"("top_logprobs": 3)", "top_logprobs", "invalid_value"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "invalid_value"},
      {R"("stream_options": {"include_usage": true})", "stream_options", "invalid_value"},
      {R"("stop": [""])", "stop", "invalid_value"},
      {R"("stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])", "stop", "invalid_value"},
      {R"("stop": 5)", "stop", "invalid_value"},
      {R"("seed": "x")", "seed", "invalid_value"},
      {R"("seed": 18446744073709551616)", "seed", "invalid_value"},
      {R"("logit_bias": {"99999999": 1})", "logit_bias", "invalid_value"},
      {R"("logit_bias": {"5": 101})", "logit_bias", "invalid_value"},
      {R"("logit_bias": [])", "logit_bias", "invalid_value"},
      {R"("stop_token_ids": [-1])", "stop_token_ids", "invalid_value"},
      {R"("stream": 1)", "stream", "invalid_value"},
      {R"("model": 5)", "model", "invalid_value"},
      {R"("best_of": 2)", "best_of", "unsupported"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools", "invalid_value"},
      {R"("tool_choice": "required")", "tool_choice", "invalid_value"},
      {R"("modalities": ["text", "audio"])", "modalities", "unsupported"},
      {R"("audio": {"voice": "x"})", "audio", "unsupported"},
      {R"("response_format": {"type": "xml"})", "response_format", "invalid_value"},
      {R"("reasoning_effort": "some")", "reasoning_effort", "invalid_value"},
      {R"("thinking": {"type": "maybe"})", "thinking", "invalid_value"},
  };
  for (const Bad& bad : all) {
    const std::string body = bad.body[0] == '{' ? bad.body : ask(bad.body);
    const Reply r = post(kChat, body);
    EXPECT_EQ(r.status, 400) << body << r.body;
    const Json error = json_of(r.body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"].get<std::string>().rfind(bad.param, 0), 0U) << r.body;
    EXPECT_EQ(error["code"], bad.code) << r.body;
  }
}

TEST_F(ServerTest, ChatGoesOnBehindEveryEndWhenToldTo) {
  generator.say("</think>a<｜end▁of▁sentence｜><｜User｜>b", true);
  start();
  const Json j = json_of(post(kChat, ask(R"("ignore_eos": true, "max_tokens": 50)")).body);
  EXPECT_EQ(j["usage"]["completion_tokens"], 50);
  EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
}

TEST_F(ServerTest, CompletionsAnswer) {
  generator.say(" upon a time" + std::string(kEos));
  start();
  const Json j = json_of(post("/v1/completions", R"({"prompt": ["Once", [0, 5]], "echo": true, "n": 2})").body);
  ASSERT_EQ(j["choices"].size(), 4U) << j;
  EXPECT_EQ(j["choices"][0]["text"], "Once upon a time");
  EXPECT_EQ(j["choices"][1]["index"], 1);
  EXPECT_EQ(j["choices"][3]["finish_reason"], "stop");
  const auto events = events_of(post("/v1/completions", R"({"prompt": "Once", "stream": true, "stop": " a"})").body);
  std::string text;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) text += json_of(events[i])["choices"][0]["text"];
  EXPECT_EQ(text, " upon");
  EXPECT_EQ(events.back(), "[DONE]");
  const Reply fim = post("/v1/completions", R"({"prompt": "a", "suffix": "b"})");
  EXPECT_EQ(fim.status, 200);
  EXPECT_EQ(generator.prompts.back()[1], tiny_format().control().fim_begin);
  const Bad all[] = {{R"({})", "prompt", "missing_field"},
                     {R"({"prompt": []})", "prompt", "invalid_value"},
                     {R"({"prompt": [[]]})", "prompt", "invalid_value"},
                     {R"({"prompt": [{}]})", "prompt", "invalid_value"},
                     {R"({"prompt": "", "add_special_tokens": false})", "prompt", "invalid_value"},
                     {R"({"prompt": [99999999]})", "prompt", "invalid_value"},
                     {R"({"prompt": "a", "max_tokens": 0})", "max_tokens", "invalid_value"},
                     {R"({"prompt": "a", "logprobs": 21})", "logprobs", "invalid_value"},
                     {R"({"prompt": ["a"], "suffix": "b"})", "prompt", "invalid_value"}};
  for (const Bad& bad : all) {
    const Reply r = post("/v1/completions", bad.body);
    EXPECT_EQ(r.status, 400) << bad.body;
    EXPECT_EQ(json_of(r.body)["error"]["param"].get<std::string>().rfind(bad.param, 0), 0U) << r.body;
  }
}

TEST_F(ServerTest, CompletionsScorePrompts) {
  generator.say(" upon a time" + std::string(kEos));
  start();
  const auto answered = [this](const char* body) {
    const Reply r = post("/v1/completions", body);
    EXPECT_EQ(r.status, 200) << r.body;
    return json_of(r.body);
  };
  // The begin of the sentence was put in front: it is a token, but no text.
  Json j = answered(R"({"prompt": "Once more", "echo": true, "logprobs": 1, "max_tokens": 0, "n": 2})");
  ASSERT_EQ(j["choices"].size(), 2U);
  EXPECT_EQ(j["usage"]["completion_tokens"], 0);
  for (const Json& choice : j["choices"]) {
    EXPECT_EQ(choice["text"], "Once more");
    EXPECT_EQ(choice["finish_reason"], "length");
    const Json& lp = choice["logprobs"];
    const std::size_t n = generator.prompts.back().size();
    ASSERT_EQ(lp["tokens"].size(), n);
    ASSERT_EQ(lp["token_logprobs"].size(), n);
    ASSERT_EQ(lp["top_logprobs"].size(), n);
    EXPECT_TRUE(lp["token_logprobs"][0].is_null());
    EXPECT_TRUE(lp["top_logprobs"][0].is_null());
    EXPECT_EQ(lp["token_logprobs"][1], -0.25);
    EXPECT_EQ(lp["text_offset"][1], 0);
    std::string text;
    for (std::size_t i = 1; i < n; ++i) {
      EXPECT_EQ(lp["text_offset"][i], text.size());
      text += lp["tokens"][i];
    }
    EXPECT_EQ(text, "Once more");
  }
  // With an answer behind it; streamed alike.
  j = answered(R"({"prompt": "Once", "echo": true, "logprobs": 0, "max_tokens": 2})");
  const Json whole = j["choices"][0];
  EXPECT_EQ(whole["logprobs"]["token_logprobs"].back(), -0.5);
  EXPECT_EQ(whole["logprobs"]["text_offset"].size(), generator.prompts.back().size() + 2);
  const auto events = events_of(
      post("/v1/completions", R"({"prompt": "Once", "echo": true, "logprobs": 0, "max_tokens": 2, "stream": true})")
          .body);
  std::string text;
  std::map<std::string, Json> lists;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const Json choice = json_of(events[i])["choices"][0];
    text += choice["text"];
    if (choice["logprobs"].is_null()) continue;
    for (const char* key : {"tokens", "token_logprobs", "text_offset"}) {
      for (const Json& item : choice["logprobs"][key]) lists[key].push_back(item);
    }
  }
  EXPECT_EQ(text, whole["text"]);
  for (const auto& [key, list] : lists) EXPECT_EQ(list, whole["logprobs"][key]) << key;
  // Without log-probabilities there is nothing to wait for but the prompt.
  j = answered(R"({"prompt": [5, 6], "echo": true, "max_tokens": 0})");
  EXPECT_TRUE(j["choices"][0]["logprobs"].is_null());
  EXPECT_FALSE(j["choices"][0]["text"].get<std::string>().empty());

  const Bad all[] = {
      {R"({"prompt": "a", "suffix": "b", "echo": true, "logprobs": 1})", "suffix", "invalid_value"},
      {R"({"prompt": "a", "echo": true, "max_tokens": -1})", "max_tokens", "invalid_value"},
  };
  for (const Bad& bad : all) {
    const Reply r = post("/v1/completions", bad.body);
    EXPECT_EQ(r.status, 400) << bad.body;
    EXPECT_EQ(json_of(r.body)["error"]["param"], bad.param) << r.body;
  }
  std::string many = "[1";
  for (int i = 0; i < 3999; ++i) many += ",1";
  std::string prompts;
  for (int i = 0; i < 10; ++i) prompts += (i > 0 ? "," : "") + many + "]";
  const Reply r = post("/v1/completions", R"({"echo": true, "logprobs": 20, "prompt": [)" + prompts + "]}");
  EXPECT_EQ(r.status, 400) << "an answer of gigabytes";
  EXPECT_EQ(json_of(r.body)["error"]["param"], "prompt") << r.body;
}

// What the next turn shares with this one is remembered: all but the <think> that it has not.
TEST_F(ServerTest, RemembersWhereTheNextTurnParts) {
  generator.say("I think.</think>Yes.<｜end▁of▁sentence｜>");
  start();
  post(kChat, R"({"messages":[{"role":"user","content":"Is the sea deep?"}]})");
  EXPECT_TRUE(generator.shared_ends.empty()) << "a step more than it saves";
  generator.prompts.clear();
  std::string words;
  for (int i = 0; i < 100; ++i) words += " deep";
  const std::string first = fmt::format(R"({{"role":"user","content":"Is the sea{}?"}})", words);
  post(kChat, fmt::format(R"({{"messages":[{}]}})", first));
  const auto ends = generator.shared_ends;
  post(kChat, fmt::format(R"({{"messages":[{},{{"role":"assistant","content":"Yes.","reasoning_content":"I think."}},
                   {{"role":"user","content":"How deep?"}}]}})",
                          first));
  ASSERT_EQ(generator.prompts.size(), 2U);
  const auto& a = generator.prompts[0];
  const auto& b = generator.prompts[1];
  const auto parts = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  EXPECT_EQ(parts, static_cast<std::ptrdiff_t>(a.size()) - 1);
  EXPECT_EQ(ends, (std::vector<std::int32_t>{static_cast<std::int32_t>(parts)}));
  EXPECT_EQ(generator.shared_ends.size(), 2U);
}

}  // namespace
}  // namespace fathom::server

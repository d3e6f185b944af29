#include "text/api_request.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/test_support.h"

namespace fathom::text {
namespace {

using Ids = std::vector<std::int32_t>;

Dialect dialect_of(const std::string& name) {
  return name == "chat" ? Dialect::kChat : name == "messages" ? Dialect::kMessages : Dialect::kResponses;
}

const ChatFormat& tiny_format() {
  static const auto f = [] {
    auto format = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny").value();
    format.set_revision(Revision::k0731);
    return format;
  }();
  return f;
}

tl::expected<ChatRequest, Reject> map(Dialect dialect, const std::string& body) {
  return map_request(dialect, parse_json_value(body, "body").value(), {});
}

std::string state_name(ParserState s) {
  return s == ParserState::kReasoning ? "REASONING" : s == ParserState::kContent ? "CONTENT" : "TOOL_BLOCK";
}

void check_vectors(const ChatFormat& format, bool check_ids) {
  const Json vectors = read_vectors("encoding/api-render.json");
  ASSERT_EQ(vectors["cases"].size(), 56U);
  int injected = 0;
  for (const Json& c : vectors["cases"]) {
    const auto request = map(dialect_of(c["api"].get<std::string>()), c["body"].dump());
    const Json& expect = c["expect"];
    ASSERT_EQ(request.has_value(), !expect.contains("reject")) << c["id"];
    if (!request) {
      EXPECT_EQ(request.error().status, expect["reject"]["status"].get<int>()) << c["id"];
      EXPECT_TRUE(request.error().param.starts_with(expect["reject"]["param"].get<std::string>())) << c["id"];
      EXPECT_FALSE(request.error().message.empty());
      continue;
    }
    const auto rendered = render_request(format, *request);
    ASSERT_TRUE(rendered) << c["id"] << rendered.error().what;
    EXPECT_EQ(prompt_string(rendered->prompt, format.tokenizer()), expect["prompt"].get<std::string>()) << c["id"];
    EXPECT_EQ(state_name(rendered->state), expect["initial_state"].get<std::string>()) << c["id"];
    if (!check_ids) continue;
    const Ids ids = encode_prompt(rendered->prompt, format.tokenizer()).ids;
    EXPECT_EQ(ids.size(), expect["n_ids"].get<std::size_t>()) << c["id"];
    if (expect.contains("ids")) {
      EXPECT_EQ(ids, expect["ids"].get<Ids>()) << c["id"];
    }
    const bool differs = expect.value("ids_differ_from_naive", false);
    injected += differs ? 1 : 0;
    EXPECT_EQ(ids == format.tokenizer().encode(expect["prompt"].get<std::string>(), Mode::kSpecial), !differs)
        << c["id"];
  }
  EXPECT_GE(injected, check_ids ? 5 : 0);
}

TEST(ApiRequestVectors, Prompts) { check_vectors(tiny_format(), false); }

TEST(ApiRequestVectors, IdsOfTheReleasedTokenizer) {
  FATHOM_NEEDS_V4();
  check_vectors(ChatFormat::load(v4_folder()).value(), true);
}

// http-api.md 3.4, as far as the prompt is concerned.
TEST(ApiRequest, RejectionsNameTheField) {
  struct Case {
    Dialect dialect;
    std::string body;
    std::string param;
    std::string code;
  };
  const std::string user = R"("messages":[{"role":"user","content":"x"}])";
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  const auto chat = Dialect::kChat;
  const auto anthropic = Dialect::kMessages;
  const auto responses = Dialect::kResponses;
  const std::vector<Case> cases = {
      {chat, "[]", "", "invalid_json"},
      {chat, "{}", "messages", "missing_field"},
      {chat, R"({"messages":[]})", "messages", "invalid_value"},
      {chat, R"({"messages":{}})", "messages", "invalid_value"},
      {chat, R"({"messages":["x"]})", "messages[0]", "invalid_value"},
      {chat, R"({"messages":[{"content":"x"}]})", "messages[0].role", "invalid_value"},
      {chat, R"({"messages":[{"role":"function","content":"x"}]})", "messages[0].role", "invalid_value"},
      {chat, R"({"messages":[{"role":"user"}]})", "messages[0].content", "invalid_value"},
      {chat, R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "invalid_value"},
      {chat, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text",
       "invalid_value"},
      {chat, R"({"messages":[{"role":"user","content":[{"type":"input_audio"}]}]})", "messages[0].content[0]",
       "unsupported_content"},
      {chat, R"({"messages":[{"role":"assistant","content":null}]})", "messages[0]", "invalid_value"},
      {chat, R"({"messages":[{"role":"assistant","tool_calls":[]}]})", "messages[0]", "invalid_value"},
      {chat, R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].tool_call_id", "invalid_value"},
      {chat, R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}]})",
       "messages[0].tool_calls[0].id", "invalid_value"},
      {chat, R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":""}}]}]})",
       "messages[0].tool_calls[0].function.name", "invalid_value"},
      {chat, R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].function.arguments", "invalid_value"},
      {chat,
       R"({"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":{"n":1e999}}}]}]})",
       "messages[0].tool_calls[0].function.arguments", "invalid_value"},
      {chat, "{" + user + R"(,"thinking":{"type":"deep"}})", "thinking", "invalid_value"},
      {chat, "{" + user + R"(,"thinking":true})", "thinking", "invalid_value"},
      {chat, "{" + user + R"(,"enable_thinking":"yes"})", "enable_thinking", "invalid_value"},
      {chat, "{" + user + R"(,"chat_template_kwargs":{"thinking":1}})", "chat_template_kwargs.thinking",
       "invalid_value"},
      {chat, "{" + user + R"(,"reasoning_effort":3})", "reasoning_effort", "invalid_value"},
      {responses, R"({"input":"x","reasoning":"high"})", "reasoning", "invalid_value"},
      {responses, R"({"input":"x","text":5})", "text", "invalid_value"},
      {responses, R"({"input":"x","background":1})", "background", "invalid_value"},
      {responses, R"({"input":"x","tools":[{"type":"namespace","name":"n","tools":5}]})", "tools[0].tools",
       "invalid_value"},
      {anthropic, "{" + user + R"(,"output_config":5})", "output_config", "invalid_value"},
      {responses, R"({"input":"x","reasoning":{"effort":"extreme"}})", "reasoning.effort", "invalid_value"},
      {anthropic, "{" + user + R"(,"output_config":{"effort":"extreme"}})", "output_config.effort", "invalid_value"},
      {chat, "{" + user + R"(,"tools":{}})", "tools", "invalid_value"},
      {chat, "{" + user + R"(,"tools":[{"type":"custom","custom":{"name":"f"}}]})", "tools[0].type", "invalid_value"},
      {chat, "{" + user + R"(,"tools":[{"type":"function","function":{"name":"a b"}}]})", "tools[0].function.name",
       "invalid_value"},
      {chat, "{" + user + R"(,"tools":[{"type":"function","function":{"name":""}}]})", "tools[0].function.name",
       "invalid_value"},
      {chat, "{" + user + R"(,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})",
       "tools[0].function.parameters", "invalid_value"},
      {chat,
       "{" + user +
           R"(,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]})",
       "tools[1].function.name", "invalid_value"},
      {chat, "{" + user + R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"x":1e999}}}]})",
       "tools", "invalid_value"},
      {chat, "{" + user + R"(,"functions":[]})", "functions", "unsupported"},
      {chat, "{" + user + R"(,"tool_choice":"required"})", "tool_choice", "invalid_value"},
      {chat, "{" + user + "," + tool + R"(,"tool_choice":"always"})", "tool_choice", "invalid_value"},
      {chat, "{" + user + "," + tool + R"(,"tool_choice":{"type":"function","function":{"name":"g"}}})", "tool_choice",
       "invalid_value"},
      {chat, "{" + user + "," + tool + R"(,"tool_choice":{"type":"function"}})", "tool_choice", "invalid_value"},
      {chat,
       "{" + user + "," + tool +
           R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}}})",
       "tool_choice", "invalid_value"},
      {chat, "{" + user + R"(,"response_format":{"type":"yaml"}})", "response_format", "invalid_value"},
      {chat, "{" + user + R"(,"response_format":{"type":"json_schema","json_schema":{}}})", "response_format",
       "invalid_value"},
      {chat, "{" + user + R"(,"response_format":{"type":"json_schema"}})", "response_format", "invalid_value"},
      {chat, "{" + user + R"(,"continue_final_message":true})", "continue_final_message", "invalid_value"},
      {chat,
       R"({"messages":[{"role":"assistant","content":"x"}],"continue_final_message":true,"add_generation_prompt":true})",
       "continue_final_message", "invalid_value"},
      {anthropic, "{}", "messages", "missing_field"},
      {anthropic, R"({"messages":[]})", "messages", "invalid_value"},
      {anthropic, R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role", "invalid_value"},
      {anthropic, R"({"messages":[{"role":"user"}]})", "messages[0].content", "invalid_value"},
      {anthropic, R"({"messages":[{"role":"user","content":[{"type":"tool_result"}]}]})",
       "messages[0].content[0].tool_use_id", "invalid_value"},
      {anthropic, "{" + user + R"(,"system":[{"type":"image"}]})", "system[0]", "invalid_value"},
      {anthropic, "{" + user + R"(,"tools":[{"name":"a b","input_schema":{}}]})", "tools[0].name", "invalid_value"},
      {anthropic, "{" + user + R"(,"tool_choice":{"type":"any"}})", "tool_choice", "invalid_value"},
      {anthropic, "{" + user + R"(,"tool_choice":{"type":"must"}})", "tool_choice", "invalid_value"},
      {anthropic, "{" + user + R"(,"output_config":{"format":{"type":"json_schema"}}})", "output_config.format",
       "invalid_value"},
      {responses, "{}", "input", "missing_field"},
      {responses, R"({"input":[]})", "input", "invalid_value"},
      {responses, R"({"input":7})", "input", "invalid_value"},
      {responses, R"({"input":[{"role":"tool","content":"x"}]})", "input[0].role", "invalid_value"},
      {responses, R"({"input":[{"type":"function_call","name":"f","arguments":""}]})", "input[0].call_id",
       "invalid_value"},
      {responses, R"({"input":"x","previous_response_id":"r"})", "previous_response_id", "previous_response_not_found"},
      {responses, R"({"input":"x","background":true})", "background", "unsupported"},
      {responses, R"({"input":"x","conversation":"c"})", "conversation", "unsupported"},
      {responses, R"({"input":"x","tool_choice":{"type":"web_search"}})", "tool_choice", "invalid_value"},
      {responses, R"({"input":"x","text":{"format":{"type":"json_schema","name":"n"}}})", "text.format",
       "invalid_value"},
  };
  for (const Case& c : cases) {
    const auto request = map(c.dialect, c.body);
    ASSERT_FALSE(request) << c.body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().param, c.param) << c.body;
    EXPECT_EQ(request.error().code, c.code) << c.body;
    EXPECT_NE(request.error().message.find(c.param), std::string::npos) << request.error().message;
  }
}

std::string prompt_of(Dialect dialect, const std::string& body) {
  const auto request = map(dialect, body);
  if (!request) return "rejected: " + request.error().message;
  const auto rendered = render_request(tiny_format(), *request);
  return rendered ? prompt_string(rendered->prompt, tiny_format().tokenizer()) : "error: " + rendered.error().what;
}

// Agents compact, abort and lose reasoning; none of it may end the session. field-faults.md 8: API semantics.
TEST(ApiRequest, AcceptsTheHistoriesThatClientsReallySend) {
  const std::string calls =
      R"({"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]})";
  for (const std::string& messages : std::vector<std::string>{
           R"({"role":"tool","tool_call_id":"q","content":"result without a call"},{"role":"user","content":"x"})",
           calls,  // a call without a result, at the end
           calls +
               R"(,{"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","tool_call_id":"a","content":"2"})",
           calls + R"(,{"role":"tool","tool_call_id":"a","content":null})",
           R"({"role":"system","content":"only this"})",
           R"({"role":"assistant","content":""},{"role":"assistant","content":""})"}) {
    const std::string prompt = prompt_of(Dialect::kChat, "{\"messages\":[" + messages + "]}");
    EXPECT_TRUE(prompt.ends_with("<\uFF5CAssistant\uFF5C><think>")) << messages << "\n" << prompt;
  }
  // A blank where the reasoning was is none, which the record may know better.
  const auto blank = map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"},)"
                                         R"({"role":"assistant","content":"y","reasoning_content":" \n"}]})");
  ASSERT_TRUE(blank);
  EXPECT_EQ(blank->messages[1].reasoning, "");
  // Forced calls in thinking mode, which the hosted service refuses.
  const auto forced = map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required",
      "tools":[{"type":"function","function":{"name":"f"}}],"thinking":{"type":"enabled"}})");
  ASSERT_TRUE(forced);
  EXPECT_TRUE(forced->call_forced);
}

TEST(ApiRequest, ThinkingAndEffortPrecedence) {
  const auto options = [](const std::string& fields) {
    return map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}").value().options;
  };
  EXPECT_TRUE(options(R"("a":1)").thinking);
  EXPECT_EQ(options(R"("a":1)").effort, Effort::kHigh);
  EXPECT_TRUE(options(R"("thinking":{"type":"adaptive"},"enable_thinking":false)").thinking);
  EXPECT_FALSE(options(R"("chat_template_kwargs":{"thinking":false,"enable_thinking":true})").thinking);
  EXPECT_FALSE(options(R"("chat_template_kwargs":{"enable_thinking":false},"enable_thinking":true)").thinking);
  EXPECT_FALSE(options(R"("enable_thinking":false,"reasoning_effort":"max")").thinking);
  EXPECT_TRUE(options(R"("reasoning_effort":"max","model":"deepseek-chat")").thinking);
  EXPECT_FALSE(options(R"("reasoning_effort":"none","model":"deepseek-reasoner")").thinking);
  EXPECT_FALSE(options(R"("model":"deepseek-chat")").thinking);
  EXPECT_EQ(options(R"("reasoning_effort":"xhigh")").effort, Effort::kHigh);
  EXPECT_EQ(options(R"("reasoning_effort":"ultra")").effort, Effort::kMax);
  EXPECT_EQ(options(R"("reasoning_effort":null,"reasoning":{"effort":"minimal"})").effort, Effort::kLow);
  EXPECT_EQ(options(R"("thinking":{"type":"enabled","budget_tokens":7})").effort, Effort::kHigh);
}

TEST(ApiRequest, LowEffortOnAPreviewCheckpointIsNoneGiven) {
  auto preview = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny").value();
  ASSERT_EQ(preview.revision(), Revision::kPreview);
  const auto request = map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"}],"reasoning_effort":"low"})");
  EXPECT_TRUE(render_request(preview, request.value()));
}

TEST(ApiRequest, ResponsesItemsGroupIntoTurns) {
  const std::string prompt = prompt_of(Dialect::kResponses, R"({"reasoning":{"effort":"low"},"tools":[
      {"type":"function","name":"f"}],"input":[
      {"role":"user","content":"q"},
      {"type":"reasoning","summary":[{"type":"summary_text","text":"r1"}],"content":[]},
      {"type":"reasoning","content":[{"type":"reasoning_text","text":"r2"}]},
      {"type":"function_call","call_id":"a","namespace":"n","name":"f","arguments":"{}"},
      {"type":"web_search_call","id":"w"},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"said"},{"type":"refusal","refusal":"no"}]},
      {"type":"reasoning","content":[{"type":"reasoning_text","text":"lost"}]},
      {"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"one"},{"type":"input_image"}]}]})");
  const std::string turns = prompt.substr(prompt.find("<\uFF5CUser\uFF5C>"));
  EXPECT_EQ(
      turns,
      "<\uFF5CUser\uFF5C>q<\uFF5CAssistant\uFF5C><think>r1\n\nr2</think>\n\n<\uFF5CDSML\uFF5Ctool_calls>\n"
      "<\uFF5CDSML\uFF5Cinvoke name=\"n::f\">\n\n</\uFF5CDSML\uFF5Cinvoke>\n</\uFF5CDSML\uFF5Ctool_calls>"
      "<\uFF5Cend\u2581of\u2581sentence\uFF5C></think>said\n\nno<\uFF5Cend\u2581of\u2581sentence\uFF5C>"
      "<\uFF5CUser\uFF5C><tool_result>one\n\n[Unsupported input_image]</tool_result><\uFF5CAssistant\uFF5C><think>");
}

TEST(ApiRequest, AllowedToolsFilterThenMode) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],)";
  const auto request = map(
      Dialect::kChat,
      R"({"messages":[{"role":"user","content":"x"}],)" + tools +
          R"("tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}})");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->tools.size(), 1U);
  EXPECT_EQ(request->tools[0].name, "g");
  EXPECT_TRUE(request->call_forced);
  EXPECT_EQ(request->forced_name, "");
  // none: no tools block at all, and nothing to parse.
  const auto none =
      map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"}],)" + tools + R"("tool_choice":"none"})");
  EXPECT_FALSE(none.value().tools_active());
}

TEST(ApiRequest, TheParserKnowsWhatThePromptShowed) {
  const auto request = map(Dialect::kChat, R"({"messages":[{"role":"user","content":"x"}],"parallel_tool_calls":false,
      "tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"n":{"type":"integer"}}}}}]})")
                           .value();
  const ParserOptions options = parser_options(request, ParserState::kReasoning);
  EXPECT_TRUE(options.one_call);
  EXPECT_EQ(options.initial, ParserState::kReasoning);
  ASSERT_TRUE(options.tools);
  EXPECT_TRUE(options.tools->at(0).properties.at("n"));
  EXPECT_FALSE(parser_options(ChatRequest(), ParserState::kContent).tools);
}

TEST(ApiRequest, EmptySystemTextsLeaveNoBlankLines) {
  const std::string prompt = prompt_of(Dialect::kChat, R"({"reasoning_effort":"none","messages":[
      {"role":"system","content":""},{"role":"system","content":"A"},{"role":"developer","content":""},
      {"role":"system","content":"B"},{"role":"user","content":"x"}]})");
  EXPECT_EQ(prompt,
            "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>A\n\nB<\uFF5CUser\uFF5C>x<\uFF5CAssistant\uFF5C></think>");
}

TEST(ApiRequest, NoHeaderWhereNoneIsWanted) {
  const std::string prompt = prompt_of(
      Dialect::kChat,
      R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false,"reasoning_effort":"low"})");
  EXPECT_TRUE(prompt.ends_with("<\uFF5CUser\uFF5C>x")) << prompt;
}

// The same conversation through three dialects gives the same prompt.
TEST(ApiRequest, ThreeDialectsOnePrompt) {
  const std::string chat = prompt_of(Dialect::kChat, R"({"messages":[{"role":"system","content":"S"},
      {"role":"user","content":"q"},
      {"role":"assistant","content":"c","reasoning_content":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\": [1, 2.5]}"}}]},
      {"role":"tool","tool_call_id":"a","content":"out"},{"role":"user","content":"more"}],
      "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]})");
  const std::string anthropic =
      prompt_of(Dialect::kMessages, R"({"system":"S","messages":[{"role":"user","content":"q"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"r","signature":"s"},{"type":"text","text":"c"},{"type":"tool_use","id":"a","name":"f","input":{"x":[1,2.5]}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"out"}]},{"type":"text","text":"more"}]}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}]})");
  const std::string responses =
      prompt_of(Dialect::kResponses, R"({"instructions":"S","input":[{"role":"user","content":"q"},
      {"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"role":"assistant","content":"c"},
      {"type":"function_call","call_id":"a","name":"f","arguments":"{\"x\":[1,2.5]}"},
      {"type":"function_call_output","call_id":"a","output":"out"},{"role":"user","content":"more"}],
      "tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}]})");
  EXPECT_EQ(chat, anthropic);
  EXPECT_EQ(chat, responses);
  EXPECT_TRUE(chat.ends_with("<tool_result>out</tool_result>\n\nmore<\uFF5CAssistant\uFF5C><think>")) << chat;
}

}  // namespace
}  // namespace fathom::text

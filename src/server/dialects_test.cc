// Messages and Responses over scripted answers, and metrics. http-api.md 7, 8, 10.
#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "server/server_fixture.h"

namespace fathom::server {
namespace {

constexpr const char* kEos = "<｜end▁of▁sentence｜>";
const std::string kCall =
    "Need it.</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n"
    "<｜DSML｜parameter name=\"cmd\" string=\"true\">make 2>&1</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

std::string ask_messages(const std::string& more = "") {
  return R"({"max_tokens": 500, "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"name": "run", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}}])" +
         more + "}";
}

// The names of the events in order, one for each run of the same.
std::string order(const std::vector<std::string>& events) {
  std::string out;
  std::string last;
  for (const std::string& e : events) {
    const std::string name = e.substr(0, e.find(' '));
    if (name != last) out += (out.empty() ? "" : " ") + name;
    last = name;
  }
  return out;
}

Json data_of(const std::string& event) { return json_of(event.substr(event.find(' ') + 1)); }

TEST_F(ServerTest, MessagesAnswersWhole) {
  generator.say(kCall);
  start();
  const Reply r = post("/v1/messages?beta=true", ask_messages());
  ASSERT_EQ(r.status, 200) << r.body;
  const Json j = json_of(r.body);
  ASSERT_EQ(j["content"].size(), 3U);
  EXPECT_EQ(j["content"][0]["thinking"], "Need it.");
  EXPECT_EQ(j["content"][1]["text"], "I look.");
  EXPECT_EQ(j["content"][2]["input"], Json::parse(R"({"cmd": "make 2>&1"})"));
  EXPECT_EQ(j["content"][2]["id"].get<std::string>().substr(0, 6), "toolu_");
  EXPECT_EQ(j["stop_reason"], "tool_use");
  EXPECT_EQ(j["usage"]["cache_read_input_tokens"], 2);
  EXPECT_EQ(j["usage"]["input_tokens"].get<std::size_t>() + 2, generator.prompts[0].size());
  const Json count = json_of(post("/v1/messages/count_tokens", ask_messages()).body);
  EXPECT_EQ(count["input_tokens"], generator.prompts[0].size());
}

TEST_F(ServerTest, MessagesStreamsItsEvents) {
  generator.say(kCall);
  start();
  const Reply r = post("/v1/messages", ask_messages(R"(, "stream": true)"));
  EXPECT_EQ(r.body.find("DSML"), std::string::npos);
  const auto events = events_of(r.body);
  const std::string block = "content_block_start content_block_delta content_block_stop ";
  EXPECT_EQ(order(events), "message_start ping " + block + block + block + "message_delta message_stop");
  std::string thinking;
  std::string input;
  for (const std::string& e : events) {
    const Json data = data_of(e);
    EXPECT_EQ(data["type"], e.substr(0, e.find(' ')));
    if (!data.contains("delta")) continue;
    thinking += data["delta"].value("thinking", "");
    input += data["delta"].value("partial_json", "");
  }
  EXPECT_EQ(thinking, "Need it.");
  EXPECT_EQ(json_of(input), Json::parse(R"({"cmd": "make 2>&1"})"));
}

TEST_F(ServerTest, MessagesStreamsNoEmptyBlockBesideTheOnlyOne) {
  generator.say(kCall.substr(kCall.find("\n\n")));
  start();
  const std::string block = "content_block_start content_block_delta content_block_stop ";
  const std::string bare = R"(, "stream": true, "thinking": {"type": "disabled"})";
  EXPECT_EQ(order(events_of(post("/v1/messages", ask_messages(bare)).body)),
            "message_start ping " + block + "message_delta message_stop");
  generator.say(kEos);
  EXPECT_EQ(order(events_of(post("/v1/messages", ask_messages(bare)).body)),
            "message_start ping content_block_start content_block_stop message_delta message_stop");
}

TEST_F(ServerTest, MessagesNamesItsStopSequence) {
  generator.say("</think>one two three" + std::string(kEos));
  start();
  const Json j = json_of(post("/v1/messages", ask_messages(R"(, "stop_sequences": ["three", " two"])")).body);
  EXPECT_EQ(j["stop_reason"], "stop_sequence");
  EXPECT_EQ(j["stop_sequence"], " two");
  EXPECT_EQ(j["content"][0]["text"], "one");
}

TEST_F(ServerTest, MessagesHasItsOwnErrors) {
  start();
  for (const char* body :
       {"{", "{}", R"({"messages": [], "max_tokens": 5})", R"({"messages": [{"role": "user", "content": 5}]})",
        R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0})"}) {
    const Reply r = post("/v1/messages", body);
    EXPECT_EQ(r.status, 400) << body;
    const Json j = json_of(r.body);
    EXPECT_EQ(j["type"], "error");
    EXPECT_EQ(j["error"]["type"], "invalid_request_error");
    EXPECT_EQ(j["request_id"], r.header("request-id"));
  }
  api.context = 5;
  server.reset();
  start();
  EXPECT_NE(post("/v1/messages", ask_messages()).body.find("prompt is too long: "), std::string::npos);
}

TEST_F(ServerTest, ResponsesStreamsItsEvents) {
  generator.say(kCall);
  start();
  const std::string body =
      R"({"input": "Hi", "stream": true, "tools": [{"type": "web_search"}, {"type": "function", "name": "run",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}]})";
  const Reply r = post("/v1/responses", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.body.find("DSML"), std::string::npos);
  const auto events = events_of(r.body);
  EXPECT_EQ(
      order(events),
      "response.created response.in_progress "
      "response.output_item.added response.content_part.added response.reasoning_text.delta "
      "response.reasoning_text.done "
      "response.content_part.done response.output_item.done "
      "response.output_item.added response.content_part.added response.output_text.delta response.output_text.done "
      "response.content_part.done response.output_item.done "
      "response.output_item.added response.function_call_arguments.delta response.function_call_arguments.done "
      "response.output_item.done response.completed");
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(data_of(events[i])["sequence_number"], i);
  const Json response = data_of(events.back())["response"];
  ASSERT_EQ(response["output"].size(), 3U);
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "I look.");
  EXPECT_EQ(json_of(response["output"][2]["arguments"]), Json::parse(R"({"cmd": "make 2>&1"})"));
  EXPECT_EQ(response["usage"]["input_tokens"], generator.prompts[0].size());
}

TEST_F(ServerTest, ResponsesAnswersWholeAndCut) {
  generator.say("</think>one two three four five six", true);
  start();
  const Json j =
      json_of(post("/v1/responses", R"({"input": "Hi", "max_output_tokens": 6, "instructions": "Be brief"})").body);
  EXPECT_EQ(j["status"], "incomplete");
  EXPECT_EQ(j["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(j["instructions"], "Be brief");
  EXPECT_EQ(j["output"][0]["status"], "incomplete");
  EXPECT_EQ(j["usage"]["output_tokens"], 6);
  EXPECT_EQ(
      json_of(post("/v1/responses", R"({"input": "Hi", "previous_response_id": "resp_1"})").body)["error"]["code"],
      "previous_response_not_found");
  EXPECT_EQ(post("/v1/responses", R"({"input": "Hi", "background": true})").status, 400);
  EXPECT_EQ(post("/v1/responses", "{}").status, 400);
}

TEST_F(ServerTest, ThreeDialectsMakeOnePrompt) {
  generator.say("</think>x" + std::string(kEos));
  start();
  post("/v1/chat/completions",
       R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]})");
  post("/v1/messages", R"({"system": "S", "messages": [{"role": "user", "content": "Hi"}]})");
  post("/v1/responses", R"({"instructions": "S", "input": "Hi"})");
  ASSERT_EQ(generator.prompts.size(), 3U);
  EXPECT_EQ(generator.prompts[1], generator.prompts[0]);
  EXPECT_EQ(generator.prompts[2], generator.prompts[0]);
}

TEST_F(ServerTest, CountsWhatHappened) {
  generator.say("</think>x" + std::string(kEos));
  start();
  post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
  post("/v1/chat/completions", "{");
  const Reply r = get("/metrics");
  EXPECT_EQ(r.status, 200);
  const std::string labels = "{model_name=\"fathom-tiny\",engine=\"0\"";
  EXPECT_NE(r.body.find("vllm:request_success_total" + labels + ",finished_reason=\"stop\"} 1\n"), std::string::npos)
      << r.body;
  EXPECT_NE(r.body.find("fathom_http_answers_total" + labels + ",status=\"400\"} 1\n"), std::string::npos);
  EXPECT_NE(r.body.find("vllm:e2e_request_latency_seconds_count" + labels + "} 1\n"), std::string::npos);
}

std::set<std::string> metric_names(const std::string& text) {
  std::set<std::string> names;
  for (const std::string prefix : {"vllm:", "fathom_"}) {
    for (auto at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
      const auto end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at + prefix.size());
      names.insert(text.substr(at, end - at));
    }
  }
  return names;
}

// And those that vLLM's own dashboards ask for.
TEST_F(ServerTest, HasTheMetricsThatDashboardsAskFor) {
  generator.say("Hi.<｜end▁of▁sentence｜>");
  start();
  post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"Hi"}]})");
  const std::set<std::string> there = metric_names(get("/metrics").body);
  std::ifstream file(std::string(FATHOM_SOURCE_DIR) + "/packaging/grafana.json");
  std::set<std::string> asked = metric_names(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_GT(asked.size(), 20U);
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket", "request_time_per_output_token_seconds_sum",
        "e2e_request_latency_seconds_bucket", "prompt_tokens_total", "generation_tokens_total",
        "prefix_cache_hits_total", "prefix_cache_queries_total", "request_success_total",
        "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
        "request_inference_time_seconds_sum", "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
        "num_preemptions_total"})
    asked.insert(std::string("vllm:") + name);
  for (const std::string& name : asked) EXPECT_EQ(there.count(name), 1U) << name;
}

// An answer of four tokens has three times between them.
TEST_F(ServerTest, CountsEveryTimeFromTokenToToken) {
  generator.say("one two three four five six");
  start();
  post("/v1/completions", R"({"prompt":"Hi","max_tokens":4})");
  const std::string text = get("/metrics").body;
  EXPECT_NE(text.find("vllm:inter_token_latency_seconds_count{model_name=\"fathom-tiny\",engine=\"0\"} 3\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace fathom::server

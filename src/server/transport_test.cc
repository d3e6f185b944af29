// The wire: hostile, slow and vanishing clients, keys, limits, draining. http-api.md 2 and 3.
#include <fmt/format.h>

#include "server/server_fixture.h"

namespace fathom::server {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
const std::string kHello = R"({"messages": [{"role": "user", "content": "Hi"}]})";
const std::string kStream = R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true})";

TEST_F(ServerTest, AnswersTheSmallEndpoints) {
  start();
  EXPECT_EQ(json_of(get("/health").body)["status"], "ok");
  EXPECT_EQ(get("/ping").status, 200);
  EXPECT_TRUE(json_of(get("/version").body).contains("version"));
  const Json models = json_of(get("/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "fathom-tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(get("/v1/models/fathom-tiny").status, 200);
  EXPECT_EQ(json_of(get("/v1/models/other").body)["error"]["code"], "model_not_found");
  for (const char* path : {"/models", "/v1/v1/models", "/beta/v1/models", "/v1/models/", "/v1/models?limit=3"}) {
    EXPECT_EQ(get(path).status, 200) << path;
  }
  EXPECT_EQ(get("/v1/embeddings").status, 404);
  const Reply wrong = get(kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  EXPECT_EQ(fetch(server->port(), "OPTIONS", kChat).header("allow"), "POST, OPTIONS");
  EXPECT_EQ(fetch(server->port(), "OPTIONS", "/health").header("allow"), "GET, HEAD, OPTIONS");
  const Reply head = fetch(server->port(), "HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.body.empty());
}

TEST_F(ServerTest, TokenizesAndBack) {
  start();
  const Json there = json_of(post("/tokenize", R"({"prompt": "Once upon a time", "return_token_strs": true})").body);
  EXPECT_EQ(there["count"], there["tokens"].size());
  EXPECT_EQ(there["tokens"][0], 0);
  EXPECT_EQ(there["token_strs"].size(), there["tokens"].size());
  const Json back = json_of(post("/detokenize", Json{{"tokens", there["tokens"]}}.dump()).body);
  EXPECT_EQ(back["prompt"], "<｜begin▁of▁sentence｜>Once upon a time");
  const Json chat = json_of(post("/tokenize", kHello).body);
  EXPECT_GT(chat["count"], 3);
  EXPECT_EQ(post("/detokenize", R"({"tokens": [99999999]})").status, 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens": [1e400]})").status, 400);
  EXPECT_EQ(post("/tokenize", R"({"prompt": 5})").status, 400);
}

TEST_F(ServerTest, NamesEveryAnswer) {
  start();
  EXPECT_EQ(get("/health", "X-Request-Id: mine-1\r\n").header("x-request-id"), "mine-1");
  EXPECT_EQ(get("/nowhere", "X-Request-Id: two words\r\n").header("x-request-id").substr(0, 4), "req_");
}

TEST_F(ServerTest, KeepsAConnectionForTheNextRequest) {
  start();
  TestClient client(server->port());
  client.send(request_text("GET", "/health", "", "") + request_text("GET", "/version", "", "") +
              request_text("GET", "/health", "", "Connection: close\r\n"));
  client.read_all();
  std::size_t answers = 0;
  for (std::size_t at = 0; (at = client.received().find("HTTP/1.1 200", at)) != std::string::npos; ++at) ++answers;
  EXPECT_EQ(answers, 3U);
}

TEST_F(ServerTest, RefusesWhatIsNotARequest) {
  start();
  const std::pair<const char*, int> cases[] = {
      {"\x16\x03\x01\x02hello\r\n\r\n", 400},
      {"GET /health HTTP/9.9\r\n\r\n", 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: -3\r\n\r\nabc", 400},
      {"POST /tokenize HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\nabc", 413},
      {"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    TestClient client(server->port());
    client.send(bytes);
    client.shut_sending();
    EXPECT_EQ(client.read_all().status, status) << bytes;
  }
  TestClient long_header(server->port());
  long_header.send("GET /health HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");
  EXPECT_EQ(long_header.read_all().status, 431);
  EXPECT_EQ(post("/tokenize", "\"" + std::string((1U << 20U) + 1, 'x') + "\"").status, 413);
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServerTest, RefusesBodiesThatAreNotJson) {
  start();
  const std::string deep = std::string(500, '[');
  for (const std::string& body : {std::string("{"), std::string("[]"), std::string("\"x\""), std::string(),
                                  std::string("{\"a\": \"\xff\"}"), std::string("{\"a\": \"\\ud800\"}"),
                                  "{\"messages\": " + deep, std::string("{} {}"), std::string("nul\0l", 5)}) {
    for (const char* path : {kChat, "/v1/completions", "/tokenize", "/detokenize"}) {
      const Reply r = post(path, body);
      EXPECT_EQ(r.status, 400) << path << " " << body;
      EXPECT_EQ(json_of(r.body)["error"]["code"], "invalid_json") << body;
      EXPECT_TRUE(json_of(r.body)["error"]["param"].is_null());
    }
  }
}

TEST_F(ServerTest, SurvivesHalfARequest) {
  http.limits.header_seconds = 1;
  http.limits.body_idle_seconds = 1;
  start();
  TestClient header(server->port());
  header.send("POST /tokenize HTTP/1.1\r\nContent-Le");
  EXPECT_EQ(header.read_all().status, 408);
  TestClient body(server->port());
  body.send("POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\n{\"a");
  EXPECT_EQ(body.read_all().status, 408);
  {
    TestClient gone(server->port());
    gone.send("POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\n{\"a");
  }
  TestClient idle(server->port());
  EXPECT_EQ(idle.read_all().status, 0);  // closed without a word
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(ServerTest, TellsACautiousClientToGoOn) {
  start();
  TestClient client(server->port());
  client.send("POST /detokenize HTTP/1.1\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 15\r\n\r\n");
  ASSERT_TRUE(client.read_until("100 Continue"));
  client.send("{\"tokens\": [5]}");
  EXPECT_EQ(client.read_all().status, 200);
}

TEST_F(ServerTest, CancelsForAClientThatVanishes) {
  generator.say("word ", true);
  generator.pause_between_tokens(5);
  api.context = 1 << 20;
  start();
  for (const std::string& body : {kStream, kHello}) {
    const std::size_t before = generator.cancelled();
    {
      TestClient client(server->port());
      client.send(request_text("POST", kChat, body, ""));
      ASSERT_TRUE(becomes([&] { return generator.playing() == 1; }));
    }
    EXPECT_TRUE(becomes([&] { return generator.cancelled() > before && generator.playing() == 0; })) << body;
    {
      TestClient client(server->port());
      client.send(request_text("POST", kChat, body, ""));
      ASSERT_TRUE(becomes([&] { return generator.playing() == 1; }));
      client.reset();
    }
    EXPECT_TRUE(becomes([&] { return generator.playing() == 0; })) << body;
  }
  EXPECT_TRUE(becomes([&] { return server->active() == 0; }));
}

TEST_F(ServerTest, GoesOnForAClientThatOnlyStoppedSending) {
  generator.say("word word word word</think>done<｜end▁of▁sentence｜>");
  generator.pause_between_tokens(250);
  start();
  for (const std::string& body : {kStream, kHello}) {
    TestClient client(server->port());
    client.send(request_text("POST", kChat, body, "Connection: close\r\n"));
    client.shut_sending();
    const Reply r = client.read_all();
    EXPECT_EQ(r.status, 200);
    EXPECT_NE(r.body.find("\"stop\""), std::string::npos) << r.body;
  }
}

TEST_F(ServerTest, CancelsForAClientThatDoesNotRead) {
  generator.say("many words and more of them ", true);
  api.context = 1 << 28;
  http.limits.unread_bytes = 64 << 10;
  start();
  TestClient client(server->port());
  client.send(request_text("POST", kChat, kStream, ""));
  EXPECT_TRUE(becomes([&] { return generator.cancelled() == 1 && generator.playing() == 0; }));
  EXPECT_TRUE(becomes([&] { return server->active() == 0; }));
}

TEST_F(ServerTest, KeepsAQuietStreamAlive) {
  http.limits.keep_alive_seconds = 1;
  generator.say("<｜end▁of▁sentence｜>");
  generator.pause_between_tokens(2500);
  start();
  const Reply r = post(kChat, kStream);
  EXPECT_NE(r.body.find(": keep-alive\n\n"), std::string::npos) << r.body;
  EXPECT_EQ(events_of(r.body).back(), "[DONE]");
}

TEST_F(ServerTest, SaysHowFarALongPromptHasBeenRead) {
  http.limits.keep_alive_seconds = 1;
  generator.say("<｜end▁of▁sentence｜>");
  generator.read_first(3);
  generator.pause_between_tokens(2500);
  start();
  const Reply r = post(kChat, kStream);
  const std::size_t n = generator.prompts.at(0).size();
  EXPECT_NE(r.body.find(fmt::format(": prefill 3/{}\n: keep-alive\n\n", n)), std::string::npos) << r.body;
  const Reply m = post("/v1/messages", R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":5,"stream":true})");
  EXPECT_NE(m.body.find(fmt::format(": prefill 3/{}\nevent: ping\n", n)), std::string::npos) << m.body;
}

TEST_F(ServerTest, SaysThatTheModelIsBeingLoaded) {
  auto listening = Server::listen(http);
  ASSERT_TRUE(listening) << listening.error().what;
  server = std::move(*listening);
  for (const char* path : {"/health", "/ping", "/health/"}) {
    const Reply r = get(path);
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(json_of(r.body)["status"], "loading");
    EXPECT_FALSE(r.header("retry-after").empty());
  }
  EXPECT_EQ(get("/", "Accept: text/html\r\n").status, 200);
  EXPECT_EQ(get("/page/app.js").status, 200);
  EXPECT_EQ(get("/").status, 503);
  const Reply chat = post(kChat, kHello);
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(json_of(chat.body)["error"]["code"], "service_unavailable");
  EXPECT_EQ(json_of(post("/v1/messages", kHello).body)["error"]["type"], "overloaded_error");
  generator.say("Hi.<｜end▁of▁sentence｜>");
  server->serve(tiny_format(), generator, api);
  EXPECT_EQ(json_of(get("/health").body)["status"], "ok");
  EXPECT_EQ(post(kChat, kHello).status, 200);
}

TEST(RetryAfter, IsWhatTheQueueTakes) {
  EXPECT_EQ(retry_after(30, 3), 10);
  EXPECT_EQ(retry_after(0, 3), 1);
  EXPECT_EQ(retry_after(256, 0.1), 60) << "nobody is sent away for long";
  EXPECT_EQ(retry_after(256, 0), 5) << "nothing has ended yet";
}

TEST_F(ServerTest, SaysWhenItIsFullOrBroken) {
  generator.refuse_with({Code::kExhausted, "the queue is full: 1 requests wait"});
  generator.load.waiting = 21;
  generator.load.ends_per_second = 2;
  start();
  for (const std::string& body : {kStream, kHello}) {
    const Reply full = post(kChat, body);
    EXPECT_EQ(full.status, 429);
    EXPECT_EQ(full.header("retry-after"), "11") << "as long as the 21 that wait take";
    EXPECT_EQ(json_of(full.body)["error"]["type"], "rate_limit_error");
  }
  EXPECT_NE(get("/metrics")
                .body.find("fathom_http_answers_total{model_name=\"fathom-tiny\",engine=\"0\",status=\"429\"} 2\n"),
            std::string::npos);
  generator.refuse_with({Code::kUnavailable, "the device is lost"});
  EXPECT_EQ(post(kChat, kHello).status, 503);
  EXPECT_EQ(get("/health").status, 503);
}

TEST_F(ServerTest, DrainsWithoutCuttingAnybodyShort) {
  generator.say("on and on</think>to the end<｜end▁of▁sentence｜>");
  generator.pause_between_tokens(50);
  start();
  TestClient client(server->port());
  client.send(request_text("POST", kChat, kStream, "Connection: close\r\n"));
  ASSERT_TRUE(becomes([&] { return generator.playing() == 1; }));
  server->drain();
  EXPECT_EQ(post(kChat, kHello).status, 503);
  EXPECT_EQ(json_of(get("/health").body)["status"], "draining");
  EXPECT_EQ(events_of(client.read_all().body).back(), "[DONE]");
  EXPECT_TRUE(becomes([&] { return server->active() == 0; }));
}

TEST_F(ServerTest, EndsStreamsWithAnErrorWhenTheEngineStops) {
  generator.say("on ", true);
  generator.pause_between_tokens(5);
  start();
  TestClient client(server->port());
  client.send(request_text("POST", kChat, kStream, "Connection: close\r\n"));
  ASSERT_TRUE(client.read_until("reasoning_content"));
  generator.stop();
  const auto events = events_of(client.read_all().body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_TRUE(json_of(events[events.size() - 2]).contains("error"));
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ServerTest, AsksForAKey) {
  api.keys = {"first", "second"};
  start();
  EXPECT_EQ(get("/health").status, 200);
  const Reply no = get("/v1/models");
  EXPECT_EQ(no.status, 401);
  EXPECT_EQ(no.header("www-authenticate"), "Bearer");
  for (const char* bad : {"Authorization: Bearer firs\r\n", "Authorization: Bearer firstfirst\r\n",
                          "Authorization: first\r\n", "x-api-key: \r\n", "Authorization: Bearer \r\n"}) {
    EXPECT_EQ(get("/v1/models", bad).status, 401) << bad;
  }
  EXPECT_EQ(get("/v1/models", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(get("/v1/models", "x-api-key: first\r\n").status, 200);
}

TEST_F(ServerTest, TrustsNoPageOfTheWeb) {
  start();
  TestClient other(server->port());
  other.send("GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(other.read_all().status, 403);
  TestClient form(server->port());
  form.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n"
      "Connection: close\r\nContent-Length: 15\r\n\r\n{\"prompt\": \"a\"}");
  EXPECT_EQ(form.read_all().status, 415);
  EXPECT_EQ(get("/health", "Origin: http://a.example\r\n").header("access-control-allow-origin"), "");
}

TEST_F(ServerTest, LetsAnAllowedOriginIn) {
  api.cors_origin = "http://a.example";
  start();
  const Reply asked = fetch(server->port(), "OPTIONS", kChat, "",
                            "Origin: http://a.example\r\nAccess-Control-Request-Headers: authorization, x-api-key\r\n");
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.header("access-control-allow-origin"), "http://a.example");
  EXPECT_EQ(asked.header("access-control-allow-headers"), "authorization, x-api-key");
  EXPECT_EQ(get("/nowhere", "Origin: http://a.example\r\n").header("vary"), "Origin");
  EXPECT_EQ(get("/health", "Origin: http://b.example\r\n").header("access-control-allow-origin"), "");
}

// A server that never came to serve ends as well: the port was taken, or no model could be loaded for it.
TEST(ServerListen, ATakenPortIsAnErrorAndWaitingEnds) {
  HttpServer::Options http;
  http.port = 0;
  auto first = Server::listen(http);
  ASSERT_TRUE(first) << first.error().what;
  EXPECT_EQ(fetch((*first)->port(), "GET", "/health").status, 503);
  http.port = (*first)->port();
  const auto second = Server::listen(http);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().what.find(fmt::format("port {}", http.port)), std::string::npos) << second.error().what;
  *first = nullptr;
  EXPECT_TRUE(Server::listen(http));
}

TEST_F(ServerTest, BoundsItsConnections) {
  http.limits.connections = 3;
  http.limits.header_seconds = 100'000;  // no connection is counted until that is over
  start();
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(std::make_unique<TestClient>(server->port()));
    idle.back()->send("G");
  }
  EXPECT_TRUE(becomes([&] { return get("/health").status == 503; }));
  idle.clear();
  EXPECT_TRUE(becomes([&] { return get("/health").status == 200; }));
}

}  // namespace
}  // namespace fathom::server

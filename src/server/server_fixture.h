// For tests: a server on a free port over scripted answers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/json.h"
#include "server/scripted_generator.h"
#include "server/server.h"
#include "server/test_client.h"
#include "text/chat_format.h"

namespace fathom::server {

inline const text::ChatFormat& tiny_format() {
  static const auto format = text::ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!format) ADD_FAILURE() << format.error().what;
  return *format;
}

inline Json json_of(const std::string& text) {
  auto json = parse_json(text, "answer");
  EXPECT_TRUE(json) << text;
  return json ? *json : Json();
}

class ServerTest : public testing::Test {
 protected:
  ServerTest() : generator(tiny_format().tokenizer()) {
    api.model_id = "fathom-tiny";
    api.vocab = tiny_format().tokenizer().vocab_size();
    api.context = 4096;
    http.limits.body_bytes = 1U << 20U;
  }
  ~ServerTest() override { generator.stop(); }

  void start() {
    auto started = Server::start(tiny_format(), generator, api, http);
    ASSERT_TRUE(started) << started.error().what;
    server = std::move(*started);
  }
  Reply get(std::string_view path, std::string_view extra = "") {
    return fetch(server->port(), "GET", path, "", extra);
  }
  Reply post(std::string_view path, std::string_view body, std::string_view extra = "") {
    return fetch(server->port(), "POST", path, body, extra);
  }
  // Half a minute at most.
  static bool becomes(const std::function<bool()>& true_at_last) {
    for (int i = 0; i < 3000 && !true_at_last(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return true_at_last();
  }

  ScriptedGenerator generator;
  ApiOptions api;
  HttpServer::Options http;
  std::unique_ptr<Server> server;
};

}  // namespace fathom::server

// Many clients at once over a real engine and a model without arithmetic: every request is answered, whoever leaves.
#include <fmt/format.h>

#include <atomic>
#include <random>

#include "engine/engine.h"
#include "server/server_fixture.h"
#include "support/fake_runner.h"

namespace fathom::server {
namespace {

TEST(ServerLoad, FiftyStreamsWithCancelsEndAndLeaveNothing) {
  const std::int32_t vocab = tiny_format().tokenizer().vocab_size();
  fathom::testing::FakeRunnerOptions model;
  model.vocab = vocab;
  fathom::testing::FakeRunner runner(model);
  engine::CoreOptions core;
  core.cache_bytes = std::size_t{256} << 20U;
  core.slots = 8;
  core.max_waiting = 30;
  auto engine = engine::Engine::start(runner, core);
  ASSERT_TRUE(engine) << engine.error().what;
  EngineGenerator generator(**engine);
  ApiOptions api;
  api.vocab = vocab;
  api.context = 4096;
  auto server = Server::start(tiny_format(), generator, std::move(api), {});
  ASSERT_TRUE(server) << server.error().what;

  std::atomic<int> complete = 0;
  std::atomic<int> refused = 0;
  std::atomic<int> left = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> clients;
  for (unsigned i = 0; i < 50; ++i) {
    clients.emplace_back([&, i] {
      std::mt19937 random(i);
      for (int round = 0; round < 3; ++round) {
        const bool stream = random() % 3 != 0;
        const std::string body = fmt::format(
            R"({{"messages": [{{"role": "user", "content": "Question {}"}}], "max_tokens": {}, "stream": {}, "seed": {}}})",
            random() % 5, 1 + random() % 60, stream, random() % 100);
        TestClient client((*server)->port());
        client.send(request_text("POST", "/v1/chat/completions", body, "Connection: close\r\n"));
        if (random() % 4 == 0) {
          if (random() % 2 == 0) client.read_until("data: ");
          if (random() % 2 == 0) client.reset();
          ++left;
          continue;
        }
        const Reply r = client.read_all();
        if (r.status == 429) ++refused;
        else if (r.status == 200 &&
                 (stream ? events_of(r.body).back() == "[DONE]" : !json_of(r.body)["usage"].is_null()))
          ++complete;
        else ++wrong;
      }
    });
  }
  for (auto& c : clients) c.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(complete + refused + left, 150);
  EXPECT_GT(complete, 0);
  for (int i = 0; i < 3000 && (*server)->active() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ((*server)->active(), 0);
  (*engine)->stop(true);
  const engine::CoreStats stats = (*engine)->stats();
  EXPECT_EQ(stats.running, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.failed, 0U);
  EXPECT_EQ(runner.error(), "");
}

}  // namespace
}  // namespace fathom::server

// The engine on its thread: many clients at once, who submit, cancel, ask and leave. Run under the thread sanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/engine.h"
#include "support/fake_runner.h"

namespace fathom::testing {
namespace {

using engine::Engine;
using engine::Request;

// Collects an answer and lets a client wait for it.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::int32_t> tokens;
  int ends = 0;
  bool ok = false;
  Error error;

  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return ends > 0; });
  }
};

class MailSink final : public engine::Sink {
 public:
  explicit MailSink(std::shared_ptr<Mailbox> box) : box_(std::move(box)) {}
  engine::Verdict token(std::int32_t, const engine::Sampled& t) override {
    const std::lock_guard lock(box_->mutex);
    box_->tokens.push_back(t.id);
    return engine::Verdict::kGoOn;
  }
  void done(Result<engine::Outcome> outcome) override {
    const std::lock_guard lock(box_->mutex);
    ++box_->ends;
    box_->ok = outcome.has_value();
    if (!outcome) box_->error = outcome.error();
    box_->changed.notify_all();
  }

 private:
  std::shared_ptr<Mailbox> box_;  // the client and the engine's thread both hold it
};

Request request(std::int32_t first, std::size_t n, std::int32_t max_tokens) {
  Request r;
  for (std::size_t i = 0; i < n; ++i)
    r.prompt.push_back(static_cast<std::int32_t>((static_cast<std::size_t>(first) + i * 7) % 40));
  r.max_tokens = max_tokens;
  r.sampling.seed = static_cast<std::uint64_t>(first);
  return r;
}

engine::CoreOptions options(const FakeRunner& runner, std::int32_t slots, std::int32_t pages) {
  engine::CoreOptions o;
  o.slots = slots;
  o.max_drafts = 2;
  o.cache_bytes = static_cast<std::size_t>(slots) * (runner.layout().slot_bytes + 64) +
                  static_cast<std::size_t>(pages) * runner.layout().page_bytes;
  return o;
}

TEST(EngineThreads, ManyClientsGetTheirOwnAnswers) {
  FakeRunner runner;
  const FakeRunner oracle;
  auto e = Engine::start(runner, options(runner, 6, 80)).value();
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (std::int32_t c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      for (std::int32_t i = 0; i < 25; ++i) {
        Request r = request(c * 3 + i % 5, 20 + static_cast<std::size_t>(i) * 9, 12);
        r.client = std::to_string(c);
        Request same = request(c * 3 + i % 5, 20 + static_cast<std::size_t>(i) * 9, 12);
        const auto box = std::make_shared<Mailbox>();
        r.sink = std::make_unique<MailSink>(box);
        const auto id = e->submit(std::move(r));
        ASSERT_TRUE(id.has_value()) << id.error().what;
        if (i % 7 == 3) e->cancel(*id);
        (void)e->stats();
        (void)e->health();
        box->wait();
        EXPECT_EQ(box->ends, 1);
        if (!box->ok) {
          EXPECT_EQ(box->error.code, Code::kCancelled);
          continue;
        }
        ++answered;
        const Expected want = expected(oracle, same, 0, 4096);
        ASSERT_EQ(box->tokens.size(), want.tokens.size());
        for (std::size_t t = 0; t < box->tokens.size(); ++t) ASSERT_EQ(box->tokens[t], want.tokens[t].id);
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_GE(answered, 8 * 21);
  EXPECT_EQ(runner.error(), "");
  e->stop(true);
  EXPECT_EQ(e->stats().running + e->stats().waiting, 0);
}

TEST(EngineThreads, StoppingEndsEveryRequestOnce) {
  for (const bool wait : {true, false}) {
    FakeRunner runner;
    auto e = Engine::start(runner, options(runner, 2, 40)).value();
    std::vector<std::shared_ptr<Mailbox>> boxes;
    for (std::int32_t i = 0; i < 20; ++i) {
      boxes.push_back(std::make_shared<Mailbox>());
      Request r = request(i, 200, 100);
      r.sink = std::make_unique<MailSink>(boxes.back());
      ASSERT_TRUE(e->submit(std::move(r)).has_value());
    }
    e->stop(wait);
    for (const auto& box : boxes) {
      EXPECT_EQ(box->ends, 1);
      EXPECT_TRUE(box->ok || (!wait && box->error.code == Code::kCancelled));
    }
    Request late = request(1, 5, 5);
    late.sink = std::make_unique<MailSink>(std::make_shared<Mailbox>());
    EXPECT_EQ(e->submit(std::move(late)).error().code, Code::kUnavailable);
    e->cancel(1);
    e.reset();
  }
}

TEST(EngineThreads, RefusalsDoNotTouchTheSink) {
  FakeRunner runner;
  auto o = options(runner, 1, 40);
  o.max_waiting = 2;
  // The model stands still until it is let go.
  std::mutex gate;
  gate.lock();
  runner.before_forward = [&gate](auto) { const std::lock_guard wait(gate); };
  auto e = Engine::start(runner, std::move(o)).value();
  std::vector<std::shared_ptr<Mailbox>> boxes;
  int accepted = 0;
  for (std::int32_t i = 0; i < 10; ++i) {
    boxes.push_back(std::make_shared<Mailbox>());
    Request r = request(i, 10, 3);
    r.sink = std::make_unique<MailSink>(boxes.back());
    const auto id = e->submit(std::move(r));
    accepted += id.has_value() ? 1 : 0;
    if (!id) {
      EXPECT_EQ(id.error().code, Code::kExhausted);
    }
  }
  EXPECT_LE(accepted, 3);
  EXPECT_GE(accepted, 2);
  gate.unlock();
  e->stop(true);
  int ended = 0;
  for (const auto& box : boxes) ended += box->ends;
  EXPECT_EQ(ended, accepted);
}

TEST(EngineThreads, AFailedModelShowsInHealth) {
  FakeRunner runner;
  runner.fail_next = true;
  auto e = Engine::start(runner, options(runner, 1, 40)).value();
  const auto box = std::make_shared<Mailbox>();
  Request r = request(1, 10, 3);
  r.sink = std::make_unique<MailSink>(box);
  ASSERT_TRUE(e->submit(std::move(r)).has_value());
  box->wait();
  EXPECT_EQ(box->error.code, Code::kUnavailable);
  while (e->health().ok) std::this_thread::yield();
  Request more = request(1, 10, 3);
  more.sink = std::make_unique<MailSink>(std::make_shared<Mailbox>());
  EXPECT_EQ(e->submit(std::move(more)).error().code, Code::kUnavailable);
}

TEST(EngineThreads, ADeadlineIsKeptWhileNothingElseHappens) {
  FakeRunner runner;
  auto e = Engine::start(runner, options(runner, 1, 40)).value();
  const auto box = std::make_shared<Mailbox>();
  Request r = request(1, 10, 4000);
  r.deadline_ms = 1;
  r.sink = std::make_unique<MailSink>(box);
  ASSERT_TRUE(e->submit(std::move(r)).has_value());
  box->wait();
  EXPECT_EQ(box->ends, 1);
}

}  // namespace
}  // namespace fathom::testing

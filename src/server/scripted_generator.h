// For tests: a Generator that says what it was told to say.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/generator.h"
#include "text/tokenizer.h"

namespace fathom::server {

class ScriptedGenerator final : public Generator {
 public:
  explicit ScriptedGenerator(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  ~ScriptedGenerator() override { stop(); }

  // What every answer says; control tokens are spelled out. Again and again where `forever`.
  void say(std::string script, bool forever = false) {
    script_ = tokenizer_.encode(script, text::Mode::kSpecial);
    forever_ = forever;
  }
  // As say(), each answer by its own prompt. Before any request.
  void say_by_prompt(std::function<std::string(const std::vector<std::int32_t>&)> script_of) {
    script_of_ = std::move(script_of);
  }
  void pause_between_tokens(int ms) { pause_ms_ = ms; }
  // Every answer begins with so many tokens of its prompt read.
  void read_first(int tokens) { progress_ = tokens; }
  void refuse_with(Error error) { refuse_ = std::move(error); }

  Result<engine::RequestId> submit(engine::Request request) override {
    const std::lock_guard lock(mutex_);
    if (!refuse_.what.empty()) return tl::unexpected(refuse_);
    prompts.push_back(request.prompt);
    shared_ends = request.shared_ends;
    const engine::RequestId id = ++last_id_;
    auto script = script_of_ ? tokenizer_.encode(script_of_(request.prompt), text::Mode::kSpecial) : script_;
    threads_.emplace_back([this, id, script = std::move(script),
                           r = std::make_shared<engine::Request>(std::move(request))] { play(id, script, *r); });
    return id;
  }
  void cancel(engine::RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
  }
  engine::CoreStats stats() const override { return load; }
  engine::EngineHealth health() const override { return {.ok = refuse_.what.empty(), .why = refuse_.what}; }

  // Ends everything, as engine::Engine::stop(false).
  void stop() {
    stopped_ = true;
    settle();
  }
  // Waits until every answer has been said and its sink is gone, as it must be before its server goes.
  void settle() {
    std::vector<std::thread> threads;
    {
      const std::lock_guard lock(mutex_);
      threads.swap(threads_);
    }
    for (auto& t : threads) t.join();
  }
  std::size_t cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_.size();
  }
  int playing() const { return playing_; }

  engine::CoreStats load;                          // what is said of it; before any request
  std::vector<std::vector<std::int32_t>> prompts;  // by submission
  std::vector<std::int32_t> shared_ends;           // of the last one
  std::atomic<int> said = 0;                       // tokens

 private:
  void play(engine::RequestId id, const std::vector<std::int32_t>& script, engine::Request& r) {
    ++playing_;
    engine::Reply reply(std::move(r.sink));
    engine::Outcome outcome;
    outcome.prompt_tokens = static_cast<std::int32_t>(r.prompt.size());
    outcome.cached_tokens = 2;
    if (progress_ > 0) reply.prompt_progress(progress_, outcome.prompt_tokens);
    if (r.score_prompt) {
      for (std::size_t i = 1; i < r.prompt.size(); ++i)
        reply.prompt_scores(std::vector<engine::Sampled>{{r.prompt[i], -0.25F, {{r.prompt[i], -0.25F}}}});
    }
    for (std::int32_t choice = 0; choice < r.n; ++choice) {
      if (r.prompt_only) {
        outcome.choices.push_back(engine::Finish::kLength);
        reply.choice_done(choice, engine::Finish::kLength);
        continue;
      }
      std::int32_t n = 0;
      engine::Finish why = engine::Finish::kStop;
      for (std::size_t i = 0; i < script.size() || forever_; ++i) {
        if (is_cancelled(id)) {
          --playing_;
          return reply.finish(fail(Code::kCancelled, "cancelled"));
        }
        if (n == r.max_tokens) {
          why = engine::Finish::kLength;
          break;
        }
        if (pause_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
        const std::int32_t token = script[i % script.size()];
        ++n;
        ++said;
        const engine::Verdict verdict = reply.token(choice, {token, -0.5F, {{token, -0.5F}}});
        const bool stops = std::find(r.stop_ids.begin(), r.stop_ids.end(), token) != r.stop_ids.end();
        if (stops || verdict == engine::Verdict::kStop) break;
      }
      outcome.completion_tokens += n;
      outcome.choices.push_back(why);
      reply.choice_done(choice, why);
    }
    --playing_;
    reply.finish(outcome);
  }
  bool is_cancelled(engine::RequestId id) const {
    const std::lock_guard lock(mutex_);
    return stopped_ || cancelled_.count(id) > 0;
  }

  const text::Tokenizer& tokenizer_;
  std::vector<std::int32_t> script_;
  std::function<std::string(const std::vector<std::int32_t>&)> script_of_;
  bool forever_ = false;
  int pause_ms_ = 0;
  int progress_ = 0;
  Error refuse_;
  mutable std::mutex mutex_;
  std::vector<std::thread> threads_;       // guarded
  std::set<engine::RequestId> cancelled_;  // guarded
  engine::RequestId last_id_ = 0;
  std::atomic<bool> stopped_ = false;
  std::atomic<int> playing_ = 0;
};

}  // namespace fathom::server

#include "engine/engine.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fathom::engine {
namespace {

std::int64_t monotonic_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct Engine::State {
  std::unique_ptr<Core> core;  // the thread's, validate() excepted
  std::int32_t max_waiting = 0;
  std::string description;

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable idle;
  std::vector<std::pair<RequestId, Request>> inbox;
  std::vector<RequestId> cancelled;
  RequestId next_id = 1;
  std::int32_t waiting = 0;  // requests of the core that have not started, or more
  bool news = false;         // from the disk
  bool closed = false;       // no more requests
  bool quit = false;
  bool empty = true;  // nothing accepted is unfinished
  CoreStats stats;
  EngineHealth health;
  std::int64_t step_began_us = 0;
  std::thread thread;
};

Result<std::unique_ptr<Engine>> Engine::start(Runner& runner, CoreOptions options) {
  std::unique_ptr<Engine> engine(new Engine);
  engine->state_ = std::make_unique<State>();
  State& s = *engine->state_;
  s.max_waiting = options.max_waiting;
  options.clock_us = monotonic_us;
  options.notify = [&s] {
    const std::lock_guard lock(s.mutex);
    s.news = true;
    s.wake.notify_one();
  };
  options.broke = [&s](const Error& why) {  // whoever sees a request end with it finds health() saying so
    const std::lock_guard lock(s.mutex);
    s.health.ok = false;
    s.health.why = why.what;
  };
  FATHOM_ASSIGN(s.core, Core::create(runner, std::move(options)));
  s.description = s.core->describe();
  s.stats = s.core->stats();
  s.thread = std::thread([&s] { run(s); });
  return engine;
}

Engine::~Engine() { stop(false); }

Result<RequestId> Engine::submit(Request request) {
  State& s = *state_;
  FATHOM_TRY(s.core->validate(request));
  const std::lock_guard lock(s.mutex);
  if (s.closed) return fail(Code::kUnavailable, "the engine takes no more requests");
  if (!s.health.ok) return fail(Code::kUnavailable, "{}", s.health.why);
  if (s.waiting + static_cast<std::int32_t>(s.inbox.size()) >= s.max_waiting) {
    return fail(Code::kExhausted, "the queue is full: {} requests wait", s.max_waiting);
  }
  const RequestId id = s.next_id++;
  s.inbox.emplace_back(id, std::move(request));
  s.empty = false;
  s.wake.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled.push_back(id);
  state_->wake.notify_one();
}

void Engine::stop(bool wait) {
  State& s = *state_;
  {
    std::unique_lock lock(s.mutex);
    s.closed = true;
    if (wait) s.idle.wait(lock, [&s] { return s.empty; });
    s.quit = true;
    s.wake.notify_one();
  }
  if (s.thread.joinable()) s.thread.join();
}

std::int32_t Engine::position_limit() const { return state_->core->position_limit(); }

CoreStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

EngineHealth Engine::health() const {
  const std::lock_guard lock(state_->mutex);
  EngineHealth h = state_->health;
  if (h.stepping) h.step_seconds = static_cast<double>(monotonic_us() - state_->step_began_us) * 1e-6;
  return h;
}

std::string Engine::describe() const { return state_->description; }

void Engine::run(State& s) {
  std::vector<std::pair<RequestId, Request>> arrived;
  std::vector<RequestId> cancelled;
  std::unique_lock lock(s.mutex);
  bool busy = false;
  while (true) {
    const auto due = [&s] { return !s.inbox.empty() || !s.cancelled.empty() || s.news || s.quit; };
    if (!busy && !due()) {
      const auto next = std::chrono::microseconds(std::max<std::int64_t>(0, s.core->next_event_us() - monotonic_us()));
      s.wake.wait_for(lock, std::min<std::chrono::microseconds>(next, std::chrono::hours(1)), due);
    }
    if (s.quit) break;
    s.news = false;
    arrived.swap(s.inbox);
    cancelled.swap(s.cancelled);
    s.waiting += static_cast<std::int32_t>(arrived.size());
    s.health.stepping = true;
    s.step_began_us = monotonic_us();
    lock.unlock();

    for (auto& [id, request] : arrived) {
      if (auto accepted = s.core->submit(id, std::move(request)); !accepted) {
        Reply(std::move(request.sink))
            .finish(pass_on(std::move(accepted)));  // NOLINT: not moved from where it was refused
      }
    }
    arrived.clear();
    for (const RequestId id : cancelled) s.core->cancel(id);
    cancelled.clear();
    busy = s.core->step();
    const CoreStats stats = s.core->stats();

    lock.lock();
    s.stats = stats;
    s.waiting = s.core->waiting();
    s.health.stepping = false;
    s.health.steps = stats.steps;
    s.empty = s.core->requests() == 0 && s.inbox.empty();
    if (s.empty) s.idle.notify_all();
  }
  arrived.swap(s.inbox);
  lock.unlock();
  for (auto& [id, request] : arrived) Reply(std::move(request.sink)).finish(fail(Code::kCancelled, "the engine stops"));
  s.core->cancel_all();
  lock.lock();
  s.empty = true;
  s.idle.notify_all();
}

}  // namespace fathom::engine

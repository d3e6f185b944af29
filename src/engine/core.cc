#include "engine/core.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "engine/core_state.h"

namespace fathom::engine {
namespace {

constexpr std::int32_t kMaxLeaders = 4;  // after so many the beginning is computed by oneself
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 2;

double ms(std::int64_t us) { return static_cast<double>(us) / 1000; }

std::size_t common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  const std::size_t n = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin());
}

}  // namespace

Core::Core(Runner& runner, CoreOptions options)
    : runner_(runner), options_(std::move(options)), policy_(options_.max_drafts, options_.fixed_drafts) {}

Result<std::unique_ptr<Core>> Core::create(Runner& runner, CoreOptions options) {
  const RunnerFacts& facts = runner.facts();
  FATHOM_CHECK(options.clock_us != nullptr, "the engine has a clock");
  if (options.max_waiting < 1 || options.prefill_beside_answers < 1 || options.passing_first < 1 ||
      options.passing_every < 1) {
    return fail(Code::kInvalid,
                "the queue, the prompt tokens beside answers and the intervals of snapshots must be at least 1");
  }
  if (options.max_drafts < 0 || options.max_drafts > kMaxDrafts ||
      ((facts.drafts || facts.block_drafts > 0) && options.max_drafts > runner.layout().rollback)) {
    return fail(Code::kInvalid, "{} guesses a step; at most {} can be, and {} taken back", options.max_drafts,
                kMaxDrafts, runner.layout().rollback);
  }
  std::unique_ptr<Core> core(new Core(runner, std::move(options)));
  const CoreOptions& o = core->options_;
  cache::CacheConfig config;
  config.memory_bytes = o.cache_bytes;
  config.slots = o.slots;
  config.draft_layers = facts.draft_layers;
  config.extra_bytes = static_cast<std::size_t>(facts.stream_width) * sizeof(float);
  config.identity = facts.identity;
  config.disk_directory = o.disk_directory;
  config.disk_bytes = o.disk_bytes;
  config.write_queue_bytes = o.write_queue_bytes;
  config.warn = o.warn;
  config.notify = o.notify;
  FATHOM_ASSIGN(core->cache_, cache::StateCache::create(runner.layout(), runner.memory(), std::move(config)));
  core->budget_ = {.step_tokens = facts.step_tokens,
                   .logit_rows = facts.logit_rows,
                   .prefill_beside_answers = o.prefill_beside_answers};
  if (core->drafting()) {
    core->draft_rows_ = std::int64_t{facts.step_tokens} + o.slots;
    FATHOM_ASSIGN(core->draft_input_, runner.memory().allocate(core->draft_bytes()));
  }
  return core;
}

Core::~Core() { cancel_all(); }

void Core::cancel_all() {
  for (const auto& asked : asked_) cancel(*asked, "the engine stops");
  sweep();
}

std::size_t Core::stream_bytes() const {
  return static_cast<std::size_t>(runner_.facts().stream_width) * sizeof(float);
}

std::int32_t Core::position_limit() const {
  const std::int64_t in_cache = std::int64_t{cache_->pages()} * 128 - options_.max_drafts - 1;
  return static_cast<std::int32_t>(std::min<std::int64_t>(runner_.facts().max_positions, in_cache));
}

Result<> Core::validate(const Request& r) const {
  const std::int32_t vocab = runner_.facts().vocab;
  const auto check_ids = [vocab](const char* field, std::span<const std::int32_t> ids) -> Result<> {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab)
        return fail(Code::kInvalid, "{}[{}] is {}, the vocabulary has ids 0 to {}", field, i, ids[i], vocab - 1);
    }
    return {};
  };
  if (r.sink == nullptr) return fail(Code::kInvalid, "a request has a sink");
  if (r.prompt.empty()) return fail(Code::kInvalid, "prompt is empty, must have a token at least");
  FATHOM_TRY(check_ids("prompt", r.prompt));
  FATHOM_TRY(check_ids("stop_ids", r.stop_ids));
  FATHOM_TRY(engine::validate(r.sampling, vocab));
  if (r.n < 1 || r.n > kMaxChoices) return fail(Code::kInvalid, "n is {}, must be in [1, {}]", r.n, kMaxChoices);
  if (r.max_tokens < 0)
    return fail(Code::kInvalid, "max_tokens is {}, must be positive, or 0 for no limit", r.max_tokens);
  if (r.min_tokens < 0) return fail(Code::kInvalid, "min_tokens is {}, must not be negative", r.min_tokens);
  if (r.deadline_ms < 0) return fail(Code::kInvalid, "deadline_ms is {}, must not be negative", r.deadline_ms);
  if (r.salt.size() > cache::kMaxSaltBytes)
    return fail(Code::kInvalid, "salt has {} bytes, at most {} are taken", r.salt.size(), cache::kMaxSaltBytes);
  if (!std::is_sorted(r.shared_ends.begin(), r.shared_ends.end()))
    return fail(Code::kInvalid, "shared_ends must ascend");
  const auto n = static_cast<std::int64_t>(r.prompt.size());
  if (n >= runner_.facts().max_positions) {
    return fail(Code::kInvalid, "prompt has {} tokens; the model has {} positions, one must be left for the answer", n,
                runner_.facts().max_positions);
  }
  if (n >= position_limit())
    return fail(Code::kExhausted, "prompt has {} tokens, the cache has room for {}", n, position_limit() - 1);
  return {};
}

Result<> Core::submit(RequestId id, Request&& request) {
  if (broken_) return tl::unexpected<Error>(why_broken_);
  if (waiting() >= options_.max_waiting)
    return fail(Code::kExhausted, "the queue is full: {} requests wait", options_.max_waiting);
  auto asked = std::make_unique<Asked>(Reply(std::move(request.sink)));
  asked->id = id;
  asked->submitted_us = options_.clock_us();
  asked->open = request.n;
  asked->outcome.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  asked->outcome.choices.assign(static_cast<std::size_t>(request.n), Finish::kLength);
  for (std::int32_t c = 0; c < request.n; ++c) asked->answers.push_back(make_answer(*asked, request, c));
  request.prompt.clear();
  asked->request = std::move(request);
  asked_.push_back(std::move(asked));
  return {};
}

std::unique_ptr<Core::Answer> Core::make_answer(Asked& asked, const Request& r, std::int32_t choice) {
  auto a = std::make_unique<Answer>();
  a->asked = &asked;
  a->choice = choice;
  a->sampling = r.sampling;
  a->sampling.seed = seed_of_choice(r.sampling.seed, choice);
  a->early = a->sampling;
  a->early.banned.insert(a->early.banned.end(), r.stop_ids.begin(), r.stop_ids.end());
  a->tokens = r.prompt;
  a->prompt = a->known();
  const std::int64_t most = position_limit() - a->prompt;
  a->limit =
      a->prompt + static_cast<std::int32_t>(r.max_tokens == 0 ? most : std::min<std::int64_t>(most, r.max_tokens));
  if (r.prompt_only) a->limit = a->prompt;
  if (a->sampling.uses_history()) a->history.add_prompt(a->tokens);
  if (r.constraint != nullptr) a->constraint = r.constraint->fresh();
  a->arrival = next_arrival_++;
  a->progress_us = asked.submitted_us;
  ledger_.enter(r.client);
  return a;
}

void Core::cancel(RequestId id) {
  for (const auto& asked : asked_) {
    if (asked->id == id) cancel(*asked, "cancelled");
  }
  sweep();
}

void Core::cancel(Asked& asked, const char* why) {
  if (asked.ended) return;
  for (const auto& a : asked.answers) {
    if (a->lane != nullptr && a->lane->length() > 0) cache_->remember(*a->lane, cache::Keep::kUsual);
  }
  end(asked, fail(Code::kCancelled, "{}", why));
}

std::int32_t Core::waiting() const {
  return static_cast<std::int32_t>(
      std::count_if(asked_.begin(), asked_.end(), [](const auto& q) { return !q->ended && !q->answers[0]->started; }));
}

bool Core::step() {
  now_us_ = options_.clock_us();
  end_rate_.at(now_us_, busy_);
  poll_cache();
  expire();
  const bool moved = start_and_preempt();
  const bool ran = run_step();
  sweep();
  busy_ = !asked_.empty();
  return moved || ran;
}

void Core::list_answers() {
  answers_.clear();
  for (const auto& asked : asked_) {
    for (const auto& a : asked->answers) {
      if (!a->done) answers_.push_back(a.get());
    }
  }
}

void Core::list_jobs() {
  list_answers();
  jobs_.clear();
  for (Answer* a : answers_) {
    if (a->leader != nullptr && a->leader->lane->length() >= a->leader_until) {
      a->leader = nullptr;
      a->shared_pages = cache_->find(a->asked->request.salt, a->tokens).pages_of_lanes;
    }
    const std::int32_t length = a->lane != nullptr ? a->lane->length() : 0;
    const auto cut = std::upper_bound(a->cuts.begin(), a->cuts.end(), length);
    jobs_.push_back({.priority = a->asked->request.priority,
                     .arrival = a->arrival,
                     .client_service = ledger_.service(a->asked->request.client),
                     .served = a->served,
                     .running = a->lane != nullptr,
                     .held = a->leader != nullptr || a->load != 0 || (a->choice > 0 && a->asked->scoring()),
                     .answering = a->answering() && length + 1 >= a->known(),
                     .length = length,
                     .known = a->known(),
                     .cut = cut != a->cuts.end() ? *cut : a->known(),
                     .drafts = static_cast<std::int32_t>(a->guesses.size()),
                     .scores = a->asked->scoring(),
                     .pages = a->lane != nullptr ? static_cast<std::int32_t>(a->lane->pages().size()) : a->shared_pages,
                     .last_step = a->last_step});
  }
}

Resources Core::resources() const {
  return {.free_slots = cache_->free_slots(), .pages = cache_->pages_within_reach()};
}

void Core::poll_cache() {
  for (const auto& loaded : cache_->poll()) {
    for (const auto& asked : asked_) {
      for (const auto& a : asked->answers) {
        if (a->load == loaded.ticket) a->load = 0;
      }
    }
  }
}

void Core::expire() {
  for (const auto& asked : asked_) {
    const std::int64_t age = now_us_ - asked->submitted_us;
    const auto late = [&](const std::string& why) {
      ++counters_.expired;
      end(*asked, fail(Code::kExhausted, "{}", why));
    };
    if (asked->ended) continue;
    if (asked->request.deadline_ms > 0 && age >= asked->request.deadline_ms * 1000) {
      late(fmt::format("not done within the {} ms that the request gave itself", asked->request.deadline_ms));
      continue;
    }
    for (const auto& a : asked->answers) {
      if (a->done || asked->ended) continue;
      const std::int64_t idle = now_us_ - a->progress_us;
      if (!a->started && a->choice == 0 && age >= options_.queue_timeout_ms * 1000) {
        late(fmt::format("not started within {} ms: waiting for {}", options_.queue_timeout_ms, a->waits_for));
      } else if (a->started && idle >= options_.stall_timeout_ms * 1000) {
        late(fmt::format("no progress for {} ms: waiting for {}", idle / 1000, a->waits_for));
      }
    }
  }
}

std::int64_t Core::next_event_us() const {
  std::int64_t next = kNever;
  for (const auto& asked : asked_) {
    if (asked->request.deadline_ms > 0) next = std::min(next, asked->submitted_us + asked->request.deadline_ms * 1000);
    for (const auto& a : asked->answers) {
      if (a->done) continue;
      next = std::min(next, a->started ? a->progress_us + options_.stall_timeout_ms * 1000
                                       : asked->submitted_us + options_.queue_timeout_ms * 1000);
    }
  }
  return next;
}

bool Core::start_and_preempt() {
  list_jobs();
  admit(jobs_, budget_, resources(), admission_);
  for (const std::size_t i : admission_.preempt) preempt(*answers_[i]);
  for (const std::size_t i : admission_.start) {
    if (prepare(*answers_[i])) start(*answers_[i]);
  }
  return !admission_.preempt.empty();
}

// Whether an answer that is first in line should start now, and not wait for somebody who computes its beginning
// anyway, or for the disk.
bool Core::prepare(Answer& a) {
  if (a.asked->scoring()) return true;  // nothing that is remembered helps
  const auto found = cache_->find(a.asked->request.salt, a.tokens);
  if (a.followed < kMaxLeaders) follow(a, std::max(found.memory, found.disk));
  if (a.leader != nullptr) {
    a.waits_for = "the beginning that it has in common with a running request";
    return false;
  }
  if (!a.load_tried && found.disk >= found.memory + options_.least_shared) {
    a.load_tried = true;
    a.load = cache_->load(a.asked->request.salt, a.tokens);
    a.waits_for = "its beginning from the disk";
  }
  return a.load == 0;
}

void Core::follow(Answer& a, std::int32_t found) {
  Answer* best = nullptr;
  auto best_shared = static_cast<std::size_t>(found + options_.least_shared) - 1;
  for (Answer* other : answers_) {
    const bool ahead =
        other->lane != nullptr && !other->answering() && other->asked->request.priority <= a.asked->request.priority;
    if (!ahead || other->asked->request.salt != a.asked->request.salt) continue;
    const std::size_t shared =
        common(std::span(other->tokens).first(static_cast<std::size_t>(other->prompt)), a.tokens);
    if (shared > best_shared && static_cast<std::size_t>(other->lane->length()) < shared) {
      best = other;
      best_shared = shared;
    }
  }
  if (best == nullptr) return;
  a.leader = best;
  a.leader_until = static_cast<std::int32_t>(best_shared);
  ++a.followed;
  const auto at = std::lower_bound(best->cuts.begin(), best->cuts.end(), a.leader_until);
  if (at == best->cuts.end() || *at != a.leader_until) best->cuts.insert(at, a.leader_until);
}

void Core::start(Answer& a) {
  Asked& asked = *a.asked;
  const std::int32_t shared = cache_->find(asked.request.salt, a.tokens).shared;
  const bool afresh = asked.scoring();
  auto lane = cache_->open(asked.request.salt, afresh ? std::span<const std::int32_t>{} : a.tokens);
  if (!lane) {
    a.waits_for = "a page of the cache";
    return;
  }
  a.lane = std::move(lane).value();
  const std::int32_t length = a.lane->length();
  if (!a.started) {
    counters_.queried_tokens += static_cast<std::uint64_t>(a.prompt);
    counters_.reused_tokens += static_cast<std::uint64_t>(std::min(length, a.prompt));
    if (a.choice == 0) {
      asked.outcome.cached_tokens = std::min(length, a.prompt);
      asked.outcome.queued_ms = ms(now_us_ - asked.submitted_us);
    }
  }
  a.started = true;
  a.load_tried = false;
  a.followed = 0;
  a.progress_us = now_us_;
  a.drafted = std::max(0, length - 1);
  if (drafting() && a.lane->reach().drafted != a.drafted) cache_->clear_draft(*a.lane, a.drafted);
  plan_cuts(a, shared);
}

// Where the prompt is remembered on the way.
void Core::plan_cuts(Answer& a, std::int32_t shared) {
  const std::int32_t length = a.lane->length();
  std::vector<std::int32_t> all = a.asked->request.shared_ends;
  if (shared - length >= options_.least_shared) all.push_back(shared);
  for (std::int32_t p = options_.passing_first; p < std::min(a.prompt, options_.passing_every);
       p += options_.passing_first)
    all.push_back(p);
  for (std::int32_t p = options_.passing_every; p < a.prompt; p += options_.passing_every) all.push_back(p);
  all.push_back(a.prompt);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase_if(all, [&](std::int32_t p) { return p <= length || p > a.prompt; });
  a.cuts = std::move(all);
}

void Core::preempt(Answer& a) {
  if (a.lane->length() > 0) cache_->remember(*a.lane, cache::Keep::kUsual);
  stop_running(a);
  a.waits_for = "memory or a place that requests of higher rank have";
  ++a.asked->outcome.preemptions;
  ++counters_.preemptions;
}

void Core::stop_running(Answer& a) {
  a.lane.reset();
  a.guesses.clear();
  a.confidences.clear();
  if (a.on_trial > 0) a.constraint->take_back(std::exchange(a.on_trial, 0));
  for (const auto& asked : asked_) {
    for (const auto& other : asked->answers) {
      if (other->leader == &a) other->leader = nullptr;
    }
  }
}

void Core::end(Asked& asked, Result<Outcome> outcome) {
  asked.ended = true;
  end_rate_.ended();
  for (const auto& a : asked.answers) {
    if (a->lane != nullptr) stop_running(*a);
    if (!a->done) ledger_.leave(asked.request.client);
    a->done = true;
  }
  if (outcome) {
    ++counters_.finished;
  } else {
    ++(outcome.error().code == Code::kCancelled ? counters_.cancelled : counters_.failed);
  }
  asked.reply.finish(std::move(outcome));
}

// The model failed: nothing it says from now on can be trusted.
void Core::fail_all(const Error& error) {
  broken_ = true;
  why_broken_ = {Code::kUnavailable, "the model failed: " + error.what};
  options_.warn(why_broken_.what);
  options_.broke(why_broken_);
  for (const auto& asked : asked_) {
    if (!asked->ended) end(*asked, tl::unexpected<Error>(why_broken_));
  }
}

void Core::sweep() {
  std::erase_if(asked_, [](const auto& asked) { return asked->ended; });
}

CoreStats Core::stats() const {
  CoreStats s = counters_;
  for (const auto& asked : asked_) {
    for (const auto& a : asked->answers) {
      if (!a->done) ++(a->lane != nullptr ? s.running : s.waiting);
    }
  }
  s.ends_per_second = end_rate_.per_second();
  s.acceptance = policy_.acceptance();
  s.speculation = policy_.stats();
  s.cache = cache_->stats();
  return s;
}

std::string Core::describe() const {
  std::string out = cache_->describe();
  if (draft_rows_ > 0)
    out += fmt::format("guesses          {:10.1f} MiB   what the draft block is given, {} tokens at once\n",
                       static_cast<double>(draft_bytes()) / (1024 * 1024), draft_rows_);
  return out;
}

Result<> Core::check() const {
  FATHOM_TRY(cache_->check());
  std::int32_t lanes = 0;
  for (const auto& asked : asked_) {
    if (asked->ended) return fail(Code::kInternal, "a request that has ended is still here");
    std::int32_t open = 0;
    for (const auto& a : asked->answers) {
      open += a->done ? 0 : 1;
      lanes += a->lane != nullptr ? 1 : 0;
      if (a->done && a->lane != nullptr) return fail(Code::kInternal, "an answer that is done has a lane");
      if (a->leader != nullptr && a->leader->lane == nullptr)
        return fail(Code::kInternal, "an answer follows one that does not run");
    }
    if (open != asked->open || open == 0)
      return fail(Code::kInternal, "a request has {} open choices and counts {}", open, asked->open);
  }
  if (lanes != cache_->stats().lanes)
    return fail(Code::kInternal, "{} lanes of answers, {} of the cache", lanes, cache_->stats().lanes);
  return {};
}

}  // namespace fathom::engine

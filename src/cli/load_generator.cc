#include "cli/load_generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

// What one request was told and when. The engine's thread writes it; whoever takes it from the box reads it.
struct Record {
  std::size_t conversation = 0;
  std::vector<std::int32_t> prompt;
  Clock::time_point asked;
  std::vector<std::int32_t> tokens;
  std::vector<Clock::time_point> times;
  Clock::time_point ended;
  Result<engine::Outcome> outcome;
};

class Box {
 public:
  void put(std::unique_ptr<Record> r) {
    const std::lock_guard lock(mutex_);
    records_.push_back(std::move(r));
    changed_.notify_one();
  }
  // The next one that ended; nullptr where none has until then.
  std::unique_ptr<Record> take_until(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return !records_.empty(); });
    if (records_.empty()) return nullptr;
    std::unique_ptr<Record> r = std::move(records_.front());
    records_.pop_front();
    return r;
  }
  std::unique_ptr<Record> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !records_.empty(); });
    std::unique_ptr<Record> r = std::move(records_.front());
    records_.pop_front();
    return r;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Record>> records_;
};

class BoxSink final : public engine::Sink {
 public:
  BoxSink(Box& box, std::unique_ptr<Record> record) : box_(box), record_(std::move(record)) {}
  engine::Verdict token(std::int32_t /*choice*/, const engine::Sampled& t) override {
    record_->tokens.push_back(t.id);
    record_->times.push_back(Clock::now());
    return engine::Verdict::kGoOn;
  }
  void done(Result<engine::Outcome> outcome) override {
    record_->outcome = std::move(outcome);
    record_->ended = Clock::now();
    box_.put(std::move(record_));
  }

 private:
  Box& box_;
  std::unique_ptr<Record> record_;
};

void add(const Record& r, LoadResult& out) {
  if (!r.outcome) {
    ++out.failed;
    return;
  }
  ++out.finished;
  out.prompt_tokens += r.outcome->prompt_tokens;
  out.cached_tokens += r.outcome->cached_tokens;
  out.answer_tokens += r.outcome->completion_tokens;
  out.drafted_tokens += r.outcome->drafted_tokens;
  out.accepted_tokens += r.outcome->accepted_tokens;
  out.first_ms.push_back(ms_between(r.asked, r.times.front()));
  for (std::size_t i = 1; i < r.times.size(); ++i) out.gap_ms.push_back(ms_between(r.times[i - 1], r.times[i]));
  out.total_ms.push_back(ms_between(r.asked, r.ended));
}

}  // namespace

Workload::Workload(const LoadOptions& options) : options_(options), rng_(options.seed) {
  for (int i = 0; i < 4; ++i) systems_.push_back(ids(std::min(400, options_.longest / 4)));
  for (int i = 0; i < 2; ++i) tools_.push_back(ids(std::min(1200, options_.longest / 4)));
}

std::vector<std::int32_t> Workload::ids(std::int32_t n) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(n));
  for (auto& id : out) id = static_cast<std::int32_t>(rng_() % static_cast<std::uint32_t>(options_.vocab));
  return out;
}

std::int32_t Workload::about(std::int32_t median, double sigma) {
  const double z = std::normal_distribution<double>()(rng_);
  return std::clamp(static_cast<std::int32_t>(median * std::exp(sigma * z)), 1, options_.longest / 4);
}

// One that waits for its client, or a new one: 6 of 10 are chats, 3 agents, 1 brings a document.
std::size_t Workload::open_conversation() {
  std::vector<std::size_t> idle;
  for (std::size_t i = 0; i < conversations_.size(); ++i) {
    const Conversation& c = conversations_[i];
    if (!c.busy && static_cast<std::int32_t>(c.tokens.size()) < options_.longest / 2) idle.push_back(i);
  }
  const bool go_on = rng_() % 100 < 55;
  if (go_on && !idle.empty()) return idle[rng_() % idle.size()];
  const auto kind = rng_() % 10;
  Conversation c;
  c.median_turn = kind < 6 ? 50 : kind < 9 ? 150 : 60;
  c.median_answer = kind < 6 ? 80 : kind < 9 ? 40 : 60;
  c.tokens = kind < 6   ? systems_[rng_() % systems_.size()]
             : kind < 9 ? tools_[rng_() % tools_.size()]
                        : ids(about(1500, 0.6));
  c.opening = static_cast<std::int32_t>(c.tokens.size());
  conversations_.push_back(std::move(c));
  return conversations_.size() - 1;
}

Workload::Ask Workload::next() {
  Ask ask;
  ask.conversation = open_conversation();
  Conversation& c = conversations_[ask.conversation];
  c.busy = true;
  ask.shared_ends = {c.opening};
  if (static_cast<std::int32_t>(c.tokens.size()) > c.opening)
    ask.shared_ends.push_back(static_cast<std::int32_t>(c.tokens.size()));
  ask.prompt = c.tokens;
  const std::vector<std::int32_t> turn = ids(about(c.median_turn, 0.8));
  ask.prompt.insert(ask.prompt.end(), turn.begin(), turn.end());
  ask.max_tokens = about(c.median_answer, 0.7);
  return ask;
}

void Workload::answered(std::size_t conversation, std::vector<std::int32_t> prompt_and_answer) {
  conversations_[conversation].tokens = std::move(prompt_and_answer);
  conversations_[conversation].busy = false;
}

LoadResult run_load(engine::Engine& engine, const LoadOptions& options) {
  Workload workload(options);
  std::mt19937 rng(options.seed + 1);
  std::exponential_distribution<double> wait(options.rate > 0 ? options.rate : 1);
  Box box;
  LoadResult out;
  std::int32_t asked = 0;
  std::int32_t open = 0;
  const Clock::time_point began = Clock::now();
  Clock::time_point next = began;
  const auto ask = [&] {
    Workload::Ask a = workload.next();
    auto record = std::make_unique<Record>();
    record->conversation = a.conversation;
    record->prompt = a.prompt;
    record->asked = Clock::now();
    engine::Request r;
    r.prompt = std::move(a.prompt);
    r.shared_ends = std::move(a.shared_ends);
    r.max_tokens = a.max_tokens;
    r.sampling.seed = static_cast<std::uint64_t>(asked);
    r.client = std::to_string(a.conversation);
    r.sink = std::make_unique<BoxSink>(box, std::move(record));
    ++asked;
    if (engine.submit(std::move(r))) ++open;
    else ++out.refused;
  };
  const auto collect = [&](std::unique_ptr<Record> r) {
    --open;
    add(*r, out);
    if (!r->outcome) return;
    r->prompt.insert(r->prompt.end(), r->tokens.begin(), r->tokens.end());
    workload.answered(r->conversation, std::move(r->prompt));
  };
  const auto in_time = [&] { return options.seconds == 0 || ms_between(began, Clock::now()) < 1000 * options.seconds; };
  while (asked < options.requests && (asked == 0 || in_time())) {
    const double by_time = options.seconds > 0 ? ms_between(began, Clock::now()) / 1000 / options.seconds : 0;
    options.progress(std::min(1.0, std::max(by_time, static_cast<double>(asked) / options.requests)));
    if (options.rate > 0) {
      while (auto r = box.take_until(next)) collect(std::move(r));
      ask();
      next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait(rng)));
    } else if (open < options.concurrency) {
      ask();
    } else {
      collect(box.take());
    }
  }
  while (open > 0) collect(box.take());
  out.seconds = ms_between(began, Clock::now()) / 1000;
  for (auto* v : {&out.first_ms, &out.gap_ms, &out.total_ms}) std::sort(v->begin(), v->end());
  return out;
}

Result<SingleAnswer> ask_one(engine::Engine& engine, engine::Request request) {
  Box box;
  auto record = std::make_unique<Record>();
  record->asked = Clock::now();
  request.sink = std::make_unique<BoxSink>(box, std::move(record));
  FATHOM_TRY(engine.submit(std::move(request)));
  const std::unique_ptr<Record> r = box.take();
  if (!r->outcome) return tl::unexpected<Error>(r->outcome.error());
  return SingleAnswer{.first_ms = ms_between(r->asked, r->times.front()), .outcome = *r->outcome, .tokens = r->tokens};
}

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(p / 100 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace fathom::cli

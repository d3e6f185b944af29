#include "cli/bench_serve.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "base/json.h"
#include "checkpoint/writer.h"
#include "cli/common.h"
#include "cli/load_generator.h"
#include "cli/progress.h"
#include "cli/svg_plot.h"

namespace fathom::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kStepTokens = 256;  // as fathom serve

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct LoadRow {
  double rate = 0;  // 0: closed loop of `concurrency`
  std::int32_t concurrency = 0;
  LoadResult result;

  double answer_rate() const { return static_cast<double>(result.answer_tokens) / result.seconds; }
  double prompt_rate() const { return static_cast<double>(result.prompt_tokens) / result.seconds; }
  double hit_rate() const {
    return result.prompt_tokens > 0
               ? static_cast<double>(result.cached_tokens) / static_cast<double>(result.prompt_tokens)
               : 0;
  }
};

struct TurnRow {
  std::int32_t history = 0;
  double with_reuse_ms = 0;
  std::int32_t reused = 0;  // of prompt tokens
  std::int32_t prompt = 0;
  double without_reuse_ms = 0;
  double load_seconds = 0;   // after a restart: opening the checkpoint and loading the model
  double start_seconds = 0;  // the engine: taking its memory, looking through the disk cache
  double restart_first_ms = 0;
  std::int32_t restart_reused = 0;
};

// A model with an engine on it.
struct Program {
  std::unique_ptr<LoadedModel> loaded;
  std::unique_ptr<engine::ModelRunner> runner;
  std::unique_ptr<engine::Engine> engine;
};

class TempFolder {
 public:
  static Result<std::unique_ptr<TempFolder>> create() {
    std::string name = (fs::temp_directory_path() / "fathom-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return fail(Code::kNotFound, "{}: cannot be made", name);
    return std::unique_ptr<TempFolder>(new TempFolder(name));
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  explicit TempFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

class Bench {
 public:
  explicit Bench(const ServeBench& b) : b_(b) {}

  Result<> load() {
    FATHOM_ASSIGN(Program p, program(b_.options.slots, {}));
    std::vector<double> rates = b_.options.rates;
    ProgressBar bar("serving", ProgressUnit::kCount);
    const std::size_t runs = rates.empty() ? 5 : rates.size();
    if (rates.empty()) {
      FATHOM_ASSIGN(const double most, capacity(p, [&](double share) { show(bar, 0, share, runs); }));
      for (const double share : {0.25, 0.5, 0.75, 0.9})
        rates.push_back(std::max(0.01, std::round(share * most * 100) / 100));
    }
    for (const double rate : rates) {
      FATHOM_TRY(start(p, b_.options.slots, {}));
      LoadOptions o = load_options(p);
      o.rate = rate;
      o.progress = [&](double share) { show(bar, runs - rates.size() + loads.size(), share, runs); };
      loads.push_back({.rate = rate, .result = run_load(*p.engine, o)});
    }
    return {};
  }

  Result<> concurrency() {
    const auto& all = b_.options.concurrency;
    const std::int32_t slots = *std::max_element(all.begin(), all.end());
    FATHOM_ASSIGN(Program p, program(slots, {}));
    ProgressBar bar("serving", ProgressUnit::kCount);
    for (const std::int32_t n : all) {
      FATHOM_TRY(start(p, slots, {}));
      LoadOptions o = load_options(p);
      o.concurrency = n;
      o.progress = [&](double share) { show(bar, closed.size(), share, all.size()); };
      closed.push_back({.concurrency = n, .result = run_load(*p.engine, o)});
    }
    return {};
  }

  Result<> histories() {
    for (const std::int32_t history : b_.options.histories) {
      FATHOM_ASSIGN(const auto folder, TempFolder::create());
      TurnRow row{.history = history};
      FATHOM_TRY(second_turn(history, folder->path(), row));
      turns.push_back(row);
    }
    return {};
  }

  std::vector<LoadRow> loads;
  std::vector<LoadRow> closed;
  std::vector<TurnRow> turns;

 private:
  // So much of run number `run` is over; in hundredths of runs.
  static void show(ProgressBar& bar, std::size_t run, double share, std::size_t runs) {
    bar.update(100 * run + static_cast<std::uint64_t>(100 * share), 100 * runs);
  }

  Result<Program> program(std::int32_t slots, const fs::path& disk) const {
    FATHOM_ASSIGN(Program p, without_engine());
    FATHOM_TRY(start(p, slots, disk));
    return p;
  }

  Result<Program> without_engine() const {
    Program p;
    FATHOM_ASSIGN(auto checkpoint, b_.checkpoint());
    FATHOM_ASSIGN(LoadedModel loaded, load_model(std::move(checkpoint), b_.compute,
                                                 {.max_step_tokens = kStepTokens,
                                                  .max_logit_rows = kStepTokens,
                                                  .rollback = std::max(1, b_.options.drafts)}));
    p.loaded = std::make_unique<LoadedModel>(std::move(loaded));
    p.runner = std::make_unique<engine::ModelRunner>(*p.loaded->model, "bench");
    return p;
  }

  // A new engine that remembers nothing but what is on disk.
  Result<> start(Program& p, std::int32_t slots, const fs::path& disk) const {
    engine::CoreOptions core;
    core.cache_bytes = static_cast<std::size_t>(b_.options.cache_gib * (1U << 30U));
    core.slots = slots;
    core.max_waiting = 4096;
    core.disk_directory = disk.string();
    core.max_drafts = b_.options.drafts;
    p.engine.reset();
    FATHOM_ASSIGN(p.engine, engine::Engine::start(*p.runner, core));
    return {};
  }

  LoadOptions load_options(const Program& p) const {
    return {.vocab = p.runner->facts().vocab,
            .longest = std::min(p.runner->facts().max_positions, 16'384),
            .requests = b_.options.requests,
            .seconds = b_.options.seconds,
            .seed = b_.options.seed};
  }

  // Requests a second with every slot busy.
  Result<double> capacity(Program& p, std::function<void(double)> progress) const {
    LoadOptions o = load_options(p);
    o.progress = std::move(progress);
    o.concurrency = b_.options.slots;
    const LoadResult r = run_load(*p.engine, o);
    if (r.finished == 0) return fail(Code::kInternal, "no request of {} was answered", o.requests);
    return r.finished / r.seconds;
  }

  std::vector<std::int32_t> ids(const Program& p, std::int32_t n) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(n));
    for (auto& id : out) id = static_cast<std::int32_t>(rng_() % static_cast<std::uint32_t>(p.runner->facts().vocab));
    return out;
  }

  Result<SingleAnswer> ask(const Program& p, const std::vector<std::int32_t>& prompt, const char* salt) {
    engine::Request r;
    r.prompt = prompt;
    r.max_tokens = 16;
    r.salt = salt;
    return ask_one(*p.engine, std::move(r));
  }

  Result<> second_turn(std::int32_t history, const fs::path& disk, TurnRow& row) {
    FATHOM_ASSIGN(Program p, program(2, disk));
    FATHOM_TRY(ask(p, ids(p, 64), "warm"));
    std::vector<std::int32_t> prompt = ids(p, history - 16);
    FATHOM_ASSIGN(SingleAnswer first, ask(p, prompt, ""));
    const auto add_turn = [&](const SingleAnswer& answer) {
      prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
      const auto turn = ids(p, 32);
      prompt.insert(prompt.end(), turn.begin(), turn.end());
    };
    add_turn(first);
    FATHOM_ASSIGN(const SingleAnswer with, ask(p, prompt, ""));
    FATHOM_ASSIGN(const SingleAnswer without, ask(p, prompt, "another"));
    row.with_reuse_ms = with.first_ms;
    row.reused = with.outcome.cached_tokens;
    row.prompt = with.outcome.prompt_tokens;
    row.without_reuse_ms = without.first_ms;
    add_turn(with);
    p.engine.reset();
    p.runner.reset();
    p.loaded.reset();

    const auto began = Clock::now();
    FATHOM_ASSIGN(Program again, without_engine());
    row.load_seconds = seconds_since(began);
    const auto loaded = Clock::now();
    FATHOM_TRY(start(again, 2, disk));
    row.start_seconds = seconds_since(loaded);
    FATHOM_ASSIGN(const SingleAnswer third, ask(again, prompt, ""));
    row.restart_first_ms = third.first_ms;
    row.restart_reused = third.outcome.cached_tokens;
    return {};
  }

  const ServeBench& b_;
  std::mt19937 rng_{11};
};

std::string percentiles(const std::vector<double>& v) {
  return fmt::format("{:>8.1f} {:>8.1f} {:>8.1f}", percentile(v, 50), percentile(v, 95), percentile(v, 99));
}

void print_loads(const std::vector<LoadRow>& rows, bool by_rate) {
  fmt::print("{:>10} {:>8} {:>6} {:>11} {:>11} {:>6}   {:^26}   {:^26}   {:^26}\n", by_rate ? "requests" : "", "", "",
             "answer", "prompt", "", "first token, ms", "between tokens, ms", "whole answer, ms");
  fmt::print("{:>10} {:>8} {:>6} {:>11} {:>11} {:>6}", by_rate ? "a second" : "at once", "answered", "failed",
             "tokens/s", "tokens/s", "hits");
  for (int i = 0; i < 3; ++i) fmt::print("   {:>8} {:>8} {:>8}", "p50", "p95", "p99");
  fmt::print("{}\n", by_rate ? "" : "   speed-up");
  for (const LoadRow& row : rows) {
    const LoadResult& r = row.result;
    fmt::print("{:>10} {:>8} {:>6} {:>11.0f} {:>11.0f} {:>4.0f} %   {}   {}   {}{}\n",
               by_rate ? fmt::format("{:.2f}", row.rate) : fmt::format("{}", row.concurrency), r.finished,
               r.failed + r.refused, row.answer_rate(), row.prompt_rate(), 100 * row.hit_rate(),
               percentiles(r.first_ms), percentiles(r.gap_ms), percentiles(r.total_ms),
               by_rate ? "" : fmt::format("   {:>7.2f}x", row.answer_rate() / rows[0].answer_rate()));
  }
  fmt::print("\n");
}

void print_turns(const std::vector<TurnRow>& rows) {
  fmt::print("{:>8}   {:^33}   {:>13}   {:^45}\n", "", "second turn, first token", "without reuse",
             "after a restart, with the disk's cache");
  fmt::print("{:>8}   {:>10} {:>14} {:>7}   {:>13}   {:>10} {:>10} {:>12} {:>10}\n", "history", "ms", "reused", "",
             "ms", "load, ms", "start, ms", "first, ms", "reused");
  for (const TurnRow& r : rows) {
    fmt::print("{:>8}   {:>10.1f} {:>14} {:>6.0f}x   {:>13.1f}   {:>10.1f} {:>10.1f} {:>12.1f} {:>10}\n", r.history,
               r.with_reuse_ms, fmt::format("{} of {}", r.reused, r.prompt), r.without_reuse_ms / r.with_reuse_ms,
               r.without_reuse_ms, 1000 * r.load_seconds, 1000 * r.start_seconds, r.restart_first_ms, r.restart_reused);
  }
  fmt::print("\n");
}

Json as_json(const std::vector<double>& v) {
  return Json{{"p50", percentile(v, 50)}, {"p95", percentile(v, 95)}, {"p99", percentile(v, 99)}};
}

Json as_json(const LoadRow& row) {
  const LoadResult& r = row.result;
  Json j;
  if (row.rate > 0) j["requests_per_second"] = row.rate;
  else j["concurrency"] = row.concurrency;
  j["seconds"] = r.seconds;
  j["finished"] = r.finished;
  j["failed"] = r.failed;
  j["refused"] = r.refused;
  j["answer_tokens_per_second"] = row.answer_rate();
  j["prompt_tokens_per_second"] = row.prompt_rate();
  j["hit_rate"] = row.hit_rate();
  j["drafted_tokens"] = r.drafted_tokens;
  j["accepted_tokens"] = r.accepted_tokens;
  j["first_token_ms"] = as_json(r.first_ms);
  j["between_tokens_ms"] = as_json(r.gap_ms);
  j["answer_ms"] = as_json(r.total_ms);
  return j;
}

Json as_json(const TurnRow& r) {
  return Json{{"history", r.history},
              {"prompt_tokens", r.prompt},
              {"reused_tokens", r.reused},
              {"first_token_ms", r.with_reuse_ms},
              {"first_token_without_reuse_ms", r.without_reuse_ms},
              {"restart_load_ms", 1000 * r.load_seconds},
              {"restart_start_ms", 1000 * r.start_seconds},
              {"restart_first_token_ms", r.restart_first_ms},
              {"restart_reused_tokens", r.restart_reused}};
}

// One panel for each: waiting for the first token, and between tokens, against load.
std::string plot(const std::string& model, const std::vector<LoadRow>& rows, bool by_rate) {
  const std::string x = by_rate ? "requests a second" : "requests at once";
  std::vector<Plot> plots;
  for (const bool first : {true, false}) {
    Plot p{.title = fmt::format("{}: {}", model, first ? "waiting for the first token" : "between tokens"),
           .x_label = x,
           .y_label = "ms",
           .series = {}};
    for (const int percent : {50, 95, 99}) {
      Series s{.name = fmt::format("p{}", percent), .points = {}};
      for (const LoadRow& row : rows) {
        s.points.emplace_back(by_rate ? row.rate : row.concurrency,
                              percentile(first ? row.result.first_ms : row.result.gap_ms, percent));
      }
      p.series.push_back(std::move(s));
    }
    plots.push_back(std::move(p));
  }
  Plot throughput{.title = model + ": tokens of answers",
                  .x_label = x,
                  .y_label = "tokens/s",
                  .series = {{.name = "answers", .points = {}}}};
  for (const LoadRow& row : rows)
    throughput.series[0].points.emplace_back(by_rate ? row.rate : row.concurrency, row.answer_rate());
  plots.push_back(std::move(throughput));
  return svg(plots);
}

}  // namespace

void add_serve_bench(CLI::App& command, ServeBenchOptions& o) {
  const char* group = "Serving";
  command.add_flag("--serve", o.load, "serve made-up clients in this process: Poisson arrivals, shared beginnings")
      ->group(group);
  command.add_option("--rates", o.rates, "arrivals a second (default: 25, 50, 75 and 90 % of what can be served)")
      ->delimiter(',')
      ->check(CLI::Range(0.001, 1e6))
      ->group(group);
  command.add_option("--concurrent", o.concurrency, "serve so many requests at once, always: 1,4,16,64")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->group(group);
  command
      .add_option("--history", o.histories,
                  "second turns after so many tokens, with and without reuse and after a restart: 2048,8192")
      ->delimiter(',')
      ->check(CLI::Range(64, 1 << 20))
      ->group(group);
  command.add_option("--requests", o.requests, "for each rate and each --concurrent, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--seconds", o.seconds, "for which they are asked, at most; 0: until all are")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(group);
  command.add_option("--slots", o.slots, "answers generated at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  command.add_option("--cache", o.cache_gib, "GiB of memory for the state of conversations")
      ->check(CLI::Range(0.001, 4096.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--load-seed", o.seed, "of what is asked, and when")->capture_default_str()->group(group);
  command.add_option("--drafts", o.drafts, "tokens to guess and verify in a step, at most, where it pays; 0: none")
      ->check(CLI::Range(0, engine::kMaxDrafts))
      ->capture_default_str()
      ->group(group);
}

Result<> run_serve_bench(const ServeBench& b) {
  Bench bench(b);
  if (b.options.load) FATHOM_TRY(bench.load());
  if (!b.options.concurrency.empty()) FATHOM_TRY(bench.concurrency());
  if (!b.options.histories.empty()) FATHOM_TRY(bench.histories());
  const bool by_rate = b.options.load;
  if (!b.svg.empty() && (by_rate || !bench.closed.empty()))
    FATHOM_TRY(checkpoint::write_text_file(b.svg, plot(b.model, by_rate ? bench.loads : bench.closed, by_rate)));
  if (b.json) {
    Json j{{"model", b.model}, {"load", Json::array()}, {"concurrent", Json::array()}, {"second_turn", Json::array()}};
    for (const LoadRow& r : bench.loads) j["load"].push_back(as_json(r));
    for (const LoadRow& r : bench.closed) j["concurrent"].push_back(as_json(r));
    for (const TurnRow& r : bench.turns) j["second_turn"].push_back(as_json(r));
    Output out;
    out.line(j.dump(2));
    return out.finish();
  }
  const std::string time = b.options.seconds > 0 ? fmt::format(", asked within {:g} s", b.options.seconds) : "";
  fmt::print("{}, at most {} requests each{}, {} slots, cache of {:g} GiB\n\n", b.model, b.options.requests, time,
             b.options.slots, b.options.cache_gib);
  if (!bench.loads.empty()) print_loads(bench.loads, true);
  if (!bench.closed.empty()) print_loads(bench.closed, false);
  if (!bench.turns.empty()) print_turns(bench.turns);
  return {};
}

}  // namespace fathom::cli

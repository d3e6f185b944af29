// fathom serve: the HTTP APIs of a model.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "checkpoint/fingerprint.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/config_file.h"
#include "engine/engine.h"
#include "grammar/trial_process.h"
#include "server/server.h"
#include "text/chat_format.h"

namespace fathom::cli {
namespace {

constexpr std::int32_t kStepTokens = 256;
constexpr int kRedSeconds = 5;
constexpr int kStopSeconds = 30;  // for a step under way, and for what is to be written to disk

struct Options {
  std::string model;
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string name;
  bool strict_names = false;
  std::int32_t context = 0;
  std::int32_t most_tokens = 0;
  std::int32_t slots = 16;
  std::int32_t drafts = engine::CoreOptions().max_drafts;
  std::int32_t queue = 256;
  std::int32_t queue_seconds = 600;
  std::int32_t drain_seconds = 300;
  double cache_gib = 1;
  std::string cache_folder;
  double cache_folder_gib = 8;
  std::int32_t grammar_cache_mib = 128;
  std::string key_file;
  std::string cors;
  bool no_thinking = false;
  bool quiet = false;
  ComputeOptions compute;
  ConfigFlags config;
};

void print_line(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// From $FATHOM_API_KEY and the lines of a file.
Result<std::vector<std::string>> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (const char* key = std::getenv("FATHOM_API_KEY"); key != nullptr && *key != '\0') keys.emplace_back(key);
  if (path.empty()) return keys;
  std::ifstream in(path);
  if (!in) return fail(Code::kNotFound, "{}: cannot open", path);
  const std::size_t before = keys.size();
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) keys.push_back(line);
  }
  if (keys.size() == before) return fail(Code::kInvalid, "{}: no key in it; expected one on each line", path);
  return keys;
}

std::string url_host(const std::string& host) { return host.find(':') == std::string::npos ? host : "[" + host + "]"; }

bool is_loopback(const std::string& host) { return host.rfind("127.", 0) == 0 || host == "::1"; }

// SIGTERM and SIGINT arrive at wait_for_signal() and nowhere else. Before any thread is made.
sigset_t block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return set;
}

// The signal; 0 where none came in time.
int wait_for_signal(const sigset_t& set, long milliseconds) {
  const timespec limit{milliseconds / 1000, (milliseconds % 1000) * 1'000'000};
  return std::max(sigtimedwait(&set, nullptr, &limit), 0);
}

// While it lives, a signal ends the process on the spot, whatever its other threads do.
class ExitOnSignal {
 public:
  // seconds: the process ends after so long without a signal, too; 0: it does not.
  ExitOnSignal(const sigset_t& set, int seconds) : thread_([this, set, seconds] { watch(set, seconds); }) {}
  ExitOnSignal(const ExitOnSignal&) = delete;
  ExitOnSignal& operator=(const ExitOnSignal&) = delete;
  ~ExitOnSignal() {
    over_ = true;
    thread_.join();
  }

 private:
  void watch(const sigset_t& set, int seconds) const {
    for (int ms = 0; !over_; ms += 50) {
      const int signal = wait_for_signal(set, 50);
      if (signal > 0) std::_Exit(128 + signal);
      if (seconds > 0 && ms > seconds * 1000) std::_Exit(ExitCode::kFailed);
    }
  }

  std::atomic<bool> over_ = false;
  std::thread thread_;  // last: it uses the rest
};

// Until a signal; then until every request has been answered, the time for that is over, or a second signal. Error: the
// model failed, after which nothing but a new process helps.
Result<> serve_until_signalled(const sigset_t& set, server::Server& server, const engine::Engine& engine,
                               int drain_seconds) {
  while (wait_for_signal(set, 1000) == 0) {
    if (const auto health = engine.health(); !health.ok) {
      server.drain();
      wait_for_signal(set, kRedSeconds * 1000);  // for those who watch /health
      return fail(Code::kUnavailable, "{}", health.why);
    }
  }
  server.drain();
  print_line(fmt::format("draining: {} requests are being answered, for {} s at most; signal again to stop at once",
                         server.active(), drain_seconds));
  for (int ms = 0; server.active() > 0 && ms < drain_seconds * 1000; ms += 100) {
    if (wait_for_signal(set, 100) > 0) return {};
  }
  return {};
}

// 2026-11-30T16:05:34Z
std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  char text[32] = "";
  if (gmtime_r(&now, &utc) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// The cache's memory is taken as it is used: what the machine does not have would be missed only then.
Result<> check_cache(double gib) {
  const MachineMemory memory = machine_memory();
  const auto in_gib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1U << 30U); };
  if (memory.total_bytes == 0) return {};
  if (gib > in_gib(memory.total_bytes))
    return fail(Code::kExhausted, "--cache is {} GiB, the machine has {:.1f}", gib, in_gib(memory.total_bytes));
  if (gib > in_gib(memory.available_bytes))
    print_line(fmt::format("warning: --cache is {} GiB, and only {:.1f} GiB of memory are free", gib,
                           in_gib(memory.available_bytes)));
  return {};
}

Result<> run(const Options& o) {
  const sigset_t signals = block_signals();
  FATHOM_ASSIGN(auto keys, read_keys(o.key_file));
  FATHOM_ASSIGN(const auto folder, model_folder(o.model));
  FATHOM_ASSIGN(const auto format, text::ChatFormat::load(folder));
  FATHOM_ASSIGN(auto trial, grammar::TrialProcess::start(format));  // before any thread
  server::HttpServer::Options http;
  http.host = o.host;
  http.port = o.port;
  FATHOM_ASSIGN(auto server, server::Server::listen(std::move(http)));
  print_line(fmt::format("listening on http://{}:{} while the model is loaded", url_host(o.host), server->port()));
  std::optional<ExitOnSignal> exit_on_signal(std::in_place, signals, 0);
  engine::CoreOptions core;
  core.cache_bytes = static_cast<std::size_t>(o.cache_gib * (1U << 30U));
  core.slots = o.slots;
  core.max_drafts = o.drafts;
  core.max_waiting = o.queue;
  core.queue_timeout_ms = std::int64_t{o.queue_seconds} * 1000;
  core.disk_directory = o.cache_folder;
  core.disk_bytes = static_cast<std::size_t>(o.cache_folder_gib * (1U << 30U));
  core.warn = [](std::string_view what) { print_line(what); };
  FATHOM_ASSIGN(
      LoadedModel loaded,
      load_model(folder, o.compute,
                 {.max_step_tokens = kStepTokens, .max_logit_rows = kStepTokens, .rollback = core.max_drafts}));
  if (loaded.backend->on_host()) FATHOM_TRY(check_cache(o.cache_gib));
  // What is kept on disk is true of these weights only, wherever they lie.
  engine::ModelRunner runner(*loaded.model, fmt::format("{:016x}", checkpoint::fingerprint(loaded.checkpoint)));
  FATHOM_ASSIGN(auto engine, engine::Engine::start(runner, core));
  std::string plan = engine->describe();
  while (!plan.empty() && plan.back() == '\n') plan.pop_back();
  print_line(plan);

  server::ApiOptions api;
  api.model_id = !o.name.empty() ? o.name : std::filesystem::absolute(folder).lexically_normal().filename().string();
  api.strict_models = o.strict_names;
  api.vocab = runner.facts().vocab;
  api.context = engine->position_limit();
  if (o.context > 0) api.context = std::min(api.context, o.context);
  api.most_tokens = o.most_tokens;
  api.grammar_cache_bytes = static_cast<std::size_t>(o.grammar_cache_mib) << 20U;
  api.grammar_trial = std::move(trial);
  api.defaults.thinking = !o.no_thinking;
  api.check_host = keys.empty() && is_loopback(o.host);
  api.cors_origin = o.cors;
  if (!o.quiet) api.log = [](std::string_view line) { print_line(fmt::format("time={} {}", now_text(), line)); };
  if (keys.empty() && !is_loopback(o.host))
    print_line("warning: anyone who reaches this port may use the model; see --api-key-file");
  api.keys = std::move(keys);
  server::EngineGenerator generator(*engine);
  server->serve(format, generator, std::move(api));
  exit_on_signal.reset();
  print_line(fmt::format("serving {} on http://{}:{}", folder.string(), url_host(o.host), server->port()));

  const auto ended = serve_until_signalled(signals, *server, *engine, o.drain_seconds);
  exit_on_signal.emplace(signals, kStopSeconds);
  engine->stop(false);
  for (int i = 0; i < 20 && server->active() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the last words reach the clients
  server.reset();
  engine.reset();
  return ended;
}

Result<> start(CLI::App& command, const Options& o) {
  if (!o.config.path.empty()) FATHOM_TRY(read_config(command, o.config.path));
  if (!o.config.print) return run(o);
  Output out;
  out.write(print_config(command));
  return out.finish();
}

}  // namespace

void add_serve(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("serve", "serve the OpenAI and Anthropic HTTP APIs");
  auto o = std::make_shared<Options>();
  command->add_option("model", o->model, "folder of the checkpoint (default: the embedded model)")->type_name("MODEL");
  command->add_option("--host", o->host, "address to listen on")->capture_default_str()->group("Network");
  command->add_option("--port", o->port, "0: one that is free")->capture_default_str()->group("Network");
  command->add_option("--api-key-file", o->key_file, "file with one key a line; $FATHOM_API_KEY is one too")
      ->type_name("FILE")
      ->group("Network");
  command->add_option("--cors", o->cors, "web pages of this origin may use the API; * for all")->group("Network");
  command->add_option("--served-model-name", o->name, "what the API calls the model (default: the folder's name)")
      ->group("Requests");
  command->add_flag("--strict-model-names", o->strict_names, "refuse requests for any other name")->group("Requests");
  command->add_option("--context", o->context, "tokens of prompt and answer (default: all the model has)")
      ->check(CLI::Range(2, 1 << 30))
      ->group("Requests");
  command->add_option("--max-tokens", o->most_tokens, "of an answer (default: what the context leaves)")
      ->check(CLI::Range(1, 1 << 30))
      ->group("Requests");
  command->add_flag("--no-thinking", o->no_thinking, "do not think unless the request asks for it")->group("Requests");
  command->add_option("--slots", o->slots, "answers generated at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--drafts", o->drafts, "tokens to guess and verify in a step, at most, where it pays; 0: none")
      ->check(CLI::Range(0, engine::kMaxDrafts))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--queue", o->queue, "requests that may wait")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--queue-seconds", o->queue_seconds, "how long one may wait")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--drain-seconds", o->drain_seconds, "how long answers may go on after the first signal")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--cache", o->cache_gib, "GiB of memory for the state of conversations")
      ->check(CLI::Range(0.001, 4096.0))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--cache-folder", o->cache_folder, "keep the state of conversations here too")
      ->type_name("DIR")
      ->group("Requests");
  command->add_option("--cache-folder-size", o->cache_folder_gib, "GiB at most in that folder")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str()
      ->group("Requests");
  command->add_option("--grammar-cache", o->grammar_cache_mib, "MiB of memory for compiled grammars and schemas")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Requests");
  command->add_flag("--quiet", o->quiet, "no line for each request");
  add_compute_options(*command, o->compute);
  add_config_flags(*command, o->config);
  command->footer(
      "Listens on this machine only unless --host says otherwise. The first SIGTERM or SIGINT lets running requests "
      "finish,\n"
      "the second stops at once.\n\n"
      "Examples:\n"
      "  fathom serve --port 8000\n"
      "  curl http://127.0.0.1:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hi\"}]}'");
  command->callback([o, command, &exit] {
    const auto done = start(*command, *o);
    exit.value = done ? ExitCode::kOk : fail_with(done.error());
  });
}

}  // namespace fathom::cli

// fathom_scripted_server: the HTTP server over answers that the client itself writes down, so that a real client can be
// shown every answer a model may give.
//
// The answer is what stands between the last "[[say" line of the prompt and "]]", control tokens spelled out. Without
// one it is "</think>Nothing to say.". One thread a request: for tests.
//
// fathom_scripted_server PAUSE_MS: every answer goes on until its limit instead, a token each so many milliseconds.
// What this takes of the processor is what the server adds to an engine (overhead.py).
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

#include "server/scripted_generator.h"
#include "server/server.h"
#include "text/chat_format.h"

namespace {

using namespace fathom;

std::string script_of(const text::Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt) {
  static constexpr std::string_view kBegin = "[[say\n";
  const std::string text = tokenizer.decode(prompt).value_or("");
  const std::size_t begin = text.rfind(kBegin);
  if (begin == std::string::npos) return "</think>Nothing to say.<｜end▁of▁sentence｜>";
  const std::size_t from = begin + kBegin.size();
  return text.substr(from, text.find("]]", from) - from);
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto format = text::ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!format) return std::fprintf(stderr, "%s\n", format.error().what.c_str()), 1;
  server::ScriptedGenerator generator(format->tokenizer());
  if (argc > 1) {
    generator.say("</think>Once upon a time there was a little fox, and it said: \"I am hungry.\"\n", true);
    generator.pause_between_tokens(std::atoi(argv[1]));
  } else {
    generator.say_by_prompt([&](const auto& prompt) { return script_of(format->tokenizer(), prompt); });
  }
  server::ApiOptions api;
  api.model_id = "scripted";
  api.vocab = format->tokenizer().vocab_size();
  api.context = 65536;
  auto server = server::Server::start(*format, generator, std::move(api), {});
  if (!server) return std::fprintf(stderr, "%s\n", server.error().what.c_str()), 1;
  std::fprintf(stderr, "serving scripts on http://127.0.0.1:%d\n", (*server)->port());
  int signal = 0;
  sigwait(&signals, &signal);
  generator.stop();
  return 0;
}

// Speed of tokenizer and parser on one core: fathom_text_bench TOKENIZER FILE...
// Prints one JSON object per line: load time, the parser on a long answer, then MB per second of CPU time, the best of
// several passes per file. tools/bench_tokenizer.py runs it beside the Hugging Face library on the same files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "text/chat_format.h"
#include "text/stream_parser.h"
#include "text/tokenizer.h"

namespace {

// CPU time of this thread: the machine may be busy with other things.
double now() {
  timespec t = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double best_of(int n, const F& f) {
  double best = 1e9;
  for (int i = 0; i < n; ++i) {
    const double start = now();
    f();
    best = std::min(best, now() - start);
  }
  return best;
}

// A long answer: reasoning, content, and calls with a string and a JSON value, as ids.
std::string long_answer() {
  const std::string d = "\uFF5CDSML\uFF5C";
  const std::string prose = "Let me see what is in the folder, and then read <the> file.\nIt has 3 lines & more.\n";
  std::string raw;
  for (int i = 0; i < 10'000; ++i) raw += prose;
  raw += "</think>";
  for (int i = 0; i < 10'000; ++i) raw += prose;
  raw += "\n\n<" + d + "tool_calls>\n";
  for (int i = 0; i < 2'000; ++i) {
    raw += "<" + d + "invoke name=\"write\">\n<" + d + "parameter name=\"text\" string=\"true\">" + prose + prose +
           "</" + d + "parameter>\n<" + d + "parameter name=\"n\" string=\"false\">[1, 2, {\"a\": 3}]</" + d +
           "parameter>\n</" + d + "invoke>\n";
  }
  return raw + "</" + d + "tool_calls>";
}

void bench_parser(const fathom::text::Tokenizer& tokenizer, const std::string& folder) {
  using namespace fathom::text;
  const auto format = ChatFormat::load(folder);
  if (!format) return;
  const std::string raw = long_answer();
  const auto ids = tokenizer.encode(raw, Mode::kSpecial);
  std::size_t n_calls = 0;
  const double by_ids = best_of(5, [&] {
    ParserOptions options;
    options.initial = ParserState::kReasoning;
    options.tools.emplace();
    options.stop = {"STOP", "\n\nHuman:"};
    TokenParser parser(*format, options);
    for (const std::int32_t id : ids) {
      if (!parser.push(id)) return;
      parser.parser().take_events();
    }
    parser.parser().finish(End::kTurn);
    n_calls = parser.parser().calls().size();
  });
  fmt::print(
      "{{\"parser\": \"by token, 2 stop strings\", \"mb\": {:.2f}, \"calls\": {}, \"mb_s\": {:.1f}, \"tokens_s\": "
      "{:.0f}}}\n",
      static_cast<double>(raw.size()) / 1e6, n_calls, static_cast<double>(raw.size()) / 1e6 / by_ids,
      static_cast<double>(ids.size()) / by_ids);
}

}  // namespace

int main(int argc, char** argv) {
  using fathom::text::Mode;
  using fathom::text::Tokenizer;
  if (argc < 2) return 2;
  auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer) {
    fmt::print(stderr, "fathom_text_bench: {}\n", tokenizer.error().what);
    return 1;
  }
  const double load = best_of(5, [&] { (void)Tokenizer::load(argv[1]); });
  fmt::print("{{\"load_ms\": {:.1f}}}\n", load * 1e3);
  bench_parser(*tokenizer, argv[1]);
  for (int i = 2; i < argc; ++i) {
    std::ifstream in(argv[i], std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    std::vector<std::int32_t> ids;
    const double cold = best_of(1, [&] { ids = tokenizer->encode(text, Mode::kPlain); });
    const double plain = best_of(7, [&] { ids = tokenizer->encode(text, Mode::kPlain); });
    const std::size_t n_plain = ids.size();
    const double special = best_of(7, [&] { ids = tokenizer->encode(text, Mode::kSpecial); });
    const double decode = best_of(7, [&] { (void)tokenizer->decode(ids); });
    const double mb = static_cast<double>(text.size()) / 1e6;
    fmt::print(
        "{{\"file\": \"{}\", \"mb\": {:.2f}, \"tokens\": {}, \"special_tokens\": {}, \"first_mb_s\": {:.1f}, \"mb_s\": "
        "{:.1f}, "
        "\"special_mb_s\": {:.1f}, \"decode_mb_s\": {:.1f}}}\n",
        argv[i], mb, n_plain, ids.size(), mb / cold, mb / plain, mb / special, mb / decode);
  }
  return 0;
}

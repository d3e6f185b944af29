#include "cli/answer_view.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>

namespace fathom::cli {
namespace {

constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

// A model may write escape sequences; a terminal must not obey them. ESC and the C1 controls' lead-in become visible.
std::string for_terminal(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      out += "\uFFFD";
    } else {
      out += c;
    }
  }
  return out;
}

const char* why(Turn::End end) {
  switch (end) {
    case Turn::End::kStopped: return "";
    case Turn::End::kMaxTokens: return ", stopped at the token limit";
    case Turn::End::kContextFull: return ", stopped at the end of the context";
    case Turn::End::kInterrupted: return ", interrupted";
  }
  return "";
}

}  // namespace

void AnswerView::write(const std::string& text) {
  if (options_.silent || text.empty()) return;
  const std::string shown = options_.styled ? for_terminal(text) : text;
  failed_ = failed_ || std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() || std::fflush(stdout) != 0;
  at_line_start_ = text.back() == '\n';
}

void AnswerView::style(text::ParserEvent::Kind kind) {
  const bool dim = kind != text::ParserEvent::Kind::kContent;
  if (!options_.styled || options_.silent || dim == dimmed_) return;
  dimmed_ = dim;
  std::fputs(dim ? kDim : kPlain, stdout);
}

void AnswerView::show(const std::vector<text::ParserEvent>& events) {
  using Kind = text::ParserEvent::Kind;
  for (const text::ParserEvent& e : events) {
    switch (e.kind) {
      case Kind::kReasoning:
        reasoning_ += e.text;
        style(e.kind);
        if (options_.styled || options_.thinking) write(e.text);
        break;
      case Kind::kContent:
        if (content_.empty() && !reasoning_.empty() && !at_line_start_) write("\n");
        content_ += e.text;
        style(e.kind);
        write(e.text);
        break;
      case Kind::kToolStart:
        if (!at_line_start_) write("\n");
        style(e.kind);
        write("→ " + e.text + " ");
        break;
      case Kind::kToolArgs: write(e.text); break;
    }
  }
}

void AnswerView::finish() {
  style(text::ParserEvent::Kind::kContent);
  if (!at_line_start_) write("\n");
}

void print_turn(const Turn& t, bool styled) {
  const std::string line = fmt::format(
      "{} prompt + {} generated tokens, first token {:.0f} ms, {:.0f} tokens/s, peak memory {} MiB{}", t.prompt_tokens,
      t.generated, 1000 * t.first_token_seconds, t.tokens_per_second(), peak_memory() >> 20, why(t.end));
  fmt::print(stderr, "{}[{}]{}\n", styled ? kDim : "", line, styled ? kPlain : "");
}

std::uint64_t peak_memory() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace fathom::cli

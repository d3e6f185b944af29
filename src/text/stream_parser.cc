#include "text/stream_parser.h"

#include <algorithm>
#include <utility>

#include "text/parser_machine.h"

namespace fathom::text {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kToolCalls: return "tool_calls";
  }
  return "";
}

StreamParser::StreamParser(ParserOptions options) : machine_(std::make_unique<Machine>(std::move(options))) {}
StreamParser::StreamParser(StreamParser&&) noexcept = default;
StreamParser& StreamParser::operator=(StreamParser&&) noexcept = default;
StreamParser::~StreamParser() = default;

void StreamParser::text(std::string_view bytes) { machine_->text(bytes); }
void StreamParser::control(Control c) { machine_->control(c); }
void StreamParser::finish(End end) { machine_->finish(end); }
std::vector<ParserEvent> StreamParser::take_events() { return machine_->take_events(); }
bool StreamParser::done() const { return machine_->done(); }
bool StreamParser::in_reasoning() const { return machine_->in_reasoning(); }
FinishReason StreamParser::finish_reason() const { return machine_->finish_reason(); }
const std::optional<std::string>& StreamParser::matched_stop() const { return machine_->matched_stop(); }
const std::vector<ParsedCall>& StreamParser::calls() const { return machine_->calls(); }
bool StreamParser::has_incomplete_call() const { return machine_->has_incomplete_call(); }

TokenParser::TokenParser(const ChatFormat& format, ParserOptions options, TokenOptions tokens)
    : format_(&format), parser_(std::move(options)), options_(std::move(tokens)) {}

Result<> TokenParser::push(std::int32_t id) {
  const auto bytes = format_->tokenizer().token_bytes(id);
  if (!bytes) {
    return fail(Code::kInvalid, "token id {} is outside the vocabulary (0 to {})", id,
                format_->tokenizer().vocab_size() - 1);
  }
  if (parser_.in_reasoning()) ++reasoning_tokens_;
  const ControlTokens& c = format_->control();
  const bool stops = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end();
  if (c.ends_turn(id) && options_.ignore_eos && !stops) return {};
  if (c.ends_turn(id) || stops) {
    parser_.control(Control::kTurnEnd);
  } else if (id == c.think_open) {
    parser_.control(Control::kThinkOpen);
  } else if (id == c.think_close) {
    parser_.control(Control::kThinkClose);
  } else if (id == c.dsml) {
    parser_.control(Control::kDsml);
  } else {
    parser_.text(*bytes);
  }
  return {};
}

void parse_raw(StreamParser& parser, std::string_view raw) {
  constexpr std::pair<std::string_view, Control> kSpellings[] = {
      {"<think>", Control::kThinkOpen},
      {"</think>", Control::kThinkClose},
      {"\uFF5CDSML\uFF5C", Control::kDsml},
      {"<\uFF5Cend\u2581of\u2581sentence\uFF5C>", Control::kTurnEnd},
      {"<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>", Control::kTurnEnd},
      {"<\uFF5CUser\uFF5C>", Control::kTurnEnd},
      {"<\uFF5CAssistant\uFF5C>", Control::kTurnEnd},
      {"<\uFF5Clatest_reminder\uFF5C>", Control::kTurnEnd},
      {"<|EOT|>", Control::kTurnEnd}};
  std::size_t plain = 0;
  for (std::size_t at = 0; at < raw.size();) {
    const auto* found = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                     [&](const auto& s) { return raw.substr(at).starts_with(s.first); });
    if (found == std::end(kSpellings)) {
      ++at;
      continue;
    }
    parser.text(raw.substr(plain, at - plain));
    parser.control(found->second);
    at += found->first.size();
    plain = at;
  }
  parser.text(raw.substr(plain));
}

}  // namespace fathom::text

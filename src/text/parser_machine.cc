#include "text/parser_machine.h"

#include <algorithm>
#include <utility>

#include "text/char_class.h"

namespace fathom::text {
namespace {

constexpr std::string_view kMarker = "\uFF5CDSML\uFF5C";
constexpr std::string_view kBar = "\uFF5C";
constexpr std::string_view kInvoke = "invoke name=\"";
constexpr std::string_view kParameter = "parameter name=\"";
constexpr std::size_t kTail = 24;        // bytes of skipped text that are remembered; longer than both of the above
constexpr std::size_t kMaxName = 256;    // characters of an invoke's name
constexpr std::size_t kMaxTagName = 64;  // letters of a closing tag that are kept: longer ones name nothing
constexpr std::size_t kMaxAttributes = 1024;  // bytes of attributes that are kept

std::string_view spelling(Control c) {
  switch (c) {
    case Control::kThinkOpen: return "<think>";
    case Control::kThinkClose: return "</think>";
    case Control::kDsml: return kMarker;
    case Control::kTurnEnd: break;
  }
  return {};
}

// `s` is valid UTF-8.
std::size_t char_length(std::string_view s) {
  const auto lead = static_cast<unsigned char>(s[0]);
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// An opening bracket (`<`, `</`, each perhaps with a bar) or nothing.
bool is_bracket_or_empty(std::string_view s) {
  return s.empty() || s == "<" || s == "</" || s == "<\uFF5C" || s == "</\uFF5C";
}

// Up to `newlines` newlines, then perhaps a bracket.
bool may_be_held(std::string_view s, int newlines) {
  for (; newlines > 0 && s.starts_with('\n'); --newlines) s.remove_prefix(1);
  return is_bracket_or_empty(s);
}

// Moves characters from the front of `held` to `out` until the rest may be held.
void shorten(std::string& held, int newlines, std::string& out) {
  std::size_t cut = 0;
  while (!may_be_held(std::string_view(held).substr(cut), newlines)) {
    cut += char_length(std::string_view(held).substr(cut));
  }
  out.append(held, 0, cut);
  held.erase(0, cut);
}

enum class Bracket : std::uint8_t { kNone, kOpen, kClose };
Bracket bracket_at_end(std::string_view s) {
  if (s.ends_with(kBar)) s.remove_suffix(kBar.size());
  if (s.ends_with("</")) return Bracket::kClose;
  return s.ends_with('<') ? Bracket::kOpen : Bracket::kNone;
}

bool is_block_name(std::string_view reduced) {
  return reduced == "toolcalls" || reduced == "toolcall" || reduced == "functioncalls" || reduced == "functioncall" ||
         reduced == "calls";
}

bool is_white_space(std::string_view s) {
  const CharClassTable& classes = CharClassTable::get();
  for (std::size_t i = 0; i < s.size();) {
    const auto c = classes.at(s, i);
    if (c.cls != kSpace && c.cls != kLineBreak) return false;
    i += c.length;
  }
  return true;
}

void remember(std::string_view s, std::string& tail) {
  if (s.size() >= kTail) {
    tail = s.substr(s.size() - kTail);
  } else {
    tail += s;
    if (tail.size() > 2 * kTail) tail.erase(0, tail.size() - kTail);
  }
}

}  // namespace

StreamParser::Machine::Machine(ParserOptions options) : options_(std::move(options)), stops_(options_.stop) {
  if (options_.tools) {
    for (const ParserTool& tool : *options_.tools) tools_.emplace(tool.name, &tool);
  }
  switch (options_.initial) {
    case ParserState::kReasoning: state_ = State::kReasoning; break;
    case ParserState::kContent: state_ = State::kContent; break;
    case ParserState::kToolBlock:
      state_ = State::kToolBlock;
      forced_ = true;
      break;
  }
}

// --- events
// -----------------------------------------------------------------------------------------------------------

void StreamParser::Machine::emit(ParserEvent::Kind kind, std::string_view text) {
  const bool of_call = kind == ParserEvent::Kind::kToolStart || kind == ParserEvent::Kind::kToolArgs;
  const int index = of_call ? static_cast<int>(calls_.size()) : 0;
  if (text.empty() && kind != ParserEvent::Kind::kToolStart) return;
  const bool joins = !events_.empty() && events_.back().kind == kind && events_.back().index == index &&
                     kind != ParserEvent::Kind::kToolStart;
  if (!joins) events_.push_back({kind, index, {}});
  events_.back().text += text;
}

std::vector<ParserEvent> StreamParser::Machine::take_events() { return std::exchange(events_, {}); }

void StreamParser::Machine::emit_visible(std::string_view text) {
  if (text.empty()) return;
  if (state_ == State::kReasoning) {
    emit(ParserEvent::Kind::kReasoning, text);
    return;
  }
  content_is_blank_ = content_is_blank_ && is_white_space(text);
  std::string sent;
  const auto match = stops_.push(text, sent);
  if (match && options_.include_stop) sent += stops_.stop(*match);
  emit(ParserEvent::Kind::kContent, sent);
  if (match) {
    matched_stop_ = stops_.stop(*match);
    ended_ = true;
  }
}

void StreamParser::Machine::flush_visible() { emit_visible(std::exchange(held_, {})); }

void StreamParser::Machine::release_stop() {
  std::string sent;
  stops_.release(sent);
  emit(ParserEvent::Kind::kContent, sent);
}

// --- text
// -------------------------------------------------------------------------------------------------------------

void StreamParser::Machine::text(std::string_view bytes) {
  if (done()) return;
  std::string valid;
  utf8_.push(bytes, valid);
  feed(valid);
}

void StreamParser::Machine::feed(std::string_view s) {
  while (!s.empty() && !done()) s.remove_prefix(step(s));
}

std::size_t StreamParser::Machine::step(std::string_view s) {
  switch (state_) {
    case State::kReasoning:
    case State::kContent: return visible(s);
    case State::kOrphanClose: {
      const std::size_t end = s.find('>');
      if (end == std::string_view::npos) return s.size();
      state_ = back_;
      return end + 1;
    }
    case State::kToolBlock: return tool_block(s);
    case State::kInvokeName: return invoke_name(s);
    case State::kInvokeSkip: {
      const std::size_t end = s.find('>');
      remember(s.substr(0, end), tail_);
      if (end == std::string_view::npos) return s.size();
      state_ = State::kInvokeBody;
      return end + 1;
    }
    case State::kInvokeBody: return invoke_body(s);
    case State::kBodyTag: return body_tag(s);
    case State::kParamKey: {
      const std::size_t end = s.find('"');
      name_ += s.substr(0, end);
      if (end == std::string_view::npos) return s.size();
      state_ = State::kParamAttributes;
      return end + 1;
    }
    case State::kParamAttributes: {
      const std::size_t end = s.find('>');
      attributes_ += s.substr(0, std::min(end, kMaxAttributes - std::min(kMaxAttributes, attributes_.size())));
      if (end == std::string_view::npos) return s.size();
      announce();
      std::string sent;
      call_->begin_parameter(name_, attributes_, sent);
      emit(ParserEvent::Kind::kToolArgs, sent);
      state_ = State::kParamValue;
      return end + 1;
    }
    case State::kParamValue: return param_value(s);
    case State::kValueTag: return value_tag(s);
    case State::kBlockClose:
    case State::kBodyClose:
    case State::kValueClose: return closing_tag(s);
    case State::kDone: break;
  }
  return s.size();
}

std::size_t StreamParser::Machine::visible(std::string_view s) {
  if (!options_.tools) {
    emit_visible(s);
    return s.size();
  }
  if (held_.empty()) {
    const std::size_t plain = std::min(s.find_first_of("\n<"), s.size());
    if (plain > 0) {
      emit_visible(s.substr(0, plain));
      return plain;
    }
  }
  const std::size_t n = char_length(s);
  held_ += s.substr(0, n);
  std::string sent;
  shorten(held_, 2, sent);
  emit_visible(sent);
  return n;
}

std::size_t StreamParser::Machine::tool_block(std::string_view s) {
  // Up to a quote, which is where `invoke name="` would end.
  const std::size_t quote = s.find('"');
  const std::size_t n = quote == std::string_view::npos ? s.size() : quote + 1;
  swallow(s.substr(0, n));
  remember(s.substr(0, n), tail_);
  if (!tail_.ends_with(kInvoke)) return n;
  invoke_seen_ = true;
  swallowed_ = {};
  begin_call();
  return n;
}

void StreamParser::Machine::begin_call() {
  state_ = State::kInvokeName;
  name_.clear();
  name_length_ = 0;
}

std::size_t StreamParser::Machine::invoke_name(std::string_view s) {
  if (s[0] == '"') {
    state_ = State::kInvokeSkip;
    tail_.clear();
    held_.clear();
    body_.clear();
    const auto tool = tools_.find(name_);
    call_.emplace(name_, tool == tools_.end() ? nullptr : tool->second);
    return 1;
  }
  if (s[0] == '\n' || s[0] == '<' || name_length_ == kMaxName) {
    state_ = State::kToolBlock;
    tail_.clear();
    return 0;
  }
  const std::size_t n = char_length(s);
  name_ += s.substr(0, n);
  ++name_length_;
  return n;
}

std::size_t StreamParser::Machine::invoke_body(std::string_view s) {
  std::string* body = call_->n_parameters() == 0 ? &body_ : nullptr;
  if (held_.empty()) {
    const std::size_t plain = std::min(s.find('<'), s.size());
    if (plain > 0) {
      if (body != nullptr) *body += s.substr(0, plain);
      return plain;
    }
  }
  const std::size_t n = char_length(s);
  held_ += s.substr(0, n);
  std::string out;
  shorten(held_, 0, out);
  if (body != nullptr) *body += out;
  return n;
}

std::size_t StreamParser::Machine::body_tag(std::string_view s) {
  const std::size_t stop = s.find_first_of("\">");
  const std::size_t n = stop == std::string_view::npos ? s.size() : stop + 1;
  remember(s.substr(0, n), tail_);
  if (s[n - 1] == '>') {
    state_ = State::kInvokeBody;
  } else if (tail_.ends_with(kParameter)) {
    state_ = State::kParamKey;
    name_.clear();
    attributes_.clear();
  } else if (tail_.ends_with(kInvoke)) {
    finish_call();
    if (!done()) begin_call();
  }
  return n;
}

std::size_t StreamParser::Machine::param_value(std::string_view s) {
  std::string data;
  std::size_t n = 0;
  if (held_.empty()) n = std::min(s.find_first_of("\n<"), s.size());
  if (n > 0) {
    data = s.substr(0, n);
  } else {
    n = char_length(s);
    held_ += s.substr(0, n);
    shorten(held_, 1, data);
  }
  std::string sent;
  if (!data.empty()) call_->value(data, sent);
  emit(ParserEvent::Kind::kToolArgs, sent);
  return n;
}

// A close was forgotten if a parameter or invoke tag follows; else all of it is data.
std::size_t StreamParser::Machine::value_tag(std::string_view s) {
  const std::size_t n = char_length(s);
  std::string next = lookahead_ + std::string(s.substr(0, n));
  std::string_view tag = next;
  if (tag.starts_with(' ')) tag.remove_prefix(1);
  else if (tag.starts_with(kBar)) tag.remove_prefix(kBar.size());
  if (!kParameter.starts_with(tag) && !kInvoke.starts_with(tag)) {
    std::string sent;
    call_->value(held_ + std::string(kMarker) + lookahead_, sent);
    emit(ParserEvent::Kind::kToolArgs, sent);
    held_.clear();
    state_ = State::kParamValue;
    return 0;
  }
  const bool parameter = tag == kParameter;
  const bool invoke = tag == kInvoke;
  lookahead_ = std::move(next);
  if (!parameter && !invoke) return n;
  held_.clear();  // the newline before the tag is markup
  end_parameter();
  if (parameter) {
    state_ = State::kParamKey;
    name_.clear();
    attributes_.clear();
  } else {
    finish_call();
    if (!done()) begin_call();
  }
  return n;
}

std::size_t StreamParser::Machine::closing_tag(std::string_view s) {
  const std::size_t end = s.find('>');
  for (const char c : s.substr(0, end)) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower >= 'a' && lower <= 'z' && name_.size() < kMaxTagName) name_.push_back(lower);
  }
  if (state_ == State::kBlockClose) swallow(s.substr(0, end == std::string_view::npos ? end : end + 1));
  if (end == std::string_view::npos) return s.size();
  close_tag();
  return end + 1;
}

// The name of a closing tag is complete.
void StreamParser::Machine::close_tag() {
  tail_.clear();
  if (state_ == State::kBlockClose) {
    state_ = name_ == "invoke" || name_ == "parameter" ? State::kToolBlock : State::kDone;
    return;
  }
  const bool in_value = state_ == State::kValueClose;
  if (in_value) end_parameter();
  state_ = State::kInvokeBody;
  if (is_block_name(name_)) {
    finish_call();
    state_ = State::kDone;
  } else if (in_value ? name_ == "invoke" : name_ != "parameter") {
    finish_call();
  }
}

// --- control tokens
// ---------------------------------------------------------------------------------------------------

void StreamParser::Machine::control(Control c) {
  if (ended_) return;
  // A character that the token cuts short will not be completed.
  std::string broken;
  utf8_.finish(broken);
  feed(broken);
  if (ended_) return;
  if (c == Control::kTurnEnd) {
    finish(End::kTurn);
    return;
  }
  if (c == Control::kDsml && !options_.tools) {
    feed(kMarker);
    return;
  }
  switch (state_) {
    case State::kOrphanClose:
      state_ = back_;
      visible_control(c);
      break;
    case State::kReasoning:
    case State::kContent: visible_control(c); break;
    case State::kInvokeName:
      state_ = State::kToolBlock;
      tail_.clear();
      block_control(c);
      break;
    case State::kToolBlock:
    case State::kBlockClose: block_control(c); break;
    case State::kInvokeSkip:
      state_ = State::kInvokeBody;
      held_ = bracket_at_end(tail_) == Bracket::kClose ? "</" : "";
      body_control(c);
      break;
    case State::kInvokeBody: body_control(c); break;
    case State::kParamKey: name_ += spelling(c); break;
    case State::kParamAttributes: data_control(c, attributes_); break;
    case State::kParamValue:
    case State::kValueTag: value_control(c); break;
    case State::kBodyTag:
    case State::kBodyClose:
    case State::kValueClose:
    case State::kDone: break;  // in the name of a tag, or behind everything: nothing
  }
}

void StreamParser::Machine::data_control(Control c, std::string& into) {
  if (into.size() < kMaxAttributes) into += spelling(c);
}

void StreamParser::Machine::visible_control(Control c) {
  if (c == Control::kDsml) {
    if (bracket_at_end(held_) == Bracket::kClose) {
      emit_visible(held_.substr(0, held_.find('<')));
      held_.clear();
      back_ = state_;
      if (!ended_) state_ = State::kOrphanClose;
      return;
    }
    open_block();
    return;
  }
  if (state_ == State::kReasoning) {
    if (c == Control::kThinkOpen) return;
    flush_visible();
    state_ = State::kContent;
    return;
  }
  if (c == Control::kThinkClose) return;
  const bool blank = content_is_blank_ && is_white_space(held_);
  flush_visible();
  if (ended_) return;
  if (blank) {
    release_stop();
    state_ = State::kReasoning;
  } else {
    emit_visible(spelling(c));
  }
}

void StreamParser::Machine::open_block() {
  back_ = state_;
  release_stop();
  block_seen_ = true;
  swallowed_ = std::exchange(held_, {}) + std::string(kMarker);
  tail_.clear();
  state_ = State::kToolBlock;
}

void StreamParser::Machine::swallow(std::string_view text) {
  if (block_seen_ && !invoke_seen_) swallowed_ += text;
}

void StreamParser::Machine::block_control(Control c) {
  if (c == Control::kThinkClose && block_seen_ && !invoke_seen_ && back_ == State::kReasoning) {
    emit(ParserEvent::Kind::kReasoning, std::exchange(swallowed_, {}));
    block_seen_ = false;
    state_ = State::kContent;
    return;
  }
  swallow(spelling(c));
  if (state_ == State::kBlockClose) return;
  if (c == Control::kDsml && bracket_at_end(tail_) == Bracket::kClose) {
    state_ = State::kBlockClose;
    name_.clear();
  }
  tail_.clear();
}

void StreamParser::Machine::body_control(Control c) {
  if (c != Control::kDsml) return;
  state_ = bracket_at_end(held_) == Bracket::kClose ? State::kBodyClose : State::kBodyTag;
  held_.clear();
  tail_.clear();
  name_.clear();
}

void StreamParser::Machine::value_control(Control c) {
  std::string data;
  if (state_ == State::kValueTag) {  // what was looked at is data
    data = std::exchange(held_, {}) + std::string(kMarker) + lookahead_;
    state_ = State::kParamValue;
  }
  const Bracket bracket = c == Control::kDsml ? bracket_at_end(held_) : Bracket::kNone;
  if (bracket == Bracket::kClose) {
    data += held_.substr(0, held_.find('<'));  // the newline before the closing tag belongs to the value
    held_.clear();
    state_ = State::kValueClose;
    name_.clear();
  } else if (bracket == Bracket::kOpen) {
    state_ = State::kValueTag;
    lookahead_.clear();
  } else {
    data += std::exchange(held_, {});
    data += spelling(c);
  }
  std::string sent;
  if (!data.empty()) call_->value(data, sent);
  emit(ParserEvent::Kind::kToolArgs, sent);
}

// --- calls
// ------------------------------------------------------------------------------------------------------------

void StreamParser::Machine::announce() {
  if (announced_) return;
  announced_ = true;
  emit(ParserEvent::Kind::kToolStart, call_->name());
}

void StreamParser::Machine::end_parameter() {
  std::string sent;
  call_->end_parameter(sent);
  emit(ParserEvent::Kind::kToolArgs, sent);
}

void StreamParser::Machine::finish_call() {
  std::string sent;
  if (call_->finish(body_, sent)) {
    announce();
    emit(ParserEvent::Kind::kToolArgs, sent);
    calls_.push_back({call_->name(), call_->arguments()});
  }
  announced_ = false;
  call_.reset();
  tail_.clear();
  held_.clear();
  state_ = options_.one_call && !calls_.empty() ? State::kDone : State::kToolBlock;
}

// --- the end
// ----------------------------------------------------------------------------------------------------------

void StreamParser::Machine::finish(End end) {
  if (ended_) return;
  std::string broken;
  utf8_.finish(broken);
  feed(broken);
  if (ended_) return;
  end_ = end;
  if (end == End::kTurn) end_turn();
  if (state_ == State::kReasoning || state_ == State::kContent) flush_visible();
  release_stop();
  ended_ = true;
}

// What the model meant to be whole when it ended its turn.
void StreamParser::Machine::end_turn() {
  if (state_ == State::kBlockClose || state_ == State::kBodyClose || state_ == State::kValueClose) close_tag();
  switch (state_) {
    case State::kInvokeSkip:
    case State::kInvokeBody:
    case State::kBodyTag:
    case State::kParamKey:
    case State::kParamAttributes:
      if (call_ && call_->n_parameters() > 0) finish_call();
      break;
    case State::kToolBlock:
      // It wrote about the markup.
      if (block_seen_ && !invoke_seen_) {
        emit(back_ == State::kReasoning ? ParserEvent::Kind::kReasoning : ParserEvent::Kind::kContent,
             std::exchange(swallowed_, {}));
      }
      break;
    default: break;
  }
}

FinishReason StreamParser::Machine::finish_reason() const {
  if (matched_stop_) return FinishReason::kStop;
  if (end_ == End::kCut) return FinishReason::kLength;
  return calls_.empty() ? FinishReason::kStop : FinishReason::kToolCalls;
}

}  // namespace fathom::text

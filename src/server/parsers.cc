#include "server/parsers.h"

#include <algorithm>
#include <utility>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace fathom::server {
namespace {

class TurnParser final : public ChoiceParser {
 public:
  TurnParser(const text::ChatFormat& format, const text::ParserOptions& options, const text::TokenOptions& tokens)
      : format_(format),
        parser_(format, options, tokens),
        in_block_(options.initial == text::ParserState::kToolBlock) {}

  bool push(const engine::Sampled& token, Piece& piece) override {
    const bool reasoning = parser_.parser().in_reasoning();
    const text::ControlTokens& control = format_.control();
    // From its first marker on a tool block is not shown. Without tools a marker is text like any other.
    TokenReport::Part part = reasoning ? TokenReport::Part::kReasoning : TokenReport::Part::kContent;
    if (format_.tokenizer().is_added(token.id)) {
      ended_ = ended_ || control.ends_turn(token.id);
      if (token.id != control.dsml) part = TokenReport::Part::kHidden;
    }
    // An id outside the vocabulary cannot be: the engine chooses inside it.
    (void)parser_.push(token.id);
    piece.events = parser_.parser().take_events();
    for (const text::ParserEvent& e : piece.events)
      in_block_ = in_block_ || e.kind == text::ParserEvent::Kind::kToolStart;
    piece.tokens.push_back({token, in_block_ ? TokenReport::Part::kHidden : part});
    return parser_.parser().done();
  }

  ChoiceEnd finish(bool cut, Piece& piece) override {
    text::StreamParser& p = parser_.parser();
    const bool block_closed = p.done() && !ended_;
    p.finish(cut ? text::End::kCut : text::End::kTurn);
    piece.events = p.take_events();
    ChoiceEnd end;
    end.reason = p.finish_reason();
    end.matched_stop = p.matched_stop();
    end.incomplete_call = p.has_incomplete_call();
    end.by_turn = (ended_ || block_closed || !cut) && !end.matched_stop;
    end.reasoning_tokens = parser_.reasoning_tokens();
    return end;
  }

 private:
  const text::ChatFormat& format_;
  text::TokenParser parser_;
  bool in_block_;
  bool ended_ = false;  // by a token that ends turns
};

class RawParser final : public ChoiceParser {
 public:
  RawParser(const text::Tokenizer& tokenizer, const RawOptions& options)
      : tokenizer_(tokenizer), options_(options), text_(tokenizer), matcher_(options.stop) {}

  bool push(const engine::Sampled& token, Piece& piece) override {
    const bool stops =
        std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token.id) != options_.stop_ids.end();
    const bool hidden = stops || (options_.skip_special && tokenizer_.is_added(token.id));
    piece.tokens.push_back({token, hidden ? TokenReport::Part::kHidden : TokenReport::Part::kContent});
    if (!hidden) {
      if (const auto more = text_.push(token.id)) show(*more, piece);
    }
    return stops || matched_;
  }

  ChoiceEnd finish(bool cut, Piece& piece) override {
    if (!matched_) show(text_.finish(), piece);
    if (!matched_) {
      std::string held;
      matcher_.release(held);
      emit(std::move(held), piece);
    }
    ChoiceEnd end;
    end.reason = cut && !matched_ ? text::FinishReason::kLength : text::FinishReason::kStop;
    if (matched_) end.matched_stop = matcher_.stop(*matched_);
    return end;
  }

 private:
  void show(const std::string& more, Piece& piece) {
    std::string out;
    matched_ = matcher_.push(more, out);
    if (matched_ && options_.include_stop) out += matcher_.stop(*matched_);
    emit(std::move(out), piece);
  }
  static void emit(std::string text, Piece& piece) {
    if (!text.empty()) piece.events.push_back({text::ParserEvent::Kind::kContent, 0, std::move(text)});
  }

  const text::Tokenizer& tokenizer_;
  const RawOptions options_;
  text::Detokenizer text_;
  text::StopMatcher matcher_;
  std::optional<std::size_t> matched_;
};

}  // namespace

std::unique_ptr<ChoiceParser> make_turn_parser(const text::ChatFormat& format, const text::ParserOptions& options,
                                               const text::TokenOptions& tokens) {
  return std::make_unique<TurnParser>(format, options, tokens);
}

std::unique_ptr<ChoiceParser> make_raw_parser(const text::Tokenizer& tokenizer, const RawOptions& options) {
  return std::make_unique<RawParser>(tokenizer, options);
}

}  // namespace fathom::server

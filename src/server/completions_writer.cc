// Completions: http-api.md 6.
#include <utility>

#include "server/json_out.h"
#include "server/openai_json.h"
#include "server/writers.h"
#include "text/turn_memory.h"

namespace fathom::server {
namespace {

// The four lists of log-probabilities of Completions.
class LogprobLists {
 public:
  // offset: in bytes of text, of the first token.
  LogprobLists(const text::Tokenizer& tokenizer, std::size_t offset) : tokenizer_(tokenizer), offset_(offset) {}

  void add_prompt(const Echo& echo, const std::vector<engine::Sampled>& scores) {
    add_text(echo.first, !echo.first_unwritten);
    logprobs_.emplace_back("null");
    tops_.emplace_back("null");
    for (const engine::Sampled& s : scores) add(s);
  }
  void add(const std::vector<TokenReport>& tokens) {
    for (const TokenReport& t : tokens) {
      if (t.part != TokenReport::Part::kHidden) add(t.sampled);
    }
  }
  std::string json() const {
    return Obj()
        .raw("tokens", join_list(texts_))
        .raw("token_logprobs", join_list(logprobs_))
        .raw("top_logprobs", join_list(tops_))
        .raw("text_offset", join_list(offsets_))
        .done();
  }

 private:
  void add_text(std::int32_t id, bool written) {
    texts_.push_back(token_text_json(tokenizer_, id));
    offsets_.push_back(std::to_string(offset_));
    if (written) offset_ += tokenizer_.token_bytes(id).value_or("").size();
  }
  void add(const engine::Sampled& s) {
    add_text(s.id, true);
    logprobs_.push_back(number(s.logprob));
    Obj top;
    bool listed = false;
    for (const auto& other : s.top) {
      top.raw(tokenizer_.token_bytes(other.id).value_or(""), number(other.logprob));
      listed = listed || other.id == s.id;
    }
    // The token itself is always there: one more than was asked for.
    if (!listed) top.raw(tokenizer_.token_bytes(s.id).value_or(""), number(s.logprob));
    tops_.push_back(top.done());
  }

  const text::Tokenizer& tokenizer_;
  std::size_t offset_;
  std::vector<std::string> texts_;
  std::vector<std::string> logprobs_;
  std::vector<std::string> tops_;
  std::vector<std::string> offsets_;
};

class CompletionsWriter final : public Writer {
 public:
  CompletionsWriter(WriterOptions options, std::vector<Echo> echo, std::size_t n)
      : o_(std::move(options)), echo_(std::move(echo)), n_(n), id_(text::new_call_id("cmpl-")) {}

  std::string begin(const Usage& known) override {
    used_ = known;
    return {};
  }

  std::string piece(std::size_t index, const Choice&, const Piece& piece) override {
    std::string text = echo_once(index);
    used_.completion += static_cast<std::int64_t>(piece.tokens.size());
    for (const text::ParserEvent& event : piece.events) text += event.text;
    if (text.empty() && !o_.logprobs) return {};
    if (!o_.logprobs) return chunk(index, text, "null", "null");
    LogprobLists lists(*o_.tokenizer, streamed(index, text.size()));
    if (piece.scores != nullptr) lists.add_prompt(echo_[index / n_], *piece.scores);
    lists.add(piece.tokens);
    return chunk(index, text, lists.json(), "null");
  }

  std::string choice_end(std::size_t index, const Choice& choice) override {
    return chunk(index, echo_once(index), "null", quote(text::finish_reason_name(choice.end->reason)));
  }

  std::string end(const std::vector<Choice>&, const Usage& usage) override {
    std::string out;
    if (o_.include_usage) out = sse(head().raw("choices", "[]").raw("usage", usage_json(usage)).done());
    return out + sse("[DONE]");
  }

  std::string error(const Refusal& r) override { return sse(error_json(r, false, o_.request_id)) + sse("[DONE]"); }

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    std::vector<std::string> list;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Choice& c = choices[i];
      const Echo& echo = echo_[i / n_];
      const auto reason = c.end ? c.end->reason : text::FinishReason::kStop;
      std::string logprobs = "null";
      if (o_.logprobs) {
        LogprobLists lists(*o_.tokenizer, c.scores != nullptr ? 0 : echo.text.size());
        if (c.scores != nullptr) lists.add_prompt(echo, *c.scores);
        lists.add(c.tokens);
        logprobs = lists.json();
      }
      list.push_back(one(i, echo.text + c.content, logprobs, quote(text::finish_reason_name(reason))));
    }
    Obj out = head();
    return out.raw("choices", join_list(list)).raw("usage", usage_json(usage)).done();
  }

 private:
  Obj head() const {
    Obj out;
    out.str("id", id_)
        .str("object", "text_completion")
        .num("created", o_.created)
        .str("model", o_.model)
        .str("system_fingerprint", "fathom-" FATHOM_VERSION);
    return out;
  }

  static std::string one(std::size_t index, std::string_view text, std::string_view logprobs, std::string_view finish) {
    return Obj()
        .str("text", text)
        .num("index", static_cast<std::int64_t>(index))
        .raw("logprobs", logprobs)
        .raw("finish_reason", finish)
        .done();
  }

  std::string chunk(std::size_t index, std::string_view text, std::string_view logprobs,
                    std::string_view finish) const {
    Obj out = head();
    out.raw("choices", join_list({one(index, text, logprobs, finish)}));
    if (o_.usage_in_chunks) out.raw("usage", usage_so_far_json(used_));
    else if (o_.include_usage) out.null("usage");
    return sse(out.done());
  }

  std::string echo_once(std::size_t index) {
    if (index >= begun_.size()) begun_.resize(index + 1);
    return std::exchange(begun_[index], char{1}) != 0 ? std::string() : echo_[index / n_].text;
  }
  // Bytes of text sent for the choice before these.
  std::size_t streamed(std::size_t index, std::size_t now) {
    if (index >= sent_.size()) sent_.resize(index + 1);
    return std::exchange(sent_[index], sent_[index] + now);
  }

  const WriterOptions o_;
  const std::vector<Echo> echo_;
  const std::size_t n_;
  const std::string id_;
  Usage used_;
  std::vector<char> begun_;
  std::vector<std::size_t> sent_;
};

}  // namespace

std::unique_ptr<Writer> make_completions_writer(WriterOptions options, std::vector<Echo> echo, std::size_t n) {
  return std::make_unique<CompletionsWriter>(std::move(options), std::move(echo), n);
}

}  // namespace fathom::server

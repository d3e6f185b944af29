// Completions: http-api.md 6.
#include <utility>

#include "server/json_out.h"
#include "server/openai_json.h"
#include "server/writers.h"
#include "text/turn_memory.h"

namespace fathom::server {
namespace {

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
    return chunk(index, text, o_.logprobs ? logprobs_json(piece.tokens, streamed(index, text.size())) : "null", "null");
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
      const std::string& echo = echo_[i / n_].text;
      const auto reason = c.end ? c.end->reason : text::FinishReason::kStop;
      list.push_back(one(i, echo + c.content, o_.logprobs ? logprobs_json(c.tokens, echo.size()) : "null",
                         quote(text::finish_reason_name(reason))));
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

  std::string logprobs_json(const std::vector<TokenReport>& tokens, std::size_t offset) const {
    std::vector<std::string> texts;
    std::vector<std::string> logprobs;
    std::vector<std::string> tops;
    std::vector<std::string> offsets;
    for (const TokenReport& t : tokens) {
      if (t.part == TokenReport::Part::kHidden) continue;
      texts.push_back(token_text_json(*o_.tokenizer, t.sampled.id));
      logprobs.push_back(number(t.sampled.logprob));
      offsets.push_back(std::to_string(offset));
      offset += o_.tokenizer->token_bytes(t.sampled.id).value_or("").size();
      Obj top;
      for (const auto& other : t.sampled.top) {
        top.raw(o_.tokenizer->token_bytes(other.id).value_or(""), number(other.logprob));
      }
      tops.push_back(top.done());
    }
    return Obj()
        .raw("tokens", join_list(texts))
        .raw("token_logprobs", join_list(logprobs))
        .raw("top_logprobs", join_list(tops))
        .raw("text_offset", join_list(offsets))
        .done();
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

// Chat Completions: http-api.md 5.2 and 5.3.
#include <utility>

#include "server/json_out.h"
#include "server/openai_json.h"
#include "server/writers.h"
#include "text/turn_memory.h"

namespace fathom::server {
namespace {

using Kind = text::ParserEvent::Kind;
using Part = TokenReport::Part;

class ChatWriter final : public Writer {
 public:
  explicit ChatWriter(WriterOptions options) : o_(std::move(options)), id_(text::new_call_id("chatcmpl-")) {}

  std::string begin(const Usage& known) override {
    used_ = known;
    return {};
  }

  std::string piece(std::size_t index, const Choice& choice, const Piece& piece) override {
    std::string out = role(index);
    used_.completion += static_cast<std::int64_t>(piece.tokens.size());
    std::string logprobs = o_.logprobs ? logprobs_json(piece.tokens) : "null";
    for (const text::ParserEvent& event : piece.events) {
      out += chunk(index, delta(choice, event), std::exchange(logprobs, "null"), "null");
    }
    // Tokens without text of their own, as the beginning of a character, are reported too.
    if (piece.events.empty() && o_.logprobs && !piece.tokens.empty() && shows(piece.tokens)) {
      out += chunk(index, Obj().str("content", "").done(), logprobs, "null");
    }
    return out;
  }

  std::string choice_end(std::size_t index, const Choice& choice) override {
    return role(index) + chunk(index, "{}", "null", quote(text::finish_reason_name(choice.end->reason)));
  }

  std::string end(const std::vector<Choice>&, const Usage& usage) override {
    std::string out;
    if (o_.include_usage)
      out = sse(head("chat.completion.chunk").raw("choices", "[]").raw("usage", usage_json(usage)).done());
    return out + sse("[DONE]");
  }

  std::string error(const Refusal& r) override { return sse(error_json(r, false, o_.request_id)) + sse("[DONE]"); }

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    std::vector<std::string> list;
    for (std::size_t i = 0; i < choices.size(); ++i) list.push_back(whole_choice(i, choices[i]));
    Obj out = head("chat.completion");
    out.raw("choices", join_list(list)).raw("usage", usage_json(usage));
    if (o_.token_ids) out.raw("prompt_token_ids", number_list(o_.prompt_ids));
    return out.done();
  }

 private:
  Obj head(std::string_view object) const {
    Obj out;
    out.str("id", id_)
        .str("object", object)
        .num("created", o_.created)
        .str("model", o_.model)
        .str("system_fingerprint", "fathom-" FATHOM_VERSION);
    return out;
  }

  std::string chunk(std::size_t index, std::string_view delta, std::string_view logprobs,
                    std::string_view finish) const {
    Obj choice;
    choice.num("index", static_cast<std::int64_t>(index))
        .raw("delta", delta)
        .raw("logprobs", logprobs)
        .raw("finish_reason", finish);
    Obj out = head("chat.completion.chunk");
    out.raw("choices", join_list({choice.done()}));
    if (o_.usage_in_chunks) out.raw("usage", usage_so_far_json(used_));
    else if (o_.include_usage) out.null("usage");
    return sse(out.done());
  }

  std::string role(std::size_t index) {
    if (index >= greeted_.size()) greeted_.resize(index + 1);
    if (greeted_[index]) return {};
    greeted_[index] = true;
    return chunk(index, Obj().str("role", "assistant").str("content", "").done(), "null", "null");
  }

  static std::string delta(const Choice& choice, const text::ParserEvent& event) {
    switch (event.kind) {
      case Kind::kReasoning: return Obj().str("reasoning_content", event.text).done();
      case Kind::kContent: return Obj().str("content", event.text).done();
      case Kind::kToolStart: {
        const Call& call = choice.calls[static_cast<std::size_t>(event.index)];
        return call_delta(Obj()
                              .num("index", event.index)
                              .str("id", call.id)
                              .str("type", "function")
                              .raw("function", Obj().str("name", call.name).str("arguments", "").done())
                              .done());
      }
      case Kind::kToolArgs:
        return call_delta(
            Obj().num("index", event.index).raw("function", Obj().str("arguments", event.text).done()).done());
    }
    return "{}";
  }
  static std::string call_delta(std::string call) {
    return Obj().raw("tool_calls", join_list({std::move(call)})).done();
  }

  std::string whole_choice(std::size_t index, const Choice& choice) const {
    std::vector<std::string> calls;
    for (const Call& call : choice.calls) {
      if (!call.complete) continue;
      calls.push_back(Obj()
                          .str("id", call.id)
                          .str("type", "function")
                          .raw("function", Obj().str("name", call.name).str("arguments", call.arguments).done())
                          .done());
    }
    Obj message;
    message.str("role", "assistant");
    if (choice.content.empty() && !calls.empty()) message.null("content");
    else message.str("content", choice.content);
    if (o_.thinking || !choice.reasoning.empty()) message.str("reasoning_content", choice.reasoning);
    if (!calls.empty()) message.raw("tool_calls", join_list(calls));
    message.null("refusal");
    Obj out;
    out.num("index", static_cast<std::int64_t>(index)).raw("message", message.done());
    out.raw("logprobs", o_.logprobs ? logprobs_json(choice.tokens) : "null");
    out.str("finish_reason", text::finish_reason_name(choice.end ? choice.end->reason : text::FinishReason::kStop));
    if (o_.token_ids) {
      std::vector<std::int32_t> ids;
      for (const TokenReport& t : choice.tokens) ids.push_back(t.sampled.id);
      out.raw("token_ids", number_list(ids));
    }
    return out.done();
  }

  static bool shows(const std::vector<TokenReport>& tokens) {
    for (const TokenReport& t : tokens) {
      if (t.part != Part::kHidden) return true;
    }
    return false;
  }

  Obj entry(std::int32_t id, float logprob) const {
    Obj out;
    out.raw("token", token_text_json(*o_.tokenizer, id))
        .raw("logprob", number(logprob))
        .raw("bytes", token_bytes_json(*o_.tokenizer, id));
    return out;
  }

  std::string logprobs_json(const std::vector<TokenReport>& tokens) const {
    std::vector<std::string> content;
    std::vector<std::string> reasoning;
    for (const TokenReport& t : tokens) {
      if (t.part == Part::kHidden) continue;
      std::vector<std::string> top;
      for (const auto& other : t.sampled.top) top.push_back(entry(other.id, other.logprob).done());
      Obj one = entry(t.sampled.id, t.sampled.logprob);
      one.raw("top_logprobs", join_list(top));
      (t.part == Part::kContent ? content : reasoning).push_back(one.done());
    }
    Obj out;
    out.raw("content", join_list(content)).null("refusal");
    if (!reasoning.empty()) out.raw("reasoning_content", join_list(reasoning));
    return out.done();
  }

  const WriterOptions o_;
  const std::string id_;
  Usage used_;
  std::vector<bool> greeted_;
};

}  // namespace

std::unique_ptr<Writer> make_chat_writer(WriterOptions options) {
  return std::make_unique<ChatWriter>(std::move(options));
}

}  // namespace fathom::server

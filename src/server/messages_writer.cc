// Messages: http-api.md 8.2 and 8.3.
#include <fmt/format.h>

#include <utility>

#include "server/json_out.h"
#include "server/writers.h"
#include "text/turn_memory.h"

namespace fathom::server {
namespace {

using Kind = text::ParserEvent::Kind;

std::string event(std::string_view name, Obj data) { return fmt::format("event: {}\ndata: {}\n\n", name, data.done()); }
Obj typed(std::string_view type) {
  Obj out;
  out.str("type", type);
  return out;
}

std::string usage_json(const Usage& u) {
  return Obj()
      .num("input_tokens", u.prompt - u.cached)
      .num("cache_creation_input_tokens", 0)
      .num("cache_read_input_tokens", u.cached)
      .num("output_tokens", u.completion)
      .done();
}

std::string_view stop_reason(const ChoiceEnd& end) {
  if (end.matched_stop) return "stop_sequence";
  switch (end.reason) {
    case text::FinishReason::kLength: return "max_tokens";
    case text::FinishReason::kToolCalls: return "tool_use";
    case text::FinishReason::kStop: return "end_turn";
  }
  return "end_turn";
}

std::string stop_sequence(const ChoiceEnd& end) { return end.matched_stop ? quote(*end.matched_stop) : "null"; }

class MessagesWriter final : public Writer {
 public:
  explicit MessagesWriter(WriterOptions options) : o_(std::move(options)), id_(text::new_call_id("msg_")) {}

  std::string_view call_prefix() const override { return "toolu_"; }
  std::string keep_alive() const override { return event("ping", typed("ping")); }

  std::string begin(const Usage& known) override {
    Obj message = head();
    message.raw("content", "[]").null("stop_reason").null("stop_sequence").raw("usage", usage_json(known));
    return event("message_start", typed("message_start").raw("message", message.done())) + keep_alive();
  }

  std::string piece(std::size_t, const Choice& choice, const Piece& piece) override {
    std::string out;
    for (const text::ParserEvent& e : piece.events) {
      switch (e.kind) {
        case Kind::kReasoning:
          out += open(Block::kThinking, R"({"type":"thinking","thinking":"","signature":""})");
          out += delta(typed("thinking_delta").str("thinking", e.text));
          break;
        case Kind::kContent:
          out += open(Block::kText, R"({"type":"text","text":""})");
          out += delta(typed("text_delta").str("text", e.text));
          break;
        case Kind::kToolStart: {
          const Call& call = choice.calls[static_cast<std::size_t>(e.index)];
          out += close();
          out +=
              open(Block::kTool, typed("tool_use").str("id", call.id).str("name", call.name).raw("input", "{}").done());
          break;
        }
        case Kind::kToolArgs: out += delta(typed("input_json_delta").str("partial_json", e.text)); break;
      }
    }
    return out;
  }

  std::string choice_end(std::size_t, const Choice&) override {
    std::string out;
    if (index_ == 0 && open_ == Block::kNone) out = open(Block::kText, R"({"type":"text","text":""})");
    return out + close();
  }

  std::string end(const std::vector<Choice>& choices, const Usage& usage) override {
    const ChoiceEnd& end = *choices[0].end;
    Obj delta;
    delta.str("stop_reason", stop_reason(end)).raw("stop_sequence", stop_sequence(end));
    return event("message_delta", typed("message_delta").raw("delta", delta.done()).raw("usage", usage_json(usage))) +
           event("message_stop", typed("message_stop"));
  }

  std::string error(const Refusal& r) override {
    return fmt::format("event: error\ndata: {}\n\n", error_json(r, true, o_.request_id));
  }

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& c = choices[0];
    std::vector<std::string> blocks;
    if (!c.reasoning.empty())
      blocks.push_back(typed("thinking").str("thinking", c.reasoning).str("signature", "").done());
    if (!c.content.empty()) blocks.push_back(typed("text").str("text", c.content).done());
    for (const Call& call : c.calls) {
      if (!call.complete) continue;
      blocks.push_back(typed("tool_use").str("id", call.id).str("name", call.name).raw("input", call.arguments).done());
    }
    if (blocks.empty()) blocks.push_back(typed("text").str("text", "").done());
    const ChoiceEnd end = c.end.value_or(ChoiceEnd{});
    Obj out = head();
    return out.raw("content", join_list(blocks))
        .str("stop_reason", stop_reason(end))
        .raw("stop_sequence", stop_sequence(end))
        .raw("usage", usage_json(usage))
        .done();
  }

 private:
  enum class Block : std::uint8_t { kNone, kThinking, kText, kTool };

  Obj head() const {
    Obj out;
    out.str("id", id_).str("type", "message").str("role", "assistant").str("model", o_.model);
    return out;
  }

  // Makes this the open block.
  std::string open(Block block, std::string_view json) {
    if (open_ == block) return {};
    std::string out = close();
    open_ = block;
    return out +
           event("content_block_start", typed("content_block_start").num("index", index_).raw("content_block", json));
  }
  std::string delta(Obj& what) const {
    return event("content_block_delta", typed("content_block_delta").num("index", index_).raw("delta", what.done()));
  }
  std::string close() {
    if (open_ == Block::kNone) return {};
    std::string out;
    if (open_ == Block::kThinking) out = delta(typed("signature_delta").str("signature", ""));
    out += event("content_block_stop", typed("content_block_stop").num("index", index_++));
    open_ = Block::kNone;
    return out;
  }

  const WriterOptions o_;
  const std::string id_;
  Block open_ = Block::kNone;
  std::int64_t index_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_messages_writer(WriterOptions options) {
  return std::make_unique<MessagesWriter>(std::move(options));
}

}  // namespace fathom::server

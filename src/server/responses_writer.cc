// Responses: http-api.md 7.2 and 7.3.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/json_out.h"
#include "server/writers.h"
#include "text/json_value.h"
#include "text/turn_memory.h"

namespace fathom::server {
namespace {

using Kind = text::ParserEvent::Kind;

std::string usage_json(const Usage& u) {
  return Obj()
      .num("input_tokens", u.prompt)
      .raw("input_tokens_details", Obj().num("cached_tokens", u.cached).num("cache_write_tokens", 0).done())
      .num("output_tokens", u.completion)
      .raw("output_tokens_details", Obj().num("reasoning_tokens", u.reasoning).done())
      .num("total_tokens", u.prompt + u.completion)
      .done();
}

// The one parameter of a custom tool, as the text it is.
std::string input_of(const std::string& arguments) {
  const auto json = text::parse_json_value(arguments, "");
  const text::JsonValue* input = json ? json->get("input") : nullptr;
  return input != nullptr && input->is_string() ? input->text : arguments;
}

class ResponsesWriter final : public Writer {
 public:
  explicit ResponsesWriter(ResponsesOptions options) : o_(std::move(options)), id_(text::new_call_id("resp_")) {}

  std::string begin(const Usage&) override {
    const std::string response = object("in_progress", nullptr);
    std::string out = event("response.created", Obj().raw("response", response));
    out += event("response.in_progress", Obj().raw("response", response));
    return out;
  }

  std::string piece(std::size_t, const Choice& choice, const Piece& piece) override {
    std::string out;
    for (const text::ParserEvent& e : piece.events) {
      switch (e.kind) {
        case Kind::kReasoning: out += more(Item::Type::kReasoning, "response.reasoning_text.delta", e.text); break;
        case Kind::kContent: out += more(Item::Type::kMessage, "response.output_text.delta", e.text); break;
        case Kind::kToolStart: {
          const Call& call = choice.calls[static_cast<std::size_t>(e.index)];
          out += close("completed");
          out += open(is_custom(call.name) ? Item::Type::kCustom : Item::Type::kFunction, &call);
          break;
        }
        case Kind::kToolArgs:
          items_.back().text += e.text;
          // The text of a custom call is inside the JSON; it is sent in one piece when that is complete.
          if (items_.back().type == Item::Type::kFunction)
            out += event("response.function_call_arguments.delta", at_item().str("delta", e.text));
          break;
      }
    }
    return out;
  }

  std::string choice_end(std::size_t, const Choice& choice) override {
    const bool cut = choice.end->reason == text::FinishReason::kLength;
    std::string out;
    if (items_.empty() && !cut) out = open(Item::Type::kMessage, nullptr);
    return out + close(cut ? "incomplete" : "completed");
  }

  std::string end(const std::vector<Choice>& choices, const Usage& usage) override {
    const bool cut = choices[0].end->reason == text::FinishReason::kLength;
    return event(cut ? "response.incomplete" : "response.completed",
                 Obj().raw("response", object(cut ? "incomplete" : "completed", &usage)));
  }

  std::string error(const Refusal& r) override {
    failure_ = Obj().str("code", r.code.empty() ? "server_error" : r.code).str("message", r.message).done();
    return event("response.failed", Obj().raw("response", object("failed", nullptr)));
  }

  std::string whole(const std::vector<Choice>& choices, const Usage& usage) override {
    Piece all;
    const Choice& c = choices[0];
    if (!c.reasoning.empty()) all.events.push_back({Kind::kReasoning, 0, c.reasoning});
    if (!c.content.empty()) all.events.push_back({Kind::kContent, 0, c.content});
    for (std::size_t i = 0; i < c.calls.size(); ++i) {
      if (!c.calls[i].complete) continue;
      all.events.push_back({Kind::kToolStart, static_cast<int>(i), c.calls[i].name});
      all.events.push_back({Kind::kToolArgs, static_cast<int>(i), c.calls[i].arguments});
    }
    piece(0, c, all);
    choice_end(0, c);
    return object(c.end->reason == text::FinishReason::kLength ? "incomplete" : "completed", &usage);
  }

 private:
  struct Item {
    enum class Type : std::uint8_t { kReasoning, kMessage, kFunction, kCustom } type;
    std::string id;
    std::string call_id = {};
    std::string name = {};
    std::string text = {};
    std::string status = "in_progress";
  };

  bool is_custom(const std::string& name) const {
    return std::find(o_.custom_tools.begin(), o_.custom_tools.end(), name) != o_.custom_tools.end();
  }

  static std::string part_json(const Item& item, std::string_view text) {
    if (item.type == Item::Type::kReasoning) return Obj().str("type", "reasoning_text").str("text", text).done();
    return Obj().str("type", "output_text").str("text", text).raw("annotations", "[]").raw("logprobs", "[]").done();
  }

  static std::string item_json(const Item& item) {
    const bool begun = item.status != "in_progress";
    const std::string content = begun ? join_list({part_json(item, item.text)}) : "[]";
    Obj out;
    switch (item.type) {
      case Item::Type::kReasoning:
        out.str("type", "reasoning")
            .str("id", item.id)
            .raw("summary", "[]")
            .raw("content", content)
            .null("encrypted_content");
        break;
      case Item::Type::kMessage:
        out.str("type", "message").str("id", item.id).str("role", "assistant").raw("content", content);
        break;
      case Item::Type::kFunction: {
        // A tool of a namespace was shown as NAMESPACE::NAME.
        const std::size_t colons = item.name.find("::");
        out.str("type", "function_call").str("id", item.id).str("call_id", item.call_id);
        if (colons != std::string::npos) out.str("namespace", item.name.substr(0, colons));
        out.str("name", colons == std::string::npos ? item.name : item.name.substr(colons + 2))
            .str("arguments", item.text);
        break;
      }
      case Item::Type::kCustom:
        out.str("type", "custom_tool_call").str("id", item.id).str("call_id", item.call_id).str("name", item.name);
        out.str("input", begun ? input_of(item.text) : "");
        break;
    }
    return out.str("status", item.status).done();
  }

  std::string object(std::string_view status, const Usage* usage) const {
    std::vector<std::string> output;
    if (status != "in_progress") {
      for (const Item& item : items_) output.push_back(item_json(item));
    }
    Obj out;
    out.str("id", id_).str("object", "response").num("created_at", o_.common.created).str("status", status);
    out.yes("background", false).raw("error", failure_);
    out.raw("incomplete_details", status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null");
    for (const auto& [key, json] : o_.echo) out.raw(key, json);
    out.str("model", o_.common.model).raw("output", join_list(output)).null("previous_response_id").yes("store", false);
    out.str("truncation", "disabled").raw("usage", usage != nullptr ? usage_json(*usage) : "null");
    return out.done();
  }

  std::string event(std::string_view type, Obj payload) {
    Obj data;
    data.str("type", type).num("sequence_number", sequence_++);
    return fmt::format("event: {}\ndata: {}\n\n", type, data.merge(payload).done());
  }
  Obj at_item() const {
    Obj out;
    out.str("item_id", items_.back().id).num("output_index", static_cast<std::int64_t>(items_.size()) - 1);
    return out;
  }
  Obj at_part() const { return at_item().num("content_index", 0); }

  std::string open(Item::Type type, const Call* call) {
    static constexpr std::string_view kPrefixes[] = {"rs_", "msg_", "fc_", "ctc_"};
    Item item{.type = type, .id = text::new_call_id(kPrefixes[static_cast<std::size_t>(type)])};
    if (call != nullptr) {
      item.call_id = call->id;
      item.name = call->name;
    }
    items_.push_back(std::move(item));
    is_open_ = true;
    Obj payload;
    payload.num("output_index", static_cast<std::int64_t>(items_.size()) - 1).raw("item", item_json(items_.back()));
    std::string out = event("response.output_item.added", payload);
    if (call == nullptr)
      out += event("response.content_part.added", at_part().raw("part", part_json(items_.back(), "")));
    return out;
  }

  std::string more(Item::Type type, std::string_view name, const std::string& text) {
    std::string out;
    if (!is_open_ || items_.back().type != type) {
      out = close("completed");
      out += open(type, nullptr);
    }
    items_.back().text += text;
    Obj payload = at_part().str("delta", text);
    if (type == Item::Type::kMessage) payload.raw("logprobs", "[]");
    return out + event(name, payload);
  }

  std::string close(std::string status) {
    if (!is_open_) return {};
    is_open_ = false;
    Item& item = items_.back();
    item.status = std::move(status);
    std::string out;
    switch (item.type) {
      case Item::Type::kReasoning: out = event("response.reasoning_text.done", at_part().str("text", item.text)); break;
      case Item::Type::kMessage:
        out = event("response.output_text.done", at_part().str("text", item.text).raw("logprobs", "[]"));
        break;
      case Item::Type::kFunction:
        out = event("response.function_call_arguments.done",
                    at_item().str("name", item.name).str("arguments", item.text));
        break;
      case Item::Type::kCustom: {
        const std::string input = input_of(item.text);
        out = event("response.custom_tool_call_input.delta", at_item().str("delta", input));
        out += event("response.custom_tool_call_input.done", at_item().str("input", input));
        break;
      }
    }
    if (item.type == Item::Type::kReasoning || item.type == Item::Type::kMessage) {
      out += event("response.content_part.done", at_part().raw("part", part_json(item, item.text)));
    }
    Obj payload;
    payload.num("output_index", static_cast<std::int64_t>(items_.size()) - 1).raw("item", item_json(item));
    return out + event("response.output_item.done", payload);
  }

  const ResponsesOptions o_;
  const std::string id_;
  std::string failure_ = "null";
  std::vector<Item> items_;
  bool is_open_ = false;
  std::int64_t sequence_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_responses_writer(ResponsesOptions options) {
  return std::make_unique<ResponsesWriter>(std::move(options));
}

}  // namespace fathom::server

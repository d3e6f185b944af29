// Messages, the Anthropic dialect. prompt-encoding.md 3.3; http-api.md 8.1.
#include <fmt/format.h>

#include "text/api_mapper.h"

namespace fathom::text {
namespace {

using OtherParts = ApiMapper::OtherParts;

// A string, or text blocks joined by blank lines, empty ones left out. Clients put a changing billing line in front,
// which would ruin the prefix cache: a block that begins with its mark is dropped.
bool system_text(ApiMapper& m, const JsonValue& content, const std::string& where, std::string& out) {
  if (content.is_string()) {
    out = content.text;
    return true;
  }
  if (!content.is_array()) return m.wrong(where, "a string or a list of text blocks");
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const JsonValue* type = content.items[i].get("type");
    std::string text;
    if (type == nullptr || type->text != "text") return m.wrong(at, "a text block");
    if (!m.need_string(content.items[i], "text", at + ".text", text)) return false;
    if (text.empty() || text.starts_with("x-anthropic-")) continue;
    if (!out.empty()) out += "\n\n";
    out += text;
  }
  return true;
}

bool user_block(ApiMapper& m, const JsonValue& block, const std::string& where) {
  std::string type;
  Message out;
  if (!block.is_object() || !m.need_string(block, "type", where + ".type", type)) return m.wrong(where, "a block");
  if (type == "text") {
    if (!m.need_string(block, "text", where + ".text", out.content)) return false;
  } else if (type == "tool_result") {
    out.role = Role::kTool;
    if (!m.need_string(block, "tool_use_id", where + ".tool_use_id", out.tool_call_id)) return false;
    const JsonValue* content = block.get("content");
    if (content != nullptr && !m.joined_content(*content, OtherParts::kPlaceholder, where + ".content", out.content)) {
      return false;
    }
  } else {
    out.content = fmt::format("[Unsupported {}]", type);
  }
  m.add(std::move(out));
  return true;
}

bool assistant_block(ApiMapper& m, const JsonValue& block, const std::string& where, Message& out) {
  std::string type;
  std::string text;
  if (!block.is_object() || !m.need_string(block, "type", where + ".type", type)) return m.wrong(where, "a block");
  const auto join = [&](std::string& to) {
    if (!to.empty() && !text.empty()) to += "\n\n";
    to += text;
  };
  if (type == "thinking") {
    if (!m.need_string(block, "thinking", where + ".thinking", text)) return false;
    join(out.reasoning);
  } else if (type == "text") {
    if (!m.need_string(block, "text", where + ".text", text)) return false;
    join(out.content);
  } else if (type == "tool_use") {
    ToolCall call;
    if (!m.need_string(block, "id", where + ".id", call.id)) return false;
    if (!m.need_string(block, "name", where + ".name", call.name)) return false;
    const JsonValue* input = block.get("input");
    if (input != nullptr && !append_json_text(*input, call.arguments)) {
      return m.wrong(where + ".input", "numbers that fit a double");
    }
    out.tool_calls.push_back(std::move(call));
  }
  return true;  // other blocks (redacted thinking, server tools) have no representation
}

bool message(ApiMapper& m, const JsonValue& json, const std::string& where) {
  std::string role;
  if (!json.is_object()) return m.wrong(where, "an object");
  if (!m.need_string(json, "role", where + ".role", role)) return false;
  const JsonValue* content = json.get("content");
  if (role != "user" && role != "assistant" && role != "system") {
    return m.reject(where + ".role", "invalid_value", fmt::format("{}.role: unknown role \"{}\"", where, role));
  }
  const std::string at = where + ".content";
  if (content == nullptr || !(content->is_string() || content->is_array()))
    return m.wrong(at, "a string or a list of blocks");
  if (role == "system") {
    std::string text;
    if (!system_text(m, *content, at, text)) return false;
    m.system_text(std::move(text));
    return true;
  }
  Message whole;
  whole.role = role == "user" ? Role::kUser : Role::kAssistant;
  whole.content = content->text;
  const bool blocks = content->is_array();
  for (std::size_t i = 0; blocks && i < content->items.size(); ++i) {
    const std::string block = fmt::format("{}[{}]", at, i);
    const bool ok = whole.role == Role::kUser ? user_block(m, content->items[i], block)
                                              : assistant_block(m, content->items[i], block, whole);
    if (!ok) return false;
  }
  // User blocks have become messages of their own.
  if (whole.role == Role::kAssistant || !blocks || content->items.empty()) m.add(std::move(whole));
  return true;
}

bool tools(ApiMapper& m) {
  const JsonValue* list = m.body().get("tools");
  if (list == nullptr) return true;
  if (!list->is_array()) return m.wrong("tools", "a list");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    if (!list->items[i].is_object()) return m.wrong(where, "an object");
    if (list->items[i].get("input_schema") == nullptr) continue;  // tools that the vendor's service runs
    ToolSpec tool;
    if (!m.function_tool(list->items[i], "input_schema", where, tool)) return false;
    if (!m.add_tool(std::move(tool), where + ".name")) return false;
  }
  return true;
}

bool tool_choice(ApiMapper& m) {
  const JsonValue* choice = m.body().get("tool_choice");
  if (choice == nullptr) return true;
  const JsonValue* type = choice->get("type");
  const std::string name = type != nullptr && type->is_string() ? type->text : "";
  bool one_at_a_time = false;
  if (!m.read_bool(*choice, "disable_parallel_tool_use", "tool_choice", one_at_a_time)) return false;
  m.out().parallel_calls = !one_at_a_time;
  if (name == "auto") return true;
  if (name == "none") return m.out().tools.clear(), true;
  if (name == "any") return m.force_call("tool_choice");
  std::string tool;
  if (name == "tool") return m.need_string(*choice, "name", "tool_choice", tool) && m.name_tool(tool, "tool_choice");
  return m.wrong("tool_choice", "type auto, any, tool or none");
}

}  // namespace

bool map_messages(ApiMapper& m) {
  if (const JsonValue* system = m.body().get("system")) {
    std::string text;
    if (!system_text(m, *system, "system", text)) return false;
    m.system_text(std::move(text));
  }
  const JsonValue* list = m.body().get("messages");
  if (list == nullptr) return m.reject("messages", "missing_field", "messages: missing");
  if (!list->is_array() || list->items.empty()) return m.wrong("messages", "a list with at least one message");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    if (!message(m, list->items[i], fmt::format("messages[{}]", i))) return false;
  }
  // A final assistant message is continued: prefill semantics.
  if (Message& last = m.out().messages.back(); last.role == Role::kAssistant) {
    last.open = true;
    m.out().continues_answer = true;
  }
  if (!tools(m) || !tool_choice(m)) return false;
  const JsonValue* config = m.body().get("output_config");
  const JsonValue* format = config == nullptr ? nullptr : config->get("format");
  return format == nullptr || m.response_format(*format, format, "output_config.format");
}

}  // namespace fathom::text

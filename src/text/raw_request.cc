#include "text/raw_request.h"

#include <fmt/format.h>

namespace fathom::text {
namespace {

Result<std::string> string_of(const JsonValue& object, std::string_view key, const std::string& where) {
  const JsonValue* value = object.get(key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return fail(Code::kInvalid, "{}.{}: expected a string", where, key);
  return value->text;
}

Result<bool> bool_of(const JsonValue& object, std::string_view key, bool otherwise) {
  const JsonValue* value = object.get(key);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) return fail(Code::kInvalid, "{}: expected true or false", key);
  return value->is_true();
}

Role role_of(const std::string& name) {
  if (name == "system") return Role::kSystem;
  if (name == "developer") return Role::kDeveloper;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kLatestReminder;
  return Role::kUnknown;
}

// Text parts and placeholders, joined by blank lines. (2.7)
Result<std::string> joined_parts(const JsonValue& list, const std::string& where) {
  std::string out;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const std::string part = fmt::format("{}.content[{}]", where, i);
    FATHOM_ASSIGN(const std::string type, string_of(list.items[i], "type", part));
    FATHOM_ASSIGN(const std::string text, string_of(list.items[i], "text", part));
    if (i > 0) out += "\n\n";
    out += type == "text" ? text : fmt::format("[Unsupported {}]", type);
  }
  return out;
}

Result<std::vector<ToolCall>> tool_calls_of(const JsonValue& message, const std::string& where) {
  std::vector<ToolCall> calls;
  const JsonValue* list = message.get("tool_calls");
  if (list == nullptr) return calls;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string at = fmt::format("{}.tool_calls[{}]", where, i);
    const JsonValue* function = list->items[i].get("function");
    if (function == nullptr) return fail(Code::kInvalid, "{}: no function", at);
    ToolCall& call = calls.emplace_back();
    FATHOM_ASSIGN(call.id, string_of(list->items[i], "id", at));
    FATHOM_ASSIGN(call.name, string_of(*function, "name", at));
    const JsonValue* arguments = function->get("arguments");
    if (arguments != nullptr && arguments->is_object()) {
      FATHOM_TRY(append_json_text(*arguments, call.arguments));
    } else {
      FATHOM_ASSIGN(call.arguments, string_of(*function, "arguments", at));
    }
  }
  return calls;
}

Result<std::vector<std::string>> tools_of(const JsonValue& message, const std::string& where) {
  std::vector<std::string> tools;
  const JsonValue* list = message.get("tools");
  if (list == nullptr) return tools;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const JsonValue* function = list->items[i].get("function");
    if (function == nullptr) return fail(Code::kInvalid, "{}.tools[{}]: no function", where, i);
    FATHOM_TRY(append_json_text(*function, tools.emplace_back()));
  }
  return tools;
}

Result<Message> read_message(const JsonValue& json, const std::string& where) {
  if (!json.is_object()) return fail(Code::kInvalid, "{}: expected an object", where);
  Message m;
  FATHOM_ASSIGN(m.role_name, string_of(json, "role", where));
  m.role = role_of(m.role_name);
  const JsonValue* content = json.get("content");
  if (content != nullptr && content->is_array() && m.role == Role::kTool) {
    FATHOM_ASSIGN(m.content, joined_parts(*content, where));
  } else {
    FATHOM_ASSIGN(m.content, string_of(json, "content", where));
  }
  FATHOM_ASSIGN(m.reasoning, string_of(json, "reasoning_content", where));
  FATHOM_ASSIGN(m.tool_call_id, string_of(json, "tool_call_id", where));
  FATHOM_ASSIGN(m.tool_calls, tool_calls_of(json, where));
  FATHOM_ASSIGN(m.tools, tools_of(json, where));
  FATHOM_ASSIGN(m.open, bool_of(json, "wo_eos", false));
  if (const JsonValue* format = json.get("response_format")) {
    FATHOM_TRY(append_json_text(*format, m.response_format.emplace()));
  }
  if (json.get("task") != nullptr) {
    FATHOM_ASSIGN(m.task, string_of(json, "task", where));
  }
  return m;
}

Result<std::vector<Message>> read_messages(const JsonValue& input, std::string_view key) {
  std::vector<Message> messages;
  const JsonValue* list = input.get(key);
  if (list == nullptr) return messages;
  if (!list->is_array()) return fail(Code::kInvalid, "{}: expected a list", key);
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    FATHOM_ASSIGN(Message m, read_message(list->items[i], fmt::format("{}[{}]", key, i)));
    messages.push_back(std::move(m));
  }
  return messages;
}

}  // namespace

Result<RawRequest> read_raw_request(const JsonValue& input) {
  if (!input.is_object()) return fail(Code::kInvalid, "the request is not an object");
  RawRequest request;
  request.options.strict_arguments = true;
  if (input.get("messages") == nullptr) return fail(Code::kInvalid, "messages: missing");
  FATHOM_ASSIGN(request.messages, read_messages(input, "messages"));
  FATHOM_ASSIGN(request.context, read_messages(input, "context"));
  FATHOM_ASSIGN(const std::string mode, string_of(input, "thinking_mode", "input"));
  if (mode != "chat" && mode != "thinking") {
    return fail(Code::kInvalid, "thinking_mode: \"{}\" is neither \"chat\" nor \"thinking\"", mode);
  }
  request.options.thinking = mode == "thinking";
  if (input.get("reasoning_effort") != nullptr) {
    FATHOM_ASSIGN(const std::string name, string_of(input, "reasoning_effort", "input"));
    const auto effort = effort_from_name(name);
    if (!effort) return fail(Code::kInvalid, "reasoning_effort: unknown level \"{}\"", name);
    request.options.effort = *effort;
  }
  FATHOM_ASSIGN(request.options.drop_thinking, bool_of(input, "drop_thinking", true));
  FATHOM_ASSIGN(request.options.add_bos, bool_of(input, "add_bos", true));
  return request;
}

}  // namespace fathom::text

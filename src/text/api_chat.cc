// Chat Completions. prompt-encoding.md 3.2, 3.5 to 3.7; http-api.md 5.1.
#include <fmt/format.h>

#include "text/api_mapper.h"

namespace fathom::text {
namespace {

using OtherParts = ApiMapper::OtherParts;

bool tools(ApiMapper& m) {
  for (const char* legacy : {"functions", "function_call"}) {
    if (m.body().get(legacy) != nullptr) {
      return m.reject(legacy, "unsupported", fmt::format("{}: use tools and tool_choice instead", legacy));
    }
  }
  const JsonValue* list = m.body().get("tools");
  if (list == nullptr) return true;
  if (!list->is_array()) return m.wrong("tools", "a list");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const JsonValue* type = list->items[i].get("type");
    if (type == nullptr || type->text != "function") return m.wrong(where + ".type", "\"function\"");
    const JsonValue* function = list->items[i].get("function");
    ToolSpec tool;
    if (function == nullptr) return m.wrong(where + ".function", "an object");
    if (!m.function_tool(*function, "parameters", where + ".function", tool)) return false;
    if (!m.add_tool(std::move(tool), where + ".function.name")) return false;
  }
  return true;
}

bool tool_choice(ApiMapper& m) {
  const std::string where = "tool_choice";
  const JsonValue* choice = m.body().get(where);
  if (choice == nullptr) return true;
  if (choice->is_string()) {
    if (choice->text == "auto") return true;
    if (choice->text == "none") return m.out().tools.clear(), true;
    if (choice->text == "required" || choice->text == "any") return m.force_call(where);
  }
  const JsonValue* type = choice->get("type");
  if (type != nullptr && type->text == "function") {
    const JsonValue* function = choice->get("function");
    std::string name;
    if (function == nullptr || !m.need_string(*function, "name", where, name)) return m.wrong(where, "function.name");
    return m.name_tool(name, where);
  }
  if (type != nullptr && type->text == "allowed_tools") {
    const JsonValue* allowed = choice->get("allowed_tools");
    return m.allow_tools(allowed != nullptr ? *allowed : *choice, where);
  }
  return m.wrong(where, "auto, none, required or a function");
}

bool tool_calls(ApiMapper& m, const JsonValue& message, const std::string& where, std::vector<ToolCall>& calls) {
  const JsonValue* list = message.get("tool_calls");
  if (list == nullptr) return true;
  if (!list->is_array()) return m.wrong(where, "a list");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    const JsonValue& json = list->items[i];
    const JsonValue* function = json.get("function");
    if (function == nullptr || !function->is_object()) return m.wrong(at + ".function", "an object");
    ToolCall call;
    if (!m.need_string(json, "id", at + ".id", call.id)) return false;
    if (!m.need_string(*function, "name", at + ".function.name", call.name)) return false;
    const JsonValue* arguments = function->find("arguments");
    if (arguments == nullptr) return m.wrong(at + ".function.arguments", "a string");
    if (arguments->is_object()) {
      if (const auto done = append_json_text(*arguments, call.arguments); !done) {
        return m.wrong(at + ".function.arguments", "numbers that fit a double");
      }
    } else if (!m.read_string(*function, "arguments", at + ".function.arguments", call.arguments)) {
      return false;
    }
    calls.push_back(std::move(call));
  }
  return true;
}

bool assistant(ApiMapper& m, const JsonValue& json, const std::string& where) {
  Message out;
  out.role = Role::kAssistant;
  const JsonValue* content = json.get("content");
  if (content != nullptr && !m.joined_content(*content, OtherParts::kReject, where + ".content", out.content))
    return false;
  if (!tool_calls(m, json, where + ".tool_calls", out.tool_calls)) return false;
  if (content == nullptr && out.tool_calls.empty()) return m.wrong(where, "content or tool_calls");
  if (!m.read_string(json, "reasoning_content", where + ".reasoning_content", out.reasoning)) return false;
  // The name that other servers use; it may hold other things there.
  const JsonValue* reasoning = json.get("reasoning");
  if (json.get("reasoning_content") == nullptr && reasoning != nullptr && reasoning->is_string()) {
    out.reasoning = reasoning->text;
  }
  m.add(std::move(out));
  return true;
}

bool message(ApiMapper& m, const JsonValue& json, const std::string& where) {
  std::string role;
  if (!json.is_object()) return m.wrong(where, "an object");
  if (!m.need_string(json, "role", where + ".role", role)) return false;
  if (role == "assistant") return assistant(m, json, where);
  Message out;
  const JsonValue* content = json.get("content");
  const bool tool = role == "tool";
  if (role != "system" && role != "developer" && role != "user" && !tool && role != "latest_reminder") {
    return m.reject(where + ".role", "invalid_value", fmt::format("{}.role: unknown role \"{}\"", where, role));
  }
  if (content == nullptr && !tool) return m.wrong(where + ".content", "a string or a list of parts");
  const OtherParts other = tool ? OtherParts::kPlaceholder : OtherParts::kReject;
  if (content != nullptr && !m.joined_content(*content, other, where + ".content", out.content)) return false;
  if (role == "system" || role == "developer") return m.system_text(std::move(out.content)), true;
  out.role = tool ? Role::kTool : role == "user" ? Role::kUser : Role::kLatestReminder;
  if (tool && !m.need_string(json, "tool_call_id", where + ".tool_call_id", out.tool_call_id)) return false;
  m.add(std::move(out));
  return true;
}

// prefix on the last message, continue_final_message, add_generation_prompt. (3.7)
bool ending(ApiMapper& m, const JsonValue& last) {
  bool continues = false;
  bool generation_prompt = true;
  if (!m.read_bool(m.body(), "continue_final_message", "continue_final_message", continues)) return false;
  if (!m.read_bool(m.body(), "add_generation_prompt", "add_generation_prompt", generation_prompt)) return false;
  if (continues && m.body().get("add_generation_prompt") != nullptr && generation_prompt) {
    return m.wrong("continue_final_message", "add_generation_prompt false beside it");
  }
  const bool ends_in_answer = !m.out().messages.empty() && m.out().messages.back().role == Role::kAssistant;
  if (continues && !ends_in_answer) return m.wrong("continue_final_message", "an assistant message at the end");
  bool prefix = false;
  if (!m.read_bool(last, "prefix", "messages", prefix)) return false;
  continues = continues || (prefix && ends_in_answer);
  if (continues) m.out().messages.back().open = true;
  m.out().continues_answer = continues;
  m.out().options.answer_header = generation_prompt || continues;
  return true;
}

// Text is all that can be asked for.
bool modalities(ApiMapper& m) {
  if (m.body().get("audio") != nullptr) return m.reject("audio", "unsupported", "audio: this model writes text only");
  const JsonValue* list = m.body().get("modalities");
  if (list == nullptr) return true;
  if (!list->is_array()) return m.wrong("modalities", "a list");
  for (const JsonValue& item : list->items) {
    if (item.is_string() && item.text == "text") continue;
    return m.reject("modalities", "unsupported", "modalities: this model writes text only");
  }
  return true;
}

}  // namespace

bool map_chat(ApiMapper& m) {
  const JsonValue* list = m.body().get("messages");
  if (list == nullptr) return m.reject("messages", "missing_field", "messages: missing");
  if (!list->is_array() || list->items.empty()) return m.wrong("messages", "a list with at least one message");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    if (!message(m, list->items[i], fmt::format("messages[{}]", i))) return false;
  }
  if (!modalities(m) || !ending(m, list->items.back()) || !tools(m) || !tool_choice(m)) return false;
  if (!m.read_bool(m.body(), "parallel_tool_calls", "parallel_tool_calls", m.out().parallel_calls)) return false;
  const JsonValue* format = m.body().get("response_format");
  return format == nullptr || m.response_format(*format, format->get("json_schema"), "response_format");
}

}  // namespace fathom::text

// Responses. prompt-encoding.md 3.3; http-api.md 7.1.
#include <fmt/format.h>

#include "text/api_mapper.h"

namespace fathom::text {
namespace {

using OtherParts = ApiMapper::OtherParts;

// Reasoning, assistant message and calls that follow one another form one assistant turn.
class Turns {
 public:
  explicit Turns(ApiMapper& m) : m_(m) {}

  void reasoning(const std::string& text) {
    if (has_output_) flush();
    if (!turn_.reasoning.empty() && !text.empty()) turn_.reasoning += "\n\n";
    turn_.reasoning += text;
  }
  void content(std::string text) {
    if (has_output_) flush();
    turn_.content = std::move(text);
    has_output_ = true;
  }
  void call(ToolCall call) {
    turn_.tool_calls.push_back(std::move(call));
    has_output_ = true;
  }
  // Before anything that is no assistant output. Reasoning that nothing followed is dropped.
  void flush() {
    if (has_output_) {
      turn_.role = Role::kAssistant;
      m_.add(std::move(turn_));
    }
    turn_ = Message();
    has_output_ = false;
  }

 private:
  ApiMapper& m_;
  Message turn_;
  bool has_output_ = false;
};

bool message_item(ApiMapper& m, const JsonValue& item, const std::string& where, Turns& turns) {
  std::string role;
  std::string text;
  if (!m.need_string(item, "role", where + ".role", role)) return false;
  const JsonValue* content = item.get("content");
  if (content == nullptr) return m.wrong(where + ".content", "a string or a list of parts");
  if (role != "user" && role != "developer" && role != "system" && role != "assistant") {
    return m.reject(where + ".role", "invalid_value", fmt::format("{}.role: unknown role \"{}\"", where, role));
  }
  // Coding agents send screenshots; refusing them would end the session.
  if (!m.joined_content(*content, OtherParts::kPlaceholder, where + ".content", text)) return false;
  if (role == "assistant") {
    turns.content(std::move(text));
    return true;
  }
  turns.flush();
  if (role == "system") {
    m.system_text(std::move(text));
    return true;
  }
  Message user;
  user.content = std::move(text);
  m.add(std::move(user));
  return true;
}

bool reasoning_item(ApiMapper& m, const JsonValue& item, const std::string& where, Turns& turns) {
  for (const char* key : {"content", "summary"}) {
    const JsonValue* list = item.get(key);
    if (list == nullptr || list->items.empty()) continue;
    std::string text;
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      std::string part;
      if (!m.read_string(list->items[i], "text", fmt::format("{}.{}[{}].text", where, key, i), part)) return false;
      if (i > 0) text += "\n\n";
      text += part;
    }
    turns.reasoning(text);
    return true;
  }
  turns.reasoning("");
  return true;
}

bool call_item(ApiMapper& m, const JsonValue& item, bool custom, const std::string& where, Turns& turns) {
  ToolCall call;
  std::string space;
  if (!m.need_string(item, "call_id", where + ".call_id", call.id)) return false;
  if (!m.need_string(item, "name", where + ".name", call.name)) return false;
  if (!m.read_string(item, "namespace", where + ".namespace", space)) return false;
  if (!space.empty()) call.name = space + "::" + call.name;
  if (custom) {
    std::string input;
    if (!m.need_string(item, "input", where + ".input", input)) return false;
    call.arguments = "{\"input\": \"";
    append_json_escaped(input, call.arguments);
    call.arguments += "\"}";
  } else if (!m.need_string(item, "arguments", where + ".arguments", call.arguments)) {
    return false;
  }
  turns.call(std::move(call));
  return true;
}

bool output_item(ApiMapper& m, const JsonValue& item, const std::string& where, Turns& turns) {
  Message result;
  result.role = Role::kTool;
  if (!m.need_string(item, "call_id", where + ".call_id", result.tool_call_id)) return false;
  const JsonValue* output = item.get("output");
  if (output == nullptr) return m.wrong(where + ".output", "a string or a list of parts");
  if (!m.joined_content(*output, OtherParts::kPlaceholder, where + ".output", result.content)) return false;
  turns.flush();
  m.add(std::move(result));
  return true;
}

bool input_item(ApiMapper& m, const JsonValue& item, const std::string& where, Turns& turns) {
  if (!item.is_object()) return m.wrong(where, "an object");
  std::string type = "message";
  if (!m.read_string(item, "type", where + ".type", type)) return false;
  if (type == "message") return message_item(m, item, where, turns);
  if (type == "reasoning") return reasoning_item(m, item, where, turns);
  if (type == "function_call") return call_item(m, item, false, where, turns);
  if (type == "custom_tool_call") return call_item(m, item, true, where, turns);
  if (type == "function_call_output" || type == "custom_tool_call_output") return output_item(m, item, where, turns);
  if (type == "item_reference") {
    return m.reject(where, "unsupported",
                    where + ": item_reference needs stored responses, which this server does not keep");
  }
  return true;
}

bool input(ApiMapper& m) {
  const JsonValue* input = m.body().get("input");
  const JsonValue* instructions = m.body().get("instructions");
  if (instructions != nullptr) {
    if (!instructions->is_string()) return m.wrong("instructions", "a string");
    m.system_text(instructions->text);
  }
  if (input == nullptr) return m.reject("input", "missing_field", "input: missing");
  if (input->is_string()) {
    Message user;
    user.content = input->text;
    m.add(std::move(user));
    return true;
  }
  if (!input->is_array()) return m.wrong("input", "a string or a list of items");
  if (input->items.empty() && instructions == nullptr) return m.wrong("input", "at least one item, or instructions");
  Turns turns(m);
  for (std::size_t i = 0; i < input->items.size(); ++i) {
    if (!input_item(m, input->items[i], fmt::format("input[{}]", i), turns)) return false;
  }
  turns.flush();
  return true;
}

bool custom_tool(ApiMapper& m, const JsonValue& json, const std::string& where, ToolSpec& tool) {
  tool.custom = true;
  tool.where = where;
  if (!m.need_string(json, "name", where + ".name", tool.name)) return false;
  if (!m.read_string(json, "description", where + ".description", tool.description)) return false;
  tool.parameters =
      parse_json_value(R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})", "")
          .value();
  return true;
}

// Functions and custom tools; `space` and `about` come from the namespace around them, if any.
bool tool(ApiMapper& m, const JsonValue& json, const std::string& where, const std::string& space,
          const std::string& about) {
  if (!json.is_object()) return m.wrong(where, "an object");
  std::string kind;
  if (!m.need_string(json, "type", where + ".type", kind)) return false;
  ToolSpec spec;
  if (kind == "function") {
    if (!m.function_tool(json, "parameters", where, spec)) return false;
  } else if (kind == "custom") {
    if (!custom_tool(m, json, where, spec)) return false;
  } else {
    return true;  // web search, local shell, ...: not ours to run
  }
  if (!space.empty()) {
    spec.name = space + "::" + spec.name;
    spec.description = about + "\n\n" + spec.description;
  }
  return m.add_tool(std::move(spec), where + ".name");
}

bool tools(ApiMapper& m) {
  const JsonValue* list = m.body().get("tools");
  if (list == nullptr) return true;
  if (!list->is_array()) return m.wrong("tools", "a list");
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const JsonValue& json = list->items[i];
    const JsonValue* type = json.get("type");
    if (type == nullptr || type->text != "namespace") {
      if (!tool(m, json, where, "", "")) return false;
      continue;
    }
    std::string space;
    std::string about;
    if (!m.need_string(json, "name", where + ".name", space)) return false;
    if (!m.read_string(json, "description", where + ".description", about)) return false;
    const JsonValue* inner = json.get("tools");
    if (inner != nullptr && !inner->is_array()) return m.wrong(where + ".tools", "a list");
    for (std::size_t k = 0; inner != nullptr && k < inner->items.size(); ++k) {
      if (!tool(m, inner->items[k], fmt::format("{}.tools[{}]", where, k), space, about)) return false;
    }
  }
  return true;
}

bool tool_choice(ApiMapper& m) {
  const JsonValue* choice = m.body().get("tool_choice");
  if (choice == nullptr) return true;
  if (choice->is_string()) {
    if (choice->text == "auto") return true;
    if (choice->text == "none") return m.out().tools.clear(), true;
    if (choice->text == "required") return m.force_call("tool_choice");
  }
  const JsonValue* type = choice->get("type");
  const std::string kind = type != nullptr ? type->text : "";
  std::string name;
  if (kind == "function" || kind == "custom") {
    return m.need_string(*choice, "name", "tool_choice", name) && m.name_tool(name, "tool_choice");
  }
  if (kind == "allowed_tools") return m.allow_tools(*choice, "tool_choice");
  return m.wrong("tool_choice", "auto, none, required, a function or a custom tool");
}

bool unsupported(ApiMapper& m) {
  bool background = false;
  if (!m.read_bool(m.body(), "background", "background", background)) return false;
  if (background) {
    return m.reject("background", "unsupported", "background: true is not supported");
  }
  for (const char* key : {"conversation", "prompt"}) {
    if (m.body().get(key) != nullptr) return m.reject(key, "unsupported", fmt::format("{}: not supported", key));
  }
  if (m.body().get("previous_response_id") != nullptr) {
    return m.reject("previous_response_id", "previous_response_not_found",
                    "previous_response_id: this server does not keep responses");
  }
  return true;
}

}  // namespace

bool map_responses(ApiMapper& m) {
  if (!unsupported(m) || !input(m) || !tools(m) || !tool_choice(m)) return false;
  if (!m.read_bool(m.body(), "parallel_tool_calls", "parallel_tool_calls", m.out().parallel_calls)) return false;
  const JsonValue* text = m.body().get("text");
  if (text != nullptr && !text->is_object()) return m.wrong("text", "an object");
  const JsonValue* format = text == nullptr ? nullptr : text->get("format");
  return format == nullptr || m.response_format(*format, format, "text.format");
}

}  // namespace fathom::text

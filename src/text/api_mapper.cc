#include "text/api_mapper.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fathom::text {
namespace {

constexpr std::size_t kMaxToolName = 128;

bool good_tool_name(std::string_view name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == ':' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxToolName && std::all_of(name.begin(), name.end(), good);
}

}  // namespace

bool ApiMapper::reject(std::string param, std::string code, std::string message) {
  if (!rejected_) rejected_ = Reject{400, std::move(param), std::move(code), std::move(message)};
  return false;
}

bool ApiMapper::wrong(std::string param, std::string_view expected) {
  std::string message = fmt::format("{}: expected {}", param, expected);
  return reject(std::move(param), "invalid_value", std::move(message));
}

bool ApiMapper::read_string(const JsonValue& object, std::string_view key, const std::string& where, std::string& out) {
  const JsonValue* value = object.get(key);
  if (value == nullptr) return true;
  if (!value->is_string()) return wrong(where, "a string");
  out = value->text;
  return true;
}

bool ApiMapper::need_string(const JsonValue& object, std::string_view key, const std::string& where, std::string& out) {
  const JsonValue* value = object.get(key);
  if (value == nullptr || !value->is_string()) return wrong(where, "a string");
  out = value->text;
  return true;
}

bool ApiMapper::read_bool(const JsonValue& object, std::string_view key, const std::string& where, bool& out) {
  const JsonValue* value = object.get(key);
  if (value == nullptr) return true;
  if (!value->is_bool()) return wrong(where, "true or false");
  out = value->is_true();
  return true;
}

bool ApiMapper::read_effort(std::optional<std::string>& level, std::string& where) {
  const std::pair<std::string_view, std::string_view> places[] = {
      {"", "reasoning_effort"}, {"reasoning", "effort"}, {"output_config", "effort"}};
  for (const auto& [object, key] : places) {
    const JsonValue* holder = object.empty() ? &body_ : body_.get(object);
    if (holder != nullptr && !holder->is_object()) return wrong(std::string(object), "an object");
    const JsonValue* value = holder == nullptr ? nullptr : holder->get(key);
    if (value == nullptr) continue;
    where = object.empty() ? std::string(key) : fmt::format("{}.{}", object, key);
    if (!value->is_string()) return wrong(where, "a string");
    level = value->text;
    return true;
  }
  return true;
}

bool ApiMapper::thinking_and_effort() {
  std::optional<bool> thinking;
  const auto decide = [&](bool value) { thinking = thinking.value_or(value); };
  if (const JsonValue* field = body_.get("thinking")) {
    const JsonValue* type = field->get("type");
    const std::string name = type != nullptr && type->is_string() ? type->text : "";
    if (name != "enabled" && name != "adaptive" && name != "disabled") {
      return wrong("thinking", "type \"enabled\", \"adaptive\" or \"disabled\"");
    }
    decide(name != "disabled");
  }
  bool drop = defaults_.drop_thinking;
  if (const JsonValue* kwargs = body_.get("chat_template_kwargs")) {
    if (!kwargs->is_object()) return wrong("chat_template_kwargs", "an object");
    for (const char* key : {"thinking", "enable_thinking"}) {
      bool value = false;
      if (!read_bool(*kwargs, key, fmt::format("chat_template_kwargs.{}", key), value)) return false;
      if (kwargs->get(key) != nullptr) decide(value);
    }
    if (!read_bool(*kwargs, "drop_thinking", "chat_template_kwargs.drop_thinking", drop)) return false;
  }
  bool top = false;
  if (!read_bool(body_, "enable_thinking", "enable_thinking", top)) return false;
  if (body_.get("enable_thinking") != nullptr) decide(top);

  Effort effort = defaults_.effort;
  std::optional<std::string> level;
  std::string where;
  if (!read_effort(level, where)) return false;
  if (level) {
    if (*level == "none") effort = Effort::kNone;
    else if (*level == "minimal" || *level == "low") effort = Effort::kLow;
    else if (*level == "medium" || *level == "high" || *level == "xhigh") effort = Effort::kHigh;
    else if (*level == "max" || *level == "ultra") effort = Effort::kMax;
    else return wrong(where, "none, minimal, low, medium, high, xhigh, max or ultra");
    decide(*level != "none");
  }
  const JsonValue* model = body_.get("model");
  if (model != nullptr && model->text == "deepseek-chat") decide(false);
  if (model != nullptr && model->text == "deepseek-reasoner") decide(true);
  decide(defaults_.thinking);
  out_.options.thinking = *thinking;
  out_.options.effort = *thinking ? effort : Effort::kNone;
  out_.options.drop_thinking = drop;
  return true;
}

bool ApiMapper::add_tool(ToolSpec tool, const std::string& where) {
  if (!good_tool_name(tool.name)) {
    return wrong(where, fmt::format("a name of 1 to {} letters, digits, '_', '.', ':' or '-'", kMaxToolName));
  }
  if (!tool_names_.insert(tool.name).second) {
    return reject(where, "invalid_value", fmt::format("{}: the name \"{}\" is used twice", where, tool.name));
  }
  out_.tools.push_back(std::move(tool));
  return true;
}

bool ApiMapper::function_tool(const JsonValue& function, std::string_view schema_key, const std::string& where,
                              ToolSpec& tool) {
  if (!function.is_object()) return wrong(where, "an object");
  if (!need_string(function, "name", where + ".name", tool.name)) return false;
  if (!read_string(function, "description", where + ".description", tool.description)) return false;
  tool.where = fmt::format("{}.{}", where, schema_key);
  // The Messages dialect passes over keys of tools that it does not know.
  const JsonValue* strict = function.get("strict");
  if (schema_key == "parameters" && !read_bool(function, "strict", where + ".strict", tool.strict)) return false;
  tool.strict = strict != nullptr && strict->is_true();
  tool.parameters.kind = JsonValue::Kind::kObject;
  if (const JsonValue* schema = function.get(schema_key)) {
    if (!schema->is_object()) return wrong(fmt::format("{}.{}", where, schema_key), "an object");
    tool.parameters = *schema;
  }
  return true;
}

bool ApiMapper::force_call(const std::string& where) {
  if (out_.tools.empty()) return reject(where, "invalid_value", where + ": a call is required, but there are no tools");
  out_.call_forced = true;
  return true;
}

bool ApiMapper::name_tool(const std::string& name, const std::string& where) {
  if (!tool_named(name)) {
    return reject(where, "invalid_value", fmt::format("{}: \"{}\" is not among the tools", where, name));
  }
  std::erase_if(out_.tools, [&](const ToolSpec& t) { return t.name != name; });
  out_.call_forced = true;
  out_.forced_name = name;
  return true;
}

// {"mode": "auto" | "required", "tools": [{"type": ..., "name"} or {"type": ..., "function": {"name"}}]}
bool ApiMapper::allow_tools(const JsonValue& choice, const std::string& where) {
  const JsonValue* list = choice.get("tools");
  if (list == nullptr || !list->is_array()) return wrong(where, "allowed_tools with a list of tools");
  std::unordered_set<std::string> names;
  for (const JsonValue& entry : list->items) {
    const JsonValue* function = entry.get("function");
    const JsonValue* name = function != nullptr ? function->get("name") : entry.get("name");
    if (name == nullptr || !tool_named(name->text)) return wrong(where, "allowed_tools that are among the tools");
    names.insert(name->text);
  }
  std::erase_if(out_.tools, [&](const ToolSpec& t) { return !names.contains(t.name); });
  const JsonValue* mode = choice.get("mode");
  if (mode != nullptr && mode->text == "required") return force_call(where);
  return mode == nullptr || mode->text == "auto" || wrong(where, "mode \"auto\" or \"required\"");
}

bool ApiMapper::response_format(const JsonValue& format, const JsonValue* wrapper, const std::string& where) {
  const JsonValue* type = format.get("type");
  const std::string name = type != nullptr && type->is_string() ? type->text : "";
  ResponseFormat& out = out_.response_format;
  if (name == "text") return true;
  if (name == "json_object") {
    out.kind = ResponseFormat::Kind::kJsonObject;
    out.where = where;
    return true;
  }
  if (name != "json_schema") return wrong(where, "type \"text\", \"json_object\" or \"json_schema\"");
  const JsonValue* schema = wrapper == nullptr ? nullptr : wrapper->get("schema");
  if (schema == nullptr || !schema->is_object()) return wrong(where, "a schema object with json_schema");
  out.kind = ResponseFormat::Kind::kJsonSchema;
  out.schema = *schema;
  out.where = wrapper == &format ? where + ".schema" : where + ".json_schema.schema";
  return read_bool(*wrapper, "strict", where, out.strict);
}

bool ApiMapper::joined_content(const JsonValue& content, OtherParts other, const std::string& where, std::string& out) {
  if (content.is_string()) {
    out = content.text;
    return true;
  }
  if (!content.is_array()) return wrong(where, "a string or a list of parts");
  for (std::size_t i = 0; i < content.items.size(); ++i) {
    const JsonValue& part = content.items[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    std::string type;
    if (!part.is_object() || !need_string(part, "type", at + ".type", type)) return wrong(at, "an object with a type");
    if (i > 0) out += "\n\n";
    std::string text;
    if (type == "text" || type == "input_text" || type == "output_text") {
      if (!need_string(part, "text", at + ".text", text)) return false;
    } else if (type == "refusal") {
      if (!need_string(part, "refusal", at + ".refusal", text)) return false;
    } else if (other == OtherParts::kPlaceholder) {
      text = fmt::format("[Unsupported {}]", type);
    } else {
      return reject(at, "unsupported_content",
                    fmt::format("{}: a part of type \"{}\", but this model reads text", at, type));
    }
    out += text;
  }
  return true;
}

void ApiMapper::system_text(std::string text) {
  auto& messages = out_.messages;
  if (messages.empty() || (messages.size() == 1 && messages[0].role == Role::kSystem)) {
    if (messages.empty()) messages.emplace_back().role = Role::kSystem;
    std::string& joined = messages[0].content;
    if (!joined.empty() && !text.empty()) joined += "\n\n";
    joined += text;
    return;
  }
  Message later;
  later.content = std::move(text);
  messages.push_back(std::move(later));
}

void ApiMapper::add(Message message) {
  // What clients put where they have dropped the reasoning: none was given, and that of the record comes back (4.7).
  if (message.reasoning.find_first_not_of(" \t\r\n") == std::string::npos) message.reasoning.clear();
  out_.messages.push_back(std::move(message));
}

bool ApiMapper::finish() {
  auto& messages = out_.messages;
  const bool formats = out_.response_format.kind != ResponseFormat::Kind::kText;
  if (out_.tools.empty() && !formats) return true;
  if (messages.empty() || messages[0].role != Role::kSystem) {
    messages.insert(messages.begin(), Message());
    messages[0].role = Role::kSystem;
  }
  for (const ToolSpec& tool : out_.tools) {
    std::string& text = messages[0].tools.emplace_back("{\"name\": \"");
    append_json_escaped(tool.name, text);
    text += "\", \"description\": \"";
    append_json_escaped(tool.description, text);
    text += "\", \"parameters\": ";
    if (const auto done = append_json_text(tool.parameters, text); !done) {
      return reject("tools", "invalid_value", fmt::format("tools: {}: {}", tool.name, done.error().what));
    }
    text += "}";
  }
  if (!formats) return true;
  std::string& text = messages[0].response_format.emplace();
  if (out_.response_format.kind == ResponseFormat::Kind::kJsonObject) {
    text = "{\"type\": \"json_object\"}";
  } else if (const auto done = append_json_text(out_.response_format.schema, text); !done) {
    return reject("response_format", "invalid_value", "response_format: " + done.error().what);
  }
  return true;
}

tl::expected<ChatRequest, Reject> map_request(Dialect dialect, const JsonValue& body, const ApiDefaults& defaults) {
  ApiMapper m(body, defaults);
  bool ok = body.is_object() || m.reject("", "invalid_json", "the request body is not a JSON object");
  ok = ok && m.thinking_and_effort();
  switch (dialect) {
    case Dialect::kChat: ok = ok && map_chat(m); break;
    case Dialect::kMessages: ok = ok && map_messages(m); break;
    case Dialect::kResponses: ok = ok && map_responses(m); break;
  }
  ok = ok && m.finish();
  if (!ok) return tl::unexpected<Reject>(m.rejected().value_or(Reject{400, "", "invalid_value", "invalid request"}));
  return std::move(m.out());
}

ParserOptions parser_options(const ChatRequest& request, ParserState state) {
  ParserOptions options;
  options.initial = state;
  options.one_call = !request.parallel_calls;
  if (!request.tools_active()) return options;
  options.tools.emplace();
  for (const ToolSpec& tool : request.tools)
    options.tools->push_back(ParserTool::from_schema(tool.name, tool.parameters));
  return options;
}

Result<RenderedRequest> render_request(const ChatFormat& format, const ChatRequest& request) {
  RenderOptions options = request.options;
  if (options.effort == Effort::kLow && format.revision() == Revision::kPreview) options.effort = Effort::kNone;
  auto prompt = render_chat(format, request.messages, options);
  if (!prompt) return pass_on(std::move(prompt));
  RenderedRequest out;
  out.prompt = std::move(*prompt);
  const Role last = request.messages.empty() ? Role::kSystem : request.messages.back().role;
  const ControlTokens& c = format.control();
  // A user turn has written the header itself.
  if (options.answer_header && !request.continues_answer && last != Role::kUser && last != Role::kTool) {
    out.prompt.control(c.assistant);
    out.prompt.control(options.thinking ? c.think_open : c.think_close);
  }
  out.state = initial_state(out.prompt, format);
  if (request.call_forced && options.answer_header && out.state == ParserState::kContent) {
    append_tool_opener(out.prompt, format);
    out.state = ParserState::kToolBlock;
  }
  return out;
}

}  // namespace fathom::text

#include "text/tool_call_writer.h"

#include <limits>

#include "text/json_reader.h"

namespace fathom::text {
namespace {

// Reading is not recursive, so depth costs nothing here.
constexpr int kAnyDepth = std::numeric_limits<int>::max();

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = s.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return s.substr(begin, s.find_last_not_of(kSpace) - begin + 1);
}

bool is_json_object(std::string_view s) { return trimmed(s).starts_with('{') && is_json(s, kAnyDepth); }

}  // namespace

ParserTool ParserTool::from_schema(std::string name, const JsonValue& parameters) {
  ParserTool tool;
  tool.name = std::move(name);
  const JsonValue* properties = parameters.get("properties");
  if (properties == nullptr || !properties->is_object()) return tool;
  for (std::size_t i = 0; i < properties->keys.size(); ++i) {
    const JsonValue* type = properties->items[i].get("type");
    bool json = type != nullptr && (type->is_string() || type->is_array()) && type->text != "string";
    for (std::size_t k = 0; json && k < type->items.size(); ++k) json = type->items[k].text != "string";
    tool.properties.emplace(properties->keys[i], json);
  }
  return tool;
}

bool ToolCallWriter::is_json_value(std::string_view key, std::string_view attributes) const {
  constexpr std::string_view kName = "string=\"";
  const std::size_t at = attributes.find(kName);
  const std::string_view said =
      at == std::string_view::npos ? std::string_view() : attributes.substr(at + kName.size());
  if (said.starts_with("true\"")) return false;
  if (said.starts_with("false\"")) return true;
  if (tool_ == nullptr) return false;
  const auto declared = tool_->properties.find(std::string(key));
  return declared != tool_->properties.end() && declared->second;
}

void ToolCallWriter::write(std::string_view text, std::string& sent) {
  arguments_ += text;
  if (!held_) sent += text;
}

void ToolCallWriter::begin_parameter(std::string_view key, std::string_view attributes, std::string& sent) {
  json_ = is_json_value(key, attributes);
  if (n_parameters_ == 0) {
    const bool wrapper = key == "arguments" || key == "input";
    held_ = wrapper && tool_ != nullptr && !tool_->properties.empty() && !tool_->properties.contains(std::string(key));
  }
  std::string text = n_parameters_++ == 0 ? "{\"" : ", \"";
  append_json_escaped(key, text);
  text += json_ ? "\": " : "\": \"";
  write(text, sent);
  if (n_parameters_ == 1 || json_) value_.clear();
}

void ToolCallWriter::value(std::string_view text, std::string& sent) {
  if (json_ || (held_ && n_parameters_ == 1)) value_ += text;
  if (json_) return;
  std::string escaped;
  append_json_escaped(text, escaped);
  write(escaped, sent);
}

void ToolCallWriter::end_parameter(std::string& sent) {
  if (!json_) {
    write("\"", sent);
  } else if (is_json(value_, kAnyDepth)) {
    write(value_, sent);
  } else {
    std::string text = "\"";
    append_json_escaped(value_, text);
    write(text + "\"", sent);
  }
}

bool ToolCallWriter::unwraps() const {
  if (n_parameters_ != 1 || !is_json_object(value_)) return false;
  JsonReader reader(value_, kAnyDepth);
  std::string_view key;
  reader.enter_object();
  while (reader.member(key)) {
    if (!tool_->properties.contains(std::string(key))) return false;
    reader.skip();
  }
  return true;
}

bool ToolCallWriter::finish(std::string_view body, std::string& sent) {
  if (n_parameters_ > 0) {
    write("}", sent);
    if (!held_) return true;
    if (unwraps()) arguments_ = trimmed(value_);
    sent += arguments_;
    held_ = false;
    return true;
  }
  const std::string_view object = trimmed(body);
  if (!object.empty() && !is_json_object(object)) return false;
  write(object.empty() ? "{}" : object, sent);
  return true;
}

}  // namespace fathom::text

// Shared by the three dialects of api_request.h. Internal to this room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "text/api_request.h"

namespace fathom::text {

// Collects a ChatRequest. Every step returns false once the request is refused; the first refusal stands.
class ApiMapper {
 public:
  ApiMapper(const JsonValue& body, const ApiDefaults& defaults) : body_(body), defaults_(defaults) {}

  const JsonValue& body() const { return body_; }
  ChatRequest& out() { return out_; }
  const std::optional<Reject>& rejected() const { return rejected_; }

  bool reject(std::string param, std::string code, std::string message);
  bool wrong(std::string param, std::string_view expected);  // invalid_value: "PARAM: expected ..."

  // Reads `key` of `object`; absent and null leave `out` alone.
  bool read_string(const JsonValue& object, std::string_view key, const std::string& where, std::string& out);
  bool read_bool(const JsonValue& object, std::string_view key, const std::string& where, bool& out);
  bool need_string(const JsonValue& object, std::string_view key, const std::string& where, std::string& out);

  bool thinking_and_effort();                              // 3.4
  bool add_tool(ToolSpec tool, const std::string& where);  // checks its name
  bool function_tool(const JsonValue& function, std::string_view schema_key, const std::string& where, ToolSpec& tool);
  bool force_call(const std::string& where);                          // tool_choice required
  bool name_tool(const std::string& name, const std::string& where);  // tool_choice names one: only it is shown
  bool allow_tools(const JsonValue& choice, const std::string& where);
  bool response_format(const JsonValue& format, const JsonValue* wrapper, const std::string& where);  // 3.6

  enum class OtherParts : std::uint8_t { kReject, kPlaceholder };
  // Content as string or list of parts, joined by blank lines.
  bool joined_content(const JsonValue& content, OtherParts other, const std::string& where, std::string& out);

  // System text at this place: joined into the first system message, or later a user message (3.2).
  void system_text(std::string text);
  void add(Message message);
  // Puts tools and response format into the system message, making one if need be.
  bool finish();

 private:
  bool tool_named(const std::string& name) const { return tool_names_.contains(name); }
  bool read_effort(std::optional<std::string>& level, std::string& where);

  const JsonValue& body_;
  const ApiDefaults& defaults_;
  ChatRequest out_;
  std::unordered_set<std::string> tool_names_;
  std::optional<Reject> rejected_;
};

bool map_chat(ApiMapper& m);
bool map_messages(ApiMapper& m);
bool map_responses(ApiMapper& m);

}  // namespace fathom::text

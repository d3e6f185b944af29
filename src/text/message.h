// A conversation as the encoder sees it. prompt-encoding.md 2.2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fathom::text {

enum class Role : std::uint8_t {
  kSystem,
  kDeveloper,  // behaves as a user turn; its content must not be empty
  kUser,
  kAssistant,
  kTool,
  kLatestReminder,
  kUnknown,  // named by Message::role_name; an error where it would be rendered
};

struct ToolCall {
  std::string id;  // empty: none
  std::string name;
  std::string arguments;  // JSON text as the model or the client wrote it
};

// All strings are UTF-8 and are text: a control token spelled in one stays text.
struct Message {
  Role role = Role::kUser;
  std::string role_name;  // only for kUnknown
  std::string content;
  std::string reasoning;                       // assistant
  std::vector<ToolCall> tool_calls;            // assistant
  std::vector<std::string> tools;              // system, developer: the JSON text of each function object
  std::optional<std::string> response_format;  // system, developer: JSON text
  std::string tool_call_id;                    // tool
  std::optional<std::string> task;             // user, assistant: a name of kTaskNames
  bool open = false;                           // assistant: no EOS, the model goes on writing it
};

}  // namespace fathom::text

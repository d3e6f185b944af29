// From an API request body to messages: Chat Completions, Messages, Responses. prompt-encoding.md 3.
//
// What decides the prompt and the meaning of the answer is read and checked here; sampling fields, streaming, limits
// and everything else of http-api.md are the server's. Unknown fields are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/message.h"
#include "text/render.h"
#include "text/stream_parser.h"

namespace fathom::text {

enum class Dialect : std::uint8_t { kChat, kMessages, kResponses };

// Why a request is refused, in the terms of http-api.md 3.
struct Reject {
  int status = 400;
  std::string param;    // the field, as in "messages[2].content"; empty: none
  std::string code;     // invalid_value, missing_field, unsupported_content, ...
  std::string message;  // for a human
};

struct ApiDefaults {
  bool thinking = true;
  Effort effort = Effort::kHigh;
  bool drop_thinking = true;
};

// A tool as shown to the model; what the parser of its answer must know of it.
struct ToolSpec {
  std::string name;
  std::string description;
  JsonValue parameters;  // a JSON Schema object
  bool custom = false;   // Responses: its one parameter `input` is free text
  bool strict = false;   // calls must follow `parameters`
  std::string where;     // the field that `parameters` came in
};

struct ResponseFormat {
  enum class Kind : std::uint8_t { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  JsonValue schema;  // kJsonSchema
  bool strict = false;
  std::string where;  // the field that it came in
};

struct ChatRequest {
  std::vector<Message> messages;  // normalised: at most one system message, in front
  RenderOptions options;
  std::vector<ToolSpec> tools;  // in the prompt; empty where tool_choice is none
  // tool_choice asks for a call, to this tool where one is named. Without thinking the prompt opens the block; with it
  // the engine must force the opener behind </think>.
  bool call_forced = false;
  std::string forced_name;
  bool parallel_calls = true;      // false: end the turn after the first complete call
  ResponseFormat response_format;  // constrains only what follows </think>, and no tool call
  bool continues_answer = false;   // the last message is an answer to go on with
  bool tools_active() const { return !tools.empty(); }
};

tl::expected<ChatRequest, Reject> map_request(Dialect dialect, const JsonValue& body, const ApiDefaults& defaults);

struct RenderedRequest {
  Prompt prompt;
  ParserState state = ParserState::kContent;  // where the parser of the answer starts
};

// How the answer to `request` is parsed; stop strings are the caller's to add. `state` as rendered.
ParserOptions parser_options(const ChatRequest& request, ParserState state);

// The prompt of a request, answer header and forced opener included (3.5, 3.7). Errors: kInvalid.
Result<RenderedRequest> render_request(const ChatFormat& format, const ChatRequest& request);

}  // namespace fathom::text

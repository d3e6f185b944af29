// Structured output: from what a request says of the form of its answer to the rules that the answer is generated
// under. http-api.md 4.6, prompt-encoding.md 3.5 and 3.6.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/rules.h"
#include "server/reject.h"
#include "text/api_request.h"
#include "text/chat_format.h"

namespace fathom::server {

struct Structure {
  grammar::Rules rules;
  grammar::Plan plan;                // without its program
  std::string field;                 // whose rules they are, for errors
  std::vector<std::string> ignored;  // keywords of schemas, for the log
};

// Of a conversation. Nothing where its answer is free. The body is read for vLLM's fields.
tl::expected<std::optional<Structure>, Refusal> structure_of_chat(const text::ChatFormat& format,
                                                                  const text::JsonValue& body,
                                                                  const text::ChatRequest& request,
                                                                  const text::RenderedRequest& rendered);
// Of a raw completion.
tl::expected<std::optional<Structure>, Refusal> structure_of_text(const text::JsonValue& body);

// What an error of compiling or following the rules means to the client.
Refusal refusal_of_rules(const Structure& structure, const Error& error, int retry_after);

}  // namespace fathom::server

// The encoder's own input as JSON: messages, thinking_mode, reasoning_effort, drop_thinking, add_bos, context.
// prompt-encoding.md 2.2 and the inputs of its render vectors.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/json_value.h"
#include "text/message.h"
#include "text/render.h"

namespace fathom::text {

struct RawRequest {
  std::vector<Message> messages;
  std::vector<Message> context;
  RenderOptions options;
};

// Errors: kInvalid, with the place in the object.
Result<RawRequest> read_raw_request(const JsonValue& input);

}  // namespace fathom::text

// JSON that Chat Completions and Completions share.
#pragma once

#include <string>

#include "server/answer.h"
#include "text/tokenizer.h"

namespace fathom::server {

std::string usage_json(const Usage& usage);
// While the answer is being made: how much of the prompt was cached is not known yet.
std::string usage_so_far_json(const Usage& usage);
// A token's exact bytes as a list of numbers, and as text that is UTF-8.
std::string token_bytes_json(const text::Tokenizer& tokenizer, std::int32_t id);
std::string token_text_json(const text::Tokenizer& tokenizer, std::int32_t id);
std::string sse(std::string_view json);  // as one event without a name

}  // namespace fathom::server

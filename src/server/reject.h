// How a request is refused, in the shape of its dialect. http-api.md 3.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"
#include "text/api_request.h"

namespace fathom::server {

// text::Reject with what else an answer may carry.
struct Refusal : text::Reject {
  int retry_after = 0;               // seconds; 0: the header is left out
  std::int64_t n_prompt_tokens = 0;  // with code context_length_exceeded
  std::int64_t n_context = 0;
};

Refusal refusal(int status, std::string param, std::string code, std::string message);
Refusal invalid(const std::string& param, std::string_view expected);  // 400 invalid_value
Refusal too_long(bool messages_dialect, std::string param, std::int64_t prompt, std::int64_t context);
// Seconds until so many requests that wait will have had their turn, where so many end a second (0: nobody knows).
int retry_after(std::int32_t waiting, double ends_per_second);
// What an engine's error means to a client: of a request that it did not take, and of one that it took. retry_after:
// where there is too much to do.
Refusal refusal_of(const Error& error, int retry_after);
Refusal failure_of(const Error& error, int retry_after);

// Whether a path belongs to the Messages dialect.
bool is_messages_path(std::string_view path);

// The error object: {"error": {...}}, or that of the Messages dialect.
std::string error_json(const Refusal& r, bool messages_dialect, std::string_view request_id);
HttpAnswer error_answer(const Refusal& r, bool messages_dialect, std::string_view request_id);

}  // namespace fathom::server

#include "server/reject.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/json_out.h"

namespace fathom::server {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 429: return "rate_limit_error";
    case 500:
    case 503:
    case 504: return "server_error";
    default: return "invalid_request_error";
  }
}

std::string_view messages_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 500:
    case 504: return "api_error";
    case 503: return "overloaded_error";
    default: return "invalid_request_error";
  }
}

std::string or_null(const std::string& s) { return s.empty() ? "null" : quote(s); }

}  // namespace

Refusal refusal(int status, std::string param, std::string code, std::string message) {
  Refusal r;
  r.status = status;
  r.param = std::move(param);
  r.code = std::move(code);
  r.message = std::move(message);
  return r;
}

Refusal invalid(const std::string& param, std::string_view expected) {
  return refusal(400, param, "invalid_value", fmt::format("{}: expected {}", param, expected));
}

Refusal too_long(bool messages_dialect, std::string param, std::int64_t prompt, std::int64_t context) {
  // Clients recognise these words and shorten the conversation (3.3).
  Refusal r =
      refusal(400, std::move(param), "context_length_exceeded",
              messages_dialect
                  ? fmt::format("prompt is too long: {} tokens > {} maximum", prompt, context)
                  : fmt::format("This model's maximum context length is {} tokens. However, your messages resulted in "
                                "{} tokens. Please reduce the length of the messages.",
                                context, prompt));
  r.n_prompt_tokens = prompt;
  r.n_context = context;
  return r;
}

int retry_after(std::int32_t waiting, double ends_per_second) {
  constexpr double kLongest = 60;
  if (ends_per_second <= 0) return 5;
  return static_cast<int>(std::ceil(std::clamp(waiting / ends_per_second, 1.0, kLongest)));
}

Refusal refusal_of(const Error& error, int retry_after) {
  switch (error.code) {
    case Code::kInvalid: return refusal(400, "", "invalid_value", error.what);
    case Code::kExhausted: {
      Refusal r = refusal(429, "", "rate_limit_exceeded", error.what);
      r.retry_after = retry_after;
      return r;
    }
    case Code::kUnavailable:
    case Code::kCancelled: {
      Refusal r = refusal(503, "", "service_unavailable", error.what);
      r.retry_after = 5;
      return r;
    }
    default: return refusal(500, "", "", error.what);
  }
}

Refusal failure_of(const Error& error, int retry_after) {
  Refusal r = refusal_of(error, retry_after);
  if (error.code != Code::kExhausted || r.status == 400) return r;
  // Room was promised, so it is time that ran out: the request's own, or its patience in the queue.
  if (error.what.rfind("not done within", 0) == 0) return refusal(504, "", "timeout", error.what);
  r = refusal(503, "", "service_unavailable", error.what);
  r.retry_after = retry_after;
  return r;
}

bool is_messages_path(std::string_view path) { return path.find("/messages") != std::string_view::npos; }

std::string error_json(const Refusal& r, bool messages_dialect, std::string_view request_id) {
  if (messages_dialect) {
    return Obj()
        .str("type", "error")
        .raw("error", Obj().str("type", messages_type(r.status)).str("message", r.message).done())
        .str("request_id", request_id)
        .done();
  }
  Obj error;
  error.str("message", r.message)
      .str("type", openai_type(r.status))
      .raw("param", or_null(r.param))
      .raw("code", or_null(r.code));
  if (r.n_context > 0) error.num("n_prompt_tokens", r.n_prompt_tokens).num("n_ctx", r.n_context);
  return Obj().raw("error", error.done()).done();
}

HttpAnswer error_answer(const Refusal& r, bool messages_dialect, std::string_view request_id) {
  HttpAnswer answer;
  answer.status = r.status;
  answer.body = error_json(r, messages_dialect, request_id);
  if (r.retry_after > 0) answer.headers.emplace_back("Retry-After", std::to_string(r.retry_after));
  if (r.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

}  // namespace fathom::server

#include "server/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/api_call.h"
#include "server/json_out.h"
#include "server/openapi.h"
#include "server/page.h"

namespace fathom::server {
namespace {

// Equal, in a time that depends on the length of `given` alone.
bool same_secret(std::string_view key, std::string_view given) {
  unsigned difference = key.size() == given.size() && !key.empty() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(expected ^ given[i]);
  }
  return difference == 0;
}

bool starts(std::string_view s, std::string_view with) { return s.substr(0, with.size()) == with; }

bool is_loopback_name(std::string_view host) {
  if (starts(host, "[")) host = host.substr(0, host.find(']') + 1);
  else host = host.substr(0, host.find(':'));
  return host == "localhost" || host == "[::1]" || starts(host, "127.") || host.empty();
}

}  // namespace

Api::Api(const text::ChatFormat& format, Generator& generator, ApiOptions options)
    : format_(format),
      generator_(generator),
      options_(std::move(options)),
      created_(std::time(nullptr)),
      memory_(options_.turn_memory_bytes),
      compiler_(format_, options_.vocab,
                {.trial = options_.grammar_trial, .cache_bytes = options_.grammar_cache_bytes}) {}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> all = {
      {"", "GET", true, &Api::root},
      {"page/", "GET", true, &Api::page},
      {"openapi.json", "GET", true, &Api::openapi},
      {"health", "GET", true, &Api::health},
      {"ping", "GET", true, &Api::health},
      {"version", "GET", true, &Api::version},
      {"v1/models", "GET", false, &Api::models},
      {"v1/models/", "GET", false, &Api::model},
      {"tokenize", "POST", false, &Api::tokenize},
      {"detokenize", "POST", false, &Api::detokenize},
      {"v1/chat/completions", "POST", false, &Api::chat},
      {"v1/completions", "POST", false, &Api::completions},
      {"v1/messages", "POST", false, &Api::messages},
      {"v1/messages/count_tokens", "POST", false, &Api::count_tokens},
      {"v1/responses", "POST", false, &Api::responses},
      {"metrics", "GET", false, &Api::metrics},
  };
  return all;
}

std::vector<std::pair<std::string, std::string>> Api::endpoints() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Route& route : routes()) {
    const bool named = !route.endpoint.empty() && route.endpoint.back() == '/';
    all.emplace_back(route.method, fmt::format("/{}{}", route.endpoint, named ? "{}" : ""));
  }
  return all;
}

// Clients are configured with and without "/v1", with "/beta" or "/anthropic" in front, and with a slash behind.
std::string Api::endpoint_of(std::string_view path) {
  while (!path.empty() && path.front() == '/') path.remove_prefix(1);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  for (const std::string_view prefix : {"anthropic/", "beta/", "v1/v1/"}) {
    if (starts(path, prefix)) path.remove_prefix(prefix == "v1/v1/" ? 3 : prefix.size());
  }
  std::string endpoint(path);
  for (const std::string_view bare : {"chat/completions", "completions", "models", "responses"}) {
    if (path == bare || (bare == "models" && starts(path, "models/"))) endpoint = "v1/" + endpoint;
  }
  return endpoint;
}

void Api::handle(std::shared_ptr<Exchange> exchange, HttpRequest request) {
  Call call{std::move(exchange), std::move(request), {}, false};
  call.endpoint = endpoint_of(call.request.path);
  call.messages_dialect = is_messages_path(call.request.path);
  cors(call);
  const std::string method = call.request.method == "HEAD" ? "GET" : call.request.method;
  const Route* found = nullptr;
  for (const Route& route : routes()) {
    const bool matches = !route.endpoint.empty() && route.endpoint.back() == '/' ? starts(call.endpoint, route.endpoint)
                                                                                 : call.endpoint == route.endpoint;
    if (matches && (found == nullptr || route.method == method)) found = &route;
  }
  const std::string allow = found == nullptr         ? "GET, HEAD, POST, OPTIONS"
                            : found->method == "GET" ? "GET, HEAD, OPTIONS"
                                                     : "POST, OPTIONS";
  if (method == "OPTIONS") {
    return answer(call, HttpAnswer{.status = 204, .content_type = "", .body = "", .headers = {{"Allow", allow}}});
  }
  if (found == nullptr) {
    return refuse(call,
                  refusal(404, "", "not_found",
                          fmt::format("there is no {}; Fathom serves text generation only", quote(call.request.path))));
  }
  if (found->method != method) {
    const Refusal r = refusal(405, "", "method_not_allowed", fmt::format("use {}", found->method));
    HttpAnswer no = error_answer(r, call.messages_dialect, call.request.id);
    no.headers.emplace_back("Allow", allow);
    return answer(call, std::move(no));
  }
  if (!found->open && !admit(call)) return;
  (this->*found->handler)(call);
}

bool Api::admit(Call& call) {
  const HttpRequest& r = call.request;
  if (!options_.keys.empty()) {
    if (has_key(r)) return true;
    refuse(call, refusal(401, "", "invalid_api_key", "the API key is missing or wrong"));
    return false;
  }
  // A page of the web can make a browser send requests to a server on its own machine under a name that leads there.
  const std::string* host = r.header("host");
  if (options_.check_host && host != nullptr && !is_loopback_name(*host)) {
    refuse(call, refusal(403, "", "forbidden_host",
                         fmt::format("host {} is not this machine; set an API key to be reached by other names",
                                     quote(host->substr(0, 100)))));
    return false;
  }
  return true;
}

bool Api::has_key(const HttpRequest& request) const {
  std::string_view given;
  if (const auto* own = request.header("x-api-key")) given = *own;
  if (const auto* bearer = request.header("authorization")) {
    const std::string_view value = *bearer;
    if (value.size() > 7 && (starts(value, "Bearer ") || starts(value, "bearer "))) given = value.substr(7);
  }
  bool found = false;
  for (const std::string& key : options_.keys) found = same_secret(key, given) || found;
  return found;
}

void Api::cors(Call& call) const {
  const auto* origin = call.request.header("origin");
  const std::string& allowed = options_.cors_origin;
  if (allowed.empty() || origin == nullptr || (allowed != "*" && allowed != *origin)) return;
  Exchange& e = *call.exchange;
  e.add_header("Access-Control-Allow-Origin", allowed);
  if (allowed != "*") e.add_header("Vary", "Origin");
  e.add_header("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
  if (call.request.method != "OPTIONS") return;
  e.add_header("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  e.add_header("Access-Control-Max-Age", "86400");
  if (const auto* asked = call.request.header("access-control-request-headers")) {
    e.add_header("Access-Control-Allow-Headers", *asked);
  }
}

void Api::answer(Call& call, HttpAnswer answer) const {
  log(call, answer.status, "");
  call.exchange->send(std::move(answer));
}

void Api::answer(Call& call, std::string json) const {
  HttpAnswer a;
  a.body = std::move(json);
  answer(call, std::move(a));
}

void Api::refuse(Call& call, const Refusal& r) const {
  answer(call, error_answer(r, call.messages_dialect, call.request.id));
}

void Api::log(const Call& call, int status, std::string_view more) const {
  metrics_.answered(status);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - call.began).count();
  options_.log(fmt::format("id={} peer={} method={} path={} status={} ms={}{}", call.request.id, call.request.peer,
                           call.request.method, quote(call.request.path.substr(0, 200)), status, ms, more));
}

HttpAnswer Api::unreadable(const HttpRequest& request, int status, std::string_view code, std::string message) {
  Refusal r = refusal(status, "", std::string(code), std::move(message));
  if (status == 503) r.retry_after = 1;
  return error_answer(r, is_messages_path(request.path), request.id);
}

bool Api::read_body(Call& call, text::JsonValue& body) const {
  const HttpRequest& r = call.request;
  const auto* type = r.header("content-type");
  if (r.header("origin") != nullptr && (type == nullptr || !starts(*type, "application/json"))) {
    // A page of the web may send other types without asking first.
    refuse(call, refusal(415, "", "unsupported_media_type", "Content-Type: expected application/json"));
    return false;
  }
  if (const auto* coding = r.header("content-encoding"); coding != nullptr && *coding != "identity") {
    refuse(call, refusal(415, "", "unsupported_media_type", "Content-Encoding: expected none"));
    return false;
  }
  auto parsed = text::parse_json_value(r.body, "request body");
  if (!parsed) {
    refuse(call, refusal(400, "", "invalid_json", parsed.error().what));
    return false;
  }
  if (!parsed->is_object()) {
    refuse(call, refusal(400, "", "invalid_json", "request body: expected a JSON object"));
    return false;
  }
  body = std::move(*parsed);
  call.request.body = {};
  return true;
}

bool Api::check_model(Call& call, const std::string& name) const {
  if (!options_.strict_models || name.empty() || name == options_.model_id) return true;
  refuse(call, refusal(404, "model", "model_not_found",
                       fmt::format("model: {} is not served here, {} is", quote(name), quote(options_.model_id))));
  return false;
}

bool Api::can_generate(Call& call) const {
  if (!draining_) return true;
  Refusal r = refusal(503, "", "service_unavailable", "the server is shutting down");
  r.retry_after = 5;
  refuse(call, r);
  return false;
}

void Api::health(Call& call) {
  const engine::EngineHealth health = generator_.health();
  HttpAnswer a;
  a.status = health.ok && !draining_ ? 200 : 503;
  Obj out;
  out.str("status", !health.ok ? "failed" : draining_ ? "draining" : "ok");
  if (!health.ok) out.str("reason", health.why);
  if (a.status == 503) a.headers.emplace_back("Retry-After", "5");
  a.body = out.done();
  answer(call, std::move(a));
}

void Api::metrics(Call& call) {
  HttpAnswer a;
  a.content_type = "text/plain; version=0.0.4; charset=utf-8";
  a.body = metrics_.text(options_.model_id, generator_.stats(), compiler_.stats());
  answer(call, std::move(a));
}

void Api::openapi(Call& call) { answer(call, openapi_document(FATHOM_VERSION)); }

void Api::version(Call& call) { answer(call, Obj().str("version", FATHOM_VERSION).done()); }

void Api::root(Call& call) {
  if (wants_page(call.request)) return answer(call, page_answer(*page_file("index.html"), call.request));
  HttpAnswer a;
  a.headers.emplace_back("Vary", "Accept");
  a.content_type = "text/plain; charset=utf-8";
  a.body = fmt::format("Fathom " FATHOM_VERSION " serves {}. The APIs are under /v1.\n", options_.model_id);
  answer(call, std::move(a));
}

void Api::page(Call& call) {
  const PageFile* file = page_file(call.endpoint.substr(std::string_view("page/").size()));
  if (file == nullptr) return refuse(call, refusal(404, "", "not_found", "the page has no such file"));
  answer(call, page_answer(*file, call.request));
}

std::string Api::model_json(const std::string& id) const {
  char date[32] = "";
  const std::time_t created = created_;
  std::tm utc = {};
  if (gmtime_r(&created, &utc) != nullptr) std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", &utc);
  std::vector<std::string> parameters;
  for (const char* p : {"tools", "tool_choice", "reasoning_effort", "response_format", "seed", "stop", "temperature",
                        "top_p", "top_k", "min_p", "logprobs", "presence_penalty", "frequency_penalty"}) {
    parameters.push_back(quote(p));
  }
  return Obj()
      .str("id", id)
      .str("object", "model")
      .str("type", "model")
      .str("display_name", id)
      .num("created", created_)
      .str("created_at", date)
      .str("owned_by", "deepseek-ai")
      .str("root", options_.model_id)
      .null("parent")
      .num("max_model_len", options_.context)
      .num("context_length", options_.context)
      .num("max_completion_tokens", options_.most_tokens > 0 ? options_.most_tokens : options_.context)
      .raw("supported_parameters", join_list(parameters))
      .done();
}

void Api::models(Call& call) {
  const std::string list = join_list({model_json(options_.model_id)});
  answer(call, Obj()
                   .str("object", "list")
                   .yes("has_more", false)
                   .str("first_id", options_.model_id)
                   .str("last_id", options_.model_id)
                   .raw("data", list)
                   .raw("models", list)
                   .done());
}

void Api::model(Call& call) {
  std::string id = call.endpoint.substr(std::string_view("v1/models/").size());
  for (std::size_t at = id.find("%2F"); at != std::string::npos; at = id.find("%2F")) id.replace(at, 3, "/");
  if (id == options_.model_id) return answer(call, model_json(id));
  refuse(call, refusal(404, "", "model_not_found", fmt::format("{} is not served here", quote(id))));
}

}  // namespace fathom::server

// Api: every endpoint, without a socket. http-api.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "server/answer.h"
#include "server/generator.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/params.h"
#include "server/reject.h"
#include "server/structured.h"
#include "server/writers.h"
#include "text/api_request.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/turn_memory.h"

namespace fathom::server {

struct ApiOptions {
  std::string model_id = "fathom";
  bool strict_models = false;    // a name that is not model_id or an alias of it is refused
  std::int32_t vocab = 0;        // of the model; required
  std::int32_t context = 0;      // tokens of prompt and answer; required
  std::int32_t most_tokens = 0;  // of an answer; 0: what the context leaves
  text::ApiDefaults defaults;
  std::size_t turn_memory_bytes = std::size_t{64} << 20U;
  std::size_t grammar_cache_bytes = std::size_t{128} << 20U;
  std::shared_ptr<grammar::TrialProcess> grammar_trial = {};  // see CompilerOptions
  std::vector<std::string> keys;                              // empty: open to everyone
  bool check_host = true;                                     // requests must name a loopback host; see http-api.md 2.5
  std::string cors_origin;                                    // "*" or one origin; empty: none
  std::int64_t deadline_ms = 0;                               // for a request; 0: none
  std::function<void(std::string_view)> log = [](std::string_view) {};  // one line a request; from any thread
};

// Any number of threads.
class Api {
 public:
  // Both outlive it, and every request that was submitted ends before it goes.
  Api(const text::ChatFormat& format, Generator& generator, ApiOptions options);

  void handle(std::shared_ptr<Exchange> exchange, HttpRequest request);
  // What could not be read as a request.
  static HttpAnswer unreadable(const HttpRequest& request, int status, std::string_view code, std::string message);
  // What is answered: methods and paths as an OpenAPI document spells them, "/v1/models/{}" where the rest is a name.
  static std::vector<std::pair<std::string, std::string>> endpoints();
  // From now on nothing new is generated, and /health says so.
  void drain() { draining_ = true; }
  // Requests that wait for a grammar, and all that come to want one, are refused.
  void stop_compiling() { compiler_.stop(); }

 private:
  struct Call;
  struct Route;
  static const std::vector<Route>& routes();
  static std::string endpoint_of(std::string_view path);

  // What every request must pass first. Answers those that do not.
  bool admit(Call& call);
  bool has_key(const HttpRequest& request) const;
  void cors(Call& call) const;
  void answer(Call& call, HttpAnswer answer) const;
  void answer(Call& call, std::string json) const;
  void refuse(Call& call, const Refusal& refusal) const;
  void log(const Call& call, int status, std::string_view more) const;
  // The body as a JSON object, or an answer.
  bool read_body(Call& call, text::JsonValue& body) const;
  bool check_model(Call& call, const std::string& name) const;
  bool can_generate(Call& call) const;

  void health(Call& call);
  void version(Call& call);
  void root(Call& call);
  void openapi(Call& call);
  void page(Call& call);
  void models(Call& call);
  void model(Call& call);
  void tokenize(Call& call);
  void detokenize(Call& call);
  void chat(Call& call);
  void completions(Call& call);
  void messages(Call& call);
  void count_tokens(Call& call);
  void responses(Call& call);
  void metrics(Call& call);

  void converse(Call& call, text::Dialect dialect, Endpoint endpoint);
  std::string model_json(const std::string& id) const;
  // The parts of an engine request that come from `params`; false where the prompt is too long, which is answered.
  bool fill(Call& call, const std::string& prompt_field, const Params& params, engine::Request& request) const;
  void run(Call& call, std::vector<engine::Request> requests, std::unique_ptr<Writer> writer, AnswerOptions options);
  // The same under the rules of `structure`, once they are compiled; without any, at once.
  void run_under(Call& call, std::optional<Structure> structure, std::vector<engine::Request> requests,
                 std::unique_ptr<Writer> writer, AnswerOptions options);
  struct Waiting;
  void compiled(Waiting& w, Result<std::shared_ptr<const grammar::Program>> program);
  bool prompts_of(Call& call, const text::JsonValue& body, const Params& params,
                  std::vector<std::vector<std::int32_t>>& prompts, std::vector<Echo>& echo) const;

  const text::ChatFormat& format_;
  Generator& generator_;
  const ApiOptions options_;
  const std::int64_t created_;
  text::TurnMemory memory_;
  grammar::Compiler compiler_;
  std::atomic<bool> draining_ = false;
  mutable Metrics metrics_;
};

}  // namespace fathom::server

// The endpoints that generate: from a request to the engine.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/api_call.h"
#include "server/json_out.h"
#include "server/openai_json.h"
#include "server/parsers.h"

namespace fathom::server {
namespace {

constexpr int kCompileRetrySeconds = 5;  // where too many grammars wait to be compiled
constexpr std::size_t kMaxPrompts = 64;
// Log-probabilities of all prompts of a request, alternatives included: about 40 bytes of answer each.
constexpr std::size_t kMaxScores = std::size_t{1} << 18U;
constexpr std::int32_t kWorthRemembering =
    64;  // tokens: to compute them again takes a CPU longer than a step of one token

WriterOptions writer_options(const HttpRequest& request, const Params& p, const std::string& model_id,
                             const text::Tokenizer& tokenizer) {
  return {.model = p.model.empty() ? model_id : p.model,
          .request_id = request.id,
          .created = std::time(nullptr),
          .include_usage = p.include_usage,
          .usage_in_chunks = p.usage_in_chunks,
          .thinking = false,
          .logprobs = p.sampling.logprobs,
          .top_logprobs = p.sampling.top_logprobs,
          .token_ids = p.token_ids,
          .prompt_ids = {},
          .tokenizer = &tokenizer};
}

std::vector<std::int32_t> turn_enders(const text::ControlTokens& c, const Params& p) {
  std::vector<std::int32_t> ids = p.stop_ids;
  if (p.ignore_eos) return ids;
  for (const std::int32_t id : {c.eos, c.bos, c.user, c.assistant, c.latest_reminder, c.eot}) {
    if (id >= 0) ids.push_back(id);
  }
  return ids;
}

text::ParserOptions parser_options(const text::ChatRequest& request, text::ParserState state, const Params& p) {
  text::ParserOptions o = text::parser_options(request, state);
  o.stop = p.stop;
  o.include_stop = p.include_stop;
  return o;
}

// Where other prompts are likely to part from this one: behind the first message, which holds system text and tools,
// before the last one, and before <think>, in whose place the next turn has </think> where it drops the reasoning. That
// costs a step more, which a short message is not worth.
std::vector<std::int32_t> shared_ends(const text::EncodedPrompt& prompt, text::ParserState state) {
  std::vector<std::int32_t> ends;
  std::int32_t last = -1;
  for (const text::PromptSpan& span : prompt.spans) {
    if (span.message == last || span.begin == 0) continue;
    last = span.message;
    if (span.message < 1) continue;
    if (ends.size() == 2) ends.pop_back();
    ends.push_back(static_cast<std::int32_t>(span.begin));
  }
  const auto before_think = static_cast<std::int32_t>(prompt.ids.size()) - 1;
  const std::int32_t last_message = before_think - (ends.empty() ? 0 : ends.back());
  if (state == text::ParserState::kReasoning && last_message >= kWorthRemembering) ends.push_back(before_think);
  return ends;
}

std::string prompt_field(Endpoint endpoint) {
  if (endpoint == Endpoint::kCompletions) return "prompt";
  return endpoint == Endpoint::kResponses ? "input" : "messages";
}

// Fields of a Responses request that its answer repeats, with what stands there when they are absent.
std::vector<std::pair<std::string, std::string>> echo_of(const text::JsonValue& body) {
  static constexpr std::pair<const char*, const char*> kFields[] = {{"instructions", "null"},
                                                                    {"max_output_tokens", "null"},
                                                                    {"parallel_tool_calls", "true"},
                                                                    {"reasoning", R"({"effort":null,"summary":null})"},
                                                                    {"temperature", "1.0"},
                                                                    {"top_p", "1.0"},
                                                                    {"text", R"({"format":{"type":"text"}})"},
                                                                    {"tool_choice", "\"auto\""},
                                                                    {"tools", "[]"},
                                                                    {"user", "null"},
                                                                    {"metadata", "{}"}};
  std::vector<std::pair<std::string, std::string>> echo;
  for (const auto& [key, absent] : kFields) {
    const text::JsonValue* value = body.get(key);
    std::string json;
    if (value == nullptr || !text::append_json_text(*value, json)) json = absent;
    echo.emplace_back(key, std::move(json));
  }
  return echo;
}

text::RecordedTurn recorded(const Choice& choice, bool thinking) {
  text::RecordedTurn turn;
  turn.content = choice.content;
  turn.reasoning = choice.reasoning;
  for (const Call& c : choice.calls) turn.calls.push_back({c.id, c.name, c.arguments});
  for (const TokenReport& t : choice.tokens) turn.ids.push_back(t.sampled.id);
  turn.thinking = thinking;
  return turn;
}

}  // namespace

bool Api::fill(Call& call, const std::string& prompt_field, const Params& p, engine::Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt >= options_.context) {
    refuse(call, too_long(call.messages_dialect, prompt_field, prompt, options_.context));
    return false;
  }
  std::int64_t most = options_.context - prompt;
  if (options_.most_tokens > 0) most = std::min<std::int64_t>(most, options_.most_tokens);
  if (p.max_given) most = std::min<std::int64_t>(most, p.max_tokens);
  request.max_tokens = static_cast<std::int32_t>(most);
  request.prompt_only = most == 0;
  request.min_tokens = std::min(p.min_tokens, request.max_tokens);
  request.sampling = p.sampling;
  request.stop_ids = turn_enders(format_.control(), p);
  request.n = request.prompt_only ? 1 : p.n;
  request.priority = p.priority;
  request.client = call.request.peer;
  request.salt = p.salt;
  request.deadline_ms = options_.deadline_ms;
  return true;
}

void Api::run(Call& call, std::vector<engine::Request> requests, std::unique_ptr<Writer> writer,
              AnswerOptions options) {
  options.messages_dialect = call.messages_dialect;
  options.on_end = [this, call](const AnswerReport& r) {
    metrics_.ended(r);
    log(call, r.status,
        fmt::format(" finish={} prompt={} cached={} completion={} n={} first_token_ms={:.0f}", r.reason, r.usage.prompt,
                    r.usage.cached, r.usage.completion, r.n, r.outcome.first_token_ms));
  };
  Usage known;
  for (const engine::Request& r : requests) known.prompt += static_cast<std::int64_t>(r.prompt.size());
  auto answer =
      std::make_shared<Answer>(call.exchange, call.request.id, generator_, std::move(writer), std::move(options));
  answer->start(std::move(requests), known);
}

struct Api::Waiting {
  Call call;
  Structure structure;
  std::vector<engine::Request> requests;
  std::unique_ptr<Writer> writer;
  AnswerOptions options;
  bool gone = false;  // the client; of the connection's order
};

void Api::run_under(Call& call, std::optional<Structure> structure, std::vector<engine::Request> requests,
                    std::unique_ptr<Writer> writer, AnswerOptions options) {
  if (!structure) return run(call, std::move(requests), std::move(writer), std::move(options));
  for (const std::string& path : structure->ignored) {
    options_.log(
        fmt::format("id={} field={} ignored={}", call.request.id, structure->field, quote(path.substr(0, 200))));
  }
  auto w = std::make_shared<Waiting>(Waiting{.call = call,
                                             .structure = std::move(*structure),
                                             .requests = std::move(requests),
                                             .writer = std::move(writer),
                                             .options = std::move(options)});
  call.exchange->on_gone([w] { w->gone = true; });
  compiler_.compile_later(w->structure.rules, [this, w](Result<std::shared_ptr<const grammar::Program>> program) {
    w->call.exchange->post([this, w, program = std::move(program)] { compiled(*w, program); });
  });
}

void Api::compiled(Waiting& w, Result<std::shared_ptr<const grammar::Program>> program) {
  if (w.gone) return log(w.call, 499, " finish=abort");
  if (!program) return refuse(w.call, refusal_of_rules(w.structure, program.error(), kCompileRetrySeconds));
  w.structure.plan.program = std::move(*program);
  auto constraint = grammar::make_constraint(std::move(w.structure.plan), options_.vocab);
  if (!constraint) return refuse(w.call, refusal_of_rules(w.structure, constraint.error(), kCompileRetrySeconds));
  for (engine::Request& request : w.requests) request.constraint = (*constraint)->fresh();
  run(w.call, std::move(w.requests), std::move(w.writer), std::move(w.options));
}

void Api::messages(Call& call) { converse(call, text::Dialect::kMessages, Endpoint::kMessages); }

void Api::responses(Call& call) { converse(call, text::Dialect::kResponses, Endpoint::kResponses); }

void Api::count_tokens(Call& call) {
  text::JsonValue body;
  if (!read_body(call, body)) return;
  auto mapped = text::map_request(text::Dialect::kMessages, body, options_.defaults);
  if (!mapped) return refuse(call, {mapped.error()});
  mapped->options.memory = &memory_;
  const auto rendered = text::render_request(format_, *mapped);
  if (!rendered) return refuse(call, refusal(400, "messages", "invalid_value", rendered.error().what));
  const auto n = static_cast<std::int64_t>(text::encode_prompt(rendered->prompt, format_.tokenizer()).ids.size());
  answer(call, Obj().num("input_tokens", n).done());
}

void Api::chat(Call& call) { converse(call, text::Dialect::kChat, Endpoint::kChat); }

void Api::converse(Call& call, text::Dialect dialect, Endpoint endpoint) {
  text::JsonValue body;
  if (!can_generate(call) || !read_body(call, body)) return;
  auto params = read_params(body, endpoint, options_.vocab);
  if (!params) return refuse(call, params.error());
  auto mapped = text::map_request(dialect, body, options_.defaults);
  if (!mapped) return refuse(call, {mapped.error()});
  if (!check_model(call, params->model)) return;
  mapped->options.memory = &memory_;
  auto rendered = text::render_request(format_, *mapped);
  if (!rendered) return refuse(call, refusal(400, prompt_field(endpoint), "invalid_value", rendered.error().what));
  const text::EncodedPrompt encoded = text::encode_prompt(rendered->prompt, format_.tokenizer());

  engine::Request request;
  request.prompt = encoded.ids;
  if (!fill(call, prompt_field(endpoint), *params, request)) return;
  request.shared_ends = shared_ends(encoded, rendered->state);
  auto structure = structure_of_chat(format_, body, *mapped, *rendered);
  if (!structure) return refuse(call, structure.error());
  WriterOptions writing = writer_options(call.request, *params, options_.model_id, format_.tokenizer());
  const bool thinking = rendered->state == text::ParserState::kReasoning;
  writing.thinking = thinking;
  if (params->token_ids) writing.prompt_ids = encoded.ids;

  AnswerOptions answer;
  answer.stream = params->stream;
  answer.choices_per_prompt = static_cast<std::size_t>(params->n);
  answer.parser = [this, options = parser_options(*mapped, rendered->state, *params),
                   tokens = text::TokenOptions{params->stop_ids, params->ignore_eos}] {
    return make_turn_parser(format_, options, tokens);
  };
  // A turn that was begun for the model, by a forced opener or a partial answer, is not in the sampled ids alone.
  if (rendered->state != text::ParserState::kToolBlock && !mapped->continues_answer && params->stop_ids.empty() &&
      !params->ignore_eos) {
    answer.on_choice = [this, thinking,
                        prompt = std::make_shared<text::Prompt>(std::move(rendered->prompt))](const Choice& c) {
      if (c.end->by_turn && !c.end->incomplete_call) memory_.record(format_, *prompt, recorded(c, thinking));
    };
  }
  std::vector<engine::Request> requests;
  requests.push_back(std::move(request));
  std::unique_ptr<Writer> writer;
  if (endpoint == Endpoint::kMessages) {
    writer = make_messages_writer(std::move(writing));
  } else if (endpoint == Endpoint::kResponses) {
    ResponsesOptions responses{.common = std::move(writing), .echo = echo_of(body), .custom_tools = {}};
    for (const text::ToolSpec& t : mapped->tools) {
      if (t.custom) responses.custom_tools.push_back(t.name);
    }
    writer = make_responses_writer(std::move(responses));
  } else {
    writer = make_chat_writer(std::move(writing));
  }
  run_under(call, std::move(*structure), std::move(requests), std::move(writer), std::move(answer));
}

bool Api::prompts_of(Call& call, const text::JsonValue& body, const Params&,
                     std::vector<std::vector<std::int32_t>>& prompts, std::vector<Echo>& echo) const {
  const auto no = [&](const Refusal& r) { return refuse(call, r), false; };
  Fields f(body);
  bool bos = true;
  bool show = false;
  std::string suffix;
  if (!f.boolean("add_special_tokens", bos) || !f.boolean("echo", show) || !f.string("suffix", suffix))
    return no(f.refused());
  const text::JsonValue* prompt = body.get("prompt");
  if (prompt == nullptr) return no(refusal(400, "prompt", "missing_field", "prompt: missing"));
  const text::Tokenizer& tokenizer = format_.tokenizer();
  const auto add_text = [&](const std::string& text) {
    std::vector<std::int32_t> ids = tokenizer.encode(text, text::Mode::kSpecial);
    if (ids.empty() && !bos) return no(invalid("prompt", "at least one token (without add_special_tokens)"));
    const bool add_bos = bos && (ids.empty() || ids[0] != format_.control().bos);
    if (add_bos) ids.insert(ids.begin(), format_.control().bos);
    echo.push_back({show ? text : std::string(), ids[0], add_bos});
    prompts.push_back(std::move(ids));
    return true;
  };
  const auto add_ids = [&](const text::JsonValue& list, const std::string& where) {
    auto ids = read_ids(list, where, options_.vocab);
    if (!ids) return no(ids.error());
    if (ids->empty()) return no(invalid(where, "at least one token id"));
    const auto text = tokenizer.decode(*ids);
    echo.push_back({show && text ? *text : std::string(), (*ids)[0], false});
    prompts.push_back(std::move(*ids));
    return true;
  };
  if (f.has("suffix")) {
    if (!prompt->is_string()) return no(invalid("prompt", "one string beside suffix"));
    const text::Prompt fim = text::render_fim(format_, prompt->text, suffix, bos);
    prompts.push_back(text::encode_prompt(fim, tokenizer).ids);
    echo.push_back({show ? prompt->text : std::string(), -1, false});
    return true;
  }
  if (prompt->is_string()) return add_text(prompt->text);
  if (!prompt->is_array() || prompt->items.empty())
    return no(invalid("prompt", "a string, a list of strings, or token ids"));
  if (prompt->items[0].is(text::JsonValue::Kind::kNumber)) return add_ids(*prompt, "prompt");
  if (prompt->items.size() > kMaxPrompts) return no(invalid("prompt", fmt::format("at most {} prompts", kMaxPrompts)));
  for (std::size_t i = 0; i < prompt->items.size(); ++i) {
    const text::JsonValue& one = prompt->items[i];
    const std::string where = fmt::format("prompt[{}]", i);
    if (!one.is_string() && !one.is_array()) return no(invalid(where, "a string or a list of token ids"));
    if (one.is_string() ? !add_text(one.text) : !add_ids(one, where)) return false;
  }
  return true;
}

void Api::completions(Call& call) {
  text::JsonValue body;
  if (!can_generate(call) || !read_body(call, body)) return;
  auto params = read_params(body, Endpoint::kCompletions, options_.vocab);
  if (!params) return refuse(call, params.error());
  if (!check_model(call, params->model)) return;
  const text::JsonValue* echoes = body.get("echo");
  const bool scores = echoes != nullptr && echoes->is_true() && params->sampling.logprobs;
  const text::JsonValue* suffix = body.get("suffix");
  if (scores && suffix != nullptr)
    return refuse(call, invalid("suffix", "none where log-probabilities of the prompt are asked for (echo, logprobs)"));
  auto structure = structure_of_text(body);
  if (!structure) return refuse(call, structure.error());
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<Echo> echo;
  if (!prompts_of(call, body, *params, prompts, echo)) return;
  std::vector<engine::Request> requests;
  std::size_t scored = 0;
  for (auto& prompt : prompts) {
    engine::Request request;
    request.prompt = std::move(prompt);
    if (!fill(call, "prompt", *params, request)) return;
    request.score_prompt = scores;
    scored += request.prompt.size() * (1 + static_cast<std::size_t>(params->sampling.top_logprobs));
    if (scores && scored > kMaxScores) {
      return refuse(call,
                    invalid("prompt", fmt::format("{} log-probabilities of tokens at most (tokens, times logprobs "
                                                  "and 1), so fewer tokens or fewer logprobs",
                                                  kMaxScores)));
    }
    requests.push_back(std::move(request));
  }
  RawOptions raw{.stop = params->stop,
                 .include_stop = params->include_stop,
                 .skip_special = params->skip_special,
                 .stop_ids = params->stop_ids};
  if (!params->ignore_eos) raw.stop_ids.push_back(format_.control().eos);
  for (engine::Request& r : requests) r.stop_ids = raw.stop_ids;

  AnswerOptions answer;
  answer.stream = params->stream;
  answer.choices_per_prompt = static_cast<std::size_t>(params->n);
  answer.scores = scores;
  answer.parser = [this, raw] { return make_raw_parser(format_.tokenizer(), raw); };
  run_under(call, std::move(*structure), std::move(requests),
            make_completions_writer(writer_options(call.request, *params, options_.model_id, format_.tokenizer()),
                                    std::move(echo), static_cast<std::size_t>(params->n)),
            std::move(answer));
}

}  // namespace fathom::server

// A whole request without a socket and without a model: any bytes as the body of any endpoint, from JSON to the prompt,
// and an answer made up from the same bytes, from tokens to the words of the dialect. Each is answered once, in JSON or
// as a stream with its end, and never with a fault of ours.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/compiler.h"
#include "grammar/constraint.h"
#include "server/api.h"
#include "text/chat_format.h"
#include "text/json_value.h"

// Rules are read and their schemas prepared, but nothing is compiled: the library behind that takes long to build here
// and long for a single input. What it would forbid is allowed.
namespace fathom::grammar {

class Program {};
class Compiler::Impl {};
Compiler::Compiler(const text::ChatFormat&, std::int32_t, CompilerOptions) {}
Compiler::~Compiler() = default;
void Compiler::stop() {}
CompilerStats Compiler::stats() const { return {}; }
void Compiler::compile_later(Rules rules, Done done) {
  FATHOM_CHECK(!key_of(rules).empty(), "rules have a name");
  done(std::make_shared<const Program>());
}

class Nothing final : public engine::Constraint {
 public:
  Result<std::span<const std::uint64_t>> allowed() override { return std::span<const std::uint64_t>{}; }
  void accept(std::int32_t) override {}
  void take_back(std::int32_t) override {}
  bool ended() const override { return false; }
  std::unique_ptr<engine::Constraint> fresh() const override { return std::make_unique<Nothing>(); }
};
Result<std::unique_ptr<engine::Constraint>> make_constraint(Plan, std::int32_t) { return std::make_unique<Nothing>(); }

}  // namespace fathom::grammar

namespace {

using namespace fathom;

constexpr std::string_view kPaths[] = {
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/responses",        "/tokenize",       "/detokenize"};

class Client final : public server::Exchange {
 public:
  void post(std::function<void()> work) override { work_.push_back(std::move(work)); }
  void add_header(std::string, std::string) override {}
  void send(server::HttpAnswer answer) override {
    FATHOM_CHECK(!answered_ && !streaming_, "one answer a request");
    answered_ = true;
    status = answer.status;
    body = std::move(answer.body);
  }
  void begin_stream(std::function<std::string()>) override {
    FATHOM_CHECK(!answered_ && !streaming_, "one answer a request");
    streaming_ = true;
  }
  void write(std::string bytes) override {
    FATHOM_CHECK(streaming_ && !answered_, "events are between the begin and the end of a stream");
    body += bytes;
  }
  void end_stream() override {
    FATHOM_CHECK(streaming_ && !answered_, "a stream ends once");
    answered_ = true;
  }
  void on_gone(std::function<void()>) override {}
  bool answered() const override { return answered_; }

  void run_posted() {
    for (std::size_t i = 0; i < work_.size(); ++i) work_[i]();
    work_.clear();
  }
  bool streamed() const { return streaming_; }

  int status = 200;
  std::string body;

 private:
  std::vector<std::function<void()>> work_;
  bool answered_ = false;
  bool streaming_ = false;
};

// Answers at once: what the model says is a whole turn with two calls, from a place in it that the request decides on,
// and ids drawn from the request.
class MadeUp final : public server::Generator {
 public:
  explicit MadeUp(const text::Tokenizer& tokenizer)
      : vocab_(tokenizer.vocab_size()),
        script_(
            tokenizer.encode("I think.</think>Well é🙂.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n"
                             "<｜DSML｜parameter name=\"cmd\" string=\"true\">make 2>&1</｜DSML｜parameter>\n"
                             "<｜DSML｜parameter name=\"n\" string=\"false\">[5, {\"a\": 1}]</｜DSML｜parameter>\n"
                             "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
                             "<｜end▁of▁sentence｜>",
                             text::Mode::kSpecial)) {}

  Result<engine::RequestId> submit(engine::Request request) override {
    engine::Reply reply(std::move(request.sink));
    engine::Outcome outcome;
    outcome.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
    for (std::int32_t choice = 0; choice < request.n; ++choice) {
      auto constraint = request.constraint ? request.constraint->fresh() : nullptr;
      const engine::Finish why = play(request, choice, constraint.get(), reply, outcome.completion_tokens);
      outcome.choices.push_back(why);
      reply.choice_done(choice, why);
    }
    reply.finish(std::move(outcome));
    return ++last_;
  }
  void cancel(engine::RequestId) override {}
  engine::CoreStats stats() const override { return {}; }
  engine::EngineHealth health() const override { return {}; }

 private:
  engine::Finish play(const engine::Request& r, std::int32_t choice, engine::Constraint* constraint,
                      engine::Reply& reply, std::int32_t& said) {
    constexpr std::int32_t kMost = 120;
    for (std::int32_t i = 0; i < std::min(r.max_tokens, kMost); ++i) {
      const std::int32_t id = pick(r, choice, i);
      if (constraint != nullptr) constraint->accept(id);
      ++said;
      if (reply.token(choice, {id, -1.0F, {{id, -1.0F}}}) == engine::Verdict::kStop) return engine::Finish::kStop;
      if (std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end()) return engine::Finish::kStop;
    }
    return engine::Finish::kLength;
  }
  std::int32_t pick(const engine::Request& r, std::int32_t choice, std::int32_t i) const {
    const auto from = static_cast<std::size_t>(r.prompt[r.prompt.size() / 2] + choice) % (2 * script_.size());
    const std::size_t at = static_cast<std::size_t>(i) + (from < script_.size() ? from : 0);
    if (at < script_.size()) return script_[at];
    return r.prompt[static_cast<std::size_t>(i) % r.prompt.size()] % vocab_;
  }
  const std::int32_t vocab_;
  const std::vector<std::int32_t> script_;
  engine::RequestId last_ = 0;
};

void check_answer(const Client& client, std::string_view path) {
  FATHOM_CHECK(client.answered(), "every request is answered");
  if (client.streamed()) {
    const bool messages = path == "/v1/messages";
    const bool responses = path == "/v1/responses";
    const std::string_view text = client.body;
    FATHOM_CHECK(text.substr(text.size() - 2) == "\n\n", "a stream ends with an event");
    const std::string_view last = text.substr(text.rfind("\n\n", text.size() - 3) + 2);
    FATHOM_CHECK(messages    ? last.starts_with("event: message_stop\n") || last.starts_with("event: error\n")
                 : responses ? last.starts_with("event: response.")
                             : last == "data: [DONE]\n\n",
                 "a stream has its end");
    return;
  }
  FATHOM_CHECK(client.status != 500 || client.body.find("incomplete_tool_call") != std::string::npos,
               "no fault of ours");
  const auto json = text::parse_json_value(client.body, "answer");
  FATHOM_CHECK(json && json->is_object(), "an answer is a JSON object");
  FATHOM_CHECK((client.status == 200) == (json->get("error") == nullptr), "an error is one in status and body");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto format = text::ChatFormat::load(FATHOM_SOURCE_DIR "/models/fathom-tiny");
  FATHOM_CHECK(format, "the embedded format loads");
  static MadeUp generator(format->tokenizer());
  static server::Api api(*format, generator, [] {
    server::ApiOptions options;
    options.vocab = format->tokenizer().vocab_size();
    options.context = 8192;
    options.turn_memory_bytes = 1 << 20;
    return options;
  }());
  if (size == 0) return 0;
  // The first byte is a digit in the corpus; any other does too.
  const std::string_view path = kPaths[(data[0] + 256U - '0') % std::size(kPaths)];
  const auto client = std::make_shared<Client>();
  server::HttpRequest request;
  request.method = "POST";
  request.path = path;
  request.id = "req_fuzz";
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  api.handle(client, std::move(request));
  client->run_posted();
  check_answer(*client, path);
  return 0;
}

// fathom run: talk to a model, or let it go on with a text.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "cli/answer_view.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/compute.h"
#include "cli/generate.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/progress.h"
#include "grammar/compiler.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/render.h"
#include "text/stream_parser.h"

namespace fathom::cli {
namespace {

constexpr std::int32_t kStep = 256;
constexpr std::size_t kMaxSmallFile = std::size_t{16} << 20;

struct Options {
  std::string model;
  ComputeOptions compute;
  std::string prompt;
  bool has_prompt = false;
  std::string system;
  std::string tools;
  std::string json_schema;
  std::string regex;
  bool raw = false;
  bool thinking = false;
  bool show_thinking = false;
  bool interactive = false;
  bool json = false;
  bool quiet = false;
  std::int32_t max_tokens = 0;
  std::vector<std::string> stop;
  // Sampling: what is not given comes from the checkpoint's generation_config.json.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> min_p;
  std::uint64_t seed = 0;
};

Result<engine::SamplingParams> sampling_of(const Options& o, const std::filesystem::path& folder, std::int32_t vocab) {
  engine::SamplingParams p;
  const auto file = folder / "generation_config.json";
  if (std::filesystem::exists(file)) {
    FATHOM_ASSIGN(const std::string text, read_text_file(file, kMaxSmallFile));
    FATHOM_ASSIGN(const Json json, parse_json(text, file.string()));
    const auto number = [&](const char* key, auto fallback) {
      return json.is_object() && json.contains(key) && json[key].is_number() ? json[key].get<decltype(fallback)>()
                                                                             : fallback;
    };
    p.temperature = number("temperature", p.temperature);
    p.top_p = number("top_p", p.top_p);
    p.top_k = number("top_k", p.top_k);
    if (json.is_object() && json.value("do_sample", Json(true)) == Json(false)) p.temperature = 0;
  }
  p.temperature = o.temperature.value_or(p.temperature);
  p.top_p = o.top_p.value_or(p.top_p);
  p.top_k = o.top_k.value_or(p.top_k);
  p.min_p = o.min_p.value_or(p.min_p);
  p.seed = o.seed;
  FATHOM_TRY(engine::validate(p, vocab));
  return p;
}

// The tools of --tools: an array of function objects, bare or as OpenAI wraps them.
struct Tools {
  std::vector<std::string> rendered;
  std::vector<text::ParserTool> parsed;
};

Result<Tools> read_tools(const std::string& path) {
  Tools tools;
  if (path.empty()) return tools;
  FATHOM_ASSIGN(const std::string text, read_text_file(path, kMaxSmallFile));
  FATHOM_ASSIGN(const text::JsonValue json, text::parse_json_value(text, path));
  if (!json.is_array()) return fail(Code::kInvalid, "{}: expected an array of tools", path);
  for (const text::JsonValue& entry : json.items) {
    const text::JsonValue* wrapped = entry.get("function");
    const text::JsonValue& function = wrapped != nullptr ? *wrapped : entry;
    const text::JsonValue* name = function.get("name");
    if (name == nullptr || !name->is_string()) {
      return fail(Code::kInvalid, "{}: tool {} has no name", path, tools.rendered.size());
    }
    FATHOM_TRY(text::append_json_text(function, tools.rendered.emplace_back()));
    const text::JsonValue* parameters = function.get("parameters");
    tools.parsed.push_back(
        text::ParserTool::from_schema(name->text, parameters != nullptr ? *parameters : text::JsonValue{}));
  }
  return tools;
}

// What answers must look like, of --json-schema and --regex.
struct Form {
  std::shared_ptr<const grammar::Program> program;  // nullptr: anything
  std::optional<std::string> schema;                // as the prompt shows it
};

Result<Form> read_form(const Options& o, const text::ChatFormat& format, std::int32_t vocab) {
  Form form;
  if (o.json_schema.empty() && o.regex.empty()) return form;
  grammar::Rules rules;
  if (o.json_schema.empty()) {
    FATHOM_ASSIGN(rules.content, grammar::regex_content(o.regex));
  } else {
    const bool given = o.json_schema.find_first_not_of(" \t\r\n") == o.json_schema.find('{');
    std::string source = o.json_schema;
    if (!given) {
      FATHOM_ASSIGN(source, read_text_file(o.json_schema, kMaxSmallFile));
    }
    FATHOM_ASSIGN(const text::JsonValue json, text::parse_json_value(source, given ? "--json-schema" : o.json_schema));
    const auto schema = grammar::prepare_schema(json, true);
    if (!schema) {
      const grammar::SchemaFault& f = schema.error();
      return fail(Code::kInvalid, "--json-schema: {}{}{}", f.path, f.path.empty() ? "" : ": ", f.what);
    }
    rules.content.kind = grammar::Content::Kind::kJsonSchema;
    FATHOM_TRY(text::append_json_text(schema->value, rules.content.source));
    FATHOM_TRY(text::append_json_text(json, form.schema.emplace()));
  }
  grammar::Compiler compiler(format, vocab);
  auto program = compiler.compile(rules);
  if (!program) {
    return fail(program.error().code, "{}: {}", o.regex.empty() ? "--json-schema" : "--regex", program.error().what);
  }
  form.program = std::move(*program);
  return form;
}

// A conversation: what was said stays computed.
class Conversation {
 public:
  Conversation(const Options& o, const text::ChatFormat& format, Generator generator, engine::SamplingParams sampling,
               Tools tools, Form form, std::int32_t vocab)
      : o_(o),
        format_(format),
        generator_(std::move(generator)),
        sampling_(std::move(sampling)),
        tools_(std::move(tools)),
        form_(std::move(form)),
        vocab_(vocab),
        thinking_(o.thinking) {}

  struct Answer {
    Turn turn;
    std::string content;
    std::string reasoning;
    std::vector<text::ParsedCall> calls;
    std::string finish_reason;
  };

  Result<Answer> say(const std::string& words, const ViewOptions& view_options) {
    FATHOM_ASSIGN(const std::vector<std::int32_t> ids, prompt_ids(words));
    text::TokenParser parser(format_, parser_options(), {.stop_ids = {}, .ignore_eos = false});
    AnswerView view(view_options);
    engine::SamplingParams sampling = sampling_;
    sampling.seed = engine::seed_of_choice(sampling_.seed, turns_);
    FATHOM_ASSIGN(const auto constraint, make_constraint());
    std::optional<ProgressBar> progress(std::in_place, "prompt tokens", ProgressUnit::kCount);
    std::optional<Error> bad;
    const auto turn =
        generator_.run({.ids = ids,
                        .sampling = sampling,
                        .max_tokens = o_.max_tokens,
                        .on_token =
                            [&](std::int32_t id) {
                              progress.reset();
                              return take(id, parser, view, bad);
                            },
                        .on_prefill =
                            [&](std::int32_t done, std::int32_t all) {
                              if (all > kStep)
                                progress->update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(all));
                            },
                        .constraint = constraint.get()});
    progress.reset();
    if (!turn) return tl::unexpected<Error>(turn.error());
    if (bad) return tl::unexpected<Error>(*bad);
    ++turns_;
    parser.parser().finish(turn->end == Turn::End::kStopped ? text::End::kTurn : text::End::kCut);
    view.show(parser.parser().take_events());
    view.finish();
    if (view.failed()) return fail(Code::kExhausted, "cannot write to standard output");
    return Answer{.turn = *turn,
                  .content = view.content(),
                  .reasoning = view.reasoning(),
                  .calls = parser.parser().calls(),
                  .finish_reason = std::string(text::finish_reason_name(parser.parser().finish_reason()))};
  }

  void restart() {
    generator_.restart();
    turns_ = 0;
  }
  void set_thinking(bool on) { thinking_ = on; }
  std::int32_t length() const { return generator_.length(); }

 private:
  Keep take(std::int32_t id, text::TokenParser& parser, AnswerView& view, std::optional<Error>& bad) const {
    if (auto pushed = parser.push(id); !pushed) {
      bad = pushed.error();
      return Keep::kDrop;
    }
    view.show(parser.parser().take_events());
    const text::ControlTokens& control = format_.control();
    if (control.ends_turn(id) && id != control.eos) return Keep::kDrop;
    return parser.parser().done() || id == control.eos ? Keep::kStop : Keep::kGoOn;
  }

  text::ParserOptions parser_options() const {
    text::ParserOptions p;
    p.initial = thinking_ && !o_.raw ? text::ParserState::kReasoning : text::ParserState::kContent;
    if (!tools_.parsed.empty()) p.tools = tools_.parsed;
    p.stop = o_.stop;
    return p;
  }

  // nullptr: answers are free.
  Result<std::unique_ptr<engine::Constraint>> make_constraint() const {
    if (form_.program == nullptr) return std::unique_ptr<engine::Constraint>();
    grammar::Plan plan{.program = form_.program};
    if (parser_options().initial == text::ParserState::kReasoning) {
      const text::ControlTokens& control = format_.control();
      plan.begins_behind = control.think_close;
      plan.not_before = {control.eos, control.bos, control.user, control.assistant, control.latest_reminder};
      if (control.eot >= 0) plan.not_before.push_back(control.eot);
    }
    return grammar::make_constraint(std::move(plan), vocab_);
  }

  Result<std::vector<std::int32_t>> prompt_ids(const std::string& words) const {
    if (o_.raw) {
      std::vector<std::int32_t> ids = format_.tokenizer().encode(words, text::Mode::kSpecial);
      if (generator_.length() == 0 && (ids.empty() || ids.front() != format_.control().bos)) {
        ids.insert(ids.begin(), format_.control().bos);
      }
      return ids;
    }
    if (generator_.length() > 0) return text::next_turn(format_, words, thinking_, generator_.last_id());
    std::vector<text::Message> messages;
    if (!o_.system.empty() || !tools_.rendered.empty() || form_.schema) {
      text::Message system;
      system.role = text::Role::kSystem;
      system.content = o_.system;
      system.tools = tools_.rendered;
      system.response_format = form_.schema;
      messages.push_back(std::move(system));
    }
    text::Message user;
    user.content = words;
    messages.push_back(std::move(user));
    FATHOM_ASSIGN(const text::Prompt prompt, text::render_chat(format_, messages, {.thinking = thinking_}));
    return text::encode_prompt(prompt, format_.tokenizer()).ids;
  }

  const Options& o_;
  const text::ChatFormat& format_;
  Generator generator_;
  engine::SamplingParams sampling_;
  Tools tools_;
  Form form_;
  std::int32_t vocab_;
  bool thinking_;
  std::int32_t turns_ = 0;
};

std::string as_json(const Conversation::Answer& a) {
  Json calls = Json::array();
  for (const text::ParsedCall& c : a.calls) calls.push_back({{"name", c.name}, {"arguments", c.arguments}});
  return Json{{"text", a.content},
              {"reasoning", a.reasoning},
              {"tool_calls", calls},
              {"finish_reason", a.finish_reason},
              {"prompt_tokens", a.turn.prompt_tokens},
              {"completion_tokens", a.turn.generated},
              {"first_token_ms", 1000 * a.turn.first_token_seconds},
              {"tokens_per_second", a.turn.tokens_per_second()},
              {"peak_memory_bytes", peak_memory()}}
      .dump();
}

constexpr const char* kHelp =
    "  /think, /nothink   think before answering, or not\n"
    "  /result TEXT       answer a tool call\n"
    "  /new               forget the conversation\n"
    "  /help, /quit       this; leave (also Ctrl-D)\n"
    "  Ctrl-C stops an answer. A line that ends with \\ goes on in the next.\n";

// A line that begins with a slash. True: it was a command, and is done. `say` is set where something is to be said.
bool slash_command(const std::string& line, Conversation& c, bool& quit, std::string& say) {
  say = line;
  if (line.empty() || line[0] != '/') return false;
  const std::string result = "/result ";
  if (line.rfind(result, 0) == 0) {
    say = "<tool_result>" + line.substr(result.size()) + "</tool_result>";
    return false;
  }
  if (line == "/think" || line == "/nothink") {
    c.set_thinking(line == "/think");
  } else if (line == "/new") {
    c.restart();
  } else if (line == "/quit" || line == "/exit") {
    quit = true;
  } else {
    std::fputs(kHelp, stderr);
  }
  return true;
}

int talk(const Options& o, Conversation& conversation, const ViewOptions& view) {
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  LineEditor editor(default_history_file().value_or(std::filesystem::path()));
  if (terminal && !o.quiet) fmt::print(stderr, "Type a message; /help for more, Ctrl-D to leave.\n");
  bool failed = false;
  for (bool quit = false; !quit;) {
    std::string line;
    std::string say;
    const LineEditor::Event event = editor.read("> ", line);
    if (event == LineEditor::Event::kEnd) break;
    if (event == LineEditor::Event::kInterrupted || line.empty() || slash_command(line, conversation, quit, say))
      continue;
    const auto answer = conversation.say(say, view);
    if (!answer) {
      // The conversation goes on: one bad turn (too long, say) is not the end of it.
      fail_with(answer.error());
      failed = true;
      continue;
    }
    if (!o.quiet) print_turn(answer->turn, view.styled);
  }
  if (terminal) std::fputs("\n", stderr);
  return failed && !terminal ? ExitCode::kFailed : ExitCode::kOk;
}

Result<int> run(const Options& o) {
  for (const std::string& s : o.stop) {
    if (s.empty()) return fail(Code::kInvalid, "--stop: an empty text would stop every answer at once");
  }
  FATHOM_ASSIGN(const auto folder, model_folder(o.model));
  FATHOM_ASSIGN(const auto format, text::ChatFormat::load(folder));
  FATHOM_ASSIGN(Tools tools, read_tools(o.tools));
  FATHOM_ASSIGN(LoadedModel loaded, load_model(folder, o.compute, {.max_step_tokens = kStep, .max_logit_rows = 1}));
  const std::int32_t vocab = loaded.model->config().vocab;
  if (format.tokenizer().vocab_size() > vocab) {
    return fail(Code::kInvalid, "{}: the tokenizer has {} ids, the model {}", folder.string(),
                format.tokenizer().vocab_size(), vocab);
  }
  FATHOM_ASSIGN(engine::SamplingParams sampling, sampling_of(o, folder, vocab));
  // Ids without a spelling cannot be shown, so they are not said.
  for (std::int32_t id = format.tokenizer().vocab_size(); id < vocab; ++id) sampling.banned.push_back(id);
  FATHOM_ASSIGN(Form form, read_form(o, format, vocab));
  FATHOM_ASSIGN(Generator generator, Generator::create(*loaded.model));
  Conversation conversation(o, format, std::move(generator), std::move(sampling), std::move(tools), std::move(form),
                            vocab);
  const ViewOptions view{
      .styled = ::isatty(STDOUT_FILENO) != 0 && !o.json, .thinking = o.show_thinking, .silent = o.json};
  catch_interrupts();

  const bool one = o.has_prompt || (!o.interactive && ::isatty(STDIN_FILENO) == 0);
  if (!one) return talk(o, conversation, view);
  std::string prompt = o.prompt;
  if (!o.has_prompt) {
    FATHOM_ASSIGN(prompt, read_input("-"));
  }
  FATHOM_ASSIGN(const Conversation::Answer answer, conversation.say(prompt, view));
  if (o.json) {
    Output out;
    out.line(as_json(answer));
    FATHOM_TRY(out.finish());
  } else if (!o.quiet) {
    print_turn(answer.turn, ::isatty(STDERR_FILENO) != 0);
  }
  return answer.turn.end == Turn::End::kInterrupted ? 130 : ExitCode::kOk;
}

}  // namespace

void add_run(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("run", "talk to a model, or let it continue a text");
  auto o = std::make_shared<Options>();
  command->add_option("model", o->model, "folder of the checkpoint (default: the embedded model)")->type_name("MODEL");
  auto* prompt =
      command->add_option("-p,--prompt", o->prompt, "say this, print the answer, leave (default: a conversation)");
  command->add_option("--system", o->system, "the system prompt");
  auto* tools =
      command->add_option("--tools", o->tools, "JSON array of functions that the model may call; calls are shown")
          ->type_name("FILE");
  auto* schema = command->add_option("--json-schema", o->json_schema, "answers are JSON that follows this schema")
                     ->type_name("FILE|JSON")
                     ->excludes(tools);
  command->add_option("--regex", o->regex, "answers match this expression")->excludes(tools)->excludes(schema);
  command->add_flag("--raw", o->raw, "no chat: the model continues the text (control tokens in it are recognised)");
  command->add_flag("--think,!--no-think", o->thinking, "think before answering");
  command->add_flag("--show-thinking", o->show_thinking, "print the thinking where output is no terminal");
  command->add_flag("-i,--interactive", o->interactive, "a conversation even from a pipe, a turn per line")
      ->excludes(prompt);
  command->add_flag("--json", o->json, "one JSON object with the answer and what it took");
  command->add_flag("-q,--quiet", o->quiet, "only the answer");
  const auto sampling = [&](const std::string& flag, auto& value, const std::string& help) {
    return command->add_option(flag, value, help)->group("Sampling");
  };
  sampling("-n,--max-tokens", o->max_tokens, "stop after so many tokens (default: when the model is done)")
      ->check(CLI::Range(0, 1 << 24));
  sampling("--temperature", o->temperature, "0: the likeliest token (default: the checkpoint's)");
  sampling("--top-p", o->top_p, "keep the likeliest tokens that hold this share");
  sampling("--top-k", o->top_k, "keep this many likeliest tokens; 0: all");
  sampling("--min-p", o->min_p, "keep tokens at least this fraction as likely as the likeliest");
  sampling("--seed", o->seed, "the same seed gives the same text")->capture_default_str();
  sampling("--stop", o->stop, "end the answer before this text; may be given again");
  add_compute_options(*command, o->compute);
  command->footer(
      "Examples:\n"
      "  fathom run\n"
      "  fathom run -p 'Hello! Who are you?'\n"
      "  fathom run -p 'Who are you?' --json-schema '{\"properties\": {\"name\": {\"type\": \"string\"}}}'\n"
      "  fathom run --raw -p 'Once upon a time' -n 100 --seed 7\n"
      "  fathom run /models/DeepSeek-V4-Flash --think --system 'Answer briefly.'\n"
      "  echo 'What is two plus three?' | fathom run --json");
  command->callback([o, prompt, &exit] {
    o->has_prompt = prompt->count() > 0;
    const auto code = run(*o);
    exit.value = code ? *code : fail_with(code.error());
  });
}

}  // namespace fathom::cli

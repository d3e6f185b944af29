// fathom parse: what a model wrote in, reasoning, content and tool calls out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "text/json_value.h"
#include "text/stream_parser.h"
#include "text/utf8.h"

namespace fathom::cli {
namespace {

constexpr std::size_t kMaxToolsFile = std::size_t{16} << 20;

struct Options {
  std::string input;
  std::string tools;
  std::vector<std::string> stop;
  bool lines = false;
  bool no_thinking = false;
  bool no_tools = false;
  bool cut = false;
};

// A list of {"name", "parameters"}, or of the OpenAI form around it.
Result<std::vector<text::ParserTool>> read_tools(const text::JsonValue& list) {
  if (!list.is_array()) return fail(Code::kInvalid, "tools: expected a list or null");
  std::vector<text::ParserTool> tools;
  for (const text::JsonValue& entry : list.items) {
    const text::JsonValue* function = entry.get("function");
    const text::JsonValue& tool = function != nullptr ? *function : entry;
    const text::JsonValue* name = tool.get("name");
    if (name == nullptr || !name->is_string()) return fail(Code::kInvalid, "tools: a tool without a name");
    const text::JsonValue* parameters = tool.get("parameters");
    tools.push_back(text::ParserTool::from_schema(name->text, parameters != nullptr ? *parameters : text::JsonValue()));
  }
  return tools;
}

std::string event_json(const text::ParserEvent& e) {
  using Kind = text::ParserEvent::Kind;
  switch (e.kind) {
    case Kind::kReasoning: return fmt::format("{{\"type\": \"reasoning\", \"text\": {}}}", json_string(e.text));
    case Kind::kContent: return fmt::format("{{\"type\": \"content\", \"text\": {}}}", json_string(e.text));
    case Kind::kToolStart:
      return fmt::format("{{\"type\": \"tool_start\", \"index\": {}, \"name\": {}}}", e.index, json_string(e.text));
    case Kind::kToolArgs:
      return fmt::format("{{\"type\": \"tool_args\", \"index\": {}, \"text\": {}}}", e.index, json_string(e.text));
  }
  return "";
}

// The fields of the `expect` objects. `parser` has finished and no event has been taken.
std::string outcome_json(text::StreamParser& parser) {
  std::string reasoning;
  std::string content;
  std::vector<std::string> events;
  for (const text::ParserEvent& e : parser.take_events()) {
    if (e.kind == text::ParserEvent::Kind::kReasoning) reasoning += e.text;
    if (e.kind == text::ParserEvent::Kind::kContent) content += e.text;
    events.push_back(event_json(e));
  }
  std::vector<std::string> calls;
  for (const text::ParsedCall& c : parser.calls()) {
    calls.push_back(fmt::format("{{\"name\": {}, \"arguments\": {}}}", json_string(c.name), json_string(c.arguments)));
  }
  const auto& stop = parser.matched_stop();
  return fmt::format(
      "{{\"reasoning\": {}, \"content\": {}, \"tool_calls\": [{}], \"finish_reason\": \"{}\"{}, \"events\": [{}]}}",
      json_string(reasoning), json_string(content), fmt::join(calls, ", "),
      text::finish_reason_name(parser.finish_reason()), stop ? ", \"matched_stop\": " + json_string(*stop) : "",
      fmt::join(events, ", "));
}

Result<text::ParserOptions> read_options(const text::JsonValue& input) {
  text::ParserOptions options;
  const text::JsonValue* thinking = input.get("thinking");
  if (thinking == nullptr || !thinking->is_bool()) return fail(Code::kInvalid, "thinking: expected true or false");
  options.initial = thinking->is_true() ? text::ParserState::kReasoning : text::ParserState::kContent;
  if (const text::JsonValue* state = input.get("initial_state")) {
    if (state->text == "REASONING") options.initial = text::ParserState::kReasoning;
    else if (state->text == "CONTENT") options.initial = text::ParserState::kContent;
    else if (state->text == "TOOL_BLOCK") options.initial = text::ParserState::kToolBlock;
    else return fail(Code::kInvalid, "initial_state: expected REASONING, CONTENT or TOOL_BLOCK");
  }
  if (const text::JsonValue* tools = input.get("tools")) {
    FATHOM_ASSIGN(options.tools, read_tools(*tools));
  }
  if (const text::JsonValue* stop = input.get("stop")) {
    for (const text::JsonValue& s : stop->items) {
      if (!s.is_string() || s.text.empty()) return fail(Code::kInvalid, "stop: expected strings that are not empty");
      options.stop.push_back(s.text);
    }
  }
  return options;
}

// An object like the `input` objects of the vectors.
Result<std::string> parse_object(std::string_view json) {
  FATHOM_ASSIGN(const text::JsonValue input, text::parse_json_value(json, "input"));
  FATHOM_ASSIGN(text::ParserOptions options, read_options(input));
  const text::JsonValue* finish = input.get("finish");
  const bool cut = finish != nullptr && finish->text == "length";
  text::StreamParser parser(std::move(options));
  if (const text::JsonValue* raw = input.get("raw")) text::parse_raw(parser, raw->text);
  if (const text::JsonValue* segments = input.get("segments")) {
    for (const text::JsonValue& s : segments->items) {
      if (const text::JsonValue* plain = s.get("text")) parser.text(plain->text);
      if (const text::JsonValue* special = s.get("special")) text::parse_raw(parser, special->text);
      if (const text::JsonValue* raw = s.get("raw")) text::parse_raw(parser, raw->text);
    }
  }
  parser.finish(cut ? text::End::kCut : text::End::kTurn);
  return outcome_json(parser);
}

Result<std::string> parse_text(const Options& o) {
  text::ParserOptions options;
  options.initial = o.no_thinking ? text::ParserState::kContent : text::ParserState::kReasoning;
  options.stop = o.stop;
  if (!o.no_tools) options.tools.emplace();
  if (!o.tools.empty()) {
    FATHOM_ASSIGN(const std::string json, read_text_file(o.tools, kMaxToolsFile));
    FATHOM_ASSIGN(const text::JsonValue list, text::parse_json_value(json, o.tools));
    FATHOM_ASSIGN(options.tools, read_tools(list));
  }
  FATHOM_ASSIGN(const std::string raw, read_input(o.input));
  if (const std::size_t bad = text::find_invalid_utf8(raw); bad != std::string::npos) {
    return fail(Code::kInvalid, "the text is not UTF-8 at byte {}", bad);
  }
  text::StreamParser parser(std::move(options));
  text::parse_raw(parser, raw);
  parser.finish(o.cut ? text::End::kCut : text::End::kTurn);
  return outcome_json(parser);
}

int run(const Options& o) {
  if (o.lines) return answer_lines(o.input, parse_object);
  const auto outcome = parse_text(o);
  if (!outcome) return fail_with(outcome.error());
  Output out;
  out.line(*outcome);
  const auto written = out.finish();
  return written ? ExitCode::kOk : fail_with(written.error());
}

}  // namespace

void add_parse(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("parse", "take apart what a model wrote: reasoning, content, tool calls");
  auto o = std::make_shared<Options>();
  command->add_option("-i,--input", o->input, "read this file (default: standard input)")->type_name("FILE");
  auto* lines = command->add_flag("--lines", o->lines,
                                  "one JSON object per input line (thinking, tools, finish, raw or "
                                  "segments, stop, initial_state), one answer per output line");
  command->add_flag("--no-thinking", o->no_thinking, "the prompt ended with </think>; without, it ended with <think>")
      ->excludes(lines);
  auto* tools =
      command->add_option("--tools", o->tools, "JSON list of the tools that were shown, for types of arguments")
          ->type_name("FILE")
          ->excludes(lines);
  command->add_flag("--no-tools", o->no_tools, "no tools were shown: markup is text")->excludes(lines)->excludes(tools);
  command->add_option("--stop", o->stop, "a stop string; may be given again")->take_all()->excludes(lines);
  command->add_flag("--cut", o->cut, "the text was cut off (token limit); without, the model ended its turn")
      ->excludes(lines);
  command->footer(
      "In plain text each spelling of a control token stands for that token. The answer is one JSON object.\n\n"
      "Examples:\n"
      "  echo 'Easy.</think>42' | fathom parse\n"
      "  fathom parse --no-thinking --tools tools.json < answer.txt");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli

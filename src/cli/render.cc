// fathom render: a request in, the prompt that the model sees out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/common.h"
#include "text/api_request.h"
#include "text/chat_format.h"
#include "text/json_value.h"
#include "text/raw_request.h"
#include "text/render.h"

namespace fathom::cli {
namespace {

struct Options {
  TextSource source;
  std::string dialect = "raw";
  std::string revision;
  std::string input;
  bool lines = false;
  bool prompt_only = false;
};

struct Answer {
  std::string json;
  std::string prompt;
  bool ok = false;
};

Answer error_answer(std::string_view what) { return {fmt::format("{{\"error\": {}}}", json_string(what)), "", false}; }

Answer reject_answer(const text::Reject& r) {
  return {fmt::format("{{\"reject\": {{\"status\": {}, \"param\": {}, \"code\": {}, \"message\": {}}}}}", r.status,
                      r.param.empty() ? "null" : json_string(r.param), json_string(r.code), json_string(r.message)),
          "", false};
}

std::string_view state_name(text::ParserState state) {
  switch (state) {
    case text::ParserState::kReasoning: return "REASONING";
    case text::ParserState::kContent: return "CONTENT";
    case text::ParserState::kToolBlock: return "TOOL_BLOCK";
  }
  return "";
}

Answer prompt_answer(const text::ChatFormat& format, const text::Prompt& prompt, text::ParserState state) {
  const auto encoded = text::encode_prompt(prompt, format.tokenizer());
  Answer answer;
  answer.ok = true;
  answer.prompt = text::prompt_string(prompt, format.tokenizer());
  answer.json = fmt::format("{{\"prompt\": {}, \"ids\": [{}], \"initial_state\": \"{}\"}}", json_string(answer.prompt),
                            fmt::join(encoded.ids, ", "), state_name(state));
  return answer;
}

Answer render_raw(const text::ChatFormat& format, const text::JsonValue& input) {
  const auto request = text::read_raw_request(input);
  if (!request) return error_answer(request.error().what);
  const auto prompt = text::render_chat(format, request->messages, request->options, request->context);
  if (!prompt) return error_answer(prompt.error().what);
  return prompt_answer(format, *prompt, text::initial_state(*prompt, format));
}

Answer render_api(const text::ChatFormat& format, const text::JsonValue& input) {
  const text::JsonValue* api = input.get("api");
  const text::JsonValue* body = input.get("body");
  if (api == nullptr || body == nullptr) return error_answer("expected {\"api\": ..., \"body\": ...}");
  text::Dialect dialect = text::Dialect::kChat;
  if (api->text == "messages") dialect = text::Dialect::kMessages;
  else if (api->text == "responses") dialect = text::Dialect::kResponses;
  else if (api->text != "chat") return error_answer("api: expected \"chat\", \"messages\" or \"responses\"");
  const auto request = text::map_request(dialect, *body, {});
  if (!request) return reject_answer(request.error());
  const auto rendered = text::render_request(format, *request);
  if (!rendered) return error_answer(rendered.error().what);
  return prompt_answer(format, rendered->prompt, rendered->state);
}

int run(const Options& o) {
  const auto folder = text_folder(o.source);
  if (!folder) return fail_with(folder.error());
  auto format = text::ChatFormat::load(*folder);
  if (!format) return fail_with(format.error());
  if (o.revision == "preview") format->set_revision(text::Revision::kPreview);
  if (o.revision == "0731") format->set_revision(text::Revision::k0731);
  const auto answer = [&](std::string_view json) {
    const auto input = text::parse_json_value(json, "request");
    if (!input) return error_answer(input.error().what);
    return o.dialect == "raw" ? render_raw(*format, *input) : render_api(*format, *input);
  };
  if (o.lines) {
    return answer_lines(o.input, [&](std::string_view line) -> Result<std::string> { return answer(line).json; });
  }
  const auto input = read_input(o.input);
  if (!input) return fail_with(input.error());
  const Answer a = answer(*input);
  Output out;
  if (o.prompt_only && a.ok) out.write(a.prompt);
  else out.line(a.json);
  const auto written = out.finish();
  if (!written) return fail_with(written.error());
  return a.ok ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace

void add_render(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("render", "turn a conversation into the prompt that the model sees");
  auto o = std::make_shared<Options>();
  add_text_source(*command, o->source);
  command
      ->add_option("--dialect", o->dialect,
                   "raw: the encoder's own input; api: {\"api\": chat|messages|responses, \"body\": ...}")
      ->check(CLI::IsMember({"raw", "api"}))
      ->capture_default_str();
  command->add_option("--revision", o->revision, "table of effort prefixes (default: what the checkpoint says)")
      ->check(CLI::IsMember({"preview", "0731"}));
  command->add_option("-i,--input", o->input, "read this file (default: standard input)")->type_name("FILE");
  auto* lines = command->add_flag("--lines", o->lines, "one request per input line, one answer per output line");
  command->add_flag("--prompt", o->prompt_only, "print the prompt itself and nothing else")->excludes(lines);
  command->footer(
      "The answer is {\"prompt\", \"ids\", \"initial_state\"}, or {\"error\"}, or {\"reject\": {\"status\", "
      "\"param\"}}.\n\n"
      "Examples:\n"
      "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"thinking_mode\": \"chat\"}' | fathom "
      "render\n"
      "  echo '{\"api\": \"chat\", \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}}' |\n"
      "    fathom render --dialect api --revision 0731 --prompt");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli

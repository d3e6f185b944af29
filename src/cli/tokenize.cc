// fathom tokenize: text in, token ids out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/common.h"
#include "text/json_reader.h"
#include "text/utf8.h"

namespace fathom::cli {
namespace {

struct Options {
  TextSource source;
  std::string text;
  bool has_text = false;
  std::string input;
  bool special = false;
  bool lines = false;
  bool json = false;
};

std::string as_json(const std::vector<std::int32_t>& ids) { return fmt::format("[{}]", fmt::join(ids, ", ")); }

// {"count": ..., "ids": [...], "tokens": ["...", ...]}
std::string with_spellings(const text::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string tokens;
  for (const std::int32_t id : ids) {
    std::string spelling;
    text::Utf8Stream stream;
    stream.push(tokenizer.token_bytes(id).value_or(""), spelling);
    stream.finish(spelling);
    if (!tokens.empty()) tokens += ", ";
    tokens += json_string(spelling);
  }
  return fmt::format("{{\"count\": {}, \"ids\": {}, \"tokens\": [{}]}}", ids.size(), as_json(ids), tokens);
}

int run(const Options& o) {
  const auto folder = text_folder(o.source);
  if (!folder) return fail_with(folder.error());
  const auto tokenizer = text::Tokenizer::load(*folder);
  if (!tokenizer) return fail_with(tokenizer.error());
  const auto answer = [&](std::string_view text) {
    const auto ids = tokenizer->encode(text, o.special ? text::Mode::kSpecial : text::Mode::kPlain);
    return o.json ? with_spellings(*tokenizer, ids) : as_json(ids);
  };
  if (o.lines) {
    return answer_lines(o.input, [&](std::string_view line) -> Result<std::string> {
      text::JsonReader reader(line);
      std::string_view text;
      if (!reader.string(text) || !reader.finish()) {
        return fail(Code::kInvalid, "expected a JSON string: {}", reader.error());
      }
      return answer(text);
    });
  }
  auto text = o.has_text ? Result<std::string>(o.text) : read_input(o.input);
  if (!text) return fail_with(text.error());
  if (const std::size_t bad = text::find_invalid_utf8(*text); bad != std::string::npos) {
    return fail_with({Code::kInvalid, fmt::format("the text is not UTF-8 at byte {}", bad)});
  }
  Output out;
  out.line(answer(*text));
  const auto written = out.finish();
  return written ? ExitCode::kOk : fail_with(written.error());
}

}  // namespace

void add_tokenize(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("tokenize", "turn text into token ids");
  auto o = std::make_shared<Options>();
  add_text_source(*command, o->source);
  auto* text = command->add_option("-t,--text", o->text, "the text itself (default: standard input)");
  command->add_option("-i,--input", o->input, "read this file")->type_name("FILE")->excludes(text);
  command->add_flag("--special", o->special, "text that spells a control token becomes it; without, it stays text");
  command->add_flag("--lines", o->lines, "one JSON string per input line, one JSON array per output line")
      ->excludes(text);
  command->add_flag("--json", o->json, "an object with count, ids and the spelling of every token");
  command->footer(
      "Examples:\n"
      "  fathom tokenize -t 'Once upon a time'\n"
      "  fathom tokenize --json --special -t '<think>hm</think>' --tokenizer /models/DeepSeek-V4-Flash\n"
      "  echo '\"two  words\"' | fathom tokenize --lines");
  command->callback([o, text, &exit] {
    o->has_text = text->count() > 0;
    exit.value = run(*o);
  });
}

}  // namespace fathom::cli

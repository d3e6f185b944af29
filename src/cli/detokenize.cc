// fathom detokenize: token ids in, text out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/common.h"
#include "text/json_reader.h"

namespace fathom::cli {
namespace {

struct Options {
  TextSource source;
  std::string input;
  bool lines = false;
  bool json = false;
};

Result<std::int32_t> parse_id(std::string_view token) {
  std::int32_t id = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
  if (error == std::errc() && end == token.data() + token.size()) return id;
  return fail(Code::kInvalid, "\"{}\" is not a token id", token.substr(0, 40));
}

Result<std::vector<std::int32_t>> parse_array(std::string_view json) {
  text::JsonReader reader(json);
  std::vector<std::int32_t> ids;
  std::string_view token;
  if (reader.enter_array()) {
    while (reader.element() && reader.number(token)) {
      FATHOM_ASSIGN(const std::int32_t id, parse_id(token));
      ids.push_back(id);
    }
  }
  if (!reader.finish()) return fail(Code::kInvalid, "expected a JSON array of token ids: {}", reader.error());
  return ids;
}

// A JSON array, or ids with white space or commas between.
Result<std::vector<std::int32_t>> parse_ids(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n,";
  const std::size_t first = text.find_first_not_of(kBetween);
  if (first != std::string_view::npos && text[first] == '[') return parse_array(text);
  std::vector<std::int32_t> ids;
  for (std::size_t at = first; at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    FATHOM_ASSIGN(const std::int32_t id, parse_id(text.substr(at, end - at)));
    ids.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

int run(const Options& o) {
  const auto folder = text_folder(o.source);
  if (!folder) return fail_with(folder.error());
  const auto tokenizer = text::Tokenizer::load(*folder);
  if (!tokenizer) return fail_with(tokenizer.error());
  if (o.lines) {
    return answer_lines(o.input, [&](std::string_view line) -> Result<std::string> {
      FATHOM_ASSIGN(const auto ids, parse_array(line));
      FATHOM_ASSIGN(const std::string text, tokenizer->decode(ids));
      return json_string(text);
    });
  }
  const auto input = read_input(o.input);
  if (!input) return fail_with(input.error());
  const auto ids = parse_ids(*input);
  if (!ids) return fail_with(ids.error());
  const auto text = tokenizer->decode(*ids);
  if (!text) return fail_with(text.error());
  Output out;
  if (o.json) {
    out.line(json_string(*text));
  } else {
    out.write(*text);
  }
  const auto written = out.finish();
  return written ? ExitCode::kOk : fail_with(written.error());
}

}  // namespace

void add_detokenize(CLI::App& app, ExitCode& exit) {
  auto* command = app.add_subcommand("detokenize", "turn token ids into text");
  auto o = std::make_shared<Options>();
  add_text_source(*command, o->source);
  command->add_option("-i,--input", o->input, "read this file (default: standard input)")->type_name("FILE");
  command->add_flag("--lines", o->lines, "one JSON array per input line, one JSON string per output line");
  command->add_flag("--json", o->json, "the text as a JSON string; without, exactly the text and no line end");
  command->footer(
      "Input is a JSON array of ids, or ids with blanks, commas or line ends between them. Bytes that are not UTF-8\n"
      "come out as U+FFFD; an id outside the vocabulary is an error.\n\n"
      "Examples:\n"
      "  fathom tokenize -t 'Once upon a time' | fathom detokenize\n"
      "  echo '[67, 68]' | fathom detokenize --lines");
  command->callback([o, &exit] { exit.value = run(*o); });
}

}  // namespace fathom::cli

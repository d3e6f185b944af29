#include "text/chat_format.h"

#include <fmt/format.h>

#include <charconv>

#include "base/mapped_file.h"
#include "text/json_value.h"

namespace fathom::text {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

// The file parsed; nothing if there is no such file.
Result<JsonValue> read_config(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return JsonValue();
  FATHOM_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  return parse_json_value(text, path.string());
}

// "eos_token_id": a number or a list of numbers, one of which must be `eos`.
Result<> check_eos(const JsonValue& config, const std::filesystem::path& path, std::int32_t eos) {
  const JsonValue* named = config.get("eos_token_id");
  if (named == nullptr) return {};
  const std::string expected = std::to_string(eos);
  if (named->text == expected) return {};
  for (const JsonValue& id : named->items) {
    if (id.text == expected) return {};
  }
  return fail(Code::kCorrupt, "{}: eos_token_id is {}, expected {}, the token that ends turns in tokenizer.json",
              path.string(), named->text.empty() ? "a list without it" : named->text, expected);
}

bool names_draft_head(const JsonValue& config) {
  for (const std::string& key : config.keys) {
    if (key.starts_with("dspark_")) return true;
  }
  return false;
}

}  // namespace

Result<ControlTokens> ControlTokens::find(const Tokenizer& tokenizer) {
  if (tokenizer.control_id("<\uFF5CSystem\uFF5C>")) {
    return fail(
        Code::kUnavailable,
        "the tokenizer has <\uFF5CSystem\uFF5C>: a DeepSeek-V4.1 checkpoint, whose prompt format is another one");
  }
  ControlTokens c;
  std::string missing;
  const auto look_up = [&](std::string_view spelling, std::int32_t& id) {
    const auto found = tokenizer.control_id(spelling);
    if (found) id = *found;
    else if (missing.empty()) missing = spelling;
  };
  look_up("<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>", c.bos);
  look_up("<\uFF5Cend\u2581of\u2581sentence\uFF5C>", c.eos);
  look_up("<\uFF5CUser\uFF5C>", c.user);
  look_up("<\uFF5CAssistant\uFF5C>", c.assistant);
  look_up("<think>", c.think_open);
  look_up("</think>", c.think_close);
  look_up("\uFF5CDSML\uFF5C", c.dsml);
  look_up("<\uFF5Clatest_reminder\uFF5C>", c.latest_reminder);
  for (std::size_t i = 0; i < kTaskNames.size(); ++i) {
    look_up(fmt::format("<\uFF5C{}\uFF5C>", kTaskNames[i]), c.task[i]);
  }
  look_up("<\uFF5Cfim\u2581begin\uFF5C>", c.fim_begin);
  look_up("<\uFF5Cfim\u2581hole\uFF5C>", c.fim_hole);
  look_up("<\uFF5Cfim\u2581end\uFF5C>", c.fim_end);
  c.eot = tokenizer.control_id("<|EOT|>").value_or(-1);
  if (!missing.empty()) return fail(Code::kCorrupt, "the tokenizer lacks the control token {}", missing);
  return c;
}

Result<ChatFormat> ChatFormat::make(Tokenizer tokenizer, Revision revision) {
  ChatFormat format;
  format.tokenizer_ = std::make_unique<const Tokenizer>(std::move(tokenizer));
  FATHOM_ASSIGN(format.control_, ControlTokens::find(*format.tokenizer_));
  format.revision_ = revision;
  return format;
}

Result<ChatFormat> ChatFormat::load(const std::filesystem::path& folder) {
  FATHOM_ASSIGN(Tokenizer tokenizer, Tokenizer::load(folder));
  const auto config_path = folder / "config.json";
  const auto generation_path = folder / "generation_config.json";
  FATHOM_ASSIGN(const JsonValue config, read_config(config_path));
  FATHOM_ASSIGN(const JsonValue generation, read_config(generation_path));
  const bool preview = config.is_object() && !names_draft_head(config);
  auto format = make(std::move(tokenizer), preview ? Revision::kPreview : Revision::k0731);
  if (!format) return fail(format.error().code, "{}: {}", folder.string(), format.error().what);
  FATHOM_TRY(check_eos(config, config_path, format->control_.eos));
  FATHOM_TRY(check_eos(generation, generation_path, format->control_.eos));
  return format;
}

}  // namespace fathom::text

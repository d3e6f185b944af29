// For tests: fathom-tiny's tokens, walks through a constraint, and a plain judge of JSON against a schema.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/constraint.h"
#include "grammar/schema.h"
#include "text/chat_format.h"
#include "text/json_value.h"

namespace fathom::grammar {

inline const text::ChatFormat& tiny_format() {
  static const auto format = text::ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!format) ADD_FAILURE() << format.error().what;
  return *format;
}
inline std::int32_t tiny_vocab() { return tiny_format().tokenizer().vocab_size(); }
inline Compiler& tiny_compiler() {
  static Compiler compiler(tiny_format(), tiny_vocab());
  return compiler;
}

inline text::JsonValue json(std::string_view s) {
  auto value = text::parse_json_value(s, "test");
  EXPECT_TRUE(value) << s << (value ? "" : value.error().what);
  return value ? *value : text::JsonValue();
}
inline std::string json_text(const text::JsonValue& value) {
  std::string out;
  EXPECT_TRUE(text::append_json_text(value, out));
  return out;
}
inline Content json_content(std::string_view schema, bool strict = false) {
  const auto prepared = prepare_schema(json(schema), strict);
  EXPECT_TRUE(prepared) << (prepared ? "" : prepared.error().path + ": " + prepared.error().what);
  return {Content::Kind::kJsonSchema, prepared ? json_text(prepared->value) : "{}"};
}
inline Tool strict_tool(std::string name, std::string_view schema) {
  const auto prepared = prepare_schema(json(schema), true);
  EXPECT_TRUE(prepared) << (prepared ? "" : prepared.error().path + ": " + prepared.error().what);
  return {std::move(name), true, prepared ? prepared->value : text::JsonValue()};
}

inline std::shared_ptr<const Program> compile(const Rules& rules) {
  auto program = tiny_compiler().compile(rules);
  EXPECT_TRUE(program) << (program ? "" : program.error().what);
  return program ? *program : nullptr;
}
inline std::unique_ptr<engine::Constraint> constrain(Plan plan) {
  auto constraint = make_constraint(std::move(plan), tiny_vocab());
  EXPECT_TRUE(constraint) << (constraint ? "" : constraint.error().what);
  return constraint ? std::move(*constraint) : nullptr;
}
inline std::unique_ptr<engine::Constraint> constrain(const Rules& rules) {
  return constrain(Plan{.program = compile(rules)});
}

inline bool allows(engine::Constraint& c, std::int32_t id) {
  const auto allowed = c.allowed();
  EXPECT_TRUE(allowed) << (allowed ? "" : allowed.error().what);
  if (!allowed) return false;
  return allowed->empty() || (((*allowed)[static_cast<std::size_t>(id) / 64] >> (id % 64)) & 1U) != 0;
}
inline std::vector<std::int32_t> all_allowed(engine::Constraint& c) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tiny_vocab(); ++id) {
    if (allows(c, id)) ids.push_back(id);
  }
  return ids;
}
// Takes the tokens of `s`, in which control tokens are spelled out, as long as they are allowed. Whether all were.
inline bool follows(engine::Constraint& c, std::string_view s) {
  for (const std::int32_t id : tiny_format().tokenizer().encode(s, text::Mode::kSpecial)) {
    if (!allows(c, id)) return false;
    c.accept(id);
  }
  return true;
}
// Whether `s` is a whole answer.
inline bool fits(const Rules& rules, std::string_view s) {
  const auto c = constrain(rules);
  return c != nullptr && follows(*c, s) && allows(*c, tiny_format().control().eos);
}
inline bool fits(const Content& content, std::string_view s) { return fits(Rules{.content = content}, s); }

// Tokens chosen at random among those allowed, until the end or `most`; brought to an end where that gets long.
struct Walk {
  std::vector<std::int32_t> ids;
  bool ended = false;
  bool stuck = false;
};
inline Walk walk(engine::Constraint& c, std::mt19937& rng, std::size_t most, std::size_t short_of, bool calls = false) {
  const text::Tokenizer& tokenizer = tiny_format().tokenizer();
  Walk w;
  while (w.ids.size() < most && !c.ended()) {
    const auto allowed = c.allowed();
    if (!allowed) break;
    std::vector<std::int32_t> ids;
    std::vector<std::int32_t> closing;
    int best = 0;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!allowed->empty() && (((*allowed)[static_cast<std::size_t>(id) / 64] >> (id % 64)) & 1U) == 0) continue;
      ids.push_back(id);
      const std::string_view bytes = *tokenizer.token_bytes(id);
      const auto is = [&](std::string_view one) { return bytes == one; };
      const int rank = id == tiny_format().control().eos || id == tiny_format().control().dsml ? 4
                       : is("\"") || is("}") || is("]") || (calls && is("</"))                 ? 3
                       : is(",") || is(":")                                                    ? 2
                       : bytes.find_first_not_of("0123456789") == std::string_view::npos       ? 1
                                                                                               : 0;
      if (rank > best) closing.clear();
      best = std::max(best, rank);
      if (rank > 0 && rank == best) closing.push_back(id);
    }
    if (ids.empty()) {
      w.stuck = true;
      break;
    }
    const bool close = !closing.empty() && (w.ids.size() > short_of || rng() % 8 == 0);
    const std::int32_t id = close ? closing[rng() % closing.size()] : ids[rng() % ids.size()];
    w.ids.push_back(id);
    c.accept(id);
  }
  w.ended = c.ended();
  if (w.ended && !w.ids.empty()) w.ids.pop_back();  // EOS
  return w;
}

// "" where `value` is valid under `schema` as the standard reads it; else what is wrong. For the keywords that are
// honoured.
std::string judge(const text::JsonValue& root, const text::JsonValue& schema, const text::JsonValue& value);

}  // namespace fathom::grammar

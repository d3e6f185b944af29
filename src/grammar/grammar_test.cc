#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "grammar/test_support.h"
#include "text/json_reader.h"
#include "text/stream_parser.h"

namespace fathom::grammar {
namespace {

using testing::HasSubstr;
using Calls = Rules::Calls;

TEST(JsonContent, FollowsTheSchema) {
  const Content c = json_content(
      R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 1, "maximum": 12},
          "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "n"]})");
  EXPECT_TRUE(fits(c, R"({"name": "Zoë \"\u00e9", "n": 12})"));
  EXPECT_TRUE(fits(c, R"({"name":"","n":1,"tags":["a","b"]})"));
  EXPECT_FALSE(fits(c, R"({"name": "x"})"));
  EXPECT_FALSE(fits(c, R"({"name": "x", "n": 13})"));
  EXPECT_FALSE(fits(c, R"({"name": "x", "n": 1, "tags": ["c"]})"));
  EXPECT_FALSE(fits(c, R"({"name": "x", "n": 1, "tags": ["a", "a", "a"]})"));
  EXPECT_FALSE(fits(c, R"({"name": "x", "n": 1, "other": 1})"));
  EXPECT_FALSE(fits(c, R"({"n": 1, "name": "x"})"));
  EXPECT_FALSE(fits(c, R"({"name": "x", "n": 1}  )"));
}

TEST(JsonContent, WhiteSpaceIsBounded) {
  const Content c = json_content(R"({"type": "array"})");
  EXPECT_TRUE(fits(c, "[ 1 , 2 ]"));
  EXPECT_TRUE(fits(c, "[1,2]"));
  EXPECT_FALSE(fits(c, "[1,  2]"));
}

TEST(JsonContent, AnyObjectIsAnObject) {
  const Content c = json_content(R"({"type": "object"})");
  EXPECT_TRUE(fits(c, R"({"a": [1, null, {"b": -1.5e3}]})"));
  EXPECT_TRUE(fits(c, "{}"));
  EXPECT_FALSE(fits(c, "[]"));
}

// What compiler.cc mends in the library's JSON.
TEST(JsonContent, EscapesAreWholeCharacters) {
  const Content c = json_content(R"({"type": "string"})");
  EXPECT_TRUE(fits(c, R"("\ud83d\ude00 \uD7FF \uE000 \u0041")"));
  EXPECT_FALSE(fits(c, R"("\ud83d")"));
  EXPECT_FALSE(fits(c, R"("\ud83dx")"));
  EXPECT_FALSE(fits(c, R"("\ude00")"));
  EXPECT_FALSE(fits(c, R"("\ud83d\u0041")"));
}
TEST(JsonContent, StringsHoldNoControlCharacters) {
  for (const char* schema : {R"({"type": "string"})", R"({"type": "string", "minLength": 1, "maxLength": 5})",
                             R"({"type": "string", "pattern": "^.[^b]\\W\\S?$"})"}) {
    const Content c = json_content(schema);
    EXPECT_FALSE(fits(c, "\"a\x16-\"")) << schema;
    EXPECT_FALSE(fits(c, "\"a\t-\"")) << schema;
    EXPECT_FALSE(fits(c, "\"\na-\"")) << schema;
    EXPECT_TRUE(fits(c, "\"a!-\"")) << schema;
  }
}
TEST(JsonContent, FreeNamesDoNotSpellDeclaredOnes) {
  const Content c =
      json_content(R"({"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}})");
  EXPECT_TRUE(fits(c, R"({"ab": 1, "abc": "x", "b\n": "y"})"));
  EXPECT_FALSE(fits(c, R"({"ab": "x"})"));
  EXPECT_FALSE(fits(c, R"({"\u0061b": "x"})"));
  EXPECT_FALSE(fits(c, R"({"a\u0062": "x"})"));
}

TEST(JsonContent, RecursionIsAllowed) {
  const Content c = json_content(
      R"({"$defs": {"tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
          "required": ["kids"]}}, "$ref": "#/$defs/tree"})");
  EXPECT_TRUE(fits(c, R"({"kids": [{"kids": []}, {"kids": [{"kids": []}]}]})"));
  EXPECT_FALSE(fits(c, R"({"kids": [{}]})"));
}

TEST(OtherContent, RegexChoiceAndGrammar) {
  const Content regex = *regex_content(R"([A-Z]{2}-\d+)");
  EXPECT_TRUE(fits(regex, "AB-007"));
  EXPECT_FALSE(fits(regex, "AB-"));
  EXPECT_FALSE(fits(regex, "xAB-1"));
  const Content choice = *choice_content(json(R"(["yes", "no \"way\"\n", "yes, but"])"));
  EXPECT_TRUE(fits(choice, "yes"));
  EXPECT_TRUE(fits(choice, "yes, but"));
  EXPECT_TRUE(fits(choice, "no \"way\"\n"));
  EXPECT_FALSE(fits(choice, "no"));
  const Content grammar = *grammar_content("root ::= item (\", \" item)*\nitem ::= [a-z]+ \"=\" [0-9]");
  EXPECT_TRUE(fits(grammar, "a=1, bc=2"));
  EXPECT_FALSE(fits(grammar, "a=1,"));
}

TEST(OtherContent, WhatIsNoGrammarIsRefused) {
  const auto error = [](const Content& c) {
    const auto program = tiny_compiler().compile({.content = c});
    return program ? "compiled" : program.error().what;
  };
  EXPECT_THAT(error({Content::Kind::kRegex, "(?=a)b"}), HasSubstr("ookahead"));
  EXPECT_THAT(error({Content::Kind::kRegex, "(a"}), testing::Not("compiled"));
  EXPECT_THAT(error({Content::Kind::kGrammar, "start ::= \"a\""}), HasSubstr("root"));
  EXPECT_THAT(error({Content::Kind::kGrammar, "root ::= nothing"}), testing::Not("compiled"));
  EXPECT_THAT(error({Content::Kind::kGrammar, "root ::= Token(99999999)"}), testing::Not("compiled"));
  EXPECT_THAT(error({Content::Kind::kRegex, std::string(5000, '(') + "a" + std::string(5000, ')')}),
              testing::Not("compiled"));
  EXPECT_THAT(error(json_content(R"({"type": "integer", "minimum": 3, "maximum": 2})")), testing::Not("compiled"));
  // Paths of the machine that it was built on are nobody's business.
  EXPECT_THAT(error({Content::Kind::kRegex, "(?=a)b"}), testing::Not(HasSubstr(".cc")));
  EXPECT_FALSE(regex_content(""));
  EXPECT_FALSE(regex_content(std::string(20000, 'a')));
  EXPECT_FALSE(grammar_content(std::string(70000, 'a')));
  EXPECT_FALSE(choice_content(json("[]")));
  EXPECT_FALSE(choice_content(json(R"(["a", 1])")));
  EXPECT_FALSE(choice_content(json("{}")));
}

TEST(OtherContent, WhatCannotBeFollowedInTimeIsRefused) {
  // Every word has very many readings, all of which have to be kept.
  std::string words = "root ::= (";
  for (int i = 0; i < 40; ++i) words += fmt::format("{}([a-z]* [ -~]* [^z]*)*", i == 0 ? "" : " | ");
  const auto program = tiny_compiler().compile({.content = *grammar_content(words + ") root root | \"\"")});
  if (program) {
    // Where the trial went well the answer's own budget must end it.
    const auto c = constrain(Plan{.program = *program});
    std::mt19937 rng(1);
    walk(*c, rng, 200, 1000);
  } else {
    EXPECT_EQ(program.error().code, Code::kInvalid);
  }
}

TEST(Masks, ControlTokensAreNeverPartOfText) {
  const auto c = constrain(Rules{.content = json_content(R"({"type": "string"})")});
  ASSERT_TRUE(follows(*c, "\"abc"));
  for (const std::int32_t id : all_allowed(*c)) EXPECT_FALSE(tiny_format().tokenizer().is_added(id)) << id;
  ASSERT_TRUE(follows(*c, "\""));
  EXPECT_THAT(all_allowed(*c), testing::ElementsAre(tiny_format().control().eos));
  EXPECT_FALSE(c->ended());
  c->accept(tiny_format().control().eos);
  EXPECT_TRUE(c->ended());
}

TEST(Masks, AllButTheForbiddenWhileFree) {
  const text::ControlTokens& control = tiny_format().control();
  const auto c = constrain(Plan{.begins_behind = control.think_close,
                                .not_before = {control.eos, control.dsml},
                                .forced = {7, 8},
                                .program = compile({.content = json_content(R"({"type": "null"})")})});
  ASSERT_TRUE(follows(*c, "I think { \"a\" } that"));
  EXPECT_FALSE(allows(*c, control.eos));
  EXPECT_FALSE(allows(*c, control.dsml));
  EXPECT_TRUE(allows(*c, control.think_close));
  c->accept(control.think_close);
  EXPECT_THAT(all_allowed(*c), testing::ElementsAre(7));
  c->accept(7);
  EXPECT_THAT(all_allowed(*c), testing::ElementsAre(8));
  c->accept(8);
  EXPECT_FALSE(follows(*c, "1"));
  EXPECT_TRUE(follows(*c, "null"));
}

TEST(Masks, TakingBackLeadsToTheSameMasks) {
  const text::ControlTokens& control = tiny_format().control();
  const Plan plan{
      .begins_behind = control.think_close,
      .forced = {5},
      .program = compile({.content = json_content(R"({"type": "object", "properties": {"a": {"type": "number"},
                                      "b": {"type": "string"}}, "required": ["a"]})")})};
  std::vector<std::int32_t> ids = tiny_format().tokenizer().encode("well</think>", text::Mode::kSpecial);
  ids.push_back(5);
  for (const std::int32_t id : tiny_format().tokenizer().encode(R"({"a": 1.25, "b": "xy"})", text::Mode::kPlain))
    ids.push_back(id);
  ids.push_back(control.eos);
  const auto straight = constrain(plan);
  const auto winding = straight->fresh();
  std::mt19937 rng(5);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // Ahead by up to eight tokens, the right ones or others that are allowed, and back.
    std::int32_t ahead = 0;
    for (std::size_t k = i; k < std::min(ids.size(), i + rng() % 9) && !winding->ended(); ++k, ++ahead) {
      const auto allowed = all_allowed(*winding);
      winding->accept(rng() % 2 == 0 ? allowed[rng() % allowed.size()] : (k == i ? ids[k] : allowed[0]));
    }
    winding->take_back(ahead);
    ASSERT_EQ(all_allowed(*winding), all_allowed(*straight)) << i;
    ASSERT_TRUE(allows(*straight, ids[i])) << i;
    straight->accept(ids[i]);
    winding->accept(ids[i]);
  }
  EXPECT_TRUE(straight->ended());
  EXPECT_TRUE(winding->ended());
}

TEST(Masks, WhatThePromptHasIsSeen) {
  const auto program =
      compile({.content = json_content(R"({"type": "object", "properties": {"a": {"type": "integer"}}})")});
  const auto c = constrain(Plan{.program = program, .begun = R"({"a": )"});
  EXPECT_FALSE(follows(*c, "\""));
  EXPECT_TRUE(follows(*c->fresh(), "12}"));
  const auto wrong = make_constraint(Plan{.program = program, .begun = "Sure: {"}, tiny_vocab());
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
}

// Calls as the parser of answers takes them apart.
std::vector<text::ParsedCall> parsed(std::string_view s, const std::vector<Tool>& tools) {
  text::ParserOptions options;
  options.initial = text::ParserState::kToolBlock;
  options.tools.emplace();
  for (const Tool& t : tools) options.tools->push_back(text::ParserTool::from_schema(t.name, t.parameters));
  text::StreamParser parser(options);
  text::parse_raw(parser, s);
  parser.finish(text::End::kTurn);
  return parser.calls();
}

constexpr std::string_view kWeather =
    R"({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F", null]}}, "required": ["city"]})";

TEST(ToolCalls, StrictOnesAreTypedByTheirSchema) {
  const Rules rules{.tools = {strict_tool("get_weather", kWeather), strict_tool("now", R"({"type": "object"})")},
                    .calls = Calls::kBehindOpener};
  const std::string open = "<｜DSML｜invoke name=\"get_weather\">\n";
  const std::string city = "<｜DSML｜parameter name=\"city\" string=\"true\">Por\nto </ 2>&1</｜DSML｜parameter>\n";
  const std::string days = "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n";
  const std::string close = "</｜DSML｜invoke>\n";
  const std::string end = "</｜DSML｜tool_calls>";
  EXPECT_TRUE(fits(rules, open + city + close + end));
  EXPECT_TRUE(fits(rules, open + city + days + close + open + city + close + end));
  EXPECT_TRUE(fits(
      rules, open + city + "<｜DSML｜parameter name=\"unit\" string=\"true\">F</｜DSML｜parameter>\n" + close + end));
  EXPECT_TRUE(fits(rules, open + city + "<｜DSML｜parameter name=\"unit\" string=\"false\">null</｜DSML｜parameter>\n" +
                              close + end));
  EXPECT_FALSE(fits(
      rules,
      open + city + "<｜DSML｜parameter name=\"unit\" string=\"false\">\"F\"</｜DSML｜parameter>\n" + close + end));
  EXPECT_FALSE(fits(rules, open + close + end)) << "city is required";
  EXPECT_FALSE(fits(rules, open + days + city + close + end)) << "out of order";
  EXPECT_FALSE(fits(
      rules, open + city + "<｜DSML｜parameter name=\"days\" string=\"true\">3</｜DSML｜parameter>\n" + close + end));
  EXPECT_FALSE(
      fits(rules, open + city + "<｜DSML｜parameter name=\"x\" string=\"true\">3</｜DSML｜parameter>\n" + close + end));
  EXPECT_FALSE(fits(rules, "<｜DSML｜invoke name=\"other\">\n" + city + close + end));
  EXPECT_FALSE(fits(rules, end)) << "no call";
  EXPECT_TRUE(fits(rules, "<｜DSML｜invoke name=\"now\">\n\n" + close + end));
}

TEST(ToolCalls, TheMarkerIsTheTokenAndNotItsSpelling) {
  const Rules rules{.tools = {strict_tool("f", R"({"properties": {"a": {"type": "string"}}, "required": ["a"]})")},
                    .calls = Calls::kBehindOpener};
  const auto c = constrain(rules);
  ASSERT_TRUE(follows(*c, "<"));
  EXPECT_THAT(all_allowed(*c), testing::ElementsAre(tiny_format().control().dsml));
  // In a value the spelling is text like any other.
  ASSERT_TRUE(follows(*c, "｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">"));
  for (const std::int32_t id : tiny_format().tokenizer().encode("</｜DSML｜x>", text::Mode::kPlain)) {
    ASSERT_TRUE(allows(*c, id));
    c->accept(id);
  }
  EXPECT_FALSE(allows(*c, tiny_format().control().dsml));
  EXPECT_TRUE(follows(*c, "</"));
  EXPECT_TRUE(allows(*c, tiny_format().control().dsml));
}

TEST(ToolCalls, OneWhereNoMoreAreWanted) {
  Rules rules{.tools = {strict_tool("now", "{}")}, .calls = Calls::kBehindOpener};
  const std::string call = "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n";
  EXPECT_TRUE(fits(rules, call + call + "</｜DSML｜tool_calls>"));
  rules.one_call = true;
  EXPECT_TRUE(fits(rules, call + "</｜DSML｜tool_calls>"));
  EXPECT_FALSE(fits(rules, call + call + "</｜DSML｜tool_calls>"));
}

TEST(ToolCalls, OnesThatAreNotStrictAreWellFormed) {
  const Rules rules{.tools = {{.name = "f"}}, .calls = Calls::kBehindMarker};
  const std::string open = "tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
  const std::string end = "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(fits(
      rules,
      open + "<｜DSML｜parameter name=\"any thing\" string=\"false\">[1, {\"a\": null}]</｜DSML｜parameter>\n" + end));
  EXPECT_TRUE(fits(rules, open + "\n" + end));
  EXPECT_FALSE(fits(rules, open + "<｜DSML｜parameter name=\"x\" string=\"false\">[1, </｜DSML｜parameter>\n" + end));
  EXPECT_FALSE(fits(rules, open + "{\"x\": 1}" + end));
}

TEST(ToolCalls, ContentOrCalls) {
  const Rules rules{.content = json_content(R"({"type": "object", "properties": {"a": {"type": "null"}}})"),
                    .tools = {strict_tool("now", "{}")},
                    .calls = Calls::kOrContent};
  EXPECT_TRUE(fits(rules, R"({"a": null})"));
  EXPECT_TRUE(fits(
      rules, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"));
  EXPECT_FALSE(fits(rules, "\n\n{\"a\": null}"));
  EXPECT_FALSE(fits(rules, "Sure"));
}

TEST(ToolCalls, ParametersThatCannotBeWrittenAreNamed) {
  const auto program = tiny_compiler().compile(
      {.tools = {strict_tool("f", R"({"properties": {"a\"b": {}}})")}, .calls = Calls::kBehindOpener});
  ASSERT_FALSE(program);
  EXPECT_THAT(program.error().what, HasSubstr("\"f\""));
  EXPECT_THAT(program.error().what, HasSubstr("cannot be written"));
}

TEST(Cache, SharesProgramsAndForgetsTheLeastRecentlyUsed) {
  Compiler compiler(tiny_format(), tiny_vocab(), {.cache_bytes = 400 << 10});
  const auto rules = [](int i) {
    return Rules{.content = json_content(
                     fmt::format(R"({{"type": "object", "properties": {{"p{}": {{"type": "string"}}}}}})", i))};
  };
  const auto first = compiler.compile(rules(0));
  ASSERT_TRUE(first);
  EXPECT_EQ(*compiler.compile(rules(0)), *first);
  EXPECT_EQ(compiler.stats().hits, 1U);
  for (int i = 1; i < 40; ++i) {
    ASSERT_TRUE(compiler.compile(rules(i)));
    ASSERT_EQ(*compiler.compile(rules(0)), *first) << "used all the time";
    ASSERT_LE(compiler.stats().bytes, 200U << 10U);
  }
  EXPECT_LT(compiler.stats().programs, 40U);
  const std::uint64_t compiled = compiler.stats().compiled;
  ASSERT_TRUE(compiler.compile(rules(1)));
  EXPECT_EQ(compiler.stats().compiled, compiled + 1) << "forgotten";
}

TEST(Cache, CompilesElsewhereAndRefusesWhenTooManyWait) {
  std::mutex mutex;
  std::condition_variable wake;
  bool go = false;
  std::vector<std::string> told;
  {
    Compiler compiler(tiny_format(), tiny_vocab(), {.max_waiting = 2});
    const auto later = [&](const char* regex, bool hold) {
      compiler.compile_later({.content = *regex_content(regex)}, [&, regex, hold](auto program) {
        std::unique_lock lock(mutex);
        told.push_back(std::string(regex) + (program                                    ? " ok"
                                             : program.error().code == Code::kExhausted ? " full"
                                                                                        : " no"));
        wake.notify_all();
        if (hold) wake.wait(lock, [&] { return go; });
      });
    };
    later("a", true);
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return told.size() == 1; });
    }
    later("b", false);
    later("(c", false);
    later("d", false);  // the third in line
    EXPECT_THAT(told, testing::ElementsAre("a ok", "d full"));
    {
      const std::lock_guard lock(mutex);
      go = true;
    }
    wake.notify_all();
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return told.size() == 4; });
  }
  EXPECT_THAT(told, testing::ElementsAre("a ok", "d full", "b ok", "(c no"));
}

TEST(Cache, KeysTellRulesApart) {
  const Tool f = strict_tool("f", R"({"properties": {"a": {"type": "string"}}})");
  Tool loose = f;
  loose.strict = false;
  const std::vector<Rules> all = {
      {.content = {Content::Kind::kRegex, "a"}},
      {.content = {Content::Kind::kGrammar, "a"}},
      {.content = {Content::Kind::kRegex, "ab"}},
      {.tools = {f}, .calls = Calls::kBehindOpener},
      {.tools = {f}, .calls = Calls::kBehindMarker},
      {.tools = {f}, .calls = Calls::kBehindOpener, .one_call = true},
      {.tools = {loose}, .calls = Calls::kBehindOpener},
      {.tools = {f, loose}, .calls = Calls::kBehindOpener},
      {.tools = {strict_tool("f", R"({"properties": {"a": {"type": "null"}}})")}, .calls = Calls::kBehindOpener},
  };
  std::vector<std::string> keys;
  for (const Rules& r : all) keys.push_back(key_of(r));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

// Random schemas, random tokens: what comes out is valid under the schema, as another reader of schemas sees it.
class RandomSchema {
 public:
  explicit RandomSchema(unsigned seed) : rng_(seed) {}
  std::string document() {
    const std::string self = object(2);
    return R"({"$defs": {"node": )" + self + R"(, "leaf": )" + scalar() + "}, " + object(3).substr(1);
  }
  std::string object(int depth) {
    std::string properties;
    std::string required;
    const std::size_t n = rng_() % 4;
    for (std::size_t i = 0; i < n; ++i) {
      const std::string name = fmt::format("\"{}\"", kNames[(first_ + i) % 6]);
      properties += (i > 0 ? ", " : "") + name + ": " + any(depth - 1);
      if (rng_() % 2 == 0) required += (required.empty() ? "" : ", ") + name;
    }
    first_ = rng_() % 6;
    std::string out = R"({"type": "object", "properties": {)" + properties + R"(}, "required": [)" + required + "]";
    if (rng_() % 4 == 0) out += R"(, "additionalProperties": )" + (rng_() % 2 == 0 ? scalar() : "true");
    return out + "}";
  }
  std::string any(int depth) {
    const auto kind = depth <= 0 ? rng_() % 3 : rng_() % 10;
    if (kind < 3) return scalar();
    if (kind < 6) return object(depth);
    if (kind == 6)
      return fmt::format(R"({{"type": "array", "items": {}, "minItems": {}, "maxItems": {}}})", any(depth - 1),
                         rng_() % 3, 3);
    if (kind == 7) return fmt::format(R"({{"type": "array", "prefixItems": [{}, {}]}})", any(depth - 1), scalar());
    if (kind == 8) return fmt::format(R"({{"anyOf": [{}, {}]}})", any(depth - 1), any(depth - 1));
    return rng_() % 2 == 0 ? R"({"$ref": "#/$defs/leaf"})" : R"({"type": ["object", "null"], "minProperties": 1})";
  }
  std::string scalar() {
    static constexpr const char* kScalars[] = {
        R"({"type": "string"})",
        R"({"type": "string", "minLength": 1, "maxLength": 5})",
        R"({"type": "string", "pattern": "^[a-f]{2,4}-[x-z]+$"})",
        R"({"type": "string", "format": "date-time"})",
        R"({"type": "integer"})",
        R"({"type": "integer", "minimum": -7, "maximum": 1000})",
        R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3})",
        R"({"type": "number", "minimum": -0.5, "maximum": 12.25})",
        R"({"type": "number"})",
        R"({"type": ["boolean", "null"]})",
        R"({"enum": ["a", "a b", 1, 2.5, null, {"x": [1, "/"]}]})",
        R"({"const": "the \"one\""})",
        R"({"type": "array", "maxItems": 2})",
        "{}",
    };
    return kScalars[rng_() % std::size(kScalars)];
  }

 private:
  static constexpr const char* kNames[] = {"a", "ab", "b c", "é", "name", "x/y"};
  std::mt19937 rng_;
  std::size_t first_ = 0;
};

TEST(Property, RandomWalksAreValidUnderRandomSchemas) {
  int ended = 0;
  int walks = 0;
  for (unsigned seed = 0; seed < 80; ++seed) {
    const std::string source = RandomSchema(seed).document();
    const text::JsonValue schema = json(source);
    const auto c = constrain(Rules{.content = json_content(source)});
    ASSERT_NE(c, nullptr) << source;
    for (unsigned k = 0; k < 3; ++k, ++walks) {
      std::mt19937 rng(seed * 7 + k);
      const auto one = c->fresh();
      const Walk w = walk(*one, rng, 500, 60);
      ASSERT_FALSE(w.stuck) << source;
      std::string bytes;
      for (const std::int32_t id : w.ids) bytes += *tiny_format().tokenizer().token_bytes(id);
      if (!w.ended) continue;
      ++ended;
      const auto value = text::parse_json_value(bytes, "answer");
      ASSERT_TRUE(value) << source << "\n" << bytes << "\n" << value.error().what;
      ASSERT_EQ(judge(schema, schema, *value), "") << source << "\n" << bytes;
    }
  }
  EXPECT_GE(ended * 10, walks * 8) << ended << " of " << walks;
}

TEST(Property, RandomCallsParseToValidArguments) {
  int ended = 0;
  int walks = 0;
  std::size_t calls = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    RandomSchema schemas(seed + 1000);
    std::vector<Tool> tools;
    std::vector<std::string> sources;
    for (const char* name : {"first", "second"}) {
      std::string source = schemas.object(2);
      source.back() = ',';
      source += R"("$defs": {"leaf": )" + schemas.scalar() + "}}";
      // Of parameters' names the room of text knows what may be in them.
      tools.push_back(strict_tool(name, source));
      sources.push_back(std::move(source));
    }
    const Rules rules{.tools = tools, .calls = Calls::kBehindOpener, .one_call = seed % 4 == 0};
    const auto c = constrain(rules);
    ASSERT_NE(c, nullptr);
    for (unsigned k = 0; k < 3; ++k, ++walks) {
      std::mt19937 rng(seed * 7 + k);
      const auto one = c->fresh();
      const Walk w = walk(*one, rng, 600, 60, true);
      ASSERT_FALSE(w.stuck);
      if (!w.ended) continue;
      ++ended;
      std::string answer;
      text::ParserOptions options;
      options.initial = text::ParserState::kToolBlock;
      options.tools.emplace();
      for (const Tool& t : tools) options.tools->push_back(text::ParserTool::from_schema(t.name, t.parameters));
      text::TokenParser parser(tiny_format(), options);
      for (const std::int32_t id : w.ids) {
        ASSERT_TRUE(parser.push(id));
        answer += *tiny_format().tokenizer().token_bytes(id);
      }
      ASSERT_TRUE(parser.parser().done()) << answer;
      parser.parser().finish(text::End::kTurn);
      ASSERT_FALSE(parser.parser().has_incomplete_call()) << answer;
      ASSERT_GE(parser.parser().calls().size(), 1U) << answer;
      ASSERT_LE(parser.parser().calls().size(), rules.one_call ? 1U : 100U) << answer;
      for (const text::ParsedCall& call : parser.parser().calls()) {
        const std::size_t which = call.name == "first" ? 0 : 1;
        ASSERT_EQ(call.name, which == 0 ? "first" : "second") << answer;
        const auto value = text::parse_json_value(call.arguments, "arguments");
        ASSERT_TRUE(value) << answer << "\n" << value.error().what;
        const text::JsonValue schema = json(sources[which]);
        ASSERT_EQ(judge(schema, schema, *value), "") << sources[which] << "\n" << answer;
        ++calls;
      }
    }
  }
  EXPECT_GE(ended * 10, walks * 8) << ended << " of " << walks;
  EXPECT_GT(calls, 100U);
}

TEST(Property, AStringParameterTakesWhatAPromptWouldHold) {
  const std::vector<Tool> tools = {strict_tool("f", R"({"properties": {"a": {"type": "string"}}, "required": ["a"]})")};
  const std::string value = "</ <b> \"q\" 2>&1\n\n";
  const std::string s = "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">" + value +
                        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  EXPECT_TRUE(fits({.tools = tools, .calls = Calls::kBehindOpener}, s));
  const auto calls = parsed(s, tools);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(json(calls[0].arguments).get("a")->text, value);
}

}  // namespace
}  // namespace fathom::grammar

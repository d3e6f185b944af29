#include "text/stream_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text/test_support.h"

namespace fathom::text {
namespace {

// One thing the model wrote: a control token or text.
struct Piece {
  bool is_control = false;
  Control control = Control::kThinkOpen;
  std::string text;
};
using Pieces = std::vector<Piece>;

const std::vector<std::pair<std::string, Control>>& spellings() {
  static const std::vector<std::pair<std::string, Control>> all = {
      {"<think>", Control::kThinkOpen},
      {"</think>", Control::kThinkClose},
      {"\uFF5CDSML\uFF5C", Control::kDsml},
      {"<\uFF5Cend\u2581of\u2581sentence\uFF5C>", Control::kTurnEnd},
      {"<\uFF5CUser\uFF5C>", Control::kTurnEnd}};
  return all;
}

void add_raw(const std::string& raw, Pieces& out) {
  std::string text;
  for (std::size_t at = 0; at < raw.size();) {
    const auto it = std::find_if(spellings().begin(), spellings().end(),
                                 [&](const auto& s) { return raw.compare(at, s.first.size(), s.first) == 0; });
    if (it == spellings().end()) {
      text.push_back(raw[at++]);
      continue;
    }
    if (!text.empty()) out.push_back({false, {}, std::exchange(text, {})});
    out.push_back({true, it->second, it->first});
    at += it->first.size();
  }
  if (!text.empty()) out.push_back({false, {}, text});
}

Pieces pieces_of(const Json& input) {
  Pieces out;
  if (input.contains("raw")) add_raw(input["raw"].get<std::string>(), out);
  if (!input.contains("segments")) return out;
  for (const Json& s : input["segments"]) {
    if (s.contains("text")) out.push_back({false, {}, s["text"].get<std::string>()});
    if (s.contains("special")) add_raw(s["special"].get<std::string>(), out);
    if (s.contains("raw")) add_raw(s["raw"].get<std::string>(), out);
  }
  return out;
}

std::vector<ParserTool> tools_of(const Json& list) {
  std::vector<ParserTool> tools;
  for (const Json& t : list) {
    tools.push_back(ParserTool::from_schema(t["name"].get<std::string>(),
                                            parse_json_value(t["parameters"].dump(), "tool").value()));
  }
  return tools;
}

ParserOptions options_of(const Json& input) {
  ParserOptions o;
  o.initial = input["thinking"].get<bool>() ? ParserState::kReasoning : ParserState::kContent;
  if (input.value("initial_state", std::string()) == "TOOL_BLOCK") o.initial = ParserState::kToolBlock;
  if (!input["tools"].is_null()) o.tools = tools_of(input["tools"]);
  if (input.contains("stop")) o.stop = input["stop"].get<std::vector<std::string>>();
  return o;
}

// What came out, in the shape of the vectors.
struct Outcome {
  std::vector<ParserEvent> events;
  std::vector<std::pair<std::string, std::string>> calls;
  std::string finish;
  std::optional<std::string> stop;
  bool incomplete = false;
  bool operator==(const Outcome&) const = default;
};

void append(std::vector<ParserEvent>& all, std::vector<ParserEvent> more) {
  for (ParserEvent& e : more) {
    const bool joins = !all.empty() && all.back().kind == e.kind && all.back().index == e.index &&
                       e.kind != ParserEvent::Kind::kToolStart;
    if (joins) all.back().text += e.text;
    else all.push_back(std::move(e));
  }
}

// `cut(length)` says how many bytes of a text to feed next.
template <class Cut>
Outcome parse(const Pieces& pieces, const ParserOptions& options, End end, const Cut& cut) {
  StreamParser parser(options);
  Outcome out;
  for (const Piece& piece : pieces) {
    if (piece.is_control) {
      parser.control(piece.control);
      append(out.events, parser.take_events());
    }
    for (std::string_view rest = piece.is_control ? std::string_view() : piece.text; !rest.empty();) {
      const std::size_t n = std::min(std::max<std::size_t>(cut(rest.size()), 1), rest.size());
      parser.text(rest.substr(0, n));
      append(out.events, parser.take_events());
      rest.remove_prefix(n);
    }
  }
  parser.finish(end);
  append(out.events, parser.take_events());
  for (const ParsedCall& c : parser.calls()) out.calls.emplace_back(c.name, c.arguments);
  out.finish = finish_reason_name(parser.finish_reason());
  out.stop = parser.matched_stop();
  out.incomplete = parser.has_incomplete_call();
  return out;
}

Outcome parse_whole(const Pieces& pieces, const ParserOptions& options, End end = End::kTurn) {
  return parse(pieces, options, end, [](std::size_t n) { return n; });
}

std::string joined(const Outcome& o, ParserEvent::Kind kind) {
  std::string text;
  for (const ParserEvent& e : o.events) {
    if (e.kind == kind) text += e.text;
  }
  return text;
}

Json events_json(const Outcome& o) {
  Json list = Json::array();
  for (const ParserEvent& e : o.events) {
    switch (e.kind) {
      case ParserEvent::Kind::kReasoning: list.push_back({{"type", "reasoning"}, {"text", e.text}}); break;
      case ParserEvent::Kind::kContent: list.push_back({{"type", "content"}, {"text", e.text}}); break;
      case ParserEvent::Kind::kToolStart:
        list.push_back({{"type", "tool_start"}, {"index", e.index}, {"name", e.text}});
        break;
      case ParserEvent::Kind::kToolArgs:
        list.push_back({{"type", "tool_args"}, {"index", e.index}, {"text", e.text}});
        break;
    }
  }
  return list;
}

End end_of(const Json& input) { return input["finish"] == "length" ? End::kCut : End::kTurn; }

TEST(StreamParserVectors, Tolerant) {
  const Json vectors = read_vectors("encoding/parse-tolerant.json");
  ASSERT_EQ(vectors["cases"].size(), 113U);
  for (const Json& c : vectors["cases"]) {
    const Outcome got = parse_whole(pieces_of(c["input"]), options_of(c["input"]), end_of(c["input"]));
    const Json& expect = c["expect"];
    EXPECT_EQ(events_json(got), expect["events"]) << c["id"] << " " << c["input"].dump();
    EXPECT_EQ(joined(got, ParserEvent::Kind::kReasoning), expect["reasoning"].get<std::string>()) << c["id"];
    EXPECT_EQ(joined(got, ParserEvent::Kind::kContent), expect["content"].get<std::string>()) << c["id"];
    EXPECT_EQ(got.finish, expect["finish_reason"].get<std::string>()) << c["id"];
    EXPECT_EQ(got.stop.value_or(""), expect.value("matched_stop", std::string())) << c["id"];
    Json calls = Json::array();
    for (const auto& [name, arguments] : got.calls) calls.push_back({{"name", name}, {"arguments", arguments}});
    EXPECT_EQ(calls, expect["tool_calls"]) << c["id"];
  }
}

void expect_every_cut_alike(const Pieces& pieces, const ParserOptions& options, End end, std::mt19937& random) {
  const Outcome whole = parse_whole(pieces, options, end);
  for (std::size_t chunk = 1; chunk <= 22; ++chunk) {
    ASSERT_EQ(parse(pieces, options, end, [&](std::size_t) { return chunk; }), whole) << "chunks of " << chunk;
  }
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(parse(pieces, options, end, [&](std::size_t n) { return 1 + random() % n; }), whole);
  }
}

// field-faults.md 8 (vllm#53227 and its kin): the same events however the stream is cut, down to single bytes.
TEST(StreamParserProperty, EveryCutOfEveryVectorGivesTheSameEvents) {
  std::mt19937 random(2);
  const auto vectors = read_vectors("encoding/parse-tolerant.json");
  for (const Json& c : vectors["cases"]) {
    expect_every_cut_alike(pieces_of(c["input"]), options_of(c["input"]), end_of(c["input"]), random);
    if (HasFatalFailure()) FAIL() << c["id"];
  }
}

// The same answers as token ids, as the model would sample them: a control token is an id, its spelling is not.
TEST(StreamParserVectors, TolerantByTokenIds) {
  const auto format = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny").value();
  const auto vectors = read_vectors("encoding/parse-tolerant.json");
  for (const Json& c : vectors["cases"]) {
    TokenParser parser(format, options_of(c["input"]));
    Outcome got;
    for (const Piece& piece : pieces_of(c["input"])) {
      const Mode mode = piece.is_control ? Mode::kSpecial : Mode::kPlain;
      for (const std::int32_t id : format.tokenizer().encode(piece.text, mode)) {
        ASSERT_TRUE(parser.push(id));
        append(got.events, parser.parser().take_events());
      }
    }
    parser.parser().finish(end_of(c["input"]));
    append(got.events, parser.parser().take_events());
    EXPECT_EQ(events_json(got), c["expect"]["events"]) << c["id"];
  }
}

// Random answers from the alphabet of the format, as the vectors' fuzz cases were made.
Pieces random_answer(std::mt19937& random) {
  const std::vector<std::string> words = {"<",
                                          "</",
                                          "\uFF5C",
                                          ">",
                                          "\n",
                                          "\n\n",
                                          "\"",
                                          "parameter name=\"",
                                          "invoke name=\"",
                                          "cmd\" string=\"true\">",
                                          "timeout_s\" string=\"false\">",
                                          "arguments\">",
                                          "tool_calls>",
                                          "/invoke>",
                                          "run\">",
                                          "a b",
                                          "{\"cmd\": 1}",
                                          "7",
                                          "STOP",
                                          "ST",
                                          "\u00e9\U0001F600",
                                          " ",
                                          "\xF0\x9F",
                                          "input\" string=\"true\">{\"cmd\": \"x\"}"};
  const std::string d = "\uFF5CDSML\uFF5C";
  const std::vector<std::string> tags = {"<" + d + "tool_calls>\n",
                                         "<" + d + "invoke name=\"run\">\n",
                                         "<" + d + "parameter name=\"cmd\" string=\"true\">",
                                         "<" + d + "parameter name=\"timeout_s\" string=\"false\">",
                                         "<" + d + "parameter name=\"input\" string=\"false\">",
                                         "</" + d + "parameter>\n",
                                         "</" + d + "invoke>\n",
                                         "</" + d + "tool_calls>"};
  Pieces out;
  for (auto n = 3 + random() % 30; n > 0; --n) {
    const auto kind = random() % 8;
    if (kind < 4) {
      add_raw(tags[random() % tags.size()], out);
    } else if (kind == 4) {
      const auto& s = spellings()[random() % (random() % 8 == 0 ? 5 : 3)];
      out.push_back({true, s.second, ""});
    } else {
      out.push_back({false, {}, words[random() % words.size()]});
    }
  }
  return out;
}

TEST(StreamParserProperty, EveryCutOfRandomAnswersGivesTheSameEventsAndValidJson) {
  const Json tools = Json::parse(
      R"([{"name": "run", "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}, "timeout_s": {"type": "number"}}}}])");
  std::mt19937 random(9);
  int calls = 0;
  for (int i = 0; i < 3'000; ++i) {
    ParserOptions options;
    options.initial = static_cast<ParserState>(random() % 3);
    if (random() % 4 != 0) options.tools = tools_of(tools);
    if (random() % 3 == 0) options.stop = {"STOP", "\n\n", "OP a"};
    options.include_stop = random() % 2 == 0;
    options.one_call = random() % 4 == 0;
    const Pieces answer = random_answer(random);
    const End end = random() % 2 == 0 ? End::kTurn : End::kCut;
    const Outcome whole = parse_whole(answer, options, end);
    for (int k = 0; k < 6; ++k) {
      ASSERT_EQ(parse(answer, options, end, [&](std::size_t n) { return 1 + random() % n; }), whole) << i;
    }
    // What was streamed for a complete call is its arguments, and they are a JSON object.
    for (std::size_t k = 0; k < whole.calls.size(); ++k, ++calls) {
      std::string streamed;
      for (const ParserEvent& e : whole.events) {
        if (e.kind == ParserEvent::Kind::kToolArgs && e.index == static_cast<int>(k)) streamed += e.text;
      }
      ASSERT_EQ(streamed, whole.calls[k].second);
      ASSERT_TRUE(parse_json_value(streamed, "").value().is_object()) << streamed;
    }
    if (options.tools) {
      // Markup never leaks into content unless the model ended its turn writing about it.
      const std::string content = joined(whole, ParserEvent::Kind::kContent);
      ASSERT_TRUE(whole.finish != "length" || content.find("DSML") == std::string::npos) << content;
    }
  }
  EXPECT_GT(calls, 200);
}

std::string call(const std::string& parameters) {
  return "</think>\n\n<\uFF5CDSML\uFF5Ctool_calls>\n<\uFF5CDSML\uFF5Cinvoke name=\"run\">\n" + parameters +
         "\n</\uFF5CDSML\uFF5Cinvoke>\n</\uFF5CDSML\uFF5Ctool_calls><\uFF5Cend\u2581of\u2581sentence\uFF5C>";
}
std::string parameter(const std::string& head, const std::string& value) {
  return "<\uFF5CDSML\uFF5Cparameter name=\"" + head + ">" + value + "</\uFF5CDSML\uFF5Cparameter>";
}

ParserOptions with_tools(ParserState initial = ParserState::kReasoning) {
  ParserOptions o;
  o.initial = initial;
  o.tools = tools_of(Json::parse(R"([{"name": "run", "parameters": {"properties": {
      "cmd": {"type": "string"}, "n": {"type": "integer"}, "either": {"type": ["string", "null"]}, "opt": {"type": ["integer", "null"]}, "any": {}}}}])"));
  return o;
}

Outcome parse_text(const std::string& raw, const ParserOptions& options, End end = End::kTurn) {
  Pieces pieces;
  add_raw(raw, pieces);
  return parse_whole(pieces, options, end);
}

// The bash command that ends in `2>&1`, for every chunk size from 1 to 22: no bracket lost, none kept.
TEST(StreamParser, ValuesThatEndInBracketsAndRedirections) {
  std::mt19937 random(4);
  for (const std::string value : {"make 2>&1", "a <", "a </", "<", "</", "\n", "x\n", "\n<", "2 <\uFF5C", "<<",
                                  "a && b 2>&1 &amp; \"q\"", "</parameter>", "<\n"}) {
    Pieces pieces;
    add_raw(call(parameter("cmd\" string=\"true\"", value)), pieces);
    const Outcome o = parse_whole(pieces, with_tools());
    ASSERT_EQ(o.calls.size(), 1U) << value;
    EXPECT_EQ(Json::parse(o.calls[0].second)["cmd"].get<std::string>(), value);
    expect_every_cut_alike(pieces, with_tools(), End::kTurn, random);
  }
}

TEST(StreamParser, TypesFollowTheAttributeThenTheSchema) {
  const auto arguments = [&](const std::string& parameters) {
    const Outcome o = parse_text(call(parameters), with_tools());
    return o.calls.size() == 1 ? o.calls[0].second : "no call";
  };
  EXPECT_EQ(arguments(parameter("cmd\" string=\"true\"", "5")), R"({"cmd": "5"})");
  EXPECT_EQ(arguments(parameter("cmd\" string=\"false\"", "5")), R"({"cmd": 5})");
  EXPECT_EQ(arguments(parameter("cmd\"", "5")), R"({"cmd": "5"})");
  EXPECT_EQ(arguments(parameter("n\"", "5")), R"({"n": 5})");
  EXPECT_EQ(arguments(parameter("n\" string=\"yes\"", "5")), R"({"n": 5})");
  EXPECT_EQ(arguments(parameter("n\" string=\"true\"", "5")), R"({"n": "5"})");
  EXPECT_EQ(arguments(parameter("either\"", "null")), R"({"either": "null"})");
  EXPECT_EQ(arguments(parameter("opt\"", "null")), R"({"opt": null})");
  EXPECT_EQ(arguments(parameter("any\"", "1")), R"({"any": "1"})");
  EXPECT_EQ(arguments(parameter("unknown\"", "1")), R"({"unknown": "1"})");
  EXPECT_EQ(arguments(parameter("n\" string=\"false\"", "01")), R"({"n": "01"})");
  EXPECT_EQ(arguments(parameter("n\" string=\"false\"", "1e999")), R"({"n": 1e999})");
  EXPECT_EQ(arguments(parameter("n\" string=\"false\"", "NaN")), R"({"n": "NaN"})");
}

TEST(StreamParser, NamesAreBounded) {
  const std::string head = "</think><\uFF5CDSML\uFF5Cinvoke name=\"";
  const std::string tail = "\">" + parameter("cmd\" string=\"true\"", "x") + "</\uFF5CDSML\uFF5Cinvoke>";
  EXPECT_EQ(parse_text(head + std::string(256, 'f') + tail, with_tools()).calls.size(), 1U);
  EXPECT_EQ(parse_text(head + std::string(257, 'f') + tail, with_tools()).calls.size(), 0U);
}

TEST(StreamParser, DoneTellsTheEngineToStop) {
  for (const std::string& raw : {call(""), std::string("x<\uFF5CUser\uFF5C>")}) {
    StreamParser parser(with_tools());
    const std::size_t last = raw.rfind('<');
    parse_raw(parser, raw.substr(0, last));
    parse_raw(parser, raw.substr(last));
    EXPECT_TRUE(parser.done());
    parser.take_events();
    parser.text("more");
    parser.control(Control::kThinkOpen);
    EXPECT_TRUE(parser.take_events().empty());
  }
  ParserOptions one = with_tools();
  one.one_call = true;
  const std::string invoke = "<\uFF5CDSML\uFF5Cinvoke name=\"run\"></\uFF5CDSML\uFF5Cinvoke>";
  const Outcome o = parse_text("</think>" + invoke + invoke, one);
  EXPECT_EQ(o.calls.size(), 1U);
  EXPECT_EQ(o.finish, "tool_calls");
}

TEST(StreamParser, AnAnnouncedCallThatWasCutIsReported) {
  const std::string raw = call(parameter("cmd\" string=\"true\"", "rm -rf /tmp/build-old"));
  const std::size_t in_value = raw.find("-old");
  const Outcome eos = parse_text(raw.substr(0, in_value), with_tools());
  EXPECT_TRUE(eos.incomplete);
  EXPECT_EQ(eos.calls.size(), 0U);
  EXPECT_EQ(eos.finish, "stop");
  EXPECT_FALSE(parse_text(raw, with_tools()).incomplete);
}

TEST(StreamParser, StopStrings) {
  ParserOptions o;
  o.stop = {"abc", "bcd", "b", "\u20AC"};
  EXPECT_EQ(joined(parse_text("xaab", o), ParserEvent::Kind::kContent), "xaa");
  o.stop = {"aab", "ab"};
  const Outcome longest = parse_text("aaab-", o);
  EXPECT_EQ(joined(longest, ParserEvent::Kind::kContent), "a");
  EXPECT_EQ(longest.stop, "aab");
  o.include_stop = true;
  EXPECT_EQ(joined(parse_text("aaab-", o), ParserEvent::Kind::kContent), "aaab");
  o.stop = {"\n"};
  EXPECT_EQ(parse_text("line\n", o).stop, "\n");
  // What cannot begin a match is not held back.
  StreamParser parser(o);
  parser.text("abc");
  EXPECT_EQ(parser.take_events().size(), 1U);
}

TEST(StreamParser, HoldsBackNoMoreThanItMust) {
  StreamParser parser(with_tools(ParserState::kContent));
  parser.text("Sure.\n\n\n</");
  auto events = parser.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].text, "Sure.\n");
  parser.text("b");
  events = parser.take_events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].text, "\n\n</b");
}

TEST(TokenParser, CountsReasoningAndRefusesForeignIds) {
  const auto format = ChatFormat::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny").value();
  const ControlTokens& c = format.control();
  ParserOptions o;
  o.initial = ParserState::kReasoning;
  TokenParser parser(format, o, {.stop_ids = {99}, .ignore_eos = true});
  for (const std::int32_t id : format.tokenizer().encode("two words", Mode::kPlain)) ASSERT_TRUE(parser.push(id));
  const int words = parser.reasoning_tokens();
  EXPECT_GT(words, 0);
  EXPECT_FALSE(parser.push(-1));
  EXPECT_FALSE(parser.push(129280));
  ASSERT_TRUE(parser.push(c.think_close));
  ASSERT_TRUE(parser.push(67));
  ASSERT_TRUE(parser.push(c.eos));  // ignored: shows as nothing, and so does what follows an end by habit
  ASSERT_TRUE(parser.push(c.bos));
  ASSERT_TRUE(parser.push(c.user));
  EXPECT_FALSE(parser.parser().done());
  ASSERT_TRUE(parser.push(99));
  EXPECT_TRUE(parser.parser().done());
  EXPECT_EQ(parser.reasoning_tokens(), words + 1);
  const auto events = parser.parser().take_events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].text, "two words");
  EXPECT_EQ(events[1].text, "a");
}

// Megabytes of what could make a parser quadratic.
TEST(StreamParser, HostileMegabytes) {
  const std::string open = "<\uFF5CDSML\uFF5Cinvoke name=\"run\">";
  const std::string value = open + "<\uFF5CDSML\uFF5Cparameter name=\"cmd\" string=\"false\">";
  for (const std::string& head : {std::string(), std::string("</think>"), std::string("<\uFF5CDSML\uFF5C"), open, value,
                                  value.substr(0, value.size() - 10), std::string("</\uFF5CDSML\uFF5C")}) {
    for (const std::string unit : {"\n", "<", "</", "\uFF5C", "invoke name=\"", "\"", "a", "<\uFF5CDSML\uFF5C",
                                   "</\uFF5CDSML\uFF5C", "</think>", "{", "[\""}) {
      std::string raw = head;
      while (raw.size() < 200'000) raw += unit;
      ParserOptions o = with_tools();
      o.stop = {std::string(256, 'a') + "b", std::string(255, '\n') + "x"};
      StreamParser parser(o);
      parse_raw(parser, raw);
      parser.finish(End::kTurn);
    }
  }
}

}  // namespace
}  // namespace fathom::text

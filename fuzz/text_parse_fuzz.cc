// Model output: any text with control tokens in it, cut in any way. The first two bytes choose options and cuts.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/json_reader.h"
#include "text/json_value.h"
#include "text/stream_parser.h"
#include "text/strict_parser.h"

namespace {

using namespace fathom::text;

ParserOptions options_of(std::uint8_t flags) {
  ParserOptions o;
  o.initial = static_cast<ParserState>(std::min(flags & 3, 2));
  if ((flags & 4) != 0) {
    const auto schema =
        parse_json_value(R"({"properties": {"cmd": {"type": "string"}, "timeout_s": {"type": "number"}}})", "tool");
    o.tools.emplace().push_back(ParserTool::from_schema("run", *schema));
  }
  if ((flags & 8) != 0) o.stop = {"STOP", "\n\n", "OP"};
  o.include_stop = (flags & 16) != 0;
  o.one_call = (flags & 32) != 0;
  return o;
}

struct Outcome {
  std::vector<ParserEvent> events;
  std::vector<std::string> arguments;
  FinishReason reason = FinishReason::kStop;
};

Outcome finish(StreamParser& parser, bool cut, std::vector<ParserEvent> events) {
  parser.finish(cut ? End::kCut : End::kTurn);
  Outcome out;
  for (auto* list : {&events}) {
    auto last = parser.take_events();
    list->insert(list->end(), last.begin(), last.end());
  }
  for (ParserEvent& e : events) {
    const bool joins = !out.events.empty() && out.events.back().kind == e.kind && out.events.back().index == e.index &&
                       e.kind != ParserEvent::Kind::kToolStart;
    if (joins) out.events.back().text += e.text;
    else out.events.push_back(std::move(e));
  }
  for (const ParsedCall& c : parser.calls()) out.arguments.push_back(c.arguments);
  out.reason = parser.finish_reason();
  return out;
}

// `seed` 0: in one piece. Else text between control tokens is cut at random, even inside characters.
Outcome parse(std::string_view raw, const ParserOptions& options, bool cut, std::uint32_t seed) {
  constexpr std::pair<std::string_view, Control> kMarks[] = {
      {"<think>", Control::kThinkOpen},
      {"</think>", Control::kThinkClose},
      {"\uFF5CDSML\uFF5C", Control::kDsml},
      {"<\uFF5Cend\u2581of\u2581sentence\uFF5C>", Control::kTurnEnd}};
  StreamParser parser(options);
  std::vector<ParserEvent> events;
  std::minstd_rand random(seed);
  const auto feed = [&](std::string_view text) {
    while (!text.empty()) {
      const std::size_t n = seed == 0 ? text.size() : 1 + random() % std::min<std::size_t>(text.size(), 9);
      parser.text(text.substr(0, n));
      text.remove_prefix(n);
      auto some = parser.take_events();
      events.insert(events.end(), some.begin(), some.end());
    }
  };
  std::size_t plain = 0;
  for (std::size_t at = 0; at < raw.size();) {
    const auto* mark = std::find_if(std::begin(kMarks), std::end(kMarks),
                                    [&](const auto& m) { return raw.substr(at).starts_with(m.first); });
    if (mark == std::end(kMarks)) {
      ++at;
      continue;
    }
    feed(raw.substr(plain, at - plain));
    parser.control(mark->second);
    at += mark->first.size();
    plain = at;
  }
  feed(raw.substr(plain));
  return finish(parser, cut, std::move(events));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const ParserOptions options = options_of(data[0]);
  const bool cut = (data[0] & 64) != 0;
  const std::string_view raw(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Outcome whole = parse(raw, options, cut, 0);
  const Outcome pieces = parse(raw, options, cut, 1U + data[1]);
  FATHOM_CHECK(whole.events == pieces.events && whole.arguments == pieces.arguments && whole.reason == pieces.reason,
               "the cut does not matter");
  for (const std::string& arguments : whole.arguments) {
    FATHOM_CHECK(is_json(arguments, 1 << 20) && arguments.starts_with('{'), "arguments are a JSON object");
  }
  (void)parse_strict(raw, (data[0] & 1) != 0);
  return 0;
}

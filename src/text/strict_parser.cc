#include "text/strict_parser.h"

#include <initializer_list>
#include <unordered_set>

#include "text/json_reader.h"

namespace fathom::text {
namespace {

constexpr std::string_view kBos = "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>";
constexpr std::string_view kEos = "<\uFF5Cend\u2581of\u2581sentence\uFF5C>";
constexpr std::string_view kBlock = "\n\n<\uFF5CDSML\uFF5Ctool_calls";
constexpr std::string_view kBlockEnd = "</\uFF5CDSML\uFF5Ctool_calls>";
constexpr std::string_view kInvoke = "<\uFF5CDSML\uFF5Cinvoke";
constexpr std::string_view kInvokeEnd = "</\uFF5CDSML\uFF5Cinvoke";
constexpr std::string_view kParameter = "<\uFF5CDSML\uFF5Cparameter";
constexpr std::string_view kParameterEnd = "</\uFF5CDSML\uFF5Cparameter";

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<ParsedMessage> parse(bool thinking) {
    std::string_view found;
    if (thinking) {
      FATHOM_ASSIGN(out_.reasoning, until({"</think>", kBlock}, found));
      if (found == kBlock) return fail(Code::kInvalid, "a tool block before the reasoning is closed");
    }
    FATHOM_ASSIGN(out_.content, until({kEos, kBlock}, found));
    if (found == kBlock) {
      FATHOM_TRY(block());
      if (rest_.starts_with(kEos)) rest_.remove_prefix(kEos.size());
    }
    if (!rest_.empty()) return fail(Code::kInvalid, "text behind the end of the turn");
    for (const std::string* s : {&out_.reasoning, &out_.content}) {
      for (const std::string_view token : {kBos, kEos, std::string_view("<think>"), std::string_view("</think>"),
                                           std::string_view("\uFF5CDSML\uFF5C")}) {
        if (s->find(token) != std::string::npos) return fail(Code::kInvalid, "a stray {}", token);
      }
    }
    return std::move(out_);
  }

 private:
  // Takes everything up to the first of `marks` and that mark.
  Result<std::string> until(std::initializer_list<std::string_view> marks, std::string_view& found) {
    std::size_t at = std::string_view::npos;
    for (const std::string_view mark : marks) {
      if (const std::size_t place = rest_.find(mark); place < at) at = place, found = mark;
    }
    if (at == std::string_view::npos) return fail(Code::kInvalid, "no {} to be found", *marks.begin());
    std::string before(rest_.substr(0, at));
    rest_.remove_prefix(at + found.size());
    return before;
  }

  // The rest of a tag is exactly ">\n".
  Result<> tag_end() {
    if (!rest_.starts_with(">\n")) return fail(Code::kInvalid, "a tag does not end in '>' and a newline");
    rest_.remove_prefix(2);
    return {};
  }

  Result<> block() {
    for (;;) {
      FATHOM_TRY(tag_end());
      if (rest_.starts_with(kBlockEnd)) {
        rest_.remove_prefix(kBlockEnd.size());
        return {};
      }
      if (!rest_.starts_with(kInvoke)) return fail(Code::kInvalid, "neither an invoke nor the end of the block");
      rest_.remove_prefix(kInvoke.size());
      FATHOM_TRY(invoke());
    }
  }

  Result<> invoke() {
    std::string_view tag;
    FATHOM_ASSIGN(const std::string head, until({kParameter, kInvokeEnd}, tag));
    ParsedCall call;
    FATHOM_ASSIGN(call.name, invoke_name(head));
    std::unordered_set<std::string> keys;
    call.arguments.push_back('{');
    while (tag == kParameter) {
      std::string_view end;
      FATHOM_ASSIGN(const std::string parameter, until({kParameterEnd}, end));
      FATHOM_TRY(argument(parameter, keys, call.arguments));
      FATHOM_TRY(tag_end());
      tag = rest_.starts_with(kParameter) ? kParameter : kInvokeEnd;
      if (!rest_.starts_with(tag)) return fail(Code::kInvalid, "neither a parameter nor the end of the invoke");
      rest_.remove_prefix(tag.size());
    }
    call.arguments.push_back('}');
    out_.calls.push_back(std::move(call));
    return {};
  }

  // White space, name="NAME">, one newline or (before an empty line) two.
  Result<std::string> invoke_name(std::string_view head) {
    constexpr std::string_view kName = "name=\"";
    const std::size_t begin = head.find_first_not_of(" \t\r\n\v\f");
    if (begin == std::string_view::npos || !head.substr(begin).starts_with(kName)) {
      return fail(Code::kInvalid, "an invoke without a name");
    }
    head.remove_prefix(begin + kName.size());
    for (const std::string_view end : {"\">\n\n", "\">\n"}) {
      if (head.ends_with(end)) return std::string(head.substr(0, head.size() - end.size()));
    }
    return fail(Code::kInvalid, "an invoke tag that does not end");
  }

  // ` name="KEY" string="true">VALUE` or "false".
  Result<> argument(std::string_view s, std::unordered_set<std::string>& keys, std::string& out) {
    constexpr std::string_view kName = " name=\"";
    constexpr std::string_view kTrue = "\" string=\"true\">";
    constexpr std::string_view kFalse = "\" string=\"false\">";
    const std::size_t is_true = s.find(kTrue);
    const std::size_t is_false = s.find(kFalse);
    const std::size_t at = std::min(is_true, is_false);
    if (!s.starts_with(kName) || at == std::string_view::npos || at < kName.size()) {
      return fail(Code::kInvalid, "a parameter tag that is not of the form");
    }
    const std::string key(s.substr(kName.size(), at - kName.size()));
    if (!keys.insert(key).second) return fail(Code::kInvalid, "the parameter \"{}\" appears twice", key);
    const bool string = is_true < is_false;
    const std::string_view value = s.substr(at + (string ? kTrue : kFalse).size());
    out += out.size() > 1 ? ", \"" : "\"";
    append_json_escaped(key, out);
    out += string ? "\": \"" : "\": ";
    if (string) append_json_escaped(value, out);
    else out += value;
    if (string) out += '"';
    return {};
  }

  std::string_view rest_;
  ParsedMessage out_;
};

}  // namespace

Result<ParsedMessage> parse_strict(std::string_view text, bool thinking) { return Parser(text).parse(thinking); }

}  // namespace fathom::text

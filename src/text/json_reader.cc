#include "text/json_reader.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace fathom::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The length of the number token at the front of `s` by the grammar of RFC 8259; 0 if there is none.
std::size_t number_length(std::string_view s) {
  std::size_t i = 0;
  const auto digits = [&] {
    const std::size_t begin = i;
    while (i < s.size() && is_digit(s[i])) ++i;
    return i > begin;
  };
  if (i < s.size() && s[i] == '-') ++i;
  if (i < s.size() && s[i] == '0') {
    ++i;
  } else if (!digits()) {
    return 0;
  }
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (!digits()) return 0;
  }
  if (i < s.size() && (s[i] == 'e' || s[i] == 'E')) {
    ++i;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
    if (!digits()) return 0;
  }
  return i;
}

}  // namespace

JsonReader::JsonReader(std::string_view text, int max_depth)
    : text_(text), max_depth_(static_cast<std::size_t>(max_depth)) {
  at_ = find_invalid_utf8(text);
  if (at_ != std::string_view::npos) {
    fail("not valid UTF-8");
  } else {
    at_ = 0;
  }
}

bool JsonReader::fail(std::string_view why) {
  if (ok()) error_ = fmt::format("byte {}: {}", at_, why);
  return false;
}

void JsonReader::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
    ++at_;
  }
}

JsonReader::Kind JsonReader::peek() {
  if (!ok()) return Kind::kNone;
  skip_space();
  if (at_ == text_.size()) return Kind::kNone;
  switch (text_[at_]) {
    case '{': return Kind::kObject;
    case '[': return Kind::kArray;
    case '"': return Kind::kString;
    case 't': return Kind::kTrue;
    case 'f': return Kind::kFalse;
    case 'n': return Kind::kNull;
    default: return text_[at_] == '-' || is_digit(text_[at_]) ? Kind::kNumber : Kind::kNone;
  }
}

bool JsonReader::open(char bracket) {
  if (!ok()) return false;
  skip_space();
  if (at_ == text_.size() || text_[at_] != bracket) {
    return fail(bracket == '{' ? "expected an object" : "expected an array");
  }
  if (fresh_.size() == max_depth_) return fail(fmt::format("nested deeper than {} levels", max_depth_));
  ++at_;
  fresh_.push_back(true);
  return true;
}

bool JsonReader::enter_object() { return open('{'); }
bool JsonReader::enter_array() { return open('['); }

// Stands behind an opening bracket, or behind a value: `more` tells whether another entry follows.
bool JsonReader::next(char closing, bool& more) {
  more = false;
  if (!ok()) return false;
  skip_space();
  if (at_ == text_.size()) return fail("the text ends inside an array or object");
  if (text_[at_] == closing) {
    ++at_;
    fresh_.pop_back();
    return true;
  }
  if (!fresh_.back()) {
    if (text_[at_] != ',') return fail(fmt::format("expected ',' or '{}'", closing));
    ++at_;
  }
  fresh_.back() = false;
  more = true;
  return true;
}

bool JsonReader::member(std::string_view& key) {
  bool more = false;
  if (!next('}', more) || !more) return false;
  skip_space();
  if (at_ == text_.size() || text_[at_] != '"') return fail("expected a member name");
  if (!read_string(key, key_)) return false;
  skip_space();
  if (at_ == text_.size() || text_[at_] != ':') return fail("expected ':'");
  ++at_;
  return true;
}

bool JsonReader::element() {
  bool more = false;
  return next(']', more) && more;
}

bool JsonReader::string(std::string_view& value) {
  if (!ok()) return false;
  skip_space();
  if (at_ == text_.size() || text_[at_] != '"') return fail("expected a string");
  return read_string(value, value_);
}

// At the opening quote. A string without escapes is handed out in place.
bool JsonReader::read_string(std::string_view& value, std::string& scratch) {
  const std::size_t begin = ++at_;
  const auto plain_end = [&] {
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20) {
      ++at_;
    }
  };
  plain_end();
  if (at_ < text_.size() && text_[at_] == '"') {
    value = text_.substr(begin, at_++ - begin);
    return true;
  }
  scratch.assign(text_, begin, at_ - begin);
  for (;;) {
    if (at_ == text_.size()) return fail("the text ends inside a string");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') return fail("a control character inside a string must be escaped");
    ++at_;
    if (!unescape(scratch)) return false;
    const std::size_t from = at_;
    plain_end();
    scratch.append(text_, from, at_ - from);
  }
  ++at_;
  value = scratch;
  return true;
}

bool JsonReader::hex4(std::uint32_t& value) {
  value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '?';
    std::uint32_t digit = 0;
    if (is_digit(c)) {
      digit = static_cast<std::uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint32_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<std::uint32_t>(c - 'A') + 10;
    } else {
      return fail("expected four hexadecimal digits");
    }
    value = value << 4 | digit;
  }
  return true;
}

bool JsonReader::unescape(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
  if (const std::size_t known = kNames.find(c); known != std::string_view::npos) {
    out.push_back(kMeant[known]);
    ++at_;
    return true;
  }
  if (c != 'u') return fail("unknown escape");
  ++at_;
  std::uint32_t unit = 0;
  if (!hex4(unit)) return false;
  if (unit >= 0xD800 && unit < 0xE000) {
    std::uint32_t low = 0;
    if (unit >= 0xDC00 || text_.substr(at_, 2) != "\\u") return fail("lone surrogate escape");
    at_ += 2;
    if (!hex4(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("lone surrogate escape");
    unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(static_cast<char32_t>(unit), out);
  return true;
}

bool JsonReader::number(std::string_view& token) {
  if (!ok()) return false;
  skip_space();
  const std::size_t length = number_length(text_.substr(at_));
  if (length == 0) return fail("expected a number");
  token = text_.substr(at_, length);
  at_ += length;
  return true;
}

bool JsonReader::literal(std::string_view word) {
  if (!ok()) return false;
  skip_space();
  if (text_.substr(at_, word.size()) != word) return fail(fmt::format("expected {}", word));
  at_ += word.size();
  return true;
}

bool JsonReader::boolean(bool& value) {
  const Kind kind = peek();
  if (kind != Kind::kTrue && kind != Kind::kFalse) return fail("expected true or false");
  value = kind == Kind::kTrue;
  return literal(value ? "true" : "false");
}

bool JsonReader::null() { return literal("null"); }

// Not recursive: only brackets opened here are closed here.
bool JsonReader::skip() {
  const std::size_t outside = fresh_.size();
  std::vector<bool> objects;  // one per bracket opened here
  std::string_view ignored;
  for (;;) {
    switch (peek()) {
      case Kind::kObject: objects.push_back(enter_object()); break;
      case Kind::kArray:
        if (enter_array()) objects.push_back(false);
        break;
      case Kind::kString: string(ignored); break;
      case Kind::kNumber: number(ignored); break;
      case Kind::kTrue: literal("true"); break;
      case Kind::kFalse: literal("false"); break;
      case Kind::kNull: literal("null"); break;
      case Kind::kNone: return fail("expected a value");
    }
    while (ok() && fresh_.size() > outside && !(objects.back() ? member(ignored) : element())) objects.pop_back();
    if (!ok()) return false;
    if (fresh_.size() == outside) return true;
  }
}

bool JsonReader::finish() {
  if (!ok()) return false;
  skip_space();
  return at_ == text_.size() || fail("text behind the value");
}

bool is_json(std::string_view text, int max_depth) {
  JsonReader reader(text, max_depth);
  return reader.skip() && reader.finish();
}

void append_json_escaped(std::string_view s, std::string& out) {
  for (const char c : s) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out.push_back(c);
        }
    }
  }
}

}  // namespace fathom::text

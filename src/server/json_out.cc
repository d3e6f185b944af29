#include "server/json_out.h"

#include <fmt/format.h>

#include <cmath>

#include "text/json_reader.h"
#include "text/utf8.h"

namespace fathom::server {

std::string quote(std::string_view s) {
  std::string out = "\"";
  if (text::find_invalid_utf8(s) == std::string_view::npos) {
    text::append_json_escaped(s, out);
  } else {
    std::string valid;
    text::Utf8Stream stream;
    stream.push(s, valid);
    stream.finish(valid);
    text::append_json_escaped(valid, out);
  }
  out += '"';
  return out;
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "-9999.0"; }

std::string join_list(const std::vector<std::string>& items) { return fmt::format("[{}]", fmt::join(items, ",")); }
std::string number_list(const std::vector<std::int32_t>& ids) { return fmt::format("[{}]", fmt::join(ids, ",")); }

Obj& Obj::raw(std::string_view key, std::string_view json) {
  if (text_.size() > 1) text_ += ',';
  text_ += quote(key);
  text_ += ':';
  text_ += json;
  return *this;
}

Obj& Obj::merge(const Obj& other) {
  if (other.text_.size() == 1) return *this;
  if (text_.size() > 1) text_ += ',';
  text_.append(other.text_, 1);
  return *this;
}

}  // namespace fathom::server

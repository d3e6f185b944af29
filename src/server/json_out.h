// Writing JSON: an object or a list, member by member, in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::server {

// `s` as a JSON string with its quotes. `s` is UTF-8; bytes that are not become U+FFFD.
std::string quote(std::string_view s);
// A finite number, or -9999.0 for minus infinity (http-api.md 5.2).
std::string number(double value);
std::string join_list(const std::vector<std::string>& items);
std::string number_list(const std::vector<std::int32_t>& ids);

// Usage: Obj().str("id", id).num("created", t).raw("usage", usage).done()
class Obj {
 public:
  Obj& raw(std::string_view key, std::string_view json);
  Obj& str(std::string_view key, std::string_view value) { return raw(key, quote(value)); }
  Obj& num(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Obj& yes(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  Obj& null(std::string_view key) { return raw(key, "null"); }
  Obj& merge(const Obj& other);  // its members too
  std::string done() const { return text_ + '}'; }

 private:
  std::string text_ = "{";
};

}  // namespace fathom::server

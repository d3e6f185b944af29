#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace fathom::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::uint8_t byte_at(std::string_view s, std::size_t i) { return static_cast<std::uint8_t>(s[i]); }

// What may begin at bytes[at]: `wanted` is the length that the first byte announces (0: no character begins with it);
// `good` counts the bytes present that agree with the table of well-formed sequences (Unicode 3.9, table 3-7).
struct Prefix {
  std::size_t wanted = 0;
  std::size_t good = 0;
};

Prefix prefix_at(std::string_view s, std::size_t at) {
  const std::uint8_t lead = byte_at(s, at);
  if (lead < 0x80) return {1, 1};
  if (lead < 0xC2 || lead > 0xF4) return {0, 0};
  const std::size_t wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  std::size_t good = 1;
  while (good < wanted && at + good < s.size()) {
    const std::uint8_t b = byte_at(s, at + good);
    if (b < low || b > high) break;
    low = 0x80;
    high = 0xBF;
    ++good;
  }
  return {wanted, good};
}

// The length of the ASCII run at the front of s[at...], found eight bytes at a time.
std::size_t ascii_run(std::string_view s, std::size_t at) {
  const std::size_t begin = at;
  while (at + 8 <= s.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, s.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
    at += 8;
  }
  while (at < s.size() && byte_at(s, at) < 0x80) ++at;
  return at - begin;
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view bytes) {
  std::size_t at = 0;
  for (;;) {
    at += ascii_run(bytes, at);
    if (at == bytes.size()) return std::string_view::npos;
    const Prefix p = prefix_at(bytes, at);
    if (p.wanted == 0 || p.good < p.wanted) return at;
    at += p.wanted;
  }
}

CodePoint decode_utf8(std::string_view bytes, std::size_t at) {
  const Prefix p = prefix_at(bytes, at);
  if (p.wanted == 0 || p.good < p.wanted) return {0xFFFD, 1};
  if (p.wanted == 1) return {byte_at(bytes, at), 1};
  char32_t value = byte_at(bytes, at) & (0x7FU >> p.wanted);
  for (std::size_t i = 1; i < p.wanted; ++i) value = (value << 6) | (byte_at(bytes, at + i) & 0x3FU);
  return {value, p.wanted};
}

void append_utf8(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3F))); };
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (c >> 6)));
    tail(0);
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (c >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (c >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::size_t run = ascii_run(bytes, at);
    out.append(bytes, at, run);
    at += run;
    if (at == bytes.size()) return;
    const Prefix p = prefix_at(bytes, at);
    if (p.wanted != 0 && p.good == p.wanted) {
      out.append(bytes, at, p.wanted);
      at += p.wanted;
    } else if (p.wanted != 0 && at + p.good == bytes.size()) {
      held_.assign(bytes, at);
      return;
    } else {
      out += kReplacement;
      at += p.wanted == 0 ? 1 : p.good;
    }
  }
}

void Utf8Stream::finish(std::string& out) {
  if (!held_.empty()) out += kReplacement;
  held_.clear();
}

}  // namespace fathom::text

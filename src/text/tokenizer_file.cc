#include "text/tokenizer_file.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "text/json_reader.h"

namespace fathom::text {
namespace {

using Kind = JsonReader::Kind;

// More than any tokenizer of this kind has; keeps a hostile file from growing tables.
constexpr std::size_t kMaxEntries = 1U << 21;
constexpr std::size_t kMaxAddedBytes = 256;

constexpr std::string_view kNumbers = R"(\p{N}{1,3})";
constexpr std::string_view kIdeographs = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Files differ in spelling where regular expressions do not: CR and LF as characters or as escapes, `"` with or without
// a backslash.
std::string normal_spelling(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\r') out += "\\r";
    else if (pattern[i] == '\n') out += "\\n";
    else if (pattern[i] == '\\' && i + 1 < pattern.size() && pattern[i + 1] != '"') out += pattern.substr(i++, 2);
    else if (pattern[i] != '\\') out += pattern[i];
  }
  return out;
}

// One step of a pipeline: {"type": ..., ...}, the members that matter.
struct Step {
  std::string type;
  std::string pattern;  // pattern.Regex
  std::string behavior;
  bool invert = false;
  bool add_prefix_space = false;
  bool use_regex = false;
  bool is_null = false;
  std::vector<Step> steps;  // pretokenizers, normalizers, decoders
};

class Reader {
 public:
  explicit Reader(std::string_view json) : r_(json, 32) {}

  Result<TokenizerFile> read(std::string_view what) {
    read_root();
    if (refusal_.empty() && r_.finish()) check_whole();
    if (!refusal_.empty()) return fail(Code::kUnavailable, "{}: {}", what, refusal_);
    if (!r_.ok()) return fail(Code::kInvalid, "{}: {}", what, r_.error());
    return std::move(file_);
  }

 private:
  void refuse(std::string why) {
    if (refusal_.empty()) refusal_ = std::move(why);
  }

  void read_root() {
    std::string_view key;
    if (!r_.enter_object()) return;
    while (r_.member(key)) {
      if (key == "added_tokens") read_added();
      else if (key == "normalizer") check_normalizer(read_step());
      else if (key == "pre_tokenizer") check_pre_tokenizer(read_step());
      else if (key == "decoder") seen_decoder_ = true, check_byte_level(read_step(), "decoder");
      else if (key == "post_processor") check_byte_level(read_step(), "post_processor");
      else if (key == "model") read_model();
      else r_.skip();
    }
  }

  void check_whole() {
    if (!seen_pre_tokenizer_) r_.fail("no pre_tokenizer");
    else if (!seen_decoder_) r_.fail("no decoder");
    else if (file_.vocab.empty()) r_.fail("no model.vocab");
    else if (!seen_merges_) r_.fail("no model.merges");
  }

  std::string read_string() {
    std::string_view s;
    return r_.string(s) ? std::string(s) : std::string();
  }

  std::int64_t read_id() {
    std::string_view token;
    std::int64_t id = -1;
    if (!r_.number(token)) return id;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), id);
    if (error != std::errc() || end != token.data() + token.size()) r_.fail("expected a token id");
    return id;
  }

  Step read_step(int depth = 0) {
    Step step;
    std::string_view key;
    if (r_.peek() == Kind::kNull) {
      r_.null();
      step.is_null = true;
      return step;
    }
    if (!r_.enter_object()) return step;
    while (r_.member(key)) {
      if (key == "type") step.type = read_string();
      else if (key == "behavior") step.behavior = read_string();
      else if (key == "invert") r_.boolean(step.invert);
      else if (key == "add_prefix_space") r_.boolean(step.add_prefix_space);
      else if (key == "use_regex") r_.boolean(step.use_regex);
      else if (key == "pattern") step.pattern = read_pattern();
      else if ((key == "pretokenizers" || key == "normalizers" || key == "decoders") && depth == 0) read_steps(step);
      else r_.skip();
    }
    return step;
  }

  void read_steps(Step& step) {
    if (!r_.enter_array()) return;
    while (r_.element()) {
      step.steps.push_back(read_step(1));
      if (step.steps.size() > 16) r_.fail("more than 16 steps in a pipeline");
    }
  }

  std::string read_pattern() {
    std::string regex;
    std::string_view key;
    if (!r_.enter_object()) return regex;
    while (r_.member(key)) {
      if (key == "Regex") regex = read_string();
      else r_.skip();
    }
    return regex;
  }

  void check_normalizer(const Step& step) {
    if (!step.is_null && (step.type != "Sequence" || !step.steps.empty())) {
      refuse("normalizer: this tokenizer changes the text (" + step.type + "); only ones that do not are known");
    }
  }

  void check_byte_level(const Step& step, std::string_view where) {
    if (step.type == "ByteLevel") return;
    if (step.is_null && where == "post_processor") return;
    refuse(fmt::format("{}: type is \"{}\", expected \"ByteLevel\"", where, step.type));
  }

  void check_pre_tokenizer(const Step& step) {
    seen_pre_tokenizer_ = true;
    const auto& s = step.steps;
    bool known = step.type == "Sequence" && s.size() == 4;
    for (std::size_t i = 0; known && i < 3; ++i) {
      known = s[i].type == "Split" && s[i].behavior == "Isolated" && !s[i].invert;
    }
    known = known && normal_spelling(s[0].pattern) == kNumbers && normal_spelling(s[1].pattern) == kIdeographs &&
            normal_spelling(s[2].pattern) == kWords;
    known = known && s[3].type == "ByteLevel" && !s[3].add_prefix_space && !s[3].use_regex;
    if (!known) {
      refuse(
          "pre_tokenizer: not the one of DeepSeek-V3 and V4 (three Split patterns and ByteLevel); refusing to guess");
    }
  }

  void read_added() {
    std::string_view key;
    if (!r_.enter_array()) return;
    while (r_.element()) {
      AddedToken token;
      std::int64_t id = -1;
      bool strips = false;
      if (!r_.enter_object()) return;
      while (r_.member(key)) {
        if (key == "id") id = read_id();
        else if (key == "content") token.content = read_string();
        else if (key == "lstrip" || key == "rstrip" || key == "single_word") {
          bool set = false;
          r_.boolean(set);
          strips = strips || set;
        } else r_.skip();
      }
      if (!r_.ok()) return;
      if (id < 0 || id >= static_cast<std::int64_t>(kMaxEntries)) r_.fail("added token: id is missing or out of range");
      if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
        r_.fail(fmt::format("added token {}: content must have 1 to {} bytes", id, kMaxAddedBytes));
      }
      if (strips) refuse(fmt::format("added token {}: lstrip, rstrip and single_word are not supported", id));
      token.id = static_cast<std::int32_t>(id);
      file_.added.push_back(std::move(token));
      if (file_.added.size() > kMaxEntries) r_.fail("too many added tokens");
    }
  }

  void read_model() {
    std::string_view key;
    if (!r_.enter_object()) return;
    while (r_.member(key)) {
      if (key == "type") {
        if (const std::string type = read_string(); type != "BPE") {
          refuse(fmt::format("model.type is \"{}\", expected \"BPE\"", type));
        }
      } else if (key == "vocab") {
        read_vocab();
      } else if (key == "merges") {
        read_merges();
      } else if (key == "dropout" || key == "unk_token" || key == "continuing_subword_prefix" ||
                 key == "end_of_word_suffix") {
        if (r_.peek() != Kind::kNull) refuse(fmt::format("model.{} is set, expected null", key));
        r_.skip();
      } else if (key == "fuse_unk" || key == "byte_fallback" || key == "ignore_merges") {
        const std::string name(key);
        bool set = false;
        if (r_.boolean(set) && set) refuse(fmt::format("model.{} is true, expected false", name));
      } else {
        r_.skip();
      }
    }
  }

  TokenizerFile::Span keep(std::string_view s) {
    const auto begin = static_cast<std::uint32_t>(file_.letters.size());
    file_.letters += s;
    return {begin, static_cast<std::uint32_t>(file_.letters.size())};
  }

  void read_vocab() {
    std::string_view key;
    if (!r_.enter_object()) return;
    if (!file_.vocab.empty()) {
      r_.fail("model.vocab appears twice");
      return;
    }
    while (r_.member(key)) {
      const TokenizerFile::Span token = keep(key);
      file_.vocab.push_back({token, read_id()});
      if (file_.vocab.size() > kMaxEntries) r_.fail("too many vocabulary entries");
    }
  }

  void read_merges() {
    if (!r_.enter_array()) return;
    if (seen_merges_) {
      r_.fail("model.merges appears twice");
      return;
    }
    seen_merges_ = true;
    while (r_.element()) {
      const bool ok = r_.peek() == Kind::kArray ? read_merge_pair() : read_merge_string();
      if (!ok) return;
      if (file_.merges.size() > kMaxEntries) r_.fail("too many merges");
    }
  }

  bool read_merge_string() {
    std::string_view s;
    if (!r_.string(s)) return false;
    const std::size_t blank = s.find(' ');
    if (blank == std::string_view::npos || s.find(' ', blank + 1) != std::string_view::npos) {
      return r_.fail("a merge is two strings with one blank between them");
    }
    const TokenizerFile::Span left = keep(s.substr(0, blank));
    file_.merges.push_back({left, keep(s.substr(blank + 1))});
    return true;
  }

  bool read_merge_pair() {
    std::array<TokenizerFile::Span, 2> part;
    std::size_t n = 0;
    if (!r_.enter_array()) return false;
    while (r_.element()) {
      std::string_view s;
      if (n == 2) return r_.fail("a merge has two parts");
      if (!r_.string(s)) return false;
      part[n++] = keep(s);
    }
    if (r_.ok() && n != 2) return r_.fail("a merge has two parts");
    file_.merges.push_back({part[0], part[1]});
    return r_.ok();
  }

  JsonReader r_;
  TokenizerFile file_;
  std::string refusal_;
  bool seen_pre_tokenizer_ = false;
  bool seen_decoder_ = false;
  bool seen_merges_ = false;
};

bool is_own_letter(unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

// byte letter (code point below 0x144) -> byte, or -1
constexpr std::size_t kLetters = 0x144;
std::array<std::int16_t, kLetters> make_letters() {
  std::array<std::int16_t, kLetters> table;
  table.fill(-1);
  std::size_t other = 0x100;
  for (unsigned b = 0; b < 256; ++b) table[is_own_letter(b) ? b : other++] = static_cast<std::int16_t>(b);
  return table;
}

}  // namespace

Result<TokenizerFile> read_tokenizer_file(std::string_view json, std::string_view what) {
  return Reader(json).read(what);
}

bool letters_to_bytes(std::string_view letters, std::string& bytes) {
  static const std::array<std::int16_t, kLetters> table = make_letters();
  bytes.resize(letters.size());
  std::size_t n = 0;
  for (std::size_t i = 0; i < letters.size();) {
    // All byte letters lie below U+0800: one or two bytes.
    const auto lead = static_cast<std::uint8_t>(letters[i]);
    std::size_t c = lead;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xDF || i + 1 == letters.size()) return false;
      c = (lead & 0x1FU) << 6 | (static_cast<std::uint8_t>(letters[++i]) & 0x3FU);
    }
    if (c >= kLetters || table[c] < 0) return false;
    bytes[n++] = static_cast<char>(table[c]);
    ++i;
  }
  bytes.resize(n);
  return true;
}

}  // namespace fathom::text

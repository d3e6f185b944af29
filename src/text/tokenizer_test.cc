#include "text/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/test_support.h"
#include "text/utf8.h"

namespace fathom::text {
namespace {

using Ids = std::vector<std::int32_t>;
using Pieces = std::vector<std::string>;

// --- the pre-tokenizer against the regular expressions of the specification ------------------------------------------

class Split {
 public:
  explicit Split(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                              &error, &at, nullptr));
    EXPECT_TRUE(code_) << pattern << " at " << at;
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // Every match a piece, every gap a piece.
  Pieces operator()(const std::string& text) const {
    Pieces pieces;
    std::size_t done = 0;
    while (done < text.size() && pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done,
                                             0, match_.get(), nullptr) > 0) {
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match_.get());
      if (span[0] > done) pieces.push_back(text.substr(done, span[0] - done));
      pieces.push_back(text.substr(span[0], span[1] - span[0]));
      done = span[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
    return pieces;
  }

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

// White space is written out: with UCP the library's \s also has U+180E. Lines of the pattern: rules a and b, c, d to
// f.
std::string third_stage() {
  const std::string space =
      R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  return R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
         R"(| ?[\p{P}\p{S}]+[\r\n]*)"
         "|[" +
         space + R"(]*[\r\n]+|[)" + space + "]+(?![^" + space + "])|[" + space + "]+";
}

Pieces by_regex(const std::string& text) {
  static const Split numbers(R"(\p{N}{1,3})");
  static const Split ideographs(R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)");
  static const Split words(third_stage());
  Pieces pieces;
  for (const std::string& a : numbers(text)) {
    for (const std::string& b : ideographs(a)) {
      for (std::string& c : words(b)) pieces.push_back(std::move(c));
    }
  }
  return pieces;
}

Pieces by_scanner(const std::string& text) {
  static const PreTokenizer pre;
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = pre.piece_end(text, at);
    EXPECT_GT(end, at);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

// Characters at every border of the rules, all known to Unicode 14 (the judge's data).
const std::vector<std::string>& tricky() {
  static const std::vector<std::string> all = {
      " ",         " ",      "  ",     "\n",     "\r",         "\t",         "\v",     "\u0085",
      "\u00A0",    "\u3000", "\u2028", "\u180E", "\u200B",     "\uFEFF",     "\x01",   std::string(1, '\0'),
      "\x1C",      "a",      "Z",      "\u00E9", "\u0301",     "\u20DD",     "1",      "7",
      "\u0663",    "\u00BD", "\u2167", "!",      "'",          "_",          "<",      "$",
      "\u20AC",    "\u2014", "\u4E00", "\u9FA5", "\u9FA6",     "\u3042",     "\u30FB", "\u30A0",
      "\u3040",    "\u3099", "\u3005", "\uAC00", "\U00020000", "\U0001F600", "\uE000", "\uFFFD",
      "\U000E0041"};
  return all;
}

std::string random_text(std::mt19937& random, std::size_t at_most) {
  std::string text;
  for (auto n = random() % (at_most + 1); n > 0; --n) text += tricky()[random() % tricky().size()];
  return text;
}

TEST(PreTokenizer, AgreesWithTheRegularExpressions) {
  std::mt19937 random(11);
  for (const std::string& a : tricky()) {
    for (const std::string& b : tricky()) {
      for (const std::string& c : tricky()) ASSERT_EQ(by_scanner(a + b + c), by_regex(a + b + c)) << a << b << c;
    }
  }
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_text(random, 24);
    ASSERT_EQ(by_scanner(text), by_regex(text)) << text;
  }
}

TEST(PreTokenizer, AnyBytesAreCutIntoPiecesThatJoinAgain) {
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (auto n = random() % 16; n > 0; --n) {
      if (random() % 3 == 0) bytes.push_back(static_cast<char>(random()));
      else bytes += tricky()[random() % tricky().size()];
    }
    std::string joined;
    for (const std::string& piece : by_scanner(bytes)) joined += piece;
    ASSERT_EQ(joined, bytes);
  }
}

// --- the tokenizer
// ----------------------------------------------------------------------------------------------------

void expect_round_trip(const Tokenizer& t, const std::string& bytes) {
  const Ids ids = t.encode(bytes, Mode::kPlain);
  std::string joined;
  for (const std::int32_t id : ids) {
    ASSERT_FALSE(t.is_added(id)) << bytes;
    joined += t.token_bytes(id).value();
  }
  ASSERT_EQ(joined, bytes);
}

TEST(Tokenizer, PlainTextComesBackAndNeverHoldsAControlToken) {
  std::mt19937 random(3);
  for (int i = 0; i < 3'000; ++i) {
    std::string text = random_text(random, 40);
    if (i % 2 == 0) text.insert(random() % (text.size() + 1), "<\uFF5CUser\uFF5C>\uFF5CDSML\uFF5C</think>");
    expect_round_trip(tiny_tokenizer(), text);
  }
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  expect_round_trip(tiny_tokenizer(), all);
  expect_round_trip(tiny_tokenizer(), "");
}

TEST(Tokenizer, SpecialModeTakesTheLongestAddedTokenAndCutsThere) {
  const Tokenizer& t = tiny_tokenizer();
  const auto id = [&](const char* spelling) { return t.control_id(spelling).value(); };
  EXPECT_EQ(t.encode("<\uFF5CUser\uFF5C><think></think>", Mode::kSpecial),
            (Ids{id("<\uFF5CUser\uFF5C>"), id("<think>"), id("</think>")}));
  // The stretches between are texts of their own: the blank before the token ends its text.
  Ids expected = t.encode("a ", Mode::kPlain);
  expected.push_back(id("<think>"));
  for (const auto i : t.encode(" b<think", Mode::kPlain)) expected.push_back(i);
  EXPECT_EQ(t.encode("a <think> b<think", Mode::kSpecial), expected);
  EXPECT_EQ(t.control_id("<nothing>"), std::nullopt);
  EXPECT_EQ(t.control_id("the"), std::nullopt);  // in the vocabulary, but no added token
}

TEST(Tokenizer, OfAddedTokensThatBeginAlikeTheLongestIsTaken) {
  Json json = Json::parse(read_file(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny/tokenizer.json"));
  int next = 3712;
  for (const char* content : {"#a", "#abcd", "#ab"})
    json["added_tokens"].push_back({{"id", next++}, {"content", content}});
  const auto t = Tokenizer::parse(json.dump(), "test");
  ASSERT_TRUE(t) << t.error().what;
  const auto id_of = [&](const char* text) { return t->encode(text, Mode::kPlain); };
  EXPECT_EQ(t->encode("#abcd", Mode::kSpecial), (Ids{3713}));
  Ids expected = {3714};  // #ab, then text that only began like the longer one
  for (const auto id : id_of("cx")) expected.push_back(id);
  expected.push_back(3712);
  EXPECT_EQ(t->encode("#abcx#a", Mode::kSpecial), expected);
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreAnError) {
  const Tokenizer& t = tiny_tokenizer();
  for (const std::int32_t id : {t.vocab_size(), -1, 129280, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(t.token_bytes(id), std::nullopt);
    EXPECT_FALSE(t.is_added(id));
    const auto text = t.decode(Ids{67, id, 67});
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code, Code::kInvalid);
    EXPECT_NE(text.error().what.find(std::to_string(id)), std::string::npos) << text.error().what;
  }
  EXPECT_TRUE(t.token_bytes(t.vocab_size() - 1));
}

TEST(Detokenizer, StaysUsableAfterAWrongIdAndHoldsBackBrokenCharacters) {
  const Tokenizer& t = tiny_tokenizer();
  const Ids emoji = t.encode("\U0001F600", Mode::kPlain);
  ASSERT_GT(emoji.size(), 1U);
  Detokenizer stream(t);
  std::string text;
  for (const auto id : emoji) {
    EXPECT_FALSE(stream.push(-1));
    const std::string piece = stream.push(id).value();
    EXPECT_EQ(find_invalid_utf8(piece), std::string_view::npos);
    text += piece;
  }
  EXPECT_EQ(text + stream.finish(), "\U0001F600");
  EXPECT_EQ(stream.push(emoji[0]).value(), "");
  EXPECT_EQ(stream.push(t.control_id("<think>").value()).value(), "\uFFFD<think>");
}

// The fixed points of prompt-encoding.md 1.9.
TEST(Tokenizer, FixedPoints) {
  FATHOM_NEEDS_V4();
  const Tokenizer& t = v4_tokenizer();
  EXPECT_EQ(t.encode("Hello, world!", Mode::kSpecial), (Ids{19923, 14, 2058, 3}));
  EXPECT_EQ(t.encode("1234567890", Mode::kSpecial), (Ids{6895, 18009, 25744, 18}));
  EXPECT_EQ(t.encode("   leading spaces", Mode::kSpecial), (Ids{262, 6646, 13564}));
  EXPECT_EQ(t.encode("\u4F60\u597D\u4E16\u754C", Mode::kSpecial), (Ids{30594, 3427}));
  EXPECT_EQ(t.encode("<think>reasoning</think>answer", Mode::kSpecial), (Ids{128821, 86512, 288, 128822, 19995}));
}

// A million bytes of what makes quadratic code stand still; the answers are known without a second implementation.
TEST(Tokenizer, HostileMegabytes) {
  const Tokenizer& t = tiny_tokenizer();
  constexpr std::size_t kN = 1'000'000;
  const auto repeated = [](const std::string& unit) {
    std::string s;
    while (s.size() < kN) s += unit;
    return s;
  };
  for (const std::string unit :
       {" ", "\n", " \n", "7", "a", "ab", "\U0001F600", "a\u0301", "!", "<", "<\uFF5C", "\x01", "\u4E00", "\xF0\x9F"}) {
    const std::string text = repeated(unit);
    expect_round_trip(t, text);
    EXPECT_EQ(t.encode(text, Mode::kSpecial), t.encode(text, Mode::kPlain));
  }
  EXPECT_EQ(t.encode(repeated("<think>"), Mode::kSpecial).size(), (kN + 6) / 7);
}

// Short and long pieces take different routes; around the border both must give the greedy result.
TEST(Bpe, ShortAndLongPiecesAgreeWithTheRuleItself) {
  TokenBytes tokens;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    tokens.push_back({&byte, 1});
  }
  const std::vector<std::pair<std::string, std::string>> rules = {{"a", "b"},  {"b", "a"},   {"ab", "ab"},  {"a", "a"},
                                                                  {"aa", "b"}, {"ba", "ba"}, {"abab", "a"}, {"b", "b"}};
  std::vector<Bpe::Merge> merges;
  std::vector<std::string> wholes;
  for (const auto& [left, right] : rules) wholes.push_back(left + right);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    tokens.push_back(wholes[i]);
    merges.push_back({wholes[i], rules[i].first.size()});
  }
  const auto bpe = Bpe::build(tokens, std::vector<bool>(tokens.size(), false), merges);
  ASSERT_TRUE(bpe) << bpe.error().what;
  const auto by_the_rule = [&](const std::string& piece) {
    Pieces symbols;
    for (const char c : piece) symbols.emplace_back(1, c);
    for (;;) {
      std::size_t best = rules.size();
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        for (std::size_t r = 0; r < best; ++r) {
          if (symbols[i] == rules[r].first && symbols[i + 1] == rules[r].second) best = r, at = i;
        }
      }
      if (best == rules.size()) return symbols;
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  };
  std::mt19937 random(1);
  for (int i = 0; i < 3'000; ++i) {
    std::string piece;
    for (auto n = 1 + random() % 100; n > 0; --n) piece.push_back("aabbbc"[random() % (i % 2 == 0 ? 6 : 4)]);
    Ids ids;
    bpe->encode(piece, ids);
    Pieces symbols;
    for (const auto id : ids) symbols.emplace_back(tokens[static_cast<std::size_t>(id)]);
    ASSERT_EQ(symbols, by_the_rule(piece)) << piece;
  }
}

// The rules decide, not the vocabulary: an entry that no merge leads to is never produced.
TEST(Bpe, AnEntryThatDoesNotMergeToItselfIsNotTakenWhole) {
  TokenBytes tokens;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    tokens.push_back({&byte, 1});
  }
  tokens.push_back("xyz");
  const auto bpe = Bpe::build(tokens, std::vector<bool>(tokens.size(), false), {});
  ASSERT_TRUE(bpe);
  for (int i = 0; i < 2; ++i) {
    Ids ids;
    bpe->encode("xyz", ids);
    EXPECT_EQ(ids, (Ids{'x', 'y', 'z'}));
  }
}

TEST(Tokenizer, ManyThreadsOneTokenizer) {
  const auto t = Tokenizer::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  ASSERT_TRUE(t);
  const std::string text = read_file(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny/MODEL_CARD.md");
  const Ids expected = tiny_tokenizer().encode(text, Mode::kPlain);
  std::vector<std::thread> threads;
  std::vector<Ids> got(4);
  for (Ids& ids : got) threads.emplace_back([&] { ids = t->encode(text, Mode::kPlain); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace fathom::text

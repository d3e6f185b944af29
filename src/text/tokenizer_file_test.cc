// Hostile and foreign tokenizer.json files: refused with a message that names file, place, found and expected.
#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "text/test_support.h"
#include "text/tokenizer.h"

namespace fathom::text {
namespace {

// The embedded tokenizer, changed.
std::string changed(const std::function<void(Json&)>& change) {
  static const Json original =
      Json::parse(read_file(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny/tokenizer.json"));
  Json json = original;
  change(json);
  return json.dump();
}

struct Case {
  std::string name;
  std::function<void(Json&)> change;
  Code code;
  std::string says;
};

std::string add_token(Json& j, std::int64_t id, const std::string& content) {
  j["added_tokens"].push_back({{"id", id}, {"content", content}});
  return content;
}

TEST(TokenizerFile, RefusesWhatItDoesNotKnowOrCannotBe) {
  const std::vector<Case> cases = {
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFC"}};
       },
       Code::kUnavailable, "normalizer"},
      {"normalizers",
       [](Json& j) {
         j["normalizer"]["normalizers"] = {{{"type", "NFC"}}};
       },
       Code::kUnavailable, "normalizer"},
      {"pattern", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{N}"; },
       Code::kUnavailable, "pre_tokenizer"},
      {"second pattern", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["pattern"]["Regex"] = "[a-z]+"; },
       Code::kUnavailable, "pre_tokenizer"},
      {"third pattern", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"] = "\\s+"; },
       Code::kUnavailable, "pre_tokenizer"},
      {"invert", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][2]["invert"] = true; }, Code::kUnavailable,
       "pre_tokenizer"},
      {"behavior", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; }, Code::kUnavailable,
       "pre_tokenizer"},
      {"prefix", [](Json& j) { j["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; }, Code::kUnavailable,
       "pre_tokenizer"},
      {"no pre-tokenizer", [](Json& j) { j.erase("pre_tokenizer"); }, Code::kInvalid, "pre_tokenizer"},
      {"decoder", [](Json& j) { j["decoder"]["type"] = "WordPiece"; }, Code::kUnavailable, "decoder"},
      {"no decoder", [](Json& j) { j.erase("decoder"); }, Code::kInvalid, "decoder"},
      {"unigram", [](Json& j) { j["model"]["type"] = "Unigram"; }, Code::kUnavailable, "Unigram"},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, Code::kUnavailable, "model.dropout"},
      {"unk", [](Json& j) { j["model"]["unk_token"] = "a"; }, Code::kUnavailable, "model.unk_token"},
      {"fallback", [](Json& j) { j["model"]["byte_fallback"] = true; }, Code::kUnavailable, "model.byte_fallback"},
      {"ignore_merges", [](Json& j) { j["model"]["ignore_merges"] = true; }, Code::kUnavailable, "model.ignore_merges"},
      {"strip", [](Json& j) { j["added_tokens"][4]["lstrip"] = true; }, Code::kUnavailable, "lstrip"},
      {"no vocab", [](Json& j) { j["model"].erase("vocab"); }, Code::kInvalid, "model.vocab"},
      {"no merges", [](Json& j) { j["model"].erase("merges"); }, Code::kInvalid, "model.merges"},
      {"vocab type", [](Json& j) { j["model"]["vocab"] = Json::array(); }, Code::kInvalid, "expected an object"},
      {"fraction id", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }, Code::kInvalid, "token id"},
      {"hole", [](Json& j) { j["model"]["vocab"]["a"] = 1'000'000; }, Code::kCorrupt, "1000000"},
      {"negative id", [](Json& j) { j["model"]["vocab"]["a"] = -1; }, Code::kCorrupt, "-1"},
      {"twice", [](Json& j) { j["model"]["vocab"]["a"] = 300; }, Code::kCorrupt, "used twice"},
      {"lost byte",
       [](Json& j) {
         const auto id = j["model"]["vocab"]["a"];
         j["model"]["vocab"].erase("a");
         j["model"]["vocab"]["qqqqq"] = id;
       },
       Code::kCorrupt, "byte 0x61"},
      {"not letters",
       [](Json& j) {
         const auto id = j["model"]["vocab"]["a"];
         j["model"]["vocab"].erase("a");
         j["model"]["vocab"]["\u20AC"] = id;
       },
       Code::kCorrupt, "byte letters"},
      {"merge part", [](Json& j) { j["model"]["merges"].push_back("zzzz qqqq"); }, Code::kCorrupt, "left part"},
      {"merge whole", [](Json& j) { j["model"]["merges"].push_back("z q"); }, Code::kCorrupt, "concatenation"},
      {"merge twice", [](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); }, Code::kCorrupt,
       "same as merge 0"},
      {"merge form", [](Json& j) { j["model"]["merges"].push_back("a b c"); }, Code::kInvalid, "one blank"},
      {"merge array",
       [](Json& j) {
         j["model"]["merges"].push_back({"a", "b", "c"});
       },
       Code::kInvalid, "two parts"},
      {"added hole", [](Json& j) { add_token(j, 5000, "<x>"); }, Code::kCorrupt, "5000"},
      {"added huge", [](Json& j) { add_token(j, 1LL << 40, "<x>"); }, Code::kInvalid, "out of range"},
      {"added twice", [](Json& j) { add_token(j, 3687, "<x>"); }, Code::kCorrupt, "3687"},
      {"added same", [](Json& j) { add_token(j, 3712, "<think>"); }, Code::kCorrupt, "same content"},
      {"added empty", [](Json& j) { add_token(j, 3712, ""); }, Code::kInvalid, "content"},
      {"added long", [](Json& j) { add_token(j, 3712, std::string(300, 'x')); }, Code::kInvalid, "content"},
      {"added collides", [](Json& j) { add_token(j, 500, "<x>"); }, Code::kCorrupt, "in the vocabulary"},
      {"root", [](Json& j) { j = Json::array(); }, Code::kInvalid, "expected an object"},
  };
  for (const Case& c : cases) {
    const auto t = Tokenizer::parse(changed(c.change), "some/tokenizer.json");
    ASSERT_FALSE(t) << c.name;
    EXPECT_EQ(t.error().code, c.code) << c.name << ": " << t.error().what;
    EXPECT_NE(t.error().what.find(c.says), std::string::npos) << c.name << ": " << t.error().what;
    EXPECT_TRUE(t.error().what.starts_with("some/tokenizer.json: ")) << t.error().what;
  }
}

TEST(TokenizerFile, AcceptsBothFormsOfMergesAndBothSpellingsOfPatterns) {
  const auto as_arrays = changed([](Json& j) {
    for (Json& m : j["model"]["merges"]) {
      const auto s = m.get<std::string>();
      const auto blank = s.find(' ');
      m = {s.substr(0, blank), s.substr(blank + 1)};
    }
    Json& regex = j["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"];
    auto pattern = regex.get<std::string>();
    for (std::string escape : {"\\r", "\\n"}) {
      for (std::size_t at = 0; (at = pattern.find(escape, at)) != std::string::npos;) {
        pattern.replace(at, 2, escape == "\\r" ? "\r" : "\n");
      }
    }
    regex = pattern;
  });
  auto t = Tokenizer::parse(as_arrays, "arrays");
  ASSERT_TRUE(t) << t.error().what;
  const std::string text = "Once upon a time, 1234 \n\n  <think>";
  EXPECT_EQ(t->encode(text, Mode::kSpecial), tiny_tokenizer().encode(text, Mode::kSpecial));
}

TEST(TokenizerFile, CutAnywhereItIsRefused) {
  const std::string whole = changed([](Json&) {});
  for (std::size_t n = 0; n < whole.size(); n += 97) {
    EXPECT_FALSE(Tokenizer::parse(std::string_view(whole).substr(0, n), "cut")) << n;
  }
}

TEST(TokenizerFile, MissingFilesAreNamed) {
  const auto t = Tokenizer::load("/nonexistent/folder");
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, Code::kNotFound);
  EXPECT_NE(t.error().what.find("/nonexistent/folder"), std::string::npos);
}

TEST(LettersToBytes, AllBytesAndNothingElse) {
  std::string bytes;
  ASSERT_TRUE(letters_to_bytes("\u0120a\u010A\u0143\u00AC\u00FF!", bytes));
  EXPECT_EQ(bytes, " a\n\xAD\xAC\xFF!");
  for (const char* bad : {" ", "\u0144", "\u20AC", "\u00AD", "\u00A0", "\xC4"}) {
    EXPECT_FALSE(letters_to_bytes(bad, bytes)) << bad;
  }
}

}  // namespace
}  // namespace fathom::text

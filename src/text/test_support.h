// What the tests of this room share: the golden vectors and the two tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/json.h"
#include "text/tokenizer.h"

namespace fathom::text {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << "cannot open " << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// `name` as in "tokenizer/recorded.json".
inline Json read_vectors(const std::string& name) {
  auto json = parse_json(read_file(std::filesystem::path(FATHOM_SOURCE_DIR) / "tests/data/vectors" / name), name);
  EXPECT_TRUE(json) << json.error().what;
  return json ? *json : Json();
}

inline const Tokenizer& tiny_tokenizer() {
  static const auto t = Tokenizer::load(std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fathom-tiny");
  if (!t) ADD_FAILURE() << t.error().what;
  return t.value();
}

// The full DeepSeek-V4 tokenizer is data that the repository does not carry; scripts/test.sh looks for it.
inline std::filesystem::path v4_folder() {
  const char* named = std::getenv("FATHOM_V4_TOKENIZER");
  return named != nullptr ? named : "";
}
inline bool have_v4() { return std::filesystem::exists(v4_folder() / "tokenizer.json"); }
inline const Tokenizer& v4_tokenizer() {
  static const auto t = Tokenizer::load(v4_folder());
  if (!t) ADD_FAILURE() << t.error().what;
  return t.value();
}

}  // namespace fathom::text

#define FATHOM_NEEDS_V4()                                                                          \
  if (!::fathom::text::have_v4()) {                                                                \
    GTEST_SKIP() << "$FATHOM_V4_TOKENIZER names no folder with the tokenizer.json of DeepSeek-V4"; \
  }                                                                                                \
  static_assert(true, "ends with a semicolon")

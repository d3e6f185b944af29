// The golden vectors of the tokenizer: recorded from the released one, or made with the reference library and confirmed
// by a second implementation (the headers of the files say which).
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/pretokenizer.h"
#include "text/test_support.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace fathom::text {
namespace {

using Ids = std::vector<std::int32_t>;

class Sha256 {
 public:
  void add(std::uint8_t byte) {
    block_[fill_++] = byte;
    ++length_;
    if (fill_ == 64) compress();
  }
  std::string hex() {
    const std::uint64_t bits = length_ * 8;
    add(0x80);
    while (fill_ != 56) add(0);
    for (int shift = 56; shift >= 0; shift -= 8) add(static_cast<std::uint8_t>(bits >> shift));
    std::string out;
    for (const std::uint32_t h : hash_) out += fmt::format("{:08x}", h);
    return out;
  }

 private:
  void compress() {
    fill_ = 0;
    std::array<std::uint32_t, 64> w = {};
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
             std::uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15];
      const std::uint32_t b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto v = hash_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = v[7] + (std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25)) +
                               ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRound[i] + w[i];
      const std::uint32_t t2 = (std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22)) +
                               ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      for (std::size_t k = 7; k > 0; --k) v[k] = v[k - 1];
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (std::size_t k = 0; k < 8; ++k) hash_[k] += v[k];
  }

  static constexpr std::array<std::uint32_t, 64> kRound = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 8> hash_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_ = {};
  std::size_t fill_ = 0;
  std::uint64_t length_ = 0;
};

TEST(Sha256, KnownAnswer) {
  Sha256 sha;
  for (const char c : std::string("abc")) sha.add(static_cast<std::uint8_t>(c));
  EXPECT_EQ(sha.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TokenizerVectors, Recorded) {
  FATHOM_NEEDS_V4();
  const Json vectors = read_vectors("tokenizer/recorded.json");
  ASSERT_EQ(vectors["cases"].size(), 77U);
  for (const Json& c : vectors["cases"]) {
    EXPECT_EQ(v4_tokenizer().encode(c["text"].get<std::string>(), Mode::kSpecial), c["ids"].get<Ids>()) << c["id"];
  }
}

TEST(TokenizerVectors, GeneratedInBothModes) {
  FATHOM_NEEDS_V4();
  const Json vectors = read_vectors("tokenizer/generated.json");
  ASSERT_EQ(vectors["cases"].size(), 598U);
  int differ = 0;
  for (const Json& c : vectors["cases"]) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(v4_tokenizer().encode(text, Mode::kSpecial), c["ids"].get<Ids>()) << c["id"];
    differ += c.contains("ids_plain") ? 1 : 0;
    const Ids plain = c[c.contains("ids_plain") ? "ids_plain" : "ids"].get<Ids>();
    EXPECT_EQ(v4_tokenizer().encode(text, Mode::kPlain), plain) << c["id"];
    for (const std::int32_t id : plain) EXPECT_FALSE(v4_tokenizer().is_added(id)) << c["id"];
    EXPECT_EQ(v4_tokenizer().decode(plain).value(), text) << c["id"];
  }
  EXPECT_GT(differ, 10);
}

TEST(TokenizerVectors, Pieces) {
  const Json vectors = read_vectors("tokenizer/pieces.json");
  ASSERT_EQ(vectors["cases"].size(), 185U);
  const PreTokenizer pre;
  for (const Json& c : vectors["cases"]) {
    const auto text = c["text"].get<std::string>();
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = pre.piece_end(text, at);
      pieces.push_back(text.substr(at, end - at));
      at = end;
    }
    EXPECT_EQ(pieces, c["pieces"].get<std::vector<std::string>>()) << c["id"];
  }
}

// One probe text for every code point that Unicode 14 knows.
TEST(TokenizerVectors, CodePoints) {
  FATHOM_NEEDS_V4();
  const Json vectors = read_vectors("tokenizer/codepoints.json");
  ASSERT_EQ(vectors["cases"].size(), 442U);
  for (const Json& block : vectors["cases"]) {
    Sha256 sha;
    std::size_t n_ids = 0;
    for (const Json& range : block["ranges"]) {
      for (auto c = range[0].get<char32_t>(); c <= range[1].get<char32_t>(); ++c) {
        std::string s;
        append_utf8(c, s);
        const std::string text = "a" + s + "b " + s + "1" + s + s + " !" + s + "x  " + s;
        for (const std::int32_t id : v4_tokenizer().encode(text, Mode::kSpecial)) {
          for (int shift = 0; shift < 32; shift += 8) sha.add(static_cast<std::uint8_t>(id >> shift));
          ++n_ids;
        }
      }
    }
    EXPECT_EQ(n_ids, block["n_ids"].get<std::size_t>()) << block["id"];
    EXPECT_EQ(sha.hex(), block["sha256"].get<std::string>()) << block["id"];
  }
}

TEST(TokenizerVectors, Decode) {
  FATHOM_NEEDS_V4();
  const Json vectors = read_vectors("tokenizer/decode.json");
  ASSERT_EQ(vectors["cases"].size(), 213U);
  for (const Json& c : vectors["cases"]) {
    std::string hex;
    std::vector<std::string> chunks;
    Detokenizer stream(v4_tokenizer());
    for (const auto id : c["ids"].get<Ids>()) {
      const std::string_view bytes = v4_tokenizer().token_bytes(id).value();
      for (const char b : bytes) {
        hex += fmt::format("{:02x}", static_cast<unsigned char>(b));
      }
      chunks.push_back(stream.push(id).value());
    }
    EXPECT_EQ(hex, c["bytes_hex"].get<std::string>()) << c["id"];
    EXPECT_EQ(chunks, c["chunks"].get<std::vector<std::string>>()) << c["id"];
    EXPECT_EQ(stream.finish(), c.value("tail", std::string())) << c["id"];
    EXPECT_EQ(v4_tokenizer().decode(c["ids"].get<Ids>()).value(), c["text"].get<std::string>()) << c["id"];
  }
}

TEST(TokenizerVectors, AddedTokens) {
  FATHOM_NEEDS_V4();
  const Json vectors = read_vectors("tokenizer/added-tokens.json");
  ASSERT_EQ(vectors["tokens"].size(), 1283U);
  EXPECT_EQ(v4_tokenizer().vocab_size(), 129280);
  std::set<std::int32_t> added;
  for (const Json& t : vectors["tokens"]) {
    const auto id = t[0].get<std::int32_t>();
    const auto content = t[1].get<std::string>();
    added.insert(id);
    EXPECT_EQ(v4_tokenizer().control_id(content), id);
    EXPECT_EQ(v4_tokenizer().token_bytes(id), content);
    EXPECT_EQ(v4_tokenizer().encode(content, Mode::kSpecial), Ids{id});
    for (const auto plain : v4_tokenizer().encode(content, Mode::kPlain)) {
      EXPECT_FALSE(v4_tokenizer().is_added(plain)) << content;
    }
  }
  for (std::int32_t id = 0; id < v4_tokenizer().vocab_size(); ++id) {
    EXPECT_EQ(v4_tokenizer().is_added(id), added.contains(id)) << id;
  }
}

TEST(TokenizerVectors, FathomTiny) {
  const Json vectors = read_vectors("model/tokenizer-fathom-tiny.json");
  ASSERT_GT(vectors.size(), 20U);
  for (const Json& c : vectors) {
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tiny_tokenizer().encode(c["text"].get<std::string>(), Mode::kSpecial), ids) << c["text"];
    EXPECT_EQ(tiny_tokenizer().decode(ids).value(), c["decoded"].get<std::string>()) << c["text"];
  }
}

}  // namespace
}  // namespace fathom::text

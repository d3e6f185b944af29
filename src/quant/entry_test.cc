// Storing a quantised entry and reading it back gives the same bits, whatever the magnitudes.
#include "quant/entry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/bf16.h"
#include "quant/block.h"

namespace fathom::quant {
namespace {

// As the model would quantise an entry of this format.
void quantise(const EntryCodec& codec, std::vector<float>& x) {
  const auto plain = static_cast<std::size_t>(codec.dim - codec.rope_dim);
  if (codec.format == EntryFormat::kFp4) fp4_round_trip(x);
  if (codec.format == EntryFormat::kFp8RopeF32 || codec.format == EntryFormat::kFp8RopeBf16) {
    fp8_round_trip(std::span(x).first(plain), kEntryBlock);
  }
  if (codec.format == EntryFormat::kFp8RopeBf16) {
    for (std::size_t i = plain; i < x.size(); ++i) x[i] = round_bf16(x[i]);
  }
}

TEST(EntryCodec, IsLosslessForQuantisedEntries) {
  const EntryCodec codecs[] = {{EntryFormat::kF32, 61, 0},           {EntryFormat::kFp8RopeF32, 512, 64},
                               {EntryFormat::kFp8RopeBf16, 512, 64}, {EntryFormat::kFp8RopeF32, 64, 32},
                               {EntryFormat::kFp4, 128, 64},         {EntryFormat::kFp4, 64, 64}};
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  for (const EntryCodec& codec : codecs) {
    for (int round = 0; round < 300; ++round) {
      std::vector<float> x(static_cast<std::size_t>(codec.dim));
      const int centre = static_cast<int>(rng() % 30) - 20;
      for (float& v : x) v = std::ldexp(normal(rng), centre - static_cast<int>(rng() % 12));
      if (round == 0) std::fill(x.begin(), x.end(), 0.0F);
      quantise(codec, x);
      std::vector<std::byte> stored(codec.bytes() + 1, std::byte{0xab});
      codec.encode(x, stored.data());
      ASSERT_EQ(stored.back(), std::byte{0xab}) << "wrote past bytes()";
      std::vector<float> y(x.size());
      codec.decode(stored.data(), y);
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], y[i]) << "dim " << i << " round " << round;
    }
  }
}

TEST(EntryCodec, SizesOfTheSpecification) {
  EXPECT_EQ((EntryCodec{EntryFormat::kFp8RopeBf16, 512, 64}.bytes()), 584U);
  EXPECT_EQ((EntryCodec{EntryFormat::kFp4, 128, 64}.bytes()), 68U);
  EXPECT_EQ((EntryCodec{EntryFormat::kF32, 512, 64}.bytes()), 2048U);
}

TEST(EntryCodec, NaNStaysNaN) {
  for (const EntryFormat format : {EntryFormat::kF32, EntryFormat::kFp8RopeF32, EntryFormat::kFp4}) {
    const EntryCodec codec{format, 128, 64};
    std::vector<float> x(128, 1.0F);
    x[5] = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::byte> stored(codec.bytes());
    codec.encode(x, stored.data());
    codec.decode(stored.data(), x);
    EXPECT_TRUE(std::isnan(x[5]));
    EXPECT_EQ(x[127], 1.0F);
  }
}

}  // namespace
}  // namespace fathom::quant

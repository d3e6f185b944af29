// Codecs to the bit: every code, every tie, the check values of model.md 9 and checkpoint.md 5.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "quant/bf16.h"
#include "quant/block.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/ue8m0.h"

namespace fathom::quant {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3f80);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f808000U)).bits, 0x3f80);  // tie, even below
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x3f818000U)).bits, 0x3f82);  // tie, even above
  EXPECT_TRUE(std::isnan(round_bf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(round_bf16(std::bit_cast<float>(0x7f800001U))));  // payload only in the lower half
  EXPECT_TRUE(std::isinf(round_bf16(std::numeric_limits<float>::max())));
}

TEST(E4m3, EveryCodeRoundTrips) {
  for (unsigned c = 0; c < 256; ++c) {
    if ((c & 0x7fU) == 0x7fU) {
      EXPECT_TRUE(std::isnan(kE4m3Values[c]));
    } else {
      EXPECT_EQ(to_e4m3(kE4m3Values[c]), c);
    }
  }
}

TEST(E4m3, NearestEvenBetweenAllNeighbours) {
  for (std::uint8_t c = 0; c < 0x7e; ++c) {
    const float lower = kE4m3Values[c];
    const float upper = kE4m3Values[c + 1U];
    const float middle = (lower + upper) / 2;  // exact: one more mantissa bit
    EXPECT_EQ(to_e4m3(middle), c % 2 == 0 ? c : c + 1) << unsigned{c};
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0F)), c);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 1e9F)), c + 1);
    EXPECT_EQ(to_e4m3(-middle), (c % 2 == 0 ? c : c + 1) | 0x80);
  }
}

TEST(E4m3, CheckValuesAndSaturation) {
  EXPECT_EQ(to_e4m3(0.3F), 0x2a);
  EXPECT_EQ(to_e4m3(17.0F), 0x58);
  EXPECT_EQ(to_e4m3(17.5F), 0x59);
  EXPECT_EQ(to_e4m3(19.0F), 0x5a);
  EXPECT_EQ(to_e4m3(430.0F), 0x7d);
  EXPECT_EQ(to_e4m3(464.0F), 0x7e);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::infinity()), 0x7e);
  EXPECT_EQ(to_e4m3(-1e30F), 0xfe);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7f);
}

TEST(E2m1, EveryCodeRoundTripsAndTiesGoToEven) {
  for (std::uint8_t c = 0; c < 16; ++c) EXPECT_EQ(to_e2m1(kE2m1Values[c]), c);
  const std::vector<std::pair<float, float>> ties = {{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2},
                                                     {2.5F, 2},  {3.5F, 4},  {5.0F, 4},  {7.0F, 6}};
  for (const auto& [x, y] : ties) {
    EXPECT_EQ(kE2m1Values[to_e2m1(x)], y);
    EXPECT_EQ(kE2m1Values[to_e2m1(-x)], -y);
  }
}

TEST(Ue8m0, ValuesAndCeil) {
  EXPECT_EQ(ue8m0_value(127), 1.0F);
  EXPECT_EQ(ue8m0_value(0), 0x1p-127F);
  EXPECT_EQ(ue8m0_value(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(ue8m0_value(255)));
  EXPECT_EQ(ue8m0_ceil(1.0F), 127);
  EXPECT_EQ(ue8m0_ceil(std::nextafter(1.0F, 2.0F)), 128);
  EXPECT_EQ(ue8m0_ceil(std::nextafter(1.0F, 0.0F)), 127);
}

TEST(BlockScale, CheckValues) {
  const auto fp8 = [](float amax) { return fp8_block_scale(std::vector<float>{0, -amax, amax / 2}) - 127; };
  EXPECT_EQ(fp8(448), 0);
  EXPECT_EQ(fp8(449), 1);
  EXPECT_EQ(fp8(447), 0);
  EXPECT_EQ(fp8(1), -8);
  EXPECT_EQ(fp8(0), -22);
  EXPECT_EQ(fp8(3.5F), -7);
  const auto fp4 = [](float amax) { return fp4_block_scale(std::vector<float>{amax, 0, -amax / 2}) - 127; };
  EXPECT_EQ(fp4(6), 0);
  EXPECT_EQ(fp4(6.1F), 1);
  EXPECT_EQ(fp4(3), -1);
  EXPECT_EQ(fp4(1), -2);
  EXPECT_EQ(fp4(0), -126);
}

TEST(RoundTrip, SpecificationExample) {
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[static_cast<std::size_t>(i)] = round_bf16(0.01F * static_cast<float>(i - 20));
  fp8_round_trip(x, kEntryBlock);
  EXPECT_EQ(x[0], -0.203125F);
  EXPECT_EQ(x[63], 0.4375F);
}

TEST(RoundTrip, IsIdempotentAndKeepsNaNInItsPlace) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> x(256);
    const float scale = std::ldexp(1.0F, static_cast<int>(rng() % 40) - 20);
    for (float& v : x) v = normal(rng) * scale;
    std::vector<float> once = x;
    fp8_round_trip(once, kActBlock);
    std::vector<float> twice = once;
    fp8_round_trip(twice, kActBlock);
    ASSERT_EQ(once, twice);
    once = x;
    fp4_round_trip(once);
    twice = once;
    fp4_round_trip(twice);
    ASSERT_EQ(once, twice);
  }
  std::vector<float> x(256, 1.0F);
  x[130] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> y = x;
  fp8_round_trip(y, kActBlock);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i == 130);
  fp4_round_trip(x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(x[i]), i / 32 == 130 / 32);
}

TEST(Hadamard, UnitVectorAndInverse) {
  std::vector<float> x(128, 0.0F);
  x[3] = 1.0F;
  hadamard(x);
  for (std::size_t i = 0; i < 128; ++i) {
    const int sign = std::popcount(i & 3U) % 2 == 0 ? 1 : -1;
    EXPECT_FLOAT_EQ(x[i], 0.08838834764831845F * static_cast<float>(sign));
  }
  hadamard(x);  // orthonormal and symmetric: its own inverse
  EXPECT_NEAR(x[3], 1.0F, 1e-6F);
  EXPECT_NEAR(x[4], 0.0F, 1e-6F);
}

}  // namespace
}  // namespace fathom::quant

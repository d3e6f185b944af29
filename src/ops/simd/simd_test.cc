// The shared vector functions against what they stand for: the quantisers and entry codecs to the bit, the exponential
// and the norms within their bounds, on every instruction set.
#include <algorithm>

#include "ops/instruction_set.h"
#include "ops/rope/rope.h"
#include "ops/test_support.h"
#include "quant/block.h"
#include "quant/entry.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/simd/simd_test.cc"
#include <hwy/foreach_target.h>
//
#include "ops/simd/entry-inl.h"
#include "ops/simd/quantise-inl.h"
#include "ops/simd/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fathom::ops::HWY_NAMESPACE {
namespace {

std::int64_t Target() { return HWY_TARGET; }
void Fp8RoundTrip(float* x, std::int64_t n, std::int64_t block) { fp8_round_trip(x, n, block); }
void Fp4RoundTrip(float* x, std::int64_t n) { fp4_round_trip(x, n); }
void Hadamard(float* x, std::int64_t n) { hadamard(x, n); }
void DecodeEntry(const quant::EntryCodec& codec, const std::byte* in, float* x) { decode_entry(codec, in, x); }
void Rotate(float* x, std::int64_t dim, const float* cos, const float* sin, std::int64_t n, float sign) {
  rotate(x, dim, cos, sin, n, sign);
}
void Exponential(float* x, std::int64_t n) {
  for_each_register(
      n, [&](auto d, std::int64_t i) HWY_ATTR { hn::StoreU(exponential(d, hn::LoadU(d, x + i)), d, x + i); });
}

}  // namespace
}  // namespace fathom::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fathom::ops {
namespace {

HWY_EXPORT(Target);
HWY_EXPORT(Fp8RoundTrip);
HWY_EXPORT(Fp4RoundTrip);
HWY_EXPORT(Hadamard);
HWY_EXPORT(DecodeEntry);
HWY_EXPORT(Rotate);
HWY_EXPORT(Exponential);

using testing::Rng;

bool same_bits_or_nan(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], 4) != 0) return false;
  }
  return a.size() == b.size();
}

// Blocks of every size of value, with zeros, infinities, NaNs, subnormals, and the ties between neighbouring codes.
std::vector<std::vector<float>> difficult_rows() {
  Rng rng(3);
  std::vector<std::vector<float>> rows;
  for (int round = 0; round < 300; ++round) {
    auto x = testing::normals(rng, 1 + static_cast<std::int64_t>(rng() % 300),
                              std::ldexp(1.0F, static_cast<int>(rng() % 260) - 140));
    for (float& v : x) {
      switch (rng() % 40) {
        case 0: v = 0; break;
        case 1: v = -0.0F; break;
        case 2: v = round % 7 == 0 ? testing::kPoison : v; break;
        case 3: v = round % 11 == 0 ? -std::numeric_limits<float>::infinity() : v; break;
        case 4: v *= 1e-4F; break;
        default: break;
      }
    }
    rows.push_back(x);
  }
  std::vector<float> ties;  // with a scale of 1: all codes, the middles between them, and their neighbours
  for (const float top : {448.0F, 6.0F}) {
    for (unsigned c = 0; c < 0x7e; ++c) {
      const float a = quant::kE4m3Values[c];
      const float b = quant::kE4m3Values[c + 1];
      const float middle = (a + b) / 2;
      for (const float v : {a, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1e9F), -middle}) {
        if (std::fabs(v) <= top) ties.insert(ties.end(), {top, v});
      }
    }
    for (float v = -6; v <= 6; v += 0.125F) ties.insert(ties.end(), {top, v});
  }
  rows.push_back(ties);
  return rows;
}

TEST(Simd, KernelsUseNoWiderInstructionSetThanAllowed) {
  const std::vector<std::string> all = instruction_sets();
  std::vector<std::int64_t> used;
  for (const std::string& widest : all) {
    const auto limited = limit_instruction_set(widest);
    ASSERT_TRUE(limited.has_value());
    EXPECT_EQ(instruction_set(), widest);
    EXPECT_EQ(instruction_sets().back(), widest);
    used.push_back(HWY_DYNAMIC_DISPATCH(Target)());
    hwy::DisableTargets(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  // Each another one: of Highway's numbers a lower one is wider.
  for (std::size_t i = 1; i < used.size(); ++i) EXPECT_LT(used[i], used[i - 1]);
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(Target)(), used.back());
  const auto unknown = limit_instruction_set("mmx");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().what.find("\"mmx\""), std::string::npos);
  EXPECT_NE(unknown.error().what.find(all.back()), std::string::npos);
}

TEST(Simd, QuantisersGiveTheBitsOfTheReferenceCodec) {
  const auto rows = difficult_rows();
  testing::for_each_target([&](bool) {
    for (const auto& row : rows) {
      for (const int block : {quant::kActBlock, quant::kEntryBlock, 2}) {
        std::vector<float> want = row;
        std::vector<float> got = row;
        quant::fp8_round_trip(want, block);
        HWY_DYNAMIC_DISPATCH(Fp8RoundTrip)(got.data(), static_cast<std::int64_t>(got.size()), block);
        ASSERT_TRUE(same_bits_or_nan(got, want));
      }
      std::vector<float> want = row;
      std::vector<float> got = row;
      quant::fp4_round_trip(want);
      HWY_DYNAMIC_DISPATCH(Fp4RoundTrip)(got.data(), static_cast<std::int64_t>(got.size()));
      ASSERT_TRUE(same_bits_or_nan(got, want));
    }
  });
}

TEST(Simd, HadamardGivesTheBitsOfTheReference) {
  Rng rng(5);
  testing::for_each_target([&](bool) {
    for (std::int64_t n = 1; n <= 512; n *= 2) {
      const auto x = testing::normals(rng, n);
      std::vector<float> want = x;
      std::vector<float> got = x;
      quant::hadamard(want);
      HWY_DYNAMIC_DISPATCH(Hadamard)(got.data(), n);
      ASSERT_TRUE(same_bits_or_nan(got, want)) << n;
    }
  });
}

TEST(Simd, EntriesDecodeToTheBitsOfTheReferenceCodec) {
  Rng rng(7);
  using quant::EntryFormat;
  for (const quant::EntryCodec& codec : {quant::EntryCodec{EntryFormat::kF32, 96, 16},
                                         {EntryFormat::kFp8RopeF32, 512, 64},
                                         {EntryFormat::kFp8RopeF32, 100, 10},
                                         {EntryFormat::kFp8RopeBf16, 128, 64},
                                         {EntryFormat::kFp4, 128, 0},
                                         {EntryFormat::kFp4, 32, 0}}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::byte> stored(codec.bytes());
      for (std::byte& b : stored) b = std::byte{static_cast<std::uint8_t>(rng())};
      std::vector<float> want(static_cast<std::size_t>(codec.dim));
      codec.decode(stored.data(), want);
      for (float& v : want) {
        if (v == 0) v = 0;  // FP4's minus zero is decoded as zero
      }
      testing::for_each_target([&](bool) {
        std::vector<float> got(want.size() + 1, 77.0F);
        HWY_DYNAMIC_DISPATCH(DecodeEntry)(codec, stored.data(), got.data());
        EXPECT_EQ(got.back(), 77.0F);
        got.pop_back();
        for (float& v : got) {
          if (v == 0) v = 0;
        }
        ASSERT_TRUE(same_bits_or_nan(got, want));
      });
    }
  }
}

TEST(Simd, ExponentialIsWithinTwoUnitsAndTheSameEverywhere) {
  std::vector<float> x;
  for (float v = -110; v < 95; v += 0.0107F) x.push_back(v);
  for (float v = -1e-3F; v < 1e-3F; v += 1e-6F) x.push_back(v);
  for (const float v : {0.0F, -0.0F, 1e30F, -1e30F, 88.7F, -87.4F, std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity()}) {
    x.push_back(v);
  }
  std::vector<float> first;
  testing::for_each_target([&](bool fma) {
    std::vector<float> y = x;
    HWY_DYNAMIC_DISPATCH(Exponential)(y.data(), static_cast<std::int64_t>(y.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(double{x[i]});
      if (want > std::numeric_limits<float>::max()) {
        ASSERT_TRUE(std::isinf(y[i])) << x[i];
      } else {
        ASSERT_NEAR(y[i], want, 2 * std::max(want * 0x1p-23, 0x1p-149)) << x[i];
      }
    }
    if (!fma) return;
    ASSERT_TRUE(first.empty() || same_bits_or_nan(y, first));
    first = y;
    float nan = testing::kPoison;
    HWY_DYNAMIC_DISPATCH(Exponential)(&nan, 1);
    ASSERT_TRUE(std::isnan(nan));
  });
}

TEST(Simd, RotationMatchesTheReferenceBothWays) {
  Rng rng(9);
  for (const std::int64_t pairs : {1, 5, 32}) {
    const std::int64_t dim = 2 * pairs + 7;
    const auto x = testing::normals(rng, dim);
    const auto frequencies = rope_frequencies(10000, static_cast<std::int32_t>(2 * pairs), {});
    std::vector<float> cos(static_cast<std::size_t>(pairs));
    std::vector<float> sin(cos.size());
    rope_angles(1234567, frequencies.data(), pairs, cos.data(), sin.data());
    testing::for_each_target([&](bool) {
      for (const Turn turn : {Turn::kForward, Turn::kInverse}) {
        std::vector<float> want = x;
        std::vector<float> got = x;
        rotate(want.data(), dim, cos.data(), sin.data(), pairs, turn, Carrier::kF32);
        HWY_DYNAMIC_DISPATCH(Rotate)
        (got.data(), dim, cos.data(), sin.data(), pairs, turn == Turn::kForward ? 1.0F : -1.0F);
        for (std::size_t i = 0; i < x.size(); ++i) {
          // Each output is a sum of two products, of which one is rounded before and the sum after. The pair's other
          // value is one of the neighbours.
          const double left = std::fabs(x[i > 0 ? i - 1 : 0]);
          const double right = std::fabs(x[std::min(i + 1, x.size() - 1)]);
          const double size = std::fabs(x[i]) + left + right;
          ASSERT_NEAR(got[i], want[i], size * 0x1p-23);
        }
      }
    });
  }
}

}  // namespace
}  // namespace fathom::ops
#endif

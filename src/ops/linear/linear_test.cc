// Matrix products of every format against the plain reference, and against themselves under any batch, thread count and
// instruction set.
#include "ops/linear/linear.h"

#include <algorithm>

#include "ops/test_support.h"
#include "quant/block.h"

namespace fathom::ops {
namespace {

using testing::OwnedWeight;
using testing::Rng;
using testing::Rows;

struct Case {
  DType dtype;
  std::int64_t tokens;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t groups = 1;
  bool quantise = false;
  DType scales = DType::kF8E8M0;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.dtype) << " T=" << c.tokens << " rows=" << c.rows << " cols=" << c.cols
             << " groups=" << c.groups << (c.quantise ? " quantised" : "")
             << (c.scales == DType::kF32 ? " f32 scales" : "");
}

// The sum of |x_k w_k| of one output, which every bound on a sum's rounding is proportional to.
double magnitude(const Case& c, const Weight& w, const Rows& x, std::int64_t t, std::int64_t o) {
  std::vector<float> row(static_cast<std::size_t>(x.cols()));
  for (std::int64_t i = 0; i < x.cols(); ++i) row[static_cast<std::size_t>(i)] = x.at(t, i);
  if (c.quantise) quant::fp8_round_trip(row, quant::kActBlock);
  std::vector<float> weights(static_cast<std::size_t>(w.cols));
  dequantise_row(w, o, weights.data());
  const std::int64_t first = o / (w.rows / c.groups) * w.cols;
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += std::fabs(double{weights[i]} * double{row[static_cast<std::size_t>(first) + i]});
  }
  return sum;
}

void run(const Case& c, const Weight& w, const Rows& x, Rows& y, Backend& backend) {
  const Linear op = {
      .x = x.mat(), .w = w, .y = y.mat(), .groups = static_cast<std::int32_t>(c.groups), .quantise_x = c.quantise};
  backend.linear(op);
}

class LinearDiff : public ::testing::TestWithParam<Case> {};

TEST_P(LinearDiff, CpuMatchesReferenceOnEveryTarget) {
  const Case c = GetParam();
  Rng rng(7);
  const OwnedWeight w = testing::random_weight(rng, c.dtype, c.rows, c.cols, c.scales);
  const Rows x = Rows::normal(rng, c.tokens, c.groups * c.cols);
  Rows want(c.tokens, c.rows);
  const auto ref = make_ref_backend();
  run(c, w.w, x, want, *ref);

  testing::Backends backends;
  Rows first(c.tokens, c.rows);
  bool have_first = false;
  testing::for_each_target([&](bool fma) {
    Rows got(c.tokens, c.rows);
    run(c, w.w, x, got, backends.threads(1));
    EXPECT_TRUE(got.padding_untouched());
    // A lane takes cols/16 elements and 4 closing sums; per element one rounding with fused multiply-add, two without;
    // per chunk one for its scale (f32 scales: one more in the reference's product of value and scale).
    const double roundings =
        (fma ? 1 : 2) * (static_cast<double>(c.cols) / 16 + 9) + static_cast<double>(c.cols) / 128 + 4 + 1;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t o = 0; o < c.rows; o += std::max<std::int64_t>(1, c.rows / 16)) {
        const double bound = roundings * 0x1p-24 * magnitude(c, w.w, x, t, o);
        ASSERT_NEAR(got.at(t, o), want.at(t, o), bound) << "t=" << t << " o=" << o;
      }
    }
    for (const int threads : {1, 2, 3}) {
      Rows again(c.tokens, c.rows);
      run(c, w.w, x, again, backends.threads(threads));
      EXPECT_TRUE(again.same(got)) << threads << " threads";
    }
    Rows plain(c.tokens, c.rows);
    run(c, w.w, x, plain, backends.plain());
    EXPECT_TRUE(plain.same(got)) << "without the bf16 dot product";
    if (!fma) return;
    EXPECT_TRUE(!have_first || got.same(first)) << "differs from the other targets";
    first = got;
    have_first = true;
  });
}

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&list](const Case& c) { list.push_back(c); };
  for (const DType d : {DType::kF32, DType::kBf16, DType::kF8E4M3, DType::kFp4x2}) {
    const bool fp4 = d == DType::kFp4x2;
    const bool q = d == DType::kF8E4M3 || fp4;
    add({d, 0, 8, 128});
    add({d, 1, 0, 128});
    add({d, 1, 1, 32});
    add({d, 1, 61, fp4 ? 96 : 61});
    add({d, 1, 130, fp4 ? 160 : 129, 1, q});
    add({d, 2, 5, 128});
    add({d, 3, 17, fp4 ? 224 : 255, 1, q});
    add({d, 4, 16, 256, 1, q});
    add({d, 5, 15, fp4 ? 96 : 127, 1, q});
    add({d, 15, 17, 384, 1, q});
    add({d, 16, 33, 256});
    add({d, 17, 129, fp4 ? 288 : 300, 1, q});
    add({d, 1, 32, 4096, 1, q});
    add({d, 2, 8, 7168, 1, q});
    add({d, 37, 20, 2048, 1, q});
    add({d, 3, 2 * 24, 128, 2});             // grouped, groups that are no multiple of a tile
    add({d, 6, 3 * 131, fp4 ? 64 : 72, 3});  // groups across scale blocks
    add({d, 1, 2 * 128, 160, 2, q});         // quantisation blocks across groups
  }
  add({DType::kF8E4M3, 3, 140, 300, 1, true, DType::kF32});
  add({DType::kF8E4M3, 9, 140, 300, 1, true, DType::kF32});
  add({DType::kFp4x2, 1, 9, 288, 1, true, DType::kF32});
  add({DType::kFp4x2, 20, 9, 288, 1, true, DType::kF32});
  return list;
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearDiff, ::testing::ValuesIn(cases()));

class LinearFormats : public ::testing::TestWithParam<DType> {};

TEST_P(LinearFormats, ARowAloneEqualsTheRowInAnyBatch) {
  Rng rng(11);
  const DType d = GetParam();
  const Case c = {d, 300, 37, 416, 1, d == DType::kF8E4M3 || d == DType::kFp4x2};
  const OwnedWeight w = testing::random_weight(rng, d, c.rows, c.cols);
  const Rows x = Rows::normal(rng, c.tokens, c.cols);
  testing::Backends backends;
  Rows all(c.tokens, c.rows);
  run(c, w.w, x, all, backends.threads(2));
  for (const std::int64_t batch : {1, 2, 3, 4, 5, 8, 16, 19, 64, 257}) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{43}}) {
      const auto ld = x.mat().ld;
      Rows some(batch, c.rows);
      const Mat<const float> rows = {x.mat().data + first * ld, batch, c.cols, ld};
      backends.threads(2).linear({.x = rows, .w = w.w, .y = some.mat(), .quantise_x = c.quantise});
      for (std::int64_t t = 0; t < batch; ++t) ASSERT_TRUE(some.same_row(t, all, first + t)) << batch << " " << t;
    }
  }
}

TEST_P(LinearFormats, ANanStaysInItsRow) {
  Rng rng(13);
  const DType d = GetParam();
  const OwnedWeight w = testing::random_weight(rng, d, 20, 288);
  for (const std::int64_t tokens : {1, 4, 21}) {
    Rows x = Rows::normal(rng, tokens, 288);
    x.at(tokens / 2, 100) = testing::kPoison;
    testing::for_each_target([&](bool) {
      testing::Backends backends;
      Rows y(tokens, 20);
      backends.threads(1).linear({.x = x.mat(), .w = w.w, .y = y.mat(), .quantise_x = w.w.quantised()});
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < 20; ++o) ASSERT_EQ(std::isnan(y.at(t, o)), t == tokens / 2);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearFormats,
                         ::testing::Values(DType::kF32, DType::kBf16, DType::kF8E4M3, DType::kFp4x2));

TEST(Linear, ANanWeightSpoilsItsOutputsAndNoOthers) {
  Rng rng(17);
  OwnedWeight w = testing::random_weight(rng, DType::kF8E4M3, 20, 300);
  w.data[7 * 300 + 299] = std::byte{0xff};
  w.data[11 * 300 + 5] = std::byte{0x7f};
  for (const std::int64_t tokens : {1, 3, 6}) {
    const Rows x = Rows::normal(rng, tokens, 300);
    testing::for_each_target([&](bool) {
      testing::Backends backends;
      Rows y(tokens, 20);
      backends.threads(1).linear({.x = x.mat(), .w = w.w, .y = y.mat(), .quantise_x = true});
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < 20; ++o) ASSERT_EQ(std::isnan(y.at(t, o)), o == 7 || o == 11) << o;
      }
    });
  }
}

TEST(Linear, ANanScaleLeavesNoFiniteOutput) {
  Rng rng(19);
  for (const DType d : {DType::kF8E4M3, DType::kFp4x2}) {
    OwnedWeight w = testing::random_weight(rng, d, 4, 256);
    w.scales[0] = std::byte{255};
    testing::for_each_target([&](bool) {
      for (const std::int64_t tokens : {1, 7}) {
        const Rows x = Rows::normal(rng, tokens, 256);
        testing::Backends backends;
        Rows y(tokens, 4);
        backends.threads(1).linear({.x = x.mat(), .w = w.w, .y = y.mat(), .quantise_x = true});
        for (std::int64_t t = 0; t < tokens; ++t) ASSERT_FALSE(std::isfinite(y.at(t, 0)));
      }
    });
  }
}

// One column of x that is no zero and so small that products are subnormal: nothing rounds, so nothing may be lost. In
// front of FP8 and FP4 the factor that decoding leaves in the sums needs some room below.
TEST(Linear, SubnormalNumbersAreNotFlushed) {
  Rng rng(29);
  testing::Backends backends;
  for (const DType d : {DType::kF32, DType::kBf16, DType::kF8E4M3, DType::kFp4x2}) {
    SCOPED_TRACE(name_of(d));
    OwnedWeight w = testing::random_weight(rng, d, 20, 256);
    if (d == DType::kF32) {
      const float ones_and_a_half[] = {1.5F, -3.0F};
      for (std::size_t i = 0; i < 20 * 256; ++i) std::memcpy(&w.data[4 * i], &ones_and_a_half[i % 2], sizeof(float));
    }
    if (d == DType::kBf16) {
      for (std::size_t i = 0; i < 20 * 256; ++i) w.data[2 * i + 1] = std::byte{0x40}, w.data[2 * i] = std::byte{0xc0};
    }
    for (const std::int64_t tokens : {1, 3, 6}) {
      Rows x(tokens, 256);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t k = 0; k < 256; ++k) x.at(t, k) = k == 37 * t ? (w.w.quantised() ? 0x1p-122F : 0x1p-140F) : 0;
      }
      Rows want(tokens, 20);
      make_ref_backend()->linear({.x = x.mat(), .w = w.w, .y = want.mat()});
      double sum = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < 20; ++o) sum += std::fabs(double{want.at(t, o)});
      }
      ASSERT_GT(sum, 0);
      testing::for_each_target([&](bool) {
        Rows y(tokens, 20);
        backends.threads(1).linear({.x = x.mat(), .w = w.w, .y = y.mat()});
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t o = 0; o < 20; ++o) ASSERT_EQ(y.at(t, o), want.at(t, o)) << t << " " << o;
        }
      });
    }
  }
}

TEST(Linear, OfficialBf16RoundsItsOutputs) {
  Rng rng(23);
  const OwnedWeight w = testing::random_weight(rng, DType::kBf16, 8, 64);
  const Rows x = Rows::normal(rng, 2, 64);
  testing::Backends backends;
  Rows y(2, 8);
  backends.threads(2).linear({.x = x.mat(), .w = w.w, .y = y.mat(), .carrier = Carrier::kBf16});
  for (std::int64_t o = 0; o < 8; ++o) EXPECT_EQ(y.at(1, o), quant::round_bf16(y.at(1, o)));
}

}  // namespace
}  // namespace fathom::ops

// The norms that stand alone: RMSNorm, query heads, window entries, MTP input, rotation tables, embedding.
#include <algorithm>

#include "ops/test_support.h"
#include "quant/block.h"

namespace fathom::ops {
namespace {

using testing::Rng;
using testing::Rows;

// Two roundings for the factor, three for the products, and the sum of squares: n/16 + 4 in a lane, halved by the root.
double norm_roundings(std::int64_t n, bool fma) { return 5 + (fma ? 1 : 2) * (static_cast<double>(n) / 32 + 2); }

class NormDiff : public ::testing::TestWithParam<std::pair<std::int64_t, std::int64_t>> {};

TEST_P(NormDiff, RmsNormMatchesReference) {
  const auto [tokens, n] = GetParam();
  Rng rng(1);
  const Rows x = Rows::normal(rng, tokens, n);
  const auto w = testing::normals(rng, n);
  Rows want(tokens, n);
  make_ref_backend()->rms_norm({.x = x.mat(), .w = w.data(), .y = want.mat(), .eps = 1e-6F});
  testing::Backends backends;
  std::unique_ptr<Rows> first;
  testing::for_each_target([&](bool fma) {
    Rows got(tokens, n);
    backends.threads(1).rms_norm({.x = x.mat(), .w = w.data(), .y = got.mat(), .eps = 1e-6F});
    EXPECT_TRUE(got.padding_untouched());
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_NEAR(got.at(t, i), want.at(t, i), norm_roundings(n, fma) * 0x1p-24 * std::fabs(want.at(t, i)));
      }
    }
    Rows in_place = x;
    backends.threads(3).rms_norm({.x = in_place.mat(), .w = w.data(), .y = in_place.mat(), .eps = 1e-6F});
    EXPECT_TRUE(in_place.same(got));
    if (!fma) return;
    EXPECT_TRUE(first == nullptr || first->same(got));
    first = std::make_unique<Rows>(got);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormDiff,
                         ::testing::Values(std::pair{0, 8}, std::pair{1, 1}, std::pair{3, 61}, std::pair{2, 15},
                                           std::pair{2, 16}, std::pair{2, 17}, std::pair{70, 512}, std::pair{2, 7168}));

struct HeadsCase {
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t dim;
  std::int64_t pairs;
};

std::ostream& operator<<(std::ostream& out, const HeadsCase& c) {
  return out << "T=" << c.tokens << " heads=" << c.heads << " dim=" << c.dim << " pairs=" << c.pairs;
}

struct Angles {
  Rows cos;
  Rows sin;
  Angles(std::int64_t tokens, std::int64_t pairs) : cos(tokens, pairs), sin(tokens, pairs) {
    const auto f = rope_frequencies(160000, static_cast<std::int32_t>(2 * pairs),
                                    {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536});
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
    for (std::size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<std::int32_t>(1000003 - 977 * t);
    make_cpu_backend({.threads = 2})
        ->rope_table({.positions = positions.data(), .frequencies = f.data(), .cos = cos.mat(), .sin = sin.mat()});
  }
};

class HeadsDiff : public ::testing::TestWithParam<HeadsCase> {};

TEST_P(HeadsDiff, QueryHeadsMatchReference) {
  const HeadsCase c = GetParam();
  Rng rng(2);
  const Rows x = Rows::normal(rng, c.tokens, c.heads * c.dim);
  const Angles a(c.tokens, c.pairs);
  const auto run = [&](Rows& q, Backend& backend) {
    backend.query_heads({.q = q.mat(),
                         .heads = static_cast<std::int32_t>(c.heads),
                         .cos = a.cos.mat(),
                         .sin = a.sin.mat(),
                         .eps = 1e-6F});
  };
  Rows want = x;
  run(want, *make_ref_backend());
  testing::Backends backends;
  testing::for_each_target([&](bool fma) {
    Rows got = x;
    run(got, backends.threads(1));
    EXPECT_TRUE(got.padding_untouched());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t i = 0; i < x.cols(); ++i) {
        // A rotated pair has a common magnitude, at most the sum of both.
        const std::int64_t partner = std::min(i ^ 1, x.cols() - 1);
        const double size = std::fabs(want.at(t, i)) + 2 * std::fabs(want.at(t, partner)) +
                            2 * std::fabs(want.at(t, std::max<std::int64_t>(i - 1, 0)));
        ASSERT_NEAR(got.at(t, i), want.at(t, i), (norm_roundings(c.dim, fma) + 3) * 0x1p-24 * size);
      }
    }
    Rows again = x;
    run(again, backends.threads(3));
    EXPECT_TRUE(again.same(got));
  });
}

TEST_P(HeadsDiff, WindowEntriesMatchReferenceThenAreQuantisedToTheBit) {
  const HeadsCase c = GetParam();
  Rng rng(3);
  const Rows x = Rows::normal(rng, c.tokens, c.dim);
  const auto w = testing::normals(rng, c.dim);
  const Angles a(c.tokens, c.pairs);
  const auto run = [&](Rows& kv, bool quantise, Backend& backend) {
    backend.window_entries({.kv = kv.mat(),
                            .norm_weight = w.data(),
                            .cos = a.cos.mat(),
                            .sin = a.sin.mat(),
                            .eps = 1e-6F,
                            .quantise = quantise});
  };
  Rows want = x;
  run(want, false, *make_ref_backend());
  testing::Backends backends;
  testing::for_each_target([&](bool fma) {
    Rows got = x;
    run(got, false, backends.threads(1));
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t i = 0; i < c.dim; ++i) {
        const std::int64_t partner = std::min(i ^ 1, c.dim - 1);
        const double size = std::fabs(want.at(t, i)) + 2 * std::fabs(want.at(t, partner)) +
                            2 * std::fabs(want.at(t, std::max<std::int64_t>(i - 1, 0)));
        ASSERT_NEAR(got.at(t, i), want.at(t, i), (norm_roundings(c.dim, fma) + 3) * 0x1p-24 * size);
      }
    }
    Rows quantised = x;
    run(quantised, true, backends.threads(2));
    EXPECT_TRUE(quantised.padding_untouched());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      quant::fp8_round_trip({got.mat().row(t), static_cast<std::size_t>(c.dim - 2 * c.pairs)}, quant::kEntryBlock);
      ASSERT_TRUE(quantised.same_row(t, got, t));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadsDiff,
                         ::testing::Values(HeadsCase{0, 2, 16, 4}, HeadsCase{1, 1, 2, 1}, HeadsCase{5, 3, 66, 7},
                                           HeadsCase{3, 64, 512, 32}, HeadsCase{40, 2, 128, 32}));

TEST(MtpInput, IsTheSumRoundedOnce) {
  Rng rng(4);
  for (const std::int64_t tokens : {0, 1, 5}) {
    const Rows e = Rows::normal(rng, tokens, 61);
    const Rows h = Rows::normal(rng, tokens * 4, 61);
    Rows want(tokens, 4 * 61);
    Rows got(tokens, 4 * 61);
    make_ref_backend()->mtp_input({.e = e.mat(), .h = h.mat(), .x = want.mat()});
    make_cpu_backend({.threads = 2})->mtp_input({.e = e.mat(), .h = h.mat(), .x = got.mat()});
    EXPECT_TRUE(got.same(want));
  }
}

TEST(Embed, CopiesTheRowToEveryStream) {
  Rng rng(5);
  const auto table = testing::random_weight(rng, DType::kBf16, 10, 37);
  const std::vector<std::int32_t> ids = {9, 0, 3, 3};
  Rows want(4, 4 * 37);
  Rows got(4, 4 * 37);
  make_ref_backend()->embed({.ids = ids.data(), .table = table.w, .streams = 4, .x = want.mat()});
  make_cpu_backend({.threads = 2})->embed({.ids = ids.data(), .table = table.w, .streams = 4, .x = got.mat()});
  EXPECT_TRUE(got.same(want));
}

}  // namespace
}  // namespace fathom::ops

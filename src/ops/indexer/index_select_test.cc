#include "ops/indexer/index_select.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "ops/test_batch.h"

namespace fathom::ops {
namespace {

using quant::EntryCodec;
using quant::EntryFormat;
using testing::Rng;
using testing::Rows;
using testing::TestBatch;

struct Case {
  std::vector<testing::Span> spans;
  std::int32_t heads;
  std::int32_t dim;
  std::int64_t k;
  EntryFormat format = EntryFormat::kFp4;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  for (const testing::Span& s : c.spans) out << s.start << "+" << s.tokens << " ";
  return out << "heads=" << c.heads << " dim=" << c.dim << " k=" << c.k;
}

struct Fixture {
  explicit Fixture(const Case& c_)
      : c(c_),
        keys{.offset = 4, .ratio = 4, .codec = {c.format, c.dim, 0}},
        batch(c.spans, 8, 4 + 32 * static_cast<std::int64_t>(keys.codec.bytes())),
        tokens(batch.batch().tokens),
        q(Rows::normal(rng, tokens, std::int64_t{c.heads} * c.dim)),
        weights(Rows::normal(rng, tokens, c.heads)) {
    testing::fill_cache(rng, batch, nullptr, &keys);
    for (std::int64_t t = 0; t < tokens && c.format == EntryFormat::kFp4; ++t) {
      for (std::int32_t h = 0; h < c.heads; ++h) {
        quant::fp4_round_trip({q.mat().row(t) + std::int64_t{h} * c.dim, static_cast<std::size_t>(c.dim)});
      }
    }
  }

  IndexSelect op(std::vector<std::int32_t>& selected) const {
    selected.assign(static_cast<std::size_t>(tokens * c.k), -7);
    return {.q = q.mat(),
            .weights = weights.mat(),
            .scale = 0.011F,
            .heads = c.heads,
            .batch = batch.batch(),
            .keys = keys,
            .selected = mat(selected, tokens, c.k)};
  }

  std::vector<std::int32_t> run(Backend& b) const {
    std::vector<std::int32_t> selected;
    b.index_select(op(selected));
    return selected;
  }

  Rng rng{41};
  Case c;
  EntryPages keys;
  TestBatch batch;
  std::int64_t tokens;
  Rows q, weights;
};

class IndexSelectDiff : public ::testing::TestWithParam<Case> {};

// The same entries, but for those whose score lies within the rounding of the border.
TEST_P(IndexSelectDiff, CpuSelectsWhatTheReferenceSelects) {
  const Case c = GetParam();
  const Fixture f(c);
  const auto want = f.run(*make_ref_backend());
  testing::Backends backends;
  std::vector<std::int32_t> first;
  testing::for_each_target([&](bool fma) {
    const auto got = f.run(backends.threads(1));
    for (const int threads : {2, 3}) EXPECT_EQ(f.run(backends.threads(threads)), got) << threads;
    for (std::int64_t t = 0; t < f.tokens; ++t) {
      const auto* g = &got[static_cast<std::size_t>(t * c.k)];
      const auto* w = &want[static_cast<std::size_t>(t * c.k)];
      if (std::equal(g, g + c.k, w)) continue;
      const std::int32_t n = (f.batch.positions()[static_cast<std::size_t>(t)] + 1) / 4;
      std::vector<std::int32_t> selected;
      std::vector<float> scores(static_cast<std::size_t>(n));
      index_scores(f.op(selected), t, n, scores.data());
      double size = 0;  // of the sum over heads: heads * |weight| * |dot|
      for (const float s : scores) size = std::max(size, double{std::fabs(s)});
      const double slack = size * (c.dim + c.heads) * 0x1p-24;
      double lowest = 1e30;
      for (std::int64_t i = 0; i < c.k; ++i) lowest = std::min(lowest, double{scores[static_cast<std::size_t>(w[i])]});
      ASSERT_TRUE(std::is_sorted(g, g + c.k)) << "ascending";
      ASSERT_EQ(std::set<std::int32_t>(g, g + c.k).size(), static_cast<std::size_t>(c.k)) << "no entry twice";
      for (std::int64_t i = 0; i < c.k; ++i) {
        ASSERT_GE(g[i], 0);
        ASSERT_LT(g[i], n);
        ASSERT_GE(scores[static_cast<std::size_t>(g[i])], lowest - slack) << "token " << t << " entry " << g[i];
      }
    }
    if (!fma) return;
    EXPECT_TRUE(first.empty() || first == got);
    first = got;
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, IndexSelectDiff,
                         ::testing::Values(Case{{{0, 3}}, 2, 32, 4}, Case{{{0, 40}, {5, 0}}, 6, 64, 8},
                                           Case{{{1000, 3}}, 64, 128, 50},
                                           Case{{{3, 90}, {700, 1}}, 5, 64, 16, EntryFormat::kF32},
                                           Case{{{4000, 1}}, 64, 128, 512}, Case{{{1021, 2}}, 33, 32, 255},
                                           Case{{{140'000, 1}}, 2, 32, 512}));  // three parts of the selection

// Equal scores: the lowest entries win. NaN scores lose. Zero of either sign is the same score.
TEST(IndexSelect, TiesGoToTheLowestEntryAndNanToNone) {
  Fixture f({{{399, 1}}, 1, 32, 10, EntryFormat::kF32});
  const Segment& s = f.batch.segments()[0];
  std::vector<float> key(32, 0.0F);
  for (std::int32_t w = 0; w < 100; ++w) {
    key[0] = w == 50 || w == 60 ? 2.0F : 1.0F;
    if (w % 3 == 0) key[0] = 0.0F;
    f.keys.codec.encode(key, f.keys.at(s, w));
  }
  for (std::int32_t i = 0; i < 32; ++i) f.q.at(0, i) = i == 0 ? 1.0F : 0.0F;
  testing::for_each_target([&](bool) {
    f.weights.at(0, 0) = 1;
    EXPECT_EQ(f.run(*make_cpu_backend({.threads = 1})), (std::vector<std::int32_t>{1, 2, 4, 5, 7, 8, 10, 11, 13, 50}));
    f.weights.at(0, 0) = -1;  // the clamped heads score -0, the others below
    EXPECT_EQ(f.run(*make_cpu_backend({.threads = 2})),
              (std::vector<std::int32_t>{0, 3, 6, 9, 12, 15, 18, 21, 24, 27}));
    f.weights.at(0, 0) = testing::kPoison;  // all scores are NaN: still entries that exist
    EXPECT_EQ(f.run(*make_cpu_backend({.threads = 2})), (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  });
}

// One head of weight 1: its score is the dot product of FP4 values, which is exact on every instruction set.
TEST(IndexSelect, ScoresOfFp4AreExact) {
  Fixture f({{{20'000, 3}}, 1, 128, 700});
  const Segment& s = f.batch.segments()[0];
  for (std::int32_t w = 0; w < 5000; ++w) {
    std::vector<float> key = testing::normals(f.rng, 128);
    for (std::size_t i = 0; i < key.size(); ++i) key[i] *= std::ldexp(1.0F, static_cast<int>(i / 32 * 3) - w % 5);
    f.keys.codec.encode(key, f.keys.at(s, w));
  }
  for (std::int64_t t = 0; t < f.tokens; ++t) f.weights.at(t, 0) = 1;
  const auto want = f.run(*make_ref_backend());
  testing::for_each_target([&](bool) {
    for (const int threads : {1, 3}) EXPECT_EQ(f.run(*make_cpu_backend({.threads = threads})), want) << threads;
  });
}

// Queries that are no FP4 values are not rounded to them; with a NaN among them every score is 0.
TEST(IndexSelect, QueriesThatAreNotFp4) {
  Fixture f({{{4000, 1}}, 1, 64, 40});
  f.weights.at(0, 0) = 1;
  for (std::int32_t i = 0; i < 64; ++i) f.q.at(0, i) = 1.0F + static_cast<float>(i) / 1024;
  const auto want = f.run(*make_ref_backend());
  testing::for_each_target([&](bool) { EXPECT_EQ(f.run(*make_cpu_backend({.threads = 2})), want); });
  f.q.at(0, 40) = testing::kPoison;
  std::vector<std::int32_t> first(40);
  std::iota(first.begin(), first.end(), 0);
  testing::for_each_target([&](bool) { EXPECT_EQ(f.run(*make_cpu_backend({.threads = 2})), first); });
}

// The best lie in every part, and the border falls among equals in a middle one.
TEST(IndexSelect, EqualsAcrossPartsOfALongContext) {
  constexpr std::int32_t kEntries = 60'000;
  Fixture f({{{4 * kEntries - 1, 1}}, 1, 32, 30'000});
  const Segment& s = f.batch.segments()[0];
  std::vector<float> key(32, 1.0F);
  std::vector<std::int32_t> want;
  std::int32_t equals = 30'000 - kEntries / 1000;
  for (std::int32_t w = 0; w < kEntries; ++w) {
    key[0] = w % 1000 == 999 ? 2.0F : 1.0F;
    f.keys.codec.encode(key, f.keys.at(s, w));
    if (key[0] == 2 || equals-- > 0) want.push_back(w);
  }
  for (std::int32_t i = 0; i < 32; ++i) f.q.at(0, i) = 1.0F;
  f.weights.at(0, 0) = 1;
  for (const int threads : {1, 2, 3}) EXPECT_EQ(f.run(*make_cpu_backend({.threads = threads})), want) << threads;
}

TEST(IndexQuery, MatchesReferenceThenIsQuantisedToTheBit) {
  Rng rng(43);
  for (const auto& [tokens, heads, dim, pairs] :
       {std::array<std::int64_t, 4>{0, 2, 32, 8}, {1, 3, 32, 16}, {9, 64, 128, 32}}) {
    const Rows x = Rows::normal(rng, tokens, heads * dim);
    const Rows cos = Rows::normal(rng, tokens, pairs);
    const Rows sin = Rows::normal(rng, tokens, pairs);
    const auto run = [&](Rows& q, bool quantise, Backend& b) {
      b.index_query({.q = q.mat(),
                     .heads = static_cast<std::int32_t>(heads),
                     .cos = cos.mat(),
                     .sin = sin.mat(),
                     .quantise = quantise});
    };
    Rows want = x;
    run(want, false, *make_ref_backend());
    testing::for_each_target([&](bool) {
      Rows got = x;
      run(got, false, *make_cpu_backend({.threads = 1}));
      // log2(dim) sums of values up to about 4 * sqrt(dim), scaled back by sqrt(dim).
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < x.cols(); ++i) ASSERT_NEAR(got.at(t, i), want.at(t, i), 10 * 8 * 0x1p-24);
      }
      Rows quantised = x;
      run(quantised, true, *make_cpu_backend({.threads = 3}));
      EXPECT_TRUE(quantised.padding_untouched());
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t h = 0; h < heads; ++h)
          quant::fp4_round_trip({got.mat().row(t) + h * dim, static_cast<std::size_t>(dim)});
        ASSERT_TRUE(quantised.same_row(t, got, t));
      }
    });
  }
}

}  // namespace
}  // namespace fathom::ops

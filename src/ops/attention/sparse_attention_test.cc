#include "ops/attention/sparse_attention.h"

#include <algorithm>
#include <numeric>

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
  std::int32_t rope;
  std::int32_t window;
  std::int32_t ratio;     // 0, 4 or 128
  std::int64_t selected;  // K; 0: all entries
  EntryFormat format = EntryFormat::kFp8RopeF32;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  for (const testing::Span& s : c.spans) out << s.start << "+" << s.tokens << " ";
  return out << "heads=" << c.heads << " dim=" << c.dim << " window=" << c.window << " ratio=" << c.ratio;
}

struct Fixture {
  explicit Fixture(const Case& c_, std::uint32_t seed = 21)
      : c(c_),
        rng(seed),
        codec{c.format, c.dim, c.rope},
        ring{.offset = 4, .capacity = c.window + 3, .codec = codec},
        entries{.offset = 8, .ratio = c.ratio, .codec = codec},
        batch(c.spans, 4 + ring.capacity * static_cast<std::int64_t>(codec.bytes()),
              8 + (c.ratio == 0 ? 0 : kPageTokens / c.ratio) * static_cast<std::int64_t>(codec.bytes())),
        tokens(batch.batch().tokens),
        q(Rows::normal(rng, tokens, std::int64_t{c.heads} * c.dim)),
        kv(tokens, c.dim),
        cos(Rows::normal(rng, tokens, c.rope / 2)),
        sin(Rows::normal(rng, tokens, c.rope / 2)),
        sink(testing::normals(rng, c.heads)) {
    testing::fill_cache(rng, batch, &ring, c.ratio == 0 ? nullptr : &entries);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto x = testing::random_entry(rng, codec);
      std::copy(x.begin(), x.end(), kv.mat().row(t));
    }
    selected.assign(static_cast<std::size_t>(tokens * c.selected), -1);
    for (std::int64_t t = 0; t < tokens && c.selected > 0; ++t) {
      std::vector<std::int32_t> all(
          static_cast<std::size_t>((batch.positions()[static_cast<std::size_t>(t)] + 1) / c.ratio));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), rng);
      const auto n = std::min<std::ptrdiff_t>(c.selected, static_cast<std::ptrdiff_t>(all.size()));
      std::sort(all.begin(), all.begin() + n);
      std::copy_n(all.begin(), n, selected.begin() + t * c.selected);
    }
  }

  SparseAttention op(Rows& out, const Batch& b, std::int64_t first = 0) const {
    const auto from = [first, &b](const Rows& r) {
      return Mat<const float>{r.mat().data + first * r.mat().ld, b.tokens, r.cols(), r.mat().ld};
    };
    SparseAttention a = {.q = from(q),
                         .kv = from(kv),
                         .heads = c.heads,
                         .window = c.window,
                         .batch = b,
                         .ring = ring,
                         .entries = entries,
                         .selected = {},
                         .sink = sink.data(),
                         .cos = from(cos),
                         .sin = from(sin),
                         .out = out.mat()};
    if (c.selected > 0) a.selected = {selected.data() + first * c.selected, b.tokens, c.selected, c.selected};
    return a;
  }

  Case c;
  Rng rng;
  EntryCodec codec;
  WindowRing ring;
  EntryPages entries;
  TestBatch batch;
  std::int64_t tokens;
  Rows q, kv, cos, sin;
  std::vector<float> sink;
  std::vector<std::int32_t> selected;
};

class AttentionDiff : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionDiff, CpuMatchesReferenceOnEveryTarget) {
  const Case c = GetParam();
  const Fixture f(c);
  const std::int64_t cols = f.q.cols();
  Rows want(f.tokens, cols);
  make_ref_backend()->sparse_attention(f.op(want, f.batch.batch()));
  testing::Backends backends;
  std::unique_ptr<Rows> first;
  testing::for_each_target([&](bool fma) {
    Rows got(f.tokens, cols);
    backends.threads(1).sparse_attention(f.op(got, f.batch.batch()));
    EXPECT_TRUE(got.padding_untouched());
    // Scores are sums of dim products of size 1, scaled by dim^-0.5: their error, dim/16 + 4 roundings of partial sums
    // up to sqrt(dim), is the relative error of the weights; values and cos, sin are of size 1 (up to about 4).
    const double roundings = (fma ? 1 : 2) * (c.dim / 16 + 16);
    const double bound = 4 * 4 * roundings * 0x1p-24;
    for (std::int64_t t = 0; t < f.tokens; ++t) {
      for (std::int64_t i = 0; i < cols; ++i) ASSERT_NEAR(got.at(t, i), want.at(t, i), bound) << t << " " << i;
    }
    for (const int threads : {2, 3}) {
      Rows again(f.tokens, cols);
      backends.threads(threads).sparse_attention(f.op(again, f.batch.batch()));
      EXPECT_TRUE(again.same(got)) << threads;
    }
    if (!fma) return;
    EXPECT_TRUE(first == nullptr || first->same(got));
    first = std::make_unique<Rows>(got);
  });
}

// One token decoded from the cache gives what it gave as part of a prompt.
TEST_P(AttentionDiff, ATokenAloneEqualsTheTokenInABatch) {
  const Case c = GetParam();
  const Fixture f(c);
  testing::Backends backends;
  Rows all(f.tokens, f.q.cols());
  backends.threads(1).sparse_attention(f.op(all, f.batch.batch()));
  for (std::size_t i = 0; i < f.batch.segments().size(); ++i) {
    const Segment& s = f.batch.segments()[i];
    for (std::int32_t k = 0; k < s.tokens; ++k) {
      const TestBatch::One one = f.batch.one(i, s.start + k, 1);
      Rows alone(1, f.q.cols());
      backends.threads(1 + k % 3).sparse_attention(f.op(alone, one.batch(), s.first_row + k));
      ASSERT_TRUE(alone.same_row(0, all, s.first_row + k)) << i << " " << k;
      backends.threads(1).store_window(
          {.kv = {f.kv.mat().row(s.first_row + k), 1, c.dim, f.kv.mat().ld}, .batch = one.batch(), .ring = f.ring});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionDiff,
                         ::testing::Values(Case{{{0, 1}}, 1, 16, 4, 8, 0, 0}, Case{{{0, 0}, {3, 2}}, 3, 24, 8, 5, 0, 0},
                                           Case{{{0, 70}, {130, 3}, {5, 1}}, 8, 64, 16, 61, 0, 0},
                                           Case{{{300, 5}, {0, 9}}, 5, 32, 8, 16, 4, 7},
                                           Case{{{700, 3}}, 6, 128, 64, 128, 4, 64},
                                           Case{{{3000, 2}}, 4, 48, 16, 128, 128, 0},
                                           Case{{{255, 4}}, 9, 80, 16, 20, 128, 0, EntryFormat::kF32},
                                           Case{{{2560, 1}, {2559, 1}}, 64, 512, 64, 128, 4, 512}));

TEST(Attention, ANanTokenSpoilsOnlyThoseThatSeeIt) {
  Fixture f({{{0, 12}, {0, 4}}, 4, 32, 8, 5, 0, 0, EntryFormat::kF32});
  f.kv.at(3, 0) = testing::kPoison;
  testing::for_each_target([&](bool) {
    Rows y(f.tokens, f.q.cols());
    make_cpu_backend({.threads = 2})->sparse_attention(f.op(y, f.batch.batch()));
    for (std::int64_t t = 0; t < f.tokens; ++t) EXPECT_EQ(std::isnan(y.at(t, 1)), t >= 3 && t <= 7) << t;
  });
}

TEST(Attention, StoreWindowLeavesTheSameBytesAsTheReference) {
  for (const std::int32_t n : {1, 7, 8, 9, 40}) {
    const Case c = {{{5, n}, {0, 2}}, 1, 80, 16, 5, 0, 0};
    const Fixture a(c);
    const Fixture b(c);
    make_ref_backend()->store_window({.kv = a.kv.mat(), .batch = a.batch.batch(), .ring = a.ring});
    make_cpu_backend({.threads = 3})->store_window({.kv = b.kv.mat(), .batch = b.batch.batch(), .ring = b.ring});
    EXPECT_EQ(a.batch.memory(), b.batch.memory());
  }
}

}  // namespace
}  // namespace fathom::ops

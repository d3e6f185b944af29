#include "ops/compressor/compress.h"

#include <algorithm>

#include "ops/rope/rope.h"
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
  std::int32_t ratio;
  std::int32_t dim;
  std::int32_t rope;
  EntryKind kind;
  bool quantise;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  for (const testing::Span& s : c.spans) out << s.start << "+" << s.tokens << " ";
  return out << "ratio=" << c.ratio << " dim=" << c.dim << (c.kind == EntryKind::kIndex ? " index" : " main");
}

struct Fixture {
  explicit Fixture(const Case& c_)
      : c(c_),
        codec{.format = !c.quantise                  ? EntryFormat::kF32
                        : c.kind == EntryKind::kMain ? EntryFormat::kFp8RopeF32
                                                     : EntryFormat::kFp4,
              .dim = c.dim,
              .rope_dim = c.kind == EntryKind::kIndex && c.quantise ? 0 : c.rope},
        width((c.ratio == 4 ? 2 : 1) * c.dim),
        ring{.offset = 8, .capacity = c.ratio == 4 ? 10 : 130, .width = width},
        entries{.offset = 4, .ratio = c.ratio, .codec = codec},
        batch(c.spans, 8 + std::int64_t{ring.capacity} * 2 * width * 4,
              4 + kPageTokens / c.ratio * static_cast<std::int64_t>(codec.bytes())),
        tokens(batch.batch().tokens),
        ape(testing::normals(rng, std::int64_t{c.ratio} * width)),
        norm(testing::normals(rng, c.dim)),
        kv(Rows::normal(rng, tokens, width)),
        score(Rows::normal(rng, tokens, width, 2)),
        frequencies(rope_frequencies(160000, c.rope, {})) {
    for (const Segment& s : batch.segments()) {
      for (std::int32_t p = std::max(0, s.start - ring.capacity); p < s.start; ++p) {
        const auto row = testing::normals(rng, std::int64_t{2} * width);
        std::copy(row.begin(), row.end(), ring.row(s.slot, p));
      }
    }
  }

  void run(Backend& b) {
    b.compress({.kv = kv.mat(),
                .score = score.mat(),
                .ape = ape.data(),
                .norm_weight = norm.data(),
                .frequencies = frequencies.data(),
                .rope_dim = c.rope,
                .kind = c.kind,
                .eps = 1e-6F,
                .quantise = c.quantise,
                .batch = batch.batch(),
                .ring = ring,
                .entries = entries});
  }

  // All entries made in this step, decoded.
  std::vector<float> made() const {
    std::vector<float> all;
    for (const Segment& s : batch.segments()) {
      for (std::int32_t w = s.start / c.ratio; w < (s.start + s.tokens) / c.ratio; ++w) {
        std::vector<float> x(static_cast<std::size_t>(c.dim));
        codec.decode(entries.at(s, w), x);
        all.insert(all.end(), x.begin(), x.end());
      }
    }
    return all;
  }

  Rng rng{31};
  Case c;
  EntryCodec codec;
  std::int32_t width;
  CompressorRing ring;
  EntryPages entries;
  TestBatch batch;
  std::int64_t tokens;
  std::vector<float> ape, norm;
  Rows kv, score;
  std::vector<float> frequencies;
};

class CompressDiff : public ::testing::TestWithParam<Case> {};

TEST_P(CompressDiff, CpuMatchesReferenceOnEveryTarget) {
  Case c = GetParam();
  c.quantise = false;
  Fixture want(c);
  want.run(*make_ref_backend());
  const auto want_entries = want.made();
  std::vector<float> first;
  testing::for_each_target([&](bool fma) {
    Fixture got(c);
    got.run(*make_cpu_backend({.threads = 1}));
    EXPECT_TRUE(got.score.same(want.score));
    EXPECT_TRUE(got.kv.padding_untouched());
    const auto entries = got.made();
    ASSERT_EQ(entries.size(), want_entries.size());
    // Pooled values are of size 1, weights sum to 1: ratio roundings of terms; the norm and the Hadamard's log2(dim)
    // sums of values up to a few.
    const double bound = (2 * c.ratio + c.dim / 8.0 + 40) * 0x1p-24 * 8;
    for (std::size_t i = 0; i < entries.size(); ++i) ASSERT_NEAR(entries[i], want_entries[i], bound) << i;
    for (const int threads : {2, 3}) {
      Fixture again(c);
      again.run(*make_cpu_backend({.threads = threads}));
      EXPECT_EQ(again.batch.memory(), got.batch.memory());
    }
    if (!fma) return;
    EXPECT_TRUE(first.empty() || first == entries);
    first = entries;
  });
}

TEST_P(CompressDiff, QuantisedEntriesAreTheCodesOfTheUnquantised) {
  Case c = GetParam();
  c.quantise = false;
  testing::for_each_target([&](bool) {
    Fixture plain(c);
    plain.run(*make_cpu_backend({.threads = 1}));
    Case q = c;
    q.quantise = true;
    Fixture quantised(q);
    quantised.run(*make_cpu_backend({.threads = 2}));
    auto want = plain.made();
    for (std::size_t at = 0; at < want.size(); at += static_cast<std::size_t>(c.dim)) {
      const auto entry = std::span(want).subspan(at, static_cast<std::size_t>(c.dim));
      if (c.kind == EntryKind::kIndex) {
        quant::fp4_round_trip(entry);
      } else {
        quant::fp8_round_trip(entry.first(static_cast<std::size_t>(c.dim - c.rope)), quant::kEntryBlock);
      }
    }
    EXPECT_EQ(quantised.made(), want);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, CompressDiff,
                         ::testing::Values(Case{{{0, 1}}, 4, 32, 8, EntryKind::kMain, false},
                                           Case{{{0, 0}, {3, 1}, {4, 13}}, 4, 64, 64, EntryKind::kIndex, false},
                                           Case{{{0, 30}, {7, 6}, {9, 1}}, 4, 80, 16, EntryKind::kMain, false},
                                           Case{{{0, 260}, {100, 40}}, 128, 96, 32, EntryKind::kMain, false},
                                           Case{{{126, 2}, {2, 9}}, 4, 512, 64, EntryKind::kMain, false},
                                           Case{{{5, 11}}, 4, 128, 64, EntryKind::kIndex, false}));

TEST(Compress, AnyCutGivesTheSameEntriesAndTheSameRing) {
  for (const std::int32_t ratio : {4, 128}) {
    const Case whole = {{{0, 300}}, ratio, 64, 16, EntryKind::kMain, true};
    Fixture want(whole);
    const auto backend = make_cpu_backend({.threads = 2});
    want.run(*backend);
    for (const std::int32_t cut : {1, 3, 4, 5, 127, 128, 129}) {
      Fixture got(whole);
      for (std::int32_t at = 0; at < 300; at += cut) {
        const std::int32_t n = std::min(cut, 300 - at);
        const TestBatch::One one = got.batch.one(0, at, n);
        const auto part = [at, n](Rows& r) { return Mat<float>{r.mat().row(at), n, r.cols(), r.mat().ld}; };
        backend->compress({.kv = part(got.kv),
                           .score = part(got.score),
                           .ape = got.ape.data(),
                           .norm_weight = got.norm.data(),
                           .frequencies = got.frequencies.data(),
                           .rope_dim = 16,
                           .kind = EntryKind::kMain,
                           .eps = 1e-6F,
                           .quantise = true,
                           .batch = one.batch(),
                           .ring = got.ring,
                           .entries = got.entries});
      }
      EXPECT_EQ(got.batch.memory(), want.batch.memory()) << "ratio " << ratio << " cut " << cut;
    }
  }
}

}  // namespace
}  // namespace fathom::ops

#include "ops/moe/experts.h"

#include <algorithm>
#include <numeric>

#include "ops/cpu.h"
#include "ops/test_support.h"

namespace fathom::ops {
namespace {

using testing::OwnedWeight;
using testing::Rng;
using testing::Rows;

struct Case {
  DType routed;
  DType shared;
  std::int64_t tokens;
  std::int64_t d;
  std::int64_t inner;
  std::int32_t n_experts;
  std::int64_t k;
  bool quantise;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.routed) << " " << name_of(c.shared) << " T=" << c.tokens << " d=" << c.d
             << " inner=" << c.inner;
}

class ExpertsDiff : public ::testing::TestWithParam<Case> {};

struct Fixture {
  Fixture(const Case& c_, std::uint32_t seed)
      : c(c_), rng(seed), x(Rows::normal(rng, c.tokens, c.d)), weights(c.tokens, c.k) {
    const auto make = [&](DType d, ExpertWeights& e) {
      for (auto [w, rows, cols] : {std::tuple{&e.w1, c.inner, c.d}, {&e.w3, c.inner, c.d}, {&e.w2, c.d, c.inner}}) {
        owned.push_back(std::make_unique<OwnedWeight>(testing::random_weight(rng, d, rows, cols)));
        *w = owned.back()->w;
      }
    };
    routed.resize(static_cast<std::size_t>(c.n_experts));
    for (ExpertWeights& e : routed) make(c.routed, e);
    make(c.shared, shared);
    std::vector<std::int32_t> all(static_cast<std::size_t>(c.n_experts));
    std::iota(all.begin(), all.end(), 0);
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      std::shuffle(all.begin(), all.end(), rng);
      std::sort(all.begin(), all.begin() + c.k);
      chosen.insert(chosen.end(), all.begin(), all.begin() + c.k);
      for (std::int64_t i = 0; i < c.k; ++i) weights.at(t, i) = std::uniform_real_distribution<float>(0.1F, 0.9F)(rng);
    }
  }

  void run(Rows& y, Backend& backend) const { backend.experts(op(y, 0, c.tokens)); }
  void run(Rows& y, Backend& backend, std::int64_t first, std::int64_t n) const { backend.experts(op(y, first, n)); }

  Experts op(Rows& y, std::int64_t first, std::int64_t n) const {
    return {.x = {x.mat().data + first * x.mat().ld, n, c.d, x.mat().ld},
            .routed = routed.data(),
            .n_routed = c.n_experts,
            .routed_like = routed.front(),
            .shared = shared,
            .experts = {chosen.data() + first * c.k, n, c.k, c.k},
            .weights = {weights.mat().data + first * weights.mat().ld, n, c.k, weights.mat().ld},
            .swiglu_limit = 10,
            .quantise = c.quantise,
            .y = y.mat()};
  }

  Case c;
  Rng rng;
  std::vector<std::unique_ptr<OwnedWeight>> owned;
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
  Rows x;
  std::vector<std::int32_t> chosen;
  Rows weights;
};

TEST_P(ExpertsDiff, CpuMatchesReferenceOnEveryTarget) {
  const Case c = GetParam();
  const Fixture f(c, 8);
  Rows want(c.tokens, c.d);
  f.run(want, *make_ref_backend());
  double size = 0;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t i = 0; i < c.d; ++i) size = std::max(size, double{std::fabs(want.at(t, i))});
  }
  testing::Backends backends;
  std::unique_ptr<Rows> first;
  testing::for_each_target([&](bool fma) {
    Rows got(c.tokens, c.d);
    f.run(got, backends.threads(1));
    EXPECT_TRUE(got.padding_untouched());
    double worst = 0;
    double squares = 0;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      for (std::int64_t i = 0; i < c.d; ++i) {
        const double error = std::fabs(double{got.at(t, i)} - double{want.at(t, i)});
        worst = std::max(worst, error);
        squares += error * error;
      }
    }
    if (c.tokens > 0) {
      // Without quantisation only roundings differ: d/16 + inner/16 of them in a lane, far below 2^-16 of the largest
      // output. With it, a z on a border between two codes may fall to either side: one code is 2^-4 of its value, and
      // one of `inner` z's moves an output by about 2^-4 / sqrt(inner) of its size. Few do, so the mean stays small.
      const double limit =
          c.quantise ? size * 0x1p-3 / std::sqrt(static_cast<double>(c.inner)) + 0x1p-16 * size : size * 0x1p-16;
      EXPECT_LE(worst, limit);
      EXPECT_LE(std::sqrt(squares / static_cast<double>(c.tokens * c.d)), c.quantise ? limit / 8 : limit);
    }
    for (const int threads : {2, 3}) {
      Rows again(c.tokens, c.d);
      f.run(again, backends.threads(threads));
      EXPECT_TRUE(again.same(got)) << threads;
    }
    Rows plain(c.tokens, c.d);
    f.run(plain, backends.plain());
    EXPECT_TRUE(plain.same(got)) << "without the bf16 dot product";
    for (std::int64_t t = 0; t < c.tokens; t += std::max<std::int64_t>(1, c.tokens / 5)) {
      Rows alone(1, c.d);
      f.run(alone, backends.threads(2), t, 1);
      ASSERT_TRUE(alone.same_row(0, got, t)) << t;
    }
    if (!fma) return;
    EXPECT_TRUE(first == nullptr || first->same(got));
    first = std::make_unique<Rows>(got);
  });
}

// Threads on nodes that this machine does not have, one each.
TEST_P(ExpertsDiff, NodesShareOutTheRowsOfEveryExpert) {
  const Case c = GetParam();
  const Fixture f(c, 8);
  Rows want(c.tokens, c.d);
  testing::Backends backends;
  f.run(want, backends.threads(1));
  for (const int nodes : {2, 3}) {
    std::vector<Processor> processors;
    for (int i = 0; i < nodes; ++i) processors.push_back({.id = 8'000 + i, .core = 8'000 + i, .node = i});
    ThreadPool pool(nodes, processors);
    ASSERT_EQ(pool.parts(), nodes);
    cpu::Scratch scratch;
    cpu::Context context = {pool, scratch};
    Rows got(c.tokens, c.d);
    cpu::run(f.op(got, 0, c.tokens), context);
    EXPECT_TRUE(got.same(want)) << nodes;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertsDiff,
                         ::testing::Values(Case{DType::kFp4x2, DType::kF8E4M3, 0, 64, 32, 4, 2, true},
                                           Case{DType::kFp4x2, DType::kF8E4M3, 1, 128, 64, 8, 3, true},
                                           Case{DType::kFp4x2, DType::kF8E4M3, 1, 4096, 32, 2, 1, true},
                                           Case{DType::kFp4x2, DType::kF8E4M3, 7, 96, 160, 5, 2, false},
                                           Case{DType::kFp4x2, DType::kF8E4M3, 40, 256, 128, 6, 2, true},
                                           Case{DType::kF8E4M3, DType::kF8E4M3, 9, 136, 72, 4, 4, true},
                                           Case{DType::kBf16, DType::kBf16, 5, 61, 33, 3, 1, false},
                                           Case{DType::kF32, DType::kF32, 300, 32, 32, 3, 2, false}));

TEST(Experts, AnExpertNamedTwiceCountsTwice) {
  Fixture twice({DType::kF32, DType::kF32, 3, 32, 32, 4, 2, false}, 9);
  std::fill(twice.chosen.begin(), twice.chosen.end(), 2);
  Rows want(3, 32), got(3, 32);
  twice.run(want, *make_ref_backend());
  twice.run(got, *make_cpu_backend({.threads = 2}));
  for (std::int64_t i = 0; i < 32; ++i) EXPECT_NEAR(got.at(1, i), want.at(1, i), 1e-4 * (1 + std::fabs(want.at(1, i))));
}

// Gates and ups of some hundreds, far beyond the limit of 10 either way, in routed and shared experts alike.
TEST(Experts, TheClampIsThere) {
  Fixture f({DType::kF32, DType::kF32, 3, 32, 32, 4, 2, false}, 12);
  for (std::int64_t t = 0; t < 3; ++t) {
    for (std::int64_t i = 0; i < 32; ++i) f.x.at(t, i) *= 1000;
  }
  Rows want(3, 32);
  f.run(want, *make_ref_backend());
  testing::for_each_target([&](bool) {
    Rows got(3, 32);
    f.run(got, *make_cpu_backend({.threads = 1}));
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t i = 0; i < 32; ++i) ASSERT_NEAR(got.at(t, i), want.at(t, i), 1e-4 * 100);
    }
  });
}

TEST(Experts, ANanTokenSpoilsOnlyItself) {
  Fixture f({DType::kFp4x2, DType::kF8E4M3, 6, 128, 64, 2, 1, true}, 10);
  f.x.at(2, 5) = testing::kPoison;
  testing::for_each_target([&](bool) {
    Rows y(6, 128);
    f.run(y, *make_cpu_backend({.threads = 1}));
    for (std::int64_t t = 0; t < 6; ++t) EXPECT_EQ(std::isnan(y.at(t, 7)), t == 2) << t;
  });
}

TEST(Route, MatchesReference) {
  Rng rng(11);
  Rows logits = Rows::normal(rng, 50, 37);
  logits.at(3, 5) = testing::kPoison;
  const auto bias = testing::normals(rng, 37);
  const auto run = [&](Backend& b) {
    std::vector<std::int32_t> experts(50 * 6);
    Rows weights(50, 6);
    b.route({.logits = logits.mat(),
             .bias = bias.data(),
             .route_scale = 1.5F,
             .experts = mat(experts, 50, 6),
             .weights = weights.mat()});
    return std::pair{experts, weights};
  };
  const auto want = run(*make_ref_backend());
  const auto got = run(*make_cpu_backend({.threads = 3}));
  EXPECT_EQ(got.first, want.first);
  EXPECT_TRUE(got.second.same(want.second));
}

}  // namespace
}  // namespace fathom::ops
